"""From a case to its scene, whatever kind of pool it is about."""

from __future__ import annotations

from typing import TypeAlias

from kvproof.kernels.laws.cases import Case
from kvproof.kernels.laws.lowbit_scenes import LowBitScene, build_low_bits
from kvproof.kernels.laws.scenes import GARBAGE, Scene, build

AnyScene: TypeAlias = Scene | LowBitScene


def stage(case: Case, *, garbage: str | None = None, rename: int = 0, only: int | None = None) -> AnyScene:
    """The tensors of a case. `garbage` overrides the case's, `rename` gives other physical blocks, `only` leaves one sequence."""
    if case.low_bits is None:
        return build(case, garbage=garbage, rename=rename, only=only)
    return build_low_bits(case, garbage=GARBAGE[garbage or case.garbage], rename=rename, only=only)
