"""The workflows of the CI kit and the job scripts of clusters: valid by the schemas of their services, and their shell steps run for real."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from workflows import Folder, run_github, run_gitlab

from kvproof.cli import cli

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples/ci"
BLOCK = re.compile(r"```(bash|yaml)\n(.*?)```", re.DOTALL)

SOUND = "from kvproof.impl.production.adapter import SynchronousAdapter as Adapter\n"
FAULTY = "from kvproof.fuzz.bugs import BUGS\n\nAdapter = BUGS['canary'].adapter\n"

TITLE = re.compile(r"kvproof: mypkg\.kv:Adapter breaks .*no-aliasing")

needs_schemas = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import check_jsonschema"], capture_output=True, check=False).returncode != 0,
    reason="check-jsonschema is not installed, so workflows are not held against the schemas that come with it",
)


def load(text):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed, so the workflows are not parsed")
    return yaml.safe_load(text)


def block(kind):
    """The only block of that kind in the page on campaigns."""
    [found] = [text for name, text in BLOCK.findall((ROOT / "docs/campaigns.md").read_text()) if name == kind]
    return found


# -- schemas ------------------------------------------------------------------------------------------------------------------------------------------


def judged(path):
    """What the service's own schema says of a file. The schemas are part of check-jsonschema, so nothing is fetched."""
    schema = ["vendor.gitlab-ci", "--data-transform", "gitlab-ci"] if "gitlab" in path.name else ["vendor.github-workflows"]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", *schema, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_schemas
@pytest.mark.parametrize(
    "path", [*sorted(EXAMPLES.glob("*.yml")), *sorted((ROOT / ".github/workflows").glob("*.yml"))], ids=lambda p: p.name
)
def test_a_workflow_is_valid_by_the_schema_of_its_service(path):
    done = judged(path)
    assert done.returncode == 0, done.stdout


@needs_schemas
@pytest.mark.parametrize(
    ("name", "right", "wrong"), [("github-gate.yml", "runs-on:", "runs_on:"), ("gitlab-ci.yml", "when: always", "when: sometimes")]
)
def test_a_slip_in_a_workflow_is_seen(name, right, wrong, tmp_path):
    text = (EXAMPLES / name).read_text()
    assert right in text
    (tmp_path / name).write_text(text.replace(right, wrong))
    assert judged(tmp_path / name).returncode == 1


def test_a_gate_uploads_no_alerts_where_a_fork_asks_for_it_without_the_right_to():
    gate = load((EXAMPLES / "github-gate.yml").read_text())
    [upload] = [step for step in gate["jobs"]["gate"]["steps"] if "upload-sarif" in step.get("uses", "")]
    assert upload["if"].endswith("&& github.event.pull_request.head.repo.full_name == github.repository")


# -- shell steps --------------------------------------------------------------------------------------------------------------------------------------


def test_the_steps_of_github_report_a_failure_once_and_a_gate_holds_changes_against_it(tmp_path):
    nightly, gate = (load((EXAMPLES / f"github-{name}.yml").read_text()) for name in ("nightly", "gate"))
    first = run_github(nightly, Folder(tmp_path / "first", FAULTY))
    assert first.status == 1, first.output
    [[program, *asked]] = first.asked
    assert (program, asked[:3]) == ("gh", ["issue", "create", "--title"])
    assert TITLE.match(asked[3])
    assert asked[4] == "--body"
    assert "```python" in asked[5]

    second = run_github(nightly, Folder(tmp_path / "second", FAULTY, kept=tmp_path / "first"))
    assert (second.status, second.asked) == (1, []), second.output

    held = Folder(tmp_path / "gate", FAULTY, kept=tmp_path / "second")
    assert run_github(gate, held).status == 1
    assert {path.name for path in held.place.glob("kvproof.*")} == {"kvproof.sarif", "kvproof.xml"}


def test_the_steps_of_gitlab_report_a_failure_and_let_a_sound_cache_through(tmp_path):
    workflow = load((EXAMPLES / "gitlab-ci.yml").read_text())
    project = {"CI_API_V4_URL": "https://gitlab.example.com/api/v4", "CI_PROJECT_ID": "7", "KVPROOF_TOKEN": "secret"}
    night = run_gitlab(workflow, "kvproof-nightly", Folder(tmp_path / "night", FAULTY), project)
    assert night.status == 1, night.output
    [[program, *asked]] = night.asked
    assert program == "curl"
    assert asked[-1] == "https://gitlab.example.com/api/v4/projects/7/issues"
    assert "PRIVATE-TOKEN: secret" in asked
    assert any(TITLE.match(word.removeprefix("title=")) for word in asked)

    sound = Folder(tmp_path / "sound", SOUND)
    merge = run_gitlab(workflow, "kvproof-gate", sound, project)
    assert (merge.status, merge.asked) == (0, []), merge.output
    assert (sound.place / "kvproof.xml").exists()


# -- clusters -----------------------------------------------------------------------------------------------------------------------------------------


def campaign(command):
    """The options of a command, as this release reads them."""
    assert command[:2] == ["kvproof", "fuzz"]
    return cli.commands["fuzz"].make_context("fuzz", command[2:]).params


def test_the_job_of_kubernetes_runs_a_campaign_of_this_release_and_keeps_its_directory():
    job = load(block("yaml"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    options = campaign(shlex.split(job["spec"]["entrypoint"]))
    assert options["ray"] == "auto"
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in head["containers"][0]["volumeMounts"]}
    assert mounts[str(options["directory"])] in {volume["name"] for volume in head["volumes"] if "persistentVolumeClaim" in volume}


SRUN = """#!/bin/bash
printf '%s ' "$@" >> "$ASKED"; echo >> "$ASKED"
"""


def test_the_job_of_slurm_starts_ray_on_every_node_and_a_campaign_on_the_first(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(block("bash"))
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    for name, text in {
        "srun": SRUN,
        "scontrol": "#!/bin/bash\nprintf 'one\\ntwo\\nthree\\n'\n",
        "sleep": "#!/bin/bash\n/bin/sleep 0.2\n",
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "one,two,three", "SLURM_NNODES": "3", "SLURM_CPUS_ON_NODE": "16", "SCRATCH": "/scratch"}
    environment = slurm | {"PATH": f"{tmp_path}:/usr/bin:/bin", "ASKED": str(tmp_path / "asked")}
    done = subprocess.run(["bash", "-u", script], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    head, others, conductor = map(shlex.split, (tmp_path / "asked").read_text().splitlines())
    assert head[-6:] == ["ray", "start", "--head", "--port=6379", "--num-cpus=15", "--block"]
    assert {"--nodes=2", "--ntasks=2", "--address=one:6379", "--num-cpus=16"} <= set(others)
    assert campaign(conductor[conductor.index("kvproof") :])["ray"] == "one:6379"
