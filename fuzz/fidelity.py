"""Whether an engine behaves the same behind the import hook as with everything that it really imports: a digest of all that it shows in many programs.

python -m kvproof.fuzz.fidelity transformers==5.24.0 fetched      from its fetched files, the rest stubbed
python -m kvproof.fuzz.fidelity transformers==5.24.0 installed    as it is installed in this environment
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Final

import msgspec

from kvproof.fuzz.swarm import Config, Swarm
from kvproof.impl.checker import AdapterFault, read_capabilities
from kvproof.impl.foreign.loading import load
from kvproof.impl.foreign.registry import engine_adapter, find_release
from kvproof.impl.foreign.releases import BadRelease
from kvproof.properties.lockstep import LawBroken, Lockstep

PROGRAMS: Final = 200
"""About 8,000 operations."""


def digest(adapter: type, programs: int = PROGRAMS) -> tuple[str, int]:
    """The SHA-256 of every answer, block table and snapshot of `adapter` in so many programs, and the number of operations."""
    capabilities = read_capabilities(adapter)
    shown, operations = hashlib.sha256(), 0
    for number in range(programs):
        rng = random.Random(f"fidelity:{number}")
        config = Config(rng, capabilities)
        lockstep = Lockstep(adapter, num_blocks=config.num_blocks, block_size=config.block_size, capabilities=capabilities, keep_trace=True)
        swarm = Swarm(rng, capabilities, num_blocks=config.num_blocks, block_size=config.block_size)
        try:
            for op in swarm.ops(lockstep.spec):
                lockstep.do(op)
        except (LawBroken, AdapterFault) as end:
            shown.update(str(end).encode())
        for step in lockstep.trace or ():
            shown.update(msgspec.json.encode((step.op, str(step.outcome), step.seen.tables, sorted_books(step.seen.books))))
        operations += len(lockstep.ops)
    return shown.hexdigest(), operations


def sorted_books(books: msgspec.Struct) -> list[object]:
    """A snapshot in an order of its own, with the free list as it is."""
    return [sorted(value) if isinstance(value, frozenset) else value for value in msgspec.structs.astuple(books)]


def main(name: str, how: str) -> None:
    """Print the digest of one release."""
    release = find_release(name)
    if release is None:
        raise BadRelease(f"There is no engine {name!r}.")
    load(release, as_installed=how == "installed")
    found, operations = digest(engine_adapter(release))
    sys.stdout.write(f"{found} {operations}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
