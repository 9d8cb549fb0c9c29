"""Serve a few requests with the engine, and look at what the cache did. Needs `pip install 'kvproof[kernels]'`.

python examples/serve_a_batch.py
"""

import sys

try:
    from kvproof.impl.engine.config import ModelConfig
    from kvproof.impl.engine.engine import Engine
    from kvproof.impl.engine.model import Transformer
    from kvproof.impl.engine.server import Limits, Request, Server
except ModuleNotFoundError as error:
    print(f"The engine needs {error.name}, which is not installed; run `pip install 'kvproof[kernels]'`.", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    engine = Engine(Transformer(ModelConfig()), num_blocks=10, block_size=4, host_blocks=10)
    server = Server(engine, Limits(batch_tokens=12, chunk_tokens=6, steps_in_flight=2, preemption="swap"))
    prompt = (3, 9, 1, 40, 5, 3, 9, 1, 40)
    server.submit(Request(prompt, new_tokens=12, drafts=3))
    while server.engine.cache.stats().cached_blocks == 0:
        server.step()
    server.submit(Request(prompt, new_tokens=8, beams=2))
    server.submit(Request((*prompt, 7, 7), new_tokens=10))
    for number, answers in sorted(server.run().items()):
        for answer in answers:
            print(f"request {number}:", *answer.tokens, f"({answer.score:.2f})" if answer.score else "")
    stats = engine.cache.stats()
    print(f"{stats.hit_tokens} tokens were found computed, {stats.copied_blocks} blocks copied, {stats.swaps_out} swaps out")


if __name__ == "__main__":
    main()
