"""Long commands that are asked to end: they stop at once, once, and leave the handlers as they found them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kvproof.cli import main
from kvproof.fuzz.campaigns.conductor import Conductor
from kvproof.fuzz.campaigns.store import Store, directory
from kvproof.fuzz.programs import PoolConfig, Program, write_program
from kvproof.models.ops import Admit, Commit, Extend, Release, Truncate
from kvproof.signals import interrupt, stopped_by_signals

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@BOTH
def test_a_signal_that_comes_twice_at_once_is_one_request(number):
    told = []
    signal.signal(number, lambda *_: told.append("elsewhere"))
    again = threading.Timer(0.2, os.kill, (os.getpid(), number))
    with stopped_by_signals(lambda: told.append("stop")):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        again.start()  # it comes when the work is over
    again.join()
    assert told == ["stop"]
    os.kill(os.getpid(), number)
    assert told == ["stop", "elsewhere"]


@BOTH
def test_a_signal_stops_and_a_second_one_acts_as_elsewhere(number, monkeypatch):
    monkeypatch.setattr("kvproof.signals.SAME_REQUEST_SECONDS", 0.0)
    told = []
    before = signal.signal(number, lambda *_: told.append("elsewhere"))
    try:
        with stopped_by_signals(lambda: told.append("stop")):
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)
    assert told == ["stop", "elsewhere", "elsewhere"]


def test_handlers_come_back_after_an_exception():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ZeroDivisionError), stopped_by_signals(interrupt):
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@BOTH
def test_a_campaign_that_is_asked_to_end_reports_and_goes_on_later(number, tmp_path, monkeypatch, capfd):
    progress, sent = Conductor.progress, []

    def asked_to_end(conductor):
        if conductor.totals.batches >= 2 and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return progress(conductor)

    request = ["fuzz", "production-sync", "-n", "1", "--programs", "40", "--batch", "10", "--seed", "1", "--directory", str(tmp_path)]
    with monkeypatch.context() as patched:
        patched.setattr(Conductor, "progress", asked_to_end)
        assert main(request) == 0
    assert "in 2 orders" in capfd.readouterr().out
    assert main(request) == 0
    assert "40 programs in 4 orders" in capfd.readouterr().out


def test_a_campaign_that_is_asked_to_end_before_it_tried_anything_holds_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(Conductor, "run", lambda *_: interrupt())
    assert main(["fuzz", "production-sync", "-n", "1", "--programs", "40", "--directory", str(tmp_path)]) == 2
    out, err = capfd.readouterr()
    assert "keeps" not in out
    assert err.endswith("kvproof: The run was interrupted before it could decide anything.\n")


@pytest.mark.skipif(sys.platform != "linux", reason="there is no supervisor elsewhere")
@BOTH
def test_a_campaign_whose_whole_group_is_asked_to_end_reports(number, tmp_path):
    asked = ["fuzz", "production-sync", "-n", "1", "--seed", "3", "--minutes", "5", "--directory", str(tmp_path / "c")]
    command = [sys.executable, "-m", "kvproof", *asked]
    store = Store(directory(tmp_path / "c" / "store"), target="production-sync", campaign="3")
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    try:
        assert within(60, lambda: len(store.records()) > 1)  # the first of them counts by then
        os.killpg(process.pid, number)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "production-sync keeps" in out


def children(process):
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def below(process):
    """The command's own process, and its workers."""
    return [one for child in children(process) for one in (child, *children(child))]


def within(seconds, is_so):
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)
    return is_so()


def runs(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SLOW = """
import time
from kvproof.targets import find_target

class Slow(find_target("bug:trimmed-blocks-are-lost")):
    def admit(self, *request):
        time.sleep(0.02)  # so that shrinking takes its time
        return super().admit(*request)
"""


BLOCKED = """
import signal
import time
from kvproof.targets import find_target

class Blocked(find_target("production-sync")):
    def admit(self, *request):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        while True:
            time.sleep(1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="children are read from /proc")
@pytest.mark.parametrize(
    ("number", "arguments"),
    [
        (signal.SIGKILL, ("check", "production-sync", "-n", "2", "--budget", "600")),
        (signal.SIGTERM, ("check", "production-sync", "-n", "2", "--budget", "600")),
        (signal.SIGKILL, ("shrink", "failing.json", "-n", "2", "--seconds", "2")),
        (signal.SIGKILL, ("fuzz", "blocked.py:Blocked", "-n", "2", "--seed", "1")),
    ],
)
def test_a_command_that_is_killed_leaves_no_process_behind(number, arguments, tmp_path):
    ops = tuple(op for seq in range(20) for op in (Admit(seq, (seq, 1)), Extend(seq, 2), Commit(seq), Truncate(seq, 1), Release(seq)))
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "blocked.py").write_text(BLOCKED)
    write_program(tmp_path / "failing.json", Program(1, "slow.py:Slow", PoolConfig(40, 1), ops))
    check = subprocess.Popen(
        [sys.executable, "-m", "kvproof", *arguments],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    workers = []
    try:
        assert within(60, lambda: len(below(check.pid)) == 3)
        workers = below(check.pid)
        if arguments[0] == "fuzz":
            time.sleep(3)  # until the workers are blocked
        check.send_signal(number)
        check.wait(60)
        assert within(60, lambda: not any(map(runs, workers)))
    finally:
        for process in (check.pid, *workers):
            if runs(process):
                os.kill(process, signal.SIGKILL)
        check.wait(60)
