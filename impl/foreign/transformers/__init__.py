"""transformers: the paged cache of its continuous batching."""
