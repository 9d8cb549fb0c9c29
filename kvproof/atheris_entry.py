"""The entry point for Atheris, which guides the swarm generator by the coverage of the cache's own code.

    pip install 'kvproof[atheris]'
    python -m kvproof.atheris_entry mypkg.kv:Adapter CORPUS -max_total_time=600

The module of TARGET is instrumented as it is imported; what follows TARGET goes to libFuzzer. A broken law ends the run: libFuzzer keeps the bytes, and the shrunk program is written
to `.kvproof/failures` for `kvproof replay`.
"""

from __future__ import annotations

import sys

from kvproof.fuzz.campaigns.findings import finding_of
from kvproof.fuzz.from_bytes import run_bytes
from kvproof.fuzz.programs import FAILURES, Program, write_program
from kvproof.fuzz.runs import Search
from kvproof.fuzz.shrink import shrink
from kvproof.impl.checker import AdapterFault, read_capabilities
from kvproof.targets import BadTarget, find_target


class Found(AssertionError):
    """What ends a run of libFuzzer."""


class EntryPoint:
    """What libFuzzer calls, again and again."""

    def __init__(self, target: type, name: str, op_seconds: float = 10.0) -> None:
        self.search = Search(target, name, read_capabilities(target), 0, 1, float("inf"), op_seconds, None, frozenset())

    def __call__(self, data: bytes) -> None:
        """Run the program of `data`. Raises Found."""
        ran = run_bytes(self.search, data)
        if ran.found is not None:
            raise Found(self._told(ran.found.program))

    def _told(self, program: Program) -> str:
        short = shrink(program, self.search.target) if program.violation else program
        finding = finding_of(short)
        path = FAILURES / f"{finding.law or 'fault'}-atheris.json"
        write_program(path, short)
        return f"{finding.law or 'fault'}: {finding.reason} ({finding.steps} operations, in {path})"


def main(arguments: list[str]) -> int:
    """Fuzz the target that the first argument names. Returns only where it cannot begin."""
    try:
        import atheris
    except ImportError:
        print("kvproof: Atheris is not installed; run `pip install 'kvproof[atheris]'`.", file=sys.stderr)
        return 2
    if not arguments or arguments[0].startswith("-"):
        print(
            "kvproof: No target is named; write python -m kvproof.atheris_entry module:Class [CORPUS] [libFuzzer options].", file=sys.stderr
        )
        return 2
    try:
        with atheris.instrument_imports():
            entry = EntryPoint(find_target(arguments[0]), arguments[0])
    except (BadTarget, AdapterFault) as error:
        print(f"kvproof: {error}", file=sys.stderr)
        return 2
    atheris.Setup([sys.argv[0], *arguments[1:]], entry)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
