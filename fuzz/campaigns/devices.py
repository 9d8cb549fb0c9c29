"""Orders on kernels, each worker with a device of its own. An error that a device keeps (an illegal access, a failed assertion) makes every later call of the process fail,
so what comes after it says nothing: the order ends there, and the process is replaced.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from typing import Any, Final

from kvproof.fuzz import kernels_check
from kvproof.fuzz.campaigns.orders import Order, Result
from kvproof.fuzz.campaigns.records import Record
from kvproof.fuzz.verdicts import Finding, Report

CANARY: Final = "bug:canary"
"""The target that must fail, for caches."""

KERNELS_CANARY: Final = "kernel-bug:one-token-too-many-is-read"
"""The target that must fail, for kernels."""

ORDER_SECONDS: Final = 20.0
"""Length of an order on kernels: long enough for the sweep over the claimed features and some random cases."""

CANARY_SECONDS: Final = 3.0
"""The same for the canary, which breaks its law in the first cases."""

STICKY: Final = re.compile(
    r"CUDA error|hipError|device-side assert|illegal memory access|misaligned address|unspecified launch failure|ECC error", re.IGNORECASE
)
"""What runtimes say of an error that stays with the process."""


class DeviceLost(BaseException):
    """The device keeps an error. Not an Exception: whatever judges the call must not take it for a property of one case."""


def guarded(kernels: type) -> type:
    """The same kernels, except that an error which the device keeps ends the order."""

    def guard(name: str) -> Any:  # noqa: ANN401 -- a method of whatever signature
        def method(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            try:
                return getattr(super(watched, self), name)(*arguments, **named)
            except Exception as error:
                if STICKY.search(str(error)):
                    raise DeviceLost(f"{name} raised {type(error).__name__}: {str(error).splitlines()[0]}") from error
                raise

        return method

    methods = {name: guard(name) for name in ("store", "attend", "copy_blocks") if hasattr(kernels, name)}
    watched = type(kernels.__name__, (kernels,), methods | {"__module__": kernels.__module__, "__qualname__": kernels.__qualname__})
    return watched


def judge(kernels: type, name: str, campaign: str, order: Order) -> Result:
    """Judge kernels by cases for the length of one order."""
    begun = time.monotonic()
    seed = random.Random(order.seed).getrandbits(32)
    seconds = CANARY_SECONDS if order.kind == "canary" else ORDER_SECONDS
    try:
        report = kernels_check.check(guarded(kernels), name=name, seconds=seconds, seed=seed)
    except DeviceLost as lost:
        record = Record(campaign, order.number, order.seed, order.attempt, 1, seconds=time.monotonic() - begun, failures={"": 1})
        told = f"The device was lost to its process: {lost}."
        return Result(record, (), (Finding("", told, f"seed {seed}", 1),), sticky=True)
    findings = list(report.violations) + ([Finding("", report.error, f"seed {seed}", 1)] if report.error else [])
    return Result(_record(campaign, order, report, findings), (), tuple(findings))


def _record(campaign: str, order: Order, report: Report, findings: list[Finding]) -> Record:
    return Record(
        campaign,
        order.number,
        order.seed,
        order.attempt,
        report.programs,
        report.operations,
        report.seconds,
        {law: verdict.exercised for law, verdict in report.laws.items()},
        failures={finding.law: 1 for finding in findings},
    )


def count_devices() -> int:
    """The accelerators of this machine, asked of the driver's own tool: a parent that loads CUDA could not fork."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    listed = subprocess.run([tool, "--list-gpus"], capture_output=True, text=True, check=False)  # noqa: S603 -- the driver's tool, without input of ours
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def device_of(worker: int) -> str:
    """The device of a worker, as CUDA_VISIBLE_DEVICES names it."""
    visible = [device.strip() for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
    return visible[worker % len(visible)] if visible else str(worker)
