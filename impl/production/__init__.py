"""The production cache: block ownership for a paged KV cache, ready for an engine. Standard library only.

    from kvproof.impl.production import PagedCache

    cache = PagedCache(num_blocks=4096, block_size=16)
    cache.admit(0, prompt, {"tenant": "a"})
    grant = cache.extend(0, len(prompt))      # adopts the longest cached prefix, makes room for the rest; or raises OutOfBlocks
    plan = cache.begin_step()                 # what the device must copy, and the block tables that changed
    ...                                       # launch: plan.copies first, then one forward pass for plan.sequences
    cache.end_step(plan.step)                 # the device has finished
    cache.commit(0)                           # whole blocks become matchable
    cache.append(0, [sampled])
    cache.release(0)

With more than one sequence, `cache.decode(seqs, sampled)` commits, appends and extends for all of them in one call; `docs/production-cache.md`
has a scheduler's step in the order of its calls.

`cache.py` holds the operations, `decoding.py` that for a batch, `passes.py` room before a pass and commits after it, `holdings.py` how blocks
come and go below them, `pool.py` who holds which block, `index.py` what is matchable, `reuse.py` how much of that one prompt can adopt,
`sequence.py` one sequence, `tokens.py` token ids as bytes, `groups.py` full and windowed layers, `mirror.py` the device's copy of the block
tables, `records.py` what the cache answers, `errors.py` what it raises. `adapter.py` and `batched_adapter.py` put it under the verification
suite, and are the only modules that know it.
"""

from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.groups import GroupSpec
from kvproof.impl.production.mirror import WorkerMirror
from kvproof.impl.production.pool import BlockPool
from kvproof.impl.production.records import BlockEvent, Books, CacheStats, ExtendGrant, HostCopies, StepPlan, TableDelta

__all__ = [
    "BlockEvent",
    "BlockPool",
    "Books",
    "CacheStats",
    "ExtendGrant",
    "GroupSpec",
    "HostCopies",
    "PagedCache",
    "StepPlan",
    "TableDelta",
    "WorkerMirror",
]
