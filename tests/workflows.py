"""A small stand-in for a CI service: it runs the shell steps of a workflow in a folder, with programs of the outside world replaced.

`pip` is not run at all, since the environment of the tests has what it would install; `gh` and `curl` note down what they were asked for; `kvproof` is real, with short campaigns.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

SHORT = "--minutes 1 --programs 40 --batch 20 --seed 1 --workers 1"
"""What is added to every campaign: the last of two options counts."""

CONDITION = re.compile(r"always\(\) && hashFiles\('([^']+)'\) != ''")
"""The only condition that shell steps have here."""


class Ran(msgspec.Struct):
    """What came of a job: its exit status, and what the outside world was asked for, a list of words each."""

    status: int
    asked: list[list[str]]
    output: str


class Folder:
    """A checked out project with an adapter in `mypkg/kv.py`, and the programs that its steps find."""

    def __init__(self, place: Path, adapter: str, *, kept: Path | None = None) -> None:
        """`kept`: an earlier folder, whose campaigns come back out of the CI's cache."""
        self.place = place / "project"
        self.bin = place / "bin"
        self.asked = place / "asked"
        (self.place / "mypkg").mkdir(parents=True)
        (self.place / "mypkg/__init__.py").touch()
        (self.place / "mypkg/kv.py").write_text(adapter)
        if kept is not None:
            shutil.copytree(kept / "project/.kvproof/campaigns", self.place / ".kvproof/campaigns")
        self.bin.mkdir()
        self._program("pip", "exit 0")
        entry = "import sys; from kvproof.entry import main; sys.exit(main())"
        self._program("kvproof", f'exec {sys.executable} -c "{entry}" "$@" {SHORT}')
        for name in ("gh", "curl"):
            self._program(name, f"{{ printf '%s\\0' {name} \"$@\"; printf '\\n\\0'; }} >> {self.asked}")

    def _program(self, name: str, line: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{line}\n")
        path.chmod(0o755)

    def shell(self, script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """One step, as CI services run it: bash that ends at the first failure."""
        outside = {name: value for name, value in os.environ.items() if name not in ("GITHUB_ACTIONS", "CI")}
        paths = {"PATH": f"{self.bin}:{outside['PATH']}", "PYTHONPATH": os.pathsep.join([str(self.place), *sys.path])}
        command = ["bash", "-eo", "pipefail", "-c", script]
        return subprocess.run(
            command, cwd=self.place, env=outside | paths | environment, capture_output=True, text=True, check=False, timeout=300
        )

    def outside(self) -> list[list[str]]:
        """What `gh` and `curl` were asked for."""
        if not self.asked.exists():
            return []
        return [call.rstrip("\0").split("\0") for call in self.asked.read_text().split("\n\0") if call]


def run_github(workflow: dict, folder: Folder) -> Ran:
    """The only job of a GitHub workflow: a step that fails ends it, but for steps that always run."""
    [job] = workflow["jobs"].values()
    status, output = 0, ""
    for step in job["steps"]:
        if "run" not in step or not _is_to_run(step, folder, status):
            continue
        done = folder.shell(step["run"], {name: str(value) for name, value in step.get("env", {}).items()})
        output += done.stdout + done.stderr
        if not step.get("continue-on-error"):
            status = status or done.returncode
    return Ran(status, folder.outside(), output)


def _is_to_run(step: dict, folder: Folder, status: int) -> bool:
    if "if" not in step:
        return status == 0
    [file] = CONDITION.fullmatch(step["if"]).groups()
    return (folder.place / file).exists()


def run_gitlab(workflow: dict, job: str, folder: Folder, environment: dict[str, str]) -> Ran:
    """One job of a GitLab pipeline: what comes before and the script in one shell, and afterwards what always runs in another one."""
    whole = workflow[workflow[job]["extends"]] | workflow[job]
    done = folder.shell("\n".join([*whole["before_script"], *whole["script"]]), environment)
    after = folder.shell("\n".join(whole.get("after_script", [])), environment)
    assert after.returncode == 0, after.stderr
    return Ran(done.returncode, folder.outside(), done.stdout + done.stderr)
