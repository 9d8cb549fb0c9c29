"""Adapters that put the released Triton kernels of serving engines behind the contract: `kvproof check kernels-vllm`, `kernels-sglang`.

Only the files that hold the kernels are imported, from an installed engine or from `KVPROOF_ENGINES`; see `sources`. Nothing of an engine
is copied here.
"""
