"""A pin is a flag: the first of two readers that unpins a chunk exposes it to eviction while the other reads. Uses LMCache's CPU backend alone.

pip download --no-deps lmcache==0.3.2 && unzip -o lmcache-0.3.2-*.whl -d wheel
pip install torch sortedcontainers (a build of torch for CPUs is enough)
python lmcache_pin_flag.py wheel
"""

import sys
import threading
from collections import OrderedDict

import torch
from wheel import load

V1 = "lmcache.v1"
BACKENDS = f"{V1}.storage_backend"
REAL = [
    f"{V1}.memory_management",
    f"{BACKENDS}.local_cpu_backend",
    f"{BACKENDS}.abstract_backend",
    "lmcache.utils",
    "lmcache.integration.vllm.utils",
]
load(sys.argv[1], "lmcache", REAL, keep=["torch", "numpy", "sortedcontainers", "cachetools"])

from lmcache.utils import CacheEngineKey  # noqa: E402
from lmcache.v1.memory_management import MixedMemoryAllocator, TensorMemoryAllocator  # noqa: E402
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # noqa: E402

BYTES = 4096
"""Of a chunk; there is room for two."""


def without_init(kind, **attributes):
    """Its own `__init__` wants a CUDA stream."""
    made = object.__new__(kind)
    made.__dict__.update(attributes)
    return made


memory = TensorMemoryAllocator(torch.zeros(2 * BYTES, dtype=torch.uint8), align_bytes=BYTES)
mixed = without_init(MixedMemoryAllocator, pin_allocator=memory, host_mem_lock=threading.Lock())
backend = without_init(
    LocalCPUBackend, hot_cache=OrderedDict(), use_hot=True, lookup_server=None, memory_allocator=mixed, lmcache_worker=None, instance_id="",
    cpu_lock=threading.Lock(), stats_monitor=memory.stats_monitor, usage=0, layerwise=False, enable_blending=False, keys_in_request=[],
)  # fmt: skip


def chunk(name):
    """A chunk is stored, and its writer lets go of it."""
    key = CacheEngineKey(fmt="vllm", model_name="model", world_size=1, worker_id=0, chunk_hash=name)
    stored = backend.allocate(torch.Size([BYTES]), torch.uint8)
    backend.submit_put_task(key, stored)
    stored.ref_count_down()
    return key


key = chunk("shared")
assert backend.contains(key, pin=True)  # a first reader
assert backend.contains(key, pin=True)  # a second one
backend.unpin(key)  # the first has done
chunk("other")
chunk("one more")  # room is needed: what nobody reads is evicted
there = backend.contains(key, pin=False)
print(f"The second reader's chunk is {'still there' if there else 'gone, and its memory holds another chunk, while it is read'}.")
sys.exit(not there)
