"""vLLM: the cache manager of its engine V1, and the block manager of V0."""
