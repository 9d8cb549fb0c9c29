"""The production cache and the paged kernels together, on real tensors and without a model: every sequence's attention against its history."""
