"""The GPU run as far as it goes without a GPU: its checks see what they are for, its measurements run on small loads, its report loses nothing."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from kvproof.kernels.check import check_kernels
from kvproof.kernels.contract import KernelCapabilities
from kvproof.kernels.gpu import ahead, checks, device, graphs, measure, run, tune
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
    monkeypatch.setattr(device, "lost", lambda _: True)
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
    rates, kernels = measure.Rates(copy=1e9, sum=2e9, product=1e12), PagedTriton()
    with Machine().installed():
        found = [
            measure.decode(load, rates, kernels),
            measure.decode(measure.Load(seqs=2, tokens=32, kv_heads=2, ratio=2, head=32, stored="int8", layout="HND"), rates, kernels),
            measure.decode(measure.Load(seqs=2, tokens=32, kv_heads=2, ratio=2, head=32, stored="float8_e4m3fn"), rates, kernels),
            *measure.decode_torch(load, rates),
            *measure.decode_latent(load, 4, rates, kernels),
            *measure.decode_latent(measure.Load(seqs=2, tokens=32, stored="float8_e4m3fn"), 4, rates, kernels, new=2),
            *measure.prefill_torch(load, rates),
            measure.store(load, rates, kernels),
            measure.copy_blocks(load, rates, kernels),
            measure.append(load, 3, rates, kernels),
            measure.decode_low_bits(measure.Load(seqs=2, tokens=192, kv_heads=2, ratio=2, head=32), rates),
            measure.prefill(load, rates, kernels),
        ]
    # 2 sequences x 32 tokens x 2 heads x 32 elements x 2 bytes, keys and values, in 2 ms.
    assert found[0].value == pytest.approx(2 * 2 * 32 * 2 * 32 * 2 / 2e-3 / 1e9)
    assert found[0].shares == pytest.approx({"sum": found[0].value / 2, "copy": found[0].value})
    # A causal prefill: two products of 32 x 32 / 2 x 32 multiplications and additions for 2 sequences and 4 query heads.
    assert found[-1].value == pytest.approx(2 * 2 * (32 * 32 / 2) * 32 * 2 * 4 / 2e-3 / 1e12)
    assert found[-1].shares == pytest.approx({"product": found[-1].value})
    assert all(entry.milliseconds == 2.0 for entry in found)


def test_what_the_device_does_is_measured_in_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "DEVICE", "cpu")
    monkeypatch.setattr(measure, "milliseconds", lambda run: [float(run().numel() > 0)])
    monkeypatch.setattr(measure, "peak_bandwidth", lambda: 2.0**33)
    found = list(measure.device_rates(megabytes=1, size=10))
    rates = found[-1][0]
    # In a millisecond: 1 MiB read and written, 1 MiB read, 10 x 10 x 10 multiplications and additions.
    assert (rates.copy, rates.sum, rates.product) == pytest.approx((2e3 * 2**20, 1e3 * 2**20, 1e3 * 2000))
    assert [entry.shares for _, entry in found] == [{"peak": pytest.approx(2e3 / 2**13)}, {"peak": pytest.approx(1e3 / 2**13)}, {}]
    assert [entry.work for _, entry in found] == [2 * 2**20, 2**20, 2000]
    assert found[0][0].product == 0  # what is known is told before the next is measured
    assert measure.Rates(copy=5.0).of(*measure.READS) == {"copy": 5.0}


def test_a_peak_that_the_driver_does_not_name_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(memory_clock_rate=2_619_000, memory_bus_width=5120)
    )
    assert measure.peak_bandwidth() == pytest.approx(3.35232e12)  # an H100 with HBM3
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace())
    assert measure.peak_bandwidth() == 0


def test_torchs_attention_is_named_by_what_ran_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "DEVICE", "cpu")
    query, key, masked = torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16), torch.zeros(8, 8, requires_grad=True)
    attention = torch.nn.functional.scaled_dot_product_attention
    assert list(dict(measure.by_backend(lambda: attention(query, key, key)))) == ["flash"]
    # On a CPU no fused implementation takes a mask that is learnt.
    assert list(dict(measure.by_backend(lambda: attention(query, key, key, attn_mask=masked)))) == ["math"]


def test_tuning_ends_with_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Measurement:
        raise RuntimeError("an illegal memory access was encountered")

    for name in ("device_rates", "batch"):
        monkeypatch.setattr(measure, name, lambda *_: [])
    for name in ("decode", "prefill"):
        monkeypatch.setattr(measure, name, fails)
    answers = iter([False, False, True])
    monkeypatch.setattr(tune, "lost", lambda _: next(answers))
    report = Report(tmp_path / "tuned", "A device")
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        tune.tune(report, 100.0)
    assert len(report.problems) == 3


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
    report.measure(Measurement("decode", 1.25, 4000.0, "GB/s", 20, {"sum": 0.91, "copy": 0.93}, 1.2, 1.5, 5e9))

    def fails() -> None:
        raise RuntimeError("out of memory\nand more")

    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    run._guarded("prefill", fails, report)
    held = json.loads((tmp_path / "gpu.json").read_text())
    assert held["version"] == 1
    assert held["measurements"][0]["shares"] == {"sum": 0.91, "copy": 0.93}
    page = (tmp_path / "gpu.md").read_text()
    assert "| decode | 1.250 | 1.200, 1.500 | 5.0 GB | 4000.0 GB/s | 91.0 % of the sum, 93.0 % of the copy | 20 |" in page
    assert "| prefill | error | 0.0 | RuntimeError: out of memory |" in page
    assert f"\n{held['runtime']}, torch {torch.__version__}, Triton {held['triton']}; " in page
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


JUDGES = """
import json, pathlib, sys, time
path, start, limit = pathlib.Path(sys.argv[1]), *map(float, sys.argv[2:])
held = json.loads(path.read_text())
hangs = not held["begun"]
if hangs:
    held["begun"].append({"name": "laws: decode", "started": time.monotonic() - start, "limit_seconds": limit})
    held["checks"] = [
        {"name": "laws: decode", "verdict": "not finished", "detail": "3 cases, then Case('attend')", "seconds": 0.5},
        {"name": "decode: batch-invariant", "verdict": "held", "detail": "3 cases"},
    ]
