"""Faults put into SGLang's two pools by hand: the adapter has to show them, or that it holds every law says little."""

from __future__ import annotations

import subprocess
import sys

import pytest
from test_engines import fetched

TARGET = "sglang[swa]==0.5.23"

CHECK = f"""
from kvproof.fuzz.check import check
from kvproof.impl.foreign.loading import loaded_engine
from kvproof.targets import find_target

target = find_target({TARGET!r})
engine = loaded_engine()
allocator = engine.symbol("sglang.srt.mem_cache.allocator.swa", "SWATokenToKVPoolAllocator")
component = engine.symbol("sglang.srt.mem_cache.unified_cache.components.swa", "SWAComponent")
{{bug}}
report = check(target, name="faulty", seconds=40, seed=1, workers=1)
print(report.error, *(finding.law for finding in report.violations))
"""

BUGS = {
    "a map that is never cleared": ("allocator.clear_full_to_swa_mapping = lambda *_: None", "pool-conserved"),
    "full slots that are never given back": ("allocator.free_full_segment = lambda *_, **__: None", "no-leak"),
    "a match that looks at no window": (
        "component.create_match_validator = lambda *_, **__: lambda node: True",
        "window-keeps-what-it-needs",
    ),
    "a lock on one token of the window": (
        """
right = component.acquire_component_lock
def one_token(self, **what):
    window, self.sliding_window_size = self.sliding_window_size, 1
    try:
        return right(self, **what)
    finally:
        self.sliding_window_size = window
component.acquire_component_lock = one_token
""",
        "window-keeps-what-it-needs",
    ),
}
"""What is changed in the loaded engine, and the law that has to say so."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_in_the_engine_is_seen(name):
    bug, law = BUGS[name]
    fetched(TARGET)
    done = subprocess.run([sys.executable, "-c", CHECK.format(bug=bug)], capture_output=True, text=True, check=True, timeout=120)
    assert law in done.stdout.split()
