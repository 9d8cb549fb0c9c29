"""Paged kernels for GPUs: store, decode, prefill, copy, gather and scatter in Triton, and the same in plain torch.

    from kvproof.kernels.paged.adapter import PagedTriton     # Triton, on a GPU or on the IR machine
    from kvproof.kernels.paged.torch_path import PagedTorch   # anywhere

Each kernel has a file of its own, whose header says how it walks memory; `adapter` launches them behind the contract of
`kvproof.kernels.contract`. docs/paged-kernels.md shows layouts and error bounds.
"""
