"""The GPU run as far as it goes without a GPU: its checks see what they are for, its measurements run on small loads, its report loses nothing."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kvproof.kernels.check import check_kernels
from kvproof.kernels.contract import KernelCapabilities
from kvproof.kernels.gpu import ahead, checks, device, graphs, measure, run
from kvproof.kernels.gpu.device import GuardBroken, Guarded, on_device
from kvproof.kernels.gpu.report import Check, Measurement, Report
from kvproof.kernels.gpu.supervise import supervise
from kvproof.kernels.machine import Machine
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.kernels.paged.torch_path import PagedTorch

ROOT = Path(__file__).parents[2]
SMALL = KernelCapabilities(
    dtypes=("float32", "bfloat16"), layouts=("NHD", "HND"), features=frozenset({"decode", "prefill", "copy", "int8"})
)


def test_the_suite_judges_kernels_on_a_device() -> None:
    report = check_kernels(on_device(PagedTorch, "cpu", SMALL), budget_seconds=2)
    assert report.verdict == "held", str(report)
    assert report.law("copy-is-complete").exercised > 0


class BesideThePool(PagedTorch):
    """Writes one byte before the first element of the keys."""

    def store(self, pool, key, value, slots) -> None:
        super().store(pool, key, value, slots)
        raw = torch.empty(0, dtype=torch.uint8).set_(pool.key.untyped_storage())
        raw[pool.key.storage_offset() * pool.key.element_size() - 1] = 0


def test_a_write_into_a_guard_is_seen() -> None:
    report = check_kernels(on_device(BesideThePool, "cpu", SMALL), budget_seconds=1, shrink_seconds=0.1)
    assert "before or behind a tensor" in report.law("paged-equals-contiguous").reason


class IllegalAddress(PagedTorch):
    """Fails on sequences of more than 30 tokens."""

    def attend(self, pool, query, block_tables, seq_lens, **options) -> torch.Tensor:
        if int(seq_lens.max()) > 30:
            raise RuntimeError("an illegal memory access was encountered")
        return super().attend(pool, query, block_tables, seq_lens, **options)


def test_a_lost_device_ends_a_check_with_the_case_that_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_lost", lambda _: True)
    report = check_kernels(on_device(IllegalAddress, "cpu", SMALL), budget_seconds=1)
    assert report.verdict == "error"
    assert report.error.startswith("attend: RuntimeError: an illegal memory access was encountered, in Case('attend'")


def test_views_into_one_storage_stay_views_into_one_storage() -> None:
    both = torch.arange(24.0).view(3, 2, 4)
    guarded = Guarded("cpu")
    first, second = guarded.tensor(both[:, 0]), guarded.tensor(both[:, 1])
    assert torch.equal(second, both[:, 1])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    first[2, 0] = -1
    guarded.check()
    guarded.bring_back()
    assert both[2, 0, 0] == -1
    first.as_strided((1,), (1,), 0)[0] = 5
    with pytest.raises(GuardBroken):
        guarded.check()


class LeavesPadding(PagedTorch):
    """Padded lanes keep whatever lay in the output."""

    def attend(self, pool, query, block_tables, seq_lens, **options) -> torch.Tensor:
        out = super().attend(pool, query, block_tables, seq_lens, **options)
        out[seq_lens == 0] = 3.0
        return out


@pytest.mark.parametrize("kind", graphs.STEPS.values(), ids=list(graphs.STEPS))
def test_a_captured_step_is_compared_with_direct_calls(kind: type[graphs.Step], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "BATCHES", (1, 5))
    monkeypatch.setattr(graphs, "WIDTH", 16)
    machine = Machine()
    with machine.installed():
        assert graphs.captured_graph(checks.ShortSplits(), "cpu", graphs.emulated, kind) == ""
    assert machine.launches > 0
    assert machine.violations == []


def test_padded_lanes_of_a_captured_graph_are_looked_at() -> None:
    assert "zeros in padded lanes" in graphs.captured_graph(LeavesPadding(), "cpu", graphs.emulated)
    assert "zeros in padded lanes" in graphs.captured_graph(LeavesRows(), "cpu", graphs.emulated, graphs.AppendStep)
    assert "leaves other blocks" in graphs.captured_graph(CopiesPadding(), "cpu", graphs.emulated, graphs.CopyStep)


class LeavesRows(PagedTorch):
    """Rows behind the last query keep whatever lay in the output."""

    def attend(self, pool, query, block_tables, seq_lens, *, query_lens, **options) -> torch.Tensor:
        out = super().attend(pool, query, block_tables, seq_lens, query_lens=query_lens, **options)
        out[int(query_lens.sum()) :] = 3.0
        return out


class CopiesPadding(PagedTorch):
    """Takes a -1 for the last block."""

    def copy_blocks(self, pool, pairs) -> None:
        pool.key[pairs[:, 1]] = pool.key[pairs[:, 0].roll(1)]


def test_a_large_pool_is_compared_with_a_small_one() -> None:
    with Machine().installed():
        assert checks.large_pool(PagedTriton(), "cpu", 1 << 20) == ""
        assert checks.low_bits("cpu") == ""


class Scattered(PagedTorch):
    """Copies nothing."""

    def copy_blocks(self, pool, pairs) -> None:
        pass


def test_a_large_pool_without_copies_is_at_fault() -> None:
    assert "a block copied" in checks.large_pool(Scattered(), "cpu", 1 << 20)


def test_every_measurement_runs_on_a_small_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "DEVICE", "cpu")

    def once(run: Any, *, graph: bool = False) -> list[float]:
        run()
        return [2.0]

    monkeypatch.setattr(measure, "milliseconds", once)
    load = measure.Load(seqs=2, tokens=32, kv_heads=2, ratio=2, head=32)
    rates, kernels = measure.Rates(1e9, 1e12), PagedTriton()
    with Machine().installed():
        found = [
            measure.decode(load, rates, kernels),
            measure.decode(measure.Load(seqs=2, tokens=32, kv_heads=2, ratio=2, head=32, stored="int8", layout="HND"), rates, kernels),
            measure.decode(measure.Load(seqs=2, tokens=32, kv_heads=2, ratio=2, head=32, stored="float8_e4m3fn"), rates, kernels),
            measure.decode_torch(load, rates),
            *measure.decode_latent(load, 4, rates, kernels),
            *measure.decode_latent(measure.Load(seqs=2, tokens=32, stored="float8_e4m3fn"), 4, rates, kernels, new=2),
            measure.prefill(load, rates, kernels),
            measure.prefill_torch(load, rates),
            measure.store(load, rates, kernels),
            measure.copy_blocks(load, rates, kernels),
            measure.append(load, 3, rates, kernels),
            measure.decode_low_bits(measure.Load(seqs=2, tokens=192, kv_heads=2, ratio=2, head=32), rates),
        ]
    # 2 sequences x 32 tokens x 2 heads x 32 elements x 2 bytes, keys and values, in 2 ms.
    assert found[0].value == pytest.approx(2 * 2 * 32 * 2 * 32 * 2 / 2e-3 / 1e9)
    assert found[0].share == pytest.approx(found[0].value)
    # A causal prefill: two products of 32 x 32 / 2 x 32 multiplications and additions for 2 sequences and 4 query heads.
    assert found[8].value == pytest.approx(2 * 2 * (32 * 32 / 2) * 32 * 2 * 4 / 2e-3 / 1e12)
    assert all(entry.milliseconds == 2.0 for entry in found)


def test_a_process_that_compiles_ahead_comes_by_every_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    monkeypatch.setattr(ahead, "compile_for", lambda target, kernel, *_: seen.add(f"{kernel.__name__} {target.arch}"))
    monkeypatch.setattr(measure, "DEVICE", run.AHEAD.device)
    parts = dict(run._parts("speed", run.AHEAD, Report(tmp_path / "ahead", "none"), 0.0))
    ahead.compile_share([*parts.values()], [], ["cuda", 90, 32], 0, 1)
    speed = ("decode", "merge", "prefill", "append", "append_merge", "mla", "lowbit", "store", "copy")
    assert {f"{name}_kernel 90" for name in speed} <= seen
    ahead.compile_share([], ["quantised"], ["cuda", 90, 32], 1, 3)
    assert seen <= {f"{name}_kernel 90" for name in speed}


class Graph:
    """Stands for a captured graph: replays are counted, and nothing is recorded."""

    replays = 0

    def replay(self) -> None:
        """One more."""
        Graph.replays += 1


class Event:
    """Any two events are 8 ms apart."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        """Nothing to record."""

    def elapsed_time(self, end: Event) -> float:
        """In milliseconds."""
        return 8.0


@pytest.mark.parametrize(("graph", "each"), [(True, 8.0 / measure.LAYERS), (False, 8.0)])
def test_the_time_of_a_graph_is_shared_out_among_its_runs(graph: bool, each: float, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    monkeypatch.setattr(measure, "DEVICE", "cuda")
    monkeypatch.setattr(measure, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(Graph, "replays", 0)
    for name, stand_in in {"synchronize": lambda: None, "CUDAGraph": Graph, "graph": contextlib.nullcontext, "Event": Event}.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    assert measure.milliseconds(lambda: runs.append(0), graph=graph) == [each] * measure.RUNS
    assert Graph.replays == (measure.RUNS if graph else 0)
    assert len(runs) == 1 + (measure.LAYERS if graph else measure.RUNS)


def test_a_report_keeps_what_came_before_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report(tmp_path / "gpu", "A device")
    report.check(Check("a law", "held", "12 cases", 1.5))
    report.measure(Measurement("decode", 1.25, 4000.0, "GB/s", 0.93, "copy", 20))

    def fails() -> None:
        raise RuntimeError("out of memory\nand more")

    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    run._guarded("prefill", fails, report)
    held = json.loads((tmp_path / "gpu.json").read_text())
    assert held["version"] == 1
    assert held["measurements"][0]["share"] == 0.93
    page = (tmp_path / "gpu.md").read_text()
    assert "| decode | 1.250 | 4000.0 GB/s | 93.0 % | copy | 20 |" in page
    assert "| prefill | error | 0.0 | RuntimeError: out of memory |" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]


@pytest.mark.nightly
def test_a_dry_run_reaches_the_end_of_every_part(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "gpu.py")]
    subprocess.run([*script, "--dry-run", "--out", str(tmp_path / "dry"), "--seconds", "400"], check=True)
    held = json.loads((tmp_path / "dry.json").read_text())
    assert held["complete"]
    assert held["problems"] == []
    assert {check["verdict"] for check in held["checks"]} == {"held"}
    assert len(held["measurements"]) > 15


def test_a_dry_run_begins_nothing_after_its_time(tmp_path: Path) -> None:
    assert run.main(["--dry-run", "--only", "checks", "--out", str(tmp_path / "dry"), "--seconds", "0"]) == 0
    held = json.loads((tmp_path / "dry.json").read_text())
    assert held["checks"] == []
    assert "captured graph: block copies: not begun, 0 s had passed" in held["problems"]
    assert "0 of 0 entries hold. The run reached its end." in (tmp_path / "dry.md").read_text()


WORKER = """
import json, os, pathlib, signal, sys, time
path, start = pathlib.Path(sys.argv[1]), float(sys.argv[2])
held = json.loads(path.read_text())

