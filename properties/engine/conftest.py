"""These tests run the engine, so they need the extra `kernels`."""

from kvproof.properties.extras import pytest_pycollect_makemodule

__all__ = ["pytest_pycollect_makemodule"]
