"""LMCache: the allocator of its memory in CPU RAM."""
