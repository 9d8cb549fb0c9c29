"""How long it takes to draw a run, and how large the page becomes.

python benchmarks/picture.py 100000      # operations of a small engine on the production cache, 64 blocks of 4 tokens
"""

from __future__ import annotations

import gzip
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import msgspec
from picture_runs import serving_program

from kvproof.fuzz.reports.picture.document import Document
from kvproof.fuzz.reports.picture.html import html
from kvproof.fuzz.reports.picture.sources import film_program
from kvproof.impl.production.adapter import ProductionAdapter


def main(operations: int) -> None:
    """Draw one run and print what it cost."""
    program = serving_program(operations, num_blocks=64)
    begun = time.process_time()
    document = Document("benchmark", [film_program(program, ProductionAdapter, name="benchmark")])
    filmed = time.process_time()
    page = html(document)
    joined = time.process_time()
    data = msgspec.json.encode(document)
    print(f"{len(program.ops):,} operations on 64 blocks")
    print(f"run, judged and filmed in {filmed - begun:.1f} s of one core, joined to a page in {joined - filmed:.1f} s")
    print(f"page {len(page) / 1e6:.2f} MB, data {len(data) / 1e6:.2f} MB, packed {len(gzip.compress(data)) / 1e6:.2f} MB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
