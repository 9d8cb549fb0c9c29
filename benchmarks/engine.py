"""How far apart rounding and faults are: the largest error of a logit in random schedules of the sound engine, and the smallest that a seeded bug makes.

python benchmarks/engine.py [--programs 200]
"""

from __future__ import annotations

import argparse

from rich.progress import track
from torch import Tensor

from kvproof.fuzz.check import check
from kvproof.impl.engine.adapter import EngineAdapter, Wanted
from kvproof.impl.engine.variants import VARIANTS
from kvproof.properties.engine.bugs import BUGS
from kvproof.properties.engine.schedules import ENGINE
from kvproof.properties.lockstep import run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200, help="random programs for each variant")
    programs = parser.parse_args().programs
    seen: list[float] = []
    judged = EngineAdapter._judge

    def judge(self: EngineAdapter, seq: int, wanted: Wanted, logits: Tensor) -> None:
        expected = self.oracle.logits(wanted.tokens, wanted.adapter)[wanted.start :]
        if logits.shape == expected.shape:
            seen.append(float((logits.double() - expected).abs().max()))
        judged(self, seq, wanted, logits)

    EngineAdapter._judge = judge  # type: ignore[method-assign]
    lines = []
    for variant in track(VARIANTS, "random schedules"):
        seen.clear()
        report = check(variant, name=variant.__name__, seconds=3600, seed=1, programs=programs)
        lines.append(f"{variant.__name__:18} {report.verdict}  {len(seen):5} passes  largest error {max(seen):.1e}")
    for name, (blocks, size, ops) in ENGINE.items():
        seen.clear()
        run(ops, BUGS[name], num_blocks=blocks, block_size=size)
        lines.append(f"{name:40} error {seen[-1]:.1e}")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
