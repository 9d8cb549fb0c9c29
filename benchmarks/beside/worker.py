"""One process with one cache: it is told what to do line by line, and tells how fast it was.

python -m beside.worker TARGET        # in benchmarks/; then lines of JSON: {"row": 0, "seconds": 0.2}
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time

from beside.players import builder
from beside.work import ROWS, Row, Work


def prepared(target: str, row: Row) -> Work | None:
    """The work of a row for a cache, done as often as it takes to settle; None where the engine does not run that way."""
    build = builder(target, row.way)
    if build is None:
        return None
    work = row.make(build)
    for _ in range(row.settle):
        work.prepare()
        work.run()
    return work


def rate(work: Work, seconds: float) -> float:
    """Units for each second of processor time, over at least `seconds`."""
    done, spent = 0, 0.0
    while spent < seconds:
        work.prepare()
        start = time.process_time()
        done += work.run()
        spent += time.process_time() - start
    return done / spent


def main() -> None:
    """Answers until its input ends: a rate for each line, or null."""
    target = sys.argv[1]
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what engines print is no answer
    current, work = -1, None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["row"] != current:
            current, work = asked["row"], None
            gc.collect()
            work = prepared(target, ROWS[current])
        answers.write(json.dumps(None if work is None else rate(work, asked["seconds"])) + "\n")


if __name__ == "__main__":
    main()
