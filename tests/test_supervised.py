"""Commands whose process the target ends: whatever exit code that has, the status is 2, with a sentence. Signals reach the command as ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvproof.fuzz.programs import FORMAT, PoolConfig, Program, write_program
from kvproof.models.ops import Admit, Commit, Extend, Release

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands have a process of their own on Linux")

ENDED = "The process of this command was ended with exit code 0 before it could answer; the target ended or crashed it."

LEAVING = """
import os
from toys import Toy

class Leaving(Toy):
    def commit(self, seq, accepted):
        os._exit(0)

class AtExtend(Toy):
    def extend(self, seq, count, drafts=()):
        os._exit(0)
"""

THREADED = """
import os
import threading
import time
from toys import Toy

class Threaded(Toy):
    started_in = 0

    def __init__(self, **sizes):
        super().__init__(**sizes)
        if Threaded.started_in != os.getpid():
            Threaded.started_in = os.getpid()
            threading.Thread(target=time.sleep, args=(600,)).start()

class Leaky(Threaded):
    def release(self, seq, reason):
        if reason != "cancel":
            super().release(seq, reason)
"""

RETURNS = """
import sys
from kvproof.supervised import supervised
sys.exit(supervised(lambda: {status}))
"""

WAITS = """
import signal, sys, time
from kvproof.supervised import supervised

def run():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # deaf to it where a shell started the tests in the background
    try:
        print("ready", flush=True)
        for _ in range(600):
            time.sleep(0.1)  # a signal just before one long sleep would be heard after it
    except KeyboardInterrupt:
        return 1
    return 0

sys.exit(supervised(run))
"""


def python(*arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("check", "leaving.py:Leaving", "-n", "1", "--budget", "2"), "A worker process died with exit code 0"),
        (("fuzz", "leaving.py:Leaving", "-n", "1", "--budget", "2", "--directory", "kept"), "process died with exit code 0 in"),
        (("exhaust", "leaving.py:Leaving", "--scope", "tiny"), ENDED),
        (("replay", "program.json"), ENDED),
        (("shrink", "program.json"), ENDED),
        (("open", "program.json", "--text"), ENDED),
        (("check", "at_import.py:Cache"), ENDED),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_no_command_ends_well_where_the_target_ends_its_process(tmp_path, command, words):
    (tmp_path / "leaving.py").write_text(LEAVING)
    (tmp_path / "at_import.py").write_text("import os\nos._exit(0)\n")
    ops = (Admit(0, (1, 2, 3)), Extend(0, 3), Commit(0))
    write_program(tmp_path / "program.json", Program(FORMAT, "leaving.py:Leaving", PoolConfig(4, 2), ops))
    ended = python("-m", "kvproof", *command, cwd=tmp_path)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert words in " ".join((ended.stdout + ended.stderr).split())


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("check", "threaded.py:Threaded", "-n", "1", "--budget", "1"), 0),
        (("exhaust", "threaded.py:Threaded", "--scope", "tiny"), 0),
        (("replay", "program.json"), 1),
        (("shrink", "program.json", "-n", "1"), 1),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_threads_that_a_target_leaves_running_hold_no_command(tmp_path, command, status):
    (tmp_path / "threaded.py").write_text(THREADED)
    ops = (Admit(0, (1, 2, 3)), Extend(0, 3), Commit(0), Release(0, "cancel"))
    write_program(tmp_path / "program.json", Program(FORMAT, "threaded.py:Leaky", PoolConfig(4, 2), ops))
    ended = python("-m", "kvproof", *command, cwd=tmp_path)
    assert ended.returncode == status, ended.stdout + ended.stderr


def test_a_race_in_which_the_process_ends_is_one_that_is_stuck(tmp_path):
    (tmp_path / "leaving.py").write_text(LEAVING)
    command = ("race", "leaving.py:AtExtend", "--mode", "random", "--scenario", "last-blocks", "--seconds", "2")
    ended = python("-m", "kvproof", *command, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "the process ended with status 0 or fell silent" in ended.stdout


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_status_of_a_command_is_its_own(tmp_path, status):
    ended = python("-c", RETURNS.format(status=status), cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (status, "")


def test_a_crash_is_told_with_its_signal(tmp_path):
    ended = python("-c", RETURNS.format(status="__import__('os').abort()"), cwd=tmp_path)
    assert ended.returncode == 2
    assert "was ended by signal SIGABRT before it could answer" in ended.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, -signal.SIGTERM)], ids=["interrupt", "terminate"])
def test_a_signal_is_passed_on(number, status):
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout.readline() == "ready\n"
        waiting.send_signal(number)
        assert waiting.wait(timeout=30) == status
        assert waiting.stderr.read() == ""


def test_the_command_ends_with_the_process_that_a_user_kills():
    """The pipe is closed once nobody is left who could write to it."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout.readline() == "ready\n"
        begin = time.monotonic()
        waiting.kill()
        assert waiting.stdout.read() == ""
        assert time.monotonic() - begin < 30
