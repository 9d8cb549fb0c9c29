"""Campaigns on kernels: orders of cases, the canary of kernels, and a device that keeps an error."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="Kernels need torch; pip install 'kvproof[kernels]'")

from hypothesis.database import InMemoryExampleDatabase  # noqa: E402

from kvproof.fuzz.campaigns import devices  # noqa: E402
from kvproof.fuzz.campaigns.conductor import Conductor, Plan  # noqa: E402
from kvproof.fuzz.campaigns.crew import LocalCrew  # noqa: E402
from kvproof.fuzz.campaigns.orders import Job, Order  # noqa: E402
from kvproof.fuzz.campaigns.outcome import report_of  # noqa: E402
from kvproof.fuzz.campaigns.store import Store  # noqa: E402
from kvproof.kernels.plain.torch_kernels import PlainTorch  # noqa: E402


class Sticky(PlainTorch):
    """Its device keeps an error from the first store on."""

    def store(self, pool, key, value, slots):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later")


class Wrong(PlainTorch):
    """Attention is twice what it should be."""

    def attend(self, *arguments, **named):
        return 2 * super().attend(*arguments, **named)


TARGETS = {"sticky": Sticky, "wrong": Wrong, "plain": PlainTorch, devices.KERNELS_CANARY: Wrong}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(devices, "ORDER_SECONDS", 0.5)
    monkeypatch.setattr(devices, "CANARY_SECONDS", 0.5)
    monkeypatch.setattr("kvproof.kernels.check.MIN_CASES", 2)
    monkeypatch.setattr("kvproof.kernels.check.SHRINK_SECONDS", 0.5)


def test_an_error_that_the_device_keeps_ends_the_order_and_the_process():
    result = devices.judge(Sticky, "sticky", "c", Order(3, "kernels", "1:3", 1))
    assert result.sticky
    [finding] = result.findings
    assert "store raised RuntimeError: CUDA error: an illegal memory access" in finding.reason
    assert finding.program.startswith("seed ")


def test_other_exceptions_are_left_to_the_laws():
    class Raising(PlainTorch):
        def store(self, pool, key, value, slots):
            raise ValueError("no")

    result = devices.judge(Raising, "raising", "c", Order(3, "kernels", "1:3", 1))
    assert not result.sticky
    assert result.findings


def test_a_campaign_on_kernels_finds_and_replaces(monkeypatch):
    conductors = {}
    for target in ("sticky", "wrong"):
        crew = LocalCrew(Job(target, 10.0, kernels=True), TARGETS.__getitem__, "c", workers=1)
        pids = {crew._places[0].process.pid}
        try:
            plan = Plan("c", 1, "batch", 120.0, 1, 2, kernels=True)
            conductor = conductors[target] = Conductor(plan, crew, Store(InMemoryExampleDatabase(), target=target, campaign="c"))
            conductor.run(lambda _, crew=crew, pids=pids: pids.add(crew._places[0].process.pid))
        finally:
            crew.close()
        assert sorted(batch for _, batch in conductor.records) == [0, 1]
        assert (len(pids) > 1) == (target == "sticky")
    assert report_of(conductors["sticky"], "sticky", None, 1.0).verdict == "error"
    report = report_of(conductors["wrong"], "wrong", None, 1.0)
    assert report.verdict == "broken"
    assert "paged-equals-contiguous" in {finding.law for finding in report.violations}


@pytest.mark.parametrize(("visible", "count"), [("0,1,2", 3), ("", 0), ("-1", 0)])
def test_devices_are_those_that_are_visible(monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.count_devices() == count
    if count:
        assert [devices.device_of(worker) for worker in range(4)] == ["0", "1", "2", "0"]
