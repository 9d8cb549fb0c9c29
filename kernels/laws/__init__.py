"""The kernel laws as checks of a `PagedKernels` adapter."""
