"""The law `no-address-overflow`: execution on a giant pool, then proof by the solver, then replay of what the solver finds."""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from typing import TYPE_CHECKING, Any

from kvproof.kernels.contract import KernelCapabilities, PagedKernels
from kvproof.kernels.laws.cases import Case
from kvproof.kernels.laws.giant import giant_cases, run_giant
from kvproof.kernels.machine.launch import flatten
from kvproof.kernels.machine.limits import CALL_SECONDS
from kvproof.kernels.report import LawResult

if TYPE_CHECKING:
    from kvproof.kernels.laws.calls import Launch
    from kvproof.kernels.machine.ir import Program
    from kvproof.kernels.proofs.prove import Proof

LAW = "no-address-overflow"

PROOF_SECONDS = 20.0
"""CPU time for all proofs of one adapter, the calls on giant pools not counted: a plain kernel takes a tenth of a second, and what is nonlinear is not
worth waiting for.
"""


@dataclasses.dataclass
class _State:
    exercised: int = 0
    proofs: dict[tuple[str, str, str], Proof] = dataclasses.field(default_factory=dict)
    unreplayed: str = ""


def check_overflow(kernels: type[PagedKernels], capabilities: KernelCapabilities, call_seconds: float = CALL_SECONDS) -> LawResult:
    """Judge the law on every operation, layout and quantisation that is claimed."""
    state, prover = _State(), _Prover()
    has_solver = importlib.util.find_spec("z3") is not None
    for case in giant_cases(capabilities):
        try:
            run = run_giant(kernels, capabilities, case, call_seconds=call_seconds)
        except MemoryError as error:
            return LawResult(LAW, "not-exercised", state.exercised, str(error))
        if run.stopped:
            # An address that is not computed has not wrapped, and every further call may take as long.
            return LawResult(LAW, "not-exercised", state.exercised, run.stopped)
        state.exercised += 1
        found = prover.prove(run.launches) if has_solver else []
        if run.failure is not None:
            shown = next((f"; the solver: {proof}" for proof in found if proof.outcome == "counterexample"), "")
            return LawResult(LAW, "broken", state.exercised, run.failure.reason + shown, run.failure.case)
        for proof in found:
            broken = _take(state, kernels, capabilities, case, proof)
            if broken is not None:
                return broken
    return LawResult(LAW, "held", state.exercised, _summary(state, capabilities, has_solver))


class _Prover:
    """Proofs of one adapter's launches, those of equal launches made once."""

    def __init__(self) -> None:
        self.seconds_left = PROOF_SECONDS
        self.known: dict[tuple[Any, ...], tuple[Program, list[Proof]]] = {}

    def prove(self, launches: tuple[Launch, ...]) -> list[Proof]:
        """Those of all launches, unknown where the time is used up."""
        start = time.process_time()
        found = [proof for launch in launches for proof in self._prove_one(launch, start + self.seconds_left)]
        self.seconds_left -= time.process_time() - start
        return found

    def _prove_one(self, launch: Launch, deadline: float) -> list[Proof]:
        from kvproof.kernels.proofs.prove import launch_key, prove_launch

        values = flatten(launch.bound, launch.constants)
        key = launch_key(launch.program, values, launch.grid)
        if key not in self.known:
            # The program is kept with its proofs: its id may be given to another one once it is gone.
            self.known[key] = launch.program, prove_launch(launch.program, values, launch.grid, deadline)
        return self.known[key][1]


def _take(state: _State, kernels: type[PagedKernels], capabilities: KernelCapabilities, case: Case, proof: Proof) -> LawResult | None:
    """Remember the weakest outcome for each access; replay a counterexample with the blocks it names."""
    key = (proof.kernel, str(proof.location), proof.access)
    known = state.proofs.get(key)
    if known is None or known.outcome == "proved":
        state.proofs[key] = proof
    if proof.outcome != "counterexample":
        return None
    values = [value for _, value in proof.model]
    run = run_giant(kernels, capabilities, case, [*values, *(value // case.block_size for value in values)])
    if run.failure is None:
        state.unreplayed = str(proof)
        return None
    return LawResult(LAW, "broken", state.exercised, f"{proof}; replayed: {run.failure.reason}", run.failure.case)


def _summary(state: _State, capabilities: KernelCapabilities, has_solver: bool) -> str:
    ran = f"executed in pools of {capabilities.max_pool_bytes} bytes up to the last block"
    if not has_solver:
        return f"{ran}; not proved, because z3-solver is not installed"
    outcomes = [proof.outcome for proof in state.proofs.values()]
    text = f"{ran}; {outcomes.count('proved')} of {len(outcomes)} accesses proved"
    unknown = next((proof for proof in state.proofs.values() if proof.outcome == "unknown"), None)
    if unknown is not None:
        text += f", {outcomes.count('unknown')} unknown, the first ({unknown.kernel} at {unknown.location}) because {unknown.reason}"
    return text + (f"; a counterexample did not replay: {state.unreplayed}" if state.unreplayed else "")
