"""What all kernel properties share: skipping where the extra `kernels` is missing, and Triton's interpreter."""

from kvproof.properties.extras import interpreter, pytest_pycollect_makemodule

__all__ = ["interpreter", "pytest_pycollect_makemodule"]
