"""Small production caches, and how tests make them compute."""

from kvproof.impl.production import GroupSpec, PagedCache

WINDOW = GroupSpec("sliding_window", window=4)


def make(num_blocks=8, block_size=2, **options):
    return PagedCache(num_blocks, block_size, **{"steps": False, "events": True, **options})


def compute(cache, seq, tokens, namespace=None, **extend):
    """Admits a prompt and computes all of it at once; returns the block table."""
    cache.admit(seq, tokens, namespace)
    cache.extend(seq, len(tokens), **extend)
    cache.commit(seq)
    return cache.block_table(seq)


def cached(cache):
    return set(cache.books().cached)


def step(cache):
    plan = cache.begin_step()
    cache.end_step(plan.step)
    return plan
