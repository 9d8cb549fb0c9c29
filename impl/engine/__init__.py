"""A small inference engine on the production cache and the paged kernels: the example of how an engine uses them, and the end-to-end law.

    from kvproof.impl.engine.config import ModelConfig
    from kvproof.impl.engine.engine import Engine
    from kvproof.impl.engine.model import Transformer
    from kvproof.impl.engine.server import Request, Server

    server = Server(Engine(Transformer(ModelConfig()), num_blocks=64, block_size=16))
    number = server.submit(Request(prompt=(5, 6, 7), new_tokens=20))
    [answer] = server.run()[number]

From the device up: `config.py` and `model.py` are the transformer, `store.py` keeps its keys and values in blocks, `batch.py` turns passes into
tensors, `worker.py` is the device's side of every step, `engine.py` joins it with the cache, operation by operation, and `server.py` decides
which operations. `contiguous.py` is the same model without blocks, batches and kernels, in float64: what the engine is judged by, in
`adapter.py`, which puts it under the suite. Needs the extra `kernels`.
"""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError("The engine needs torch, which is not installed; run `pip install 'kvproof[kernels]'`.", name="torch")
