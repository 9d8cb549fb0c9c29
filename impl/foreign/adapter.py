"""What every adapter to an engine shares: it knows a failure of the engine's own code from one of its own.

An engine that finds its books wrong often dies of an assertion. That is the cache's failure, provided that the adapter asked for nothing that the engine's own scheduler
would not ask for, so it is judged by the laws. A missing attribute of something that the adapter made, or a wrong argument, is the adapter's.
"""

from __future__ import annotations

from typing import Final

from kvproof.impl.adapter import CacheAdapter
from kvproof.impl.foreign.loading import loaded_engine

FAILURES: Final = (AssertionError, AttributeError, LookupError, RuntimeError, ValueError)
"""What engines raise where their books are wrong. A TypeError is more often an argument that moved."""


class EngineAdapter(CacheAdapter):
    """An adapter to an engine that `loading` has loaded."""

    def raised_by_cache(self, error: Exception) -> bool:
        """Whether the statement that raised `error` is the engine's, and what it failed on too."""
        package = loaded_engine().release.engine.package
        if not isinstance(error, FAILURES) or isinstance(error, NotImplementedError) or not _belongs(_raising_module(error), package):
            return False
        return not isinstance(error, AttributeError) or error.obj is None or _belongs(type(error.obj).__module__, package)


def _raising_module(error: Exception) -> str:
    """The module whose code raised `error`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))


def _belongs(module: str, package: str) -> bool:
    return module.partition(".")[0] == package
