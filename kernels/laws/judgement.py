"""The calls of one case, and what a judge of a law is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from kvproof.kernels.contract import KernelCapabilities, PagedKernels
from kvproof.kernels.laws.calls import Call, call
from kvproof.kernels.laws.cases import Case
from kvproof.kernels.laws.pools import first
from kvproof.kernels.laws.scenes import Scene
from kvproof.kernels.laws.staging import AnyScene, stage
from kvproof.kernels.machine import Violation
from kvproof.kernels.machine.limits import CALL_SECONDS
from kvproof.kernels.reference import Expected


class Judgement:
    """The calls of one case, made when a law asks for them."""

    def __init__(
        self, kernels: type[PagedKernels], capabilities: KernelCapabilities, case: Case, call_seconds: float = CALL_SECONDS
    ) -> None:
        self.kernels, self.capabilities, self.case, self.call_seconds = kernels, capabilities, case, call_seconds
        self.before = stage(case)
        self.scene = stage(case)
        self._base: Call | None = None

    @property
    def scenes(self) -> tuple[Scene, Scene]:
        """Before the call and after it, of a case whose pool is a `KVPool`."""
        assert isinstance(self.before, Scene)
        assert isinstance(self.scene, Scene)
        return self.before, self.scene

    @property
    def base(self) -> Call:
        """The watched call of the case as it is."""
        if self._base is None:
            self._base = self.call(self.scene)
        return self._base

    def again(self, *, garbage: str | None = None, rename: int = 0, only: int | None = None) -> Call:
        """The same case with something changed that may not matter."""
        return self.call(stage(self.case, garbage=garbage, rename=rename, only=only), watched=False)

    def call(self, scene: AnyScene, *, watched: bool = True) -> Call:
        """The kernels on a scene, within the time that a call has."""
        return call(self.kernels, scene, watched=watched, seconds=self.call_seconds)


Judge = Callable[[Judgement], str | None]


@dataclasses.dataclass(frozen=True)
class Law:
    """`applies` says whether a case touches the law, `plain` why it is broken (None: it is not), `low_bits` the same of low-bit pools where
    another judge is needed.
    """

    name: str
    applies: Callable[[Judgement], bool]
    plain: Judge
    needs_machine: bool = False
    low_bits: Judge | None = None

    def judge(self, judgement: Judgement) -> str | None:
        """Why the law is broken, by the judge for this kind of pool."""
        return (self.low_bits if judgement.case.low_bits and self.low_bits else self.plain)(judgement)


def violation(found: list[Violation], kinds: set[str]) -> str | None:
    """The first of these kinds, in words."""
    for seen in found:
        if seen.kind in kinds:
            return str(seen)
    return None


def outside(judgement: Judgement, expected: Expected) -> str | None:
    """The first element of an attention's output that is not within its bound. Rows of empty sequences are the business of padding-inert."""
    output, scene = judgement.base.output, judgement.before
    assert output is not None
    if output.dtype != scene.query.dtype:
        return f"attend returned {output.dtype} for a query of {scene.query.dtype}"
    bad = ~((output.double() - expected.output).abs() <= expected.bound)
    if judgement.case.query_lens is None:
        bad &= (scene.seq_lens > 0).view(-1, 1, 1)
    if not bad.any():
        return None
    at = first(bad)
    precision = " (tf32 dots)" if judgement.base.tf32 else ""
    got, want = float(output[at]), float(expected.output[at])
    return f"output[{', '.join(map(str, at))}] is {got:.9g}, it must be {want:.9g} within {float(expected.bound[at]):.3g}{precision}"
