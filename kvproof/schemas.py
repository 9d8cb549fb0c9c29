"""The JSON Schemas of what kvproof reads and writes, as `kvproof schema` prints them and `docs/schemas/` keeps them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvproof.fuzz.kernel_failures import KernelFailure
from kvproof.fuzz.programs import Program
from kvproof.fuzz.verdicts import Report

KINDS: Final = ("program", "failure", "kernel-failure", "report")

_TITLES: Final = {
    "program": "A kvproof program",
    "failure": "A kvproof failure: a program with the violation or the fault that it shows",
    "kernel-failure": "A kvproof failure of kernels: the case that breaks a law",
    "report": "A kvproof report, as `kvproof check --json` writes it",
}

_TYPES: Final[dict[str, type]] = {"report": Report, "kernel-failure": KernelFailure}


def schema(kind: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one of KINDS."""
    inner = msgspec.json.schema(_TYPES.get(kind, Program))
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": _TITLES[kind], **inner}
    if kind == "failure":
        whole["anyOf"] = [{"required": ["violation"]}, {"required": ["fault"]}]
    return whole


def schema_text(kind: str) -> bytes:
    """The schema as it stands in a file."""
    return msgspec.json.format(msgspec.json.encode(schema(kind)), indent=2) + b"\n"
