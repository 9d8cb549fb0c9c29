"""Makes docs/images/picture.png, the picture of the README, in a headless Chromium.

    python docs/images/picture.py            # needs Chromium and the extra `browser`

The run is that of a small engine on a cache that lists a block of another sequence, from tests/picture_runs.py.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from picture_runs import BreaksLate, serving_program  # noqa: E402 -- it lies among the tests

from kvproof.fuzz.reports.picture.document import Document  # noqa: E402
from kvproof.fuzz.reports.picture.html import html  # noqa: E402
from kvproof.fuzz.reports.picture.sources import film_program  # noqa: E402

OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]


def main() -> None:
    """Draw the run, and write the picture."""
    program = serving_program(200, num_blocks=20, target="examples/cache.py:Adapter")
    page_bytes = html(Document("examples/cache.py:Adapter", [film_program(program, BreaksLate, name="picture")]))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        file = Path(folder) / "picture.html"
        file.write_bytes(page_bytes)
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        page = browser.new_page(viewport={"width": 1180, "height": 800}, color_scheme="light")
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-ready]")
        page.wait_for_timeout(500)
        page.screenshot(path=ROOT / "docs/images/picture.png")
        browser.close()


if __name__ == "__main__":
    main()