held["complete"] = not hangs
part = path.with_suffix(".part")
part.write_text(json.dumps(held))
part.replace(path)
time.sleep(600 * hangs)
"""


@pytest.mark.parametrize(
    ("limit", "verdict", "detail"),
    [
        (90.0, "not finished", "was ended: the time of the run was over; 3 cases, then Case('attend')"),
        (1.0, "error", "was ended after 1 s; 3 cases, then Case('attend')"),
    ],
)
def test_laws_that_are_cut_off_keep_what_was_judged(limit: float, verdict: str, detail: str, tmp_path: Path) -> None:
    report = Report(tmp_path / "gpu", "A device")
    command = [sys.executable, "-c", JUDGES, str(tmp_path / "gpu.json"), str(report.start), str(limit)]
    assert supervise(command, report, report.start + 5) == (verdict == "error")
    assert report.checks == [Check("laws: decode", verdict, detail, 0.5), Check("decode: batch-invariant", "held", "3 cases")]
    assert f"1 of 2 entries hold. {'At fault: laws: decode. ' * (verdict == 'error')}The run" in report.markdown()


def test_laws_are_told_as_they_are_judged() -> None:
    told: list[list[Check]] = []
    checks.laws("moves", "cpu", 0.2, lambda entries: told.append(list(entries)))
    assert [entry.name for entry in told[0]] == ["laws: moves"]
    assert {entries[0].verdict for entries in told[:-1]} == {"not finished"}
    assert {entry.verdict for entry in told[-1]} == {"held"}
    assert len(told) > 2


HELPED = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(600)
"""


def test_what_a_worker_has_started_ends_with_it(tmp_path: Path) -> None:
    report = Report(tmp_path / "gpu", "A device")
    supervise([sys.executable, "-c", HELPED, str(tmp_path / "child")], report, report.start + 2)
    status = Path("/proc", (tmp_path / "child").read_text(), "status")
    # Killed, it stays a zombie where nobody waits for orphans.
    assert not status.exists() or "State:\tZ" in status.read_text()


def state(pid: int) -> str:
    """Of a process: "Z" where it has ended and nobody waits for it, "" where it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path("/proc", str(pid), "stat").read_text().rpartition(") ")[2][:1]
    return ""


def test_a_run_that_is_killed_leaves_no_process_and_what_it_knew(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--dry-run", "--only", "checks", "--out", str(tmp_path / "dry")]
    run_of_it = subprocess.Popen(script, stdout=subprocess.DEVNULL)
    worker = 0
    while not (worker and json.loads((tmp_path / "dry.json").read_text())["checks"]):
        assert run_of_it.poll() is None
        time.sleep(0.2)
        children = Path("/proc", str(run_of_it.pid), "task", str(run_of_it.pid), "children").read_text().split()
        worker = int(children[0]) if children and (tmp_path / "dry.json").exists() else 0
    run_of_it.kill()
    run_of_it.wait()
    left = 100
    while state(worker) not in ("", "Z") and left:
        time.sleep(0.1)
        left -= 1
    assert left, "the worker goes on"
    held = json.loads((tmp_path / "dry.json").read_text())
    assert held["checks"][0]["verdict"] == "held"
    assert not held["complete"]


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
