"""The JSON Schemas of what kvproof reads and writes, as `kvproof schema` prints them and `docs/schemas/` keeps them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvproof.fuzz.programs import Program
from kvproof.fuzz.traces.format import End, Header, Line
from kvproof.fuzz.verdicts import Report

KINDS: Final = ("program", "failure", "report", "trace")

_TITLES: Final = {
    "program": "A kvproof program",
    "failure": "A kvproof failure: a program with the violation or the fault that it shows",
    "report": "A kvproof report, as `kvproof check --json` writes it",
    "trace": "One line of a kvproof trace: the header, an operation, or the end line",
}


def schema(kind: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one of KINDS."""
    inner = _trace_line() if kind == "trace" else msgspec.json.schema(Report if kind == "report" else Program)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": _TITLES[kind], **inner}
    if kind == "failure":
        whole["anyOf"] = [{"required": ["violation"]}, {"required": ["fault"]}]
    return whole


def _trace_line() -> dict[str, Any]:
    lines, definitions = msgspec.json.schema_components([Header, Line, End], ref_template="#/$defs/{name}")
    return {"anyOf": list(lines), "$defs": definitions}


def schema_text(kind: str) -> bytes:
    """The schema as it stands in a file."""
    return msgspec.json.format(msgspec.json.encode(schema(kind)), indent=2) + b"\n"