def save():
    part = path.with_suffix(".part")
    part.write_text(json.dumps(held))
    part.replace(path)

def add(name, verdict):
    held["checks"].append({"name": name, "verdict": verdict})
    save()

for name in ("first", "dies", "second", "hangs", "raises", "third", "loses the device", "last"):
    if name in [part["name"] for part in held["begun"]]:
        continue
    held["begun"].append({"name": name, "started": time.monotonic() - start, "limit_seconds": 2.0})
    save()
    if name == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "hangs":
        time.sleep(600)
    if name == "raises":
        raise RuntimeError("which nobody takes")
    if name == "loses the device":
        add(name, "error")
        raise SystemExit(3)
    add(name, "held")
held["complete"] = True
save()
"""


def test_a_part_that_dies_hangs_or_loses_the_device_costs_no_other(tmp_path: Path) -> None:
    report = Report(tmp_path / "gpu", "A device")
    command = [sys.executable, "-c", WORKER, str(tmp_path / "gpu.json"), str(report.start)]
    assert supervise(command, report, report.start + 100) == 1
    assert report.complete
    assert {check.name: (check.verdict, check.detail) for check in report.checks} == {
        "first": ("held", ""),
        "dies": ("error", "ended its process: signal SIGSEGV"),
        "second": ("held", ""),
        "hangs": ("error", "was ended after 2 s"),
        "raises": ("error", "ended its process: exit status 1"),
        "third": ("held", ""),
        "loses the device": ("error", ""),
        "last": ("held", ""),
    }


def test_a_run_ends_at_its_deadline_wherever_it_is(tmp_path: Path) -> None:
    report = Report(tmp_path / "gpu", "A device")
    report.check(Check("a law", "held"))
    assert supervise([sys.executable, "-c", "import time; time.sleep(600)"], report, report.start + 1) == 1
    assert "| the run | error | 0.0 | was ended: the time of the run was over |" in (tmp_path / "gpu.md").read_text()
    assert [check.name for check in report.checks] == ["a law", "the run"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_part_that_fails_ends_its_process_only_where_the_device_is_lost(answers: bool, tmp_path: Path, monkeypatch) -> None:
    def settle() -> None:
        if not answers:
            raise RuntimeError("unspecified launch failure")

    def fails() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(run, "_settle", settle)
    report = Report(tmp_path / "gpu", "A device")
    assert run._guarded("prefill", fails, report) is answers
    assert [check.detail for check in report.checks] == ["RuntimeError: an illegal memory access was encountered"]


BLOCKED = """
import sys, runpy
for name in sys.argv.pop().split(","):
    sys.modules[name] = None
runpy.run_path({script!r}, run_name="__main__")
"""
SPARED = "msgspec,click,rich,hypothesis,pytest,z3"


def run_without(names: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script where none of these packages can be imported."""
    command = [sys.executable, "-c", BLOCKED.format(script=str(ROOT / "benchmarks" / "gpu.py")), *arguments, names]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says that there is no GPU")
def test_without_a_gpu_it_says_so_and_needs_nothing_but_torch_triton_and_numpy() -> None:
    done = run_without(SPARED)
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith("No GPU is visible to torch")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("name", ["torch", "triton", "numpy"])
def test_what_it_cannot_do_without_is_named(name: str) -> None:
    done = run_without(name)
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith("This run needs torch 2.11 or later, triton 3.6 or later and numpy: ")
    assert name in done.stdout.split(": ", 1)[1]
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
