"""Adapters on the real engines. What is small is fetched for every change; the rest, and the real imports, at night.

Without a package index these tests are skipped: they need the released files.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import msgspec
import pytest

from kvproof.fuzz.verdicts import Report
from kvproof.fuzz.zoo.cases import CASES
from kvproof.fuzz.zoo.keeper import judge
from kvproof.impl.foreign.fetched import provide
from kvproof.impl.foreign.loading import HELD
from kvproof.impl.foreign.registry import find_release
from kvproof.impl.foreign.releases import BadRelease

for _needed in ("numpy", "xxhash"):
    pytest.importorskip(_needed, reason=f"{_needed}, which some engines need, is not installed; pip install 'kvproof[engines]'")

SMALL = {
    "lmcache[hot]==0.3.3": set(),
    "sglang[eagle]==0.5.6": set(),
    "nano-vllm-fork[full]==20260210": {"hit-leaves-last-token"},
    "nano-vllm-npu[full]==0.0.2": {"hit-leaves-last-token"},
    "transformers[full]==5.16.0": {"no-spurious-exhaustion"},
    "transformers[window]==5.16.0": {"no-spurious-exhaustion"},
    "transformers[sectors]==5.24.0": set(),
    "vllm[drafting]==0.9.0.1": {"no-spurious-exhaustion"},  # the finding resume-index
    "vllm[full]==0.8.5": set(),
    "vllm[events]==0.11.1": set(),
    "vllm[remote]==0.16.0": set(),
    "vllm[sharded]==0.11.1": set(),
    "vllm[v0]==0.8.5": {"eviction-forgets", "hit-is-true-prefix"},  # docs/findings/vllm_stale_count.py
    "vllm[v0-uncached]==0.8.5": set(),
}
"""Targets whose wheels are small, and the laws that they are known to break."""

NIGHTLY = {
    "lmcache[hot]==0.5.6": set(),
    "lmcache[tensors]==0.5.6": set(),
    "sglang[keyed]==0.5.20": set(),
    "sglang[radix]==0.5.23": {"hit-same-namespace", "no-aliasing"},
    "sglang[salted]==0.5.23": set(),
    "sglang[eagle]==0.5.23": set(),
    "sglang[keyed]==0.5.21": set(),
    "sglang[swa]==0.5.20": set(),
    "sglang[swa]==0.5.23": set(),
    "sglang[unified]==0.5.21": set(),
    "sglang[unified]==0.5.23": set(),
    "sglang[unified-eagle]==0.5.23": set(),
    "lmcache[tensors]==0.4.1": set(),
    "vllm[full]==0.33.0": set(),
    "vllm[window]==0.33.0": set(),
    "vllm[deferred]==0.33.0": set(),
    "vllm[hybrid]==0.33.0": set(),
    "vllm[eagle]==0.33.0": set(),
    "vllm[hybrid-eagle]==0.33.0": set(),
    "vllm[hybrid-events]==0.33.0": set(),
    "vllm[uncached]==0.33.0": set(),
    "vllm[offload]==0.33.0": set(),
    "vllm[hybrid-offload]==0.33.0": set(),
}
"""The same for those that take hundreds of megabytes to fetch."""

PROGRAMS = 40


def fetched(target: str) -> None:
    """Have the release here, or skip."""
    release = find_release(target)
    assert release is not None
    for needed in release.engine.needs:
        pytest.importorskip(needed, reason=f"{release.engine.name} needs {needed}, which is not installed")
    try:
        provide(release)
    except BadRelease as error:
        if "cannot be fetched" not in str(error) and "could not fetch" not in str(error):
            raise
        pytest.skip(str(error))


def check(target: str, known: set[str], tmp_path, workers: int = 1) -> Report:
    """Judge a target in a process of its own; laws that are known to be broken are waived."""
    waivers = "".join(f'[[waiver]]\nlaw = "{law}"\ntarget = "{target}"\nreason = "known"\nreference = "docs/zoo.md"\n' for law in known)
    (tmp_path / "waivers.toml").write_text(waivers)
    arguments = ["check", target, "--programs", str(PROGRAMS), "--budget", "60", "--seed", "7", "-n", str(workers)]
    arguments += ["--json", "report.json", "--waivers", "waivers.toml"]
    code = "import sys; from kvproof.cli import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, check=False, timeout=120)
    return msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report)


def judged(target: str, known: set[str], tmp_path) -> None:
    fetched(target)
    report = check(target, known, tmp_path)
    assert report.verdict != "error", report.error  # a waiver that so few programs have no need of makes it "broken"
    broken = {law: finding.reason for finding in report.violations for law in [finding.law] if law not in known}
    assert broken == {}
    assert report.operations > 10 * PROGRAMS
    exercised = {law for law, verdict in report.laws.items() if verdict.exercised}
    assert {"no-aliasing", "own-content", "release-once", "failure-changes-nothing"} <= exercised


@pytest.mark.parametrize("target", SMALL)
def test_a_small_release_keeps_the_laws(target, tmp_path):
    judged(target, SMALL[target], tmp_path)


def test_an_engine_that_computes_with_tensors_is_judged_on_several_cores(tmp_path):
    """A process whose tensors have started threads hangs in the workers that it forks."""
    fetched("sglang[eagle]==0.5.6")
    report = check("sglang[eagle]==0.5.6", set(), tmp_path, workers=2)
    assert report.verdict != "error", report.error
    assert report.operations > 10 * PROGRAMS


@pytest.mark.nightly
@pytest.mark.parametrize("target", NIGHTLY)
def test_a_large_release_keeps_the_laws(target, tmp_path):
    judged(target, NIGHTLY[target], tmp_path)


@pytest.mark.parametrize("case", [case for case in CASES if case.small], ids=lambda case: case.name)
def test_a_small_case_of_the_zoo(case):
    fetched(case.faulty)
    if case.fixed:
        fetched(case.fixed)
    assert judge(case, seconds=20).trouble == ""


@pytest.mark.nightly
@pytest.mark.parametrize("case", [case for case in CASES if not case.small], ids=lambda case: case.name)
def test_a_large_case_of_the_zoo(case):
    fetched(case.faulty)
    if case.fixed:
        fetched(case.fixed)
    assert judge(case).trouble == ""


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_an_engine_behaves_the_same_with_everything_that_it_really_imports(engine):
    try:
        version = importlib.metadata.version(engine)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{engine} is not installed")
    digests = set()
    for how in ("fetched", "installed"):
        command = [sys.executable, "-m", "kvproof.fuzz.fidelity", f"{engine}=={version}", how]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600, env={**os.environ, "PYTHONHASHSEED": "0"})
        digests.add(done.stdout)
    assert len(digests) == 1


def test_a_worker_that_was_not_forked_loads_the_engine_again():
    name = "nano-vllm-npu==0.0.2"
    fetched(name)
    code = "from kvproof.impl.foreign.nano_vllm import NanoVllm; print(NanoVllm(num_blocks=4, block_size=2).snapshot().free)"
    environment = {**os.environ, HELD: name}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=environment)
    assert done.stdout.strip() == "[0, 1, 2, 3]"


def test_a_process_holds_one_release():
    name, other = "nano-vllm-npu==0.0.2", "nano-vllm-fork==20260210"
    fetched(name)
    code = f"from kvproof.targets import find_target; find_target({name!r}); find_target({name!r}); find_target({other!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "This process holds nano-vllm-npu 0.0.2, and a process can hold one engine in one release" in done.stderr
