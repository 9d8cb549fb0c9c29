"""Plain paged kernels: written to be read, and the first clients of the contract."""
