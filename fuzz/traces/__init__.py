"""Traces: what a cache was seen to do, one line for each operation. `docs/trace-format.md` describes the format."""

from kvproof.fuzz.traces.format import BadTrace, Header, Line
from kvproof.fuzz.traces.read import read_trace
from kvproof.fuzz.traces.write import TraceWriter

__all__ = ["BadTrace", "Header", "Line", "TraceWriter", "read_trace"]
