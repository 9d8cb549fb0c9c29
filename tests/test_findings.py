"""The scripts of the findings: each is named by a page, and those whose wheel is small prove what they say when the wheel is at hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.fuzz.zoo.case import FOUND_HERE
from kvproof.fuzz.zoo.cases import CASES
from kvproof.impl.foreign.fetched import provide
from kvproof.impl.foreign.registry import find_release
from kvproof.impl.foreign.releases import BadRelease

FINDINGS = Path(__file__).parent.parent / "docs" / "findings"
SHARED = {"wheel.py", "vllm_v1.py"}
"""What the scripts import."""

PROVED = {
    "sglang_eagle_chunk.py": ("sglang==0.5.4", "sglang==0.5.6"),
    "transformers_fork_leak.py": ("transformers==5.0.0", "transformers==5.14.0"),
    "transformers_last_block.py": ("transformers==5.16.0", None),
    "lmcache_pin_flag.py": ("lmcache==0.3.2", "lmcache==0.3.3"),
    "nano_vllm_full_hit.py": ("nano-vllm-fork==20260210", None),
}
"""Script -> the faulty release, and one without the bug."""


def test_every_script_is_named_by_a_page():
    pages = "".join(page.read_text() for page in FINDINGS.glob("*.md"))
    scripts = {script.name for script in FINDINGS.glob("*.py")} - SHARED
    assert scripts <= set(re.findall(r"\((\w+\.py)\)", pages))
    assert set(PROVED) <= scripts


def test_every_bug_that_only_kvproof_names_has_a_script():
    found = {case.name for case in CASES if case.link == FOUND_HERE}
    assert found <= set(re.findall(r"^\| (\S+) \|", (FINDINGS / "older-releases.md").read_text(), re.MULTILINE))


@pytest.mark.parametrize("script", PROVED)
def test_a_script_proves_what_it_says(script):
    pytest.importorskip("torch")
    for target, status in zip(PROVED[script], (1, 0), strict=True):
        if target is None:
            continue
        release = find_release(target)
        assert release is not None
        try:
            folder, _ = provide(release)
        except BadRelease as error:
            pytest.skip(str(error))
        command = [sys.executable, str(FINDINGS / script), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, bool(done.stdout)) == (status, True), done.stderr
