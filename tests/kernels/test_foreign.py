"""The released kernels of engines: how their files are found and loaded, and, nightly, that they keep the kernel laws.

Nightly tests take the releases from KVPROOF_ENGINES where it is set, else from the index through pip.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvproof.kernels.check import check_kernels
from kvproof.kernels.foreign import sglang, vllm
from kvproof.kernels.foreign.sources import VARIABLE, Engine, MissingEngineError

FILES = {
    "engine/__init__.py": "raise RuntimeError('an engine must not be imported as a whole')",
    "engine/ops/__init__.py": "raise RuntimeError('nor any package of it')",
    "engine/ops/helper.py": "from engine.platform import width\ndouble = width() * 2",
    "engine/ops/kernel.py": "import engine.platform as platform\nfrom .helper import double\nanswer = double + platform.width()",
    "engine/ops/moved.py": "from engine.somewhere.new import width",
}
GIVEN = {"engine.platform": {"width": lambda: 7}}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / "engines" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "engines" / name).write_text(text)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "engines"))
    return tmp_path


def test_only_the_named_files_are_executed(place: Path) -> None:
    engine = Engine("engine", "engine==1")
    _, kernel = engine.load(["engine.ops.helper", "engine.ops.kernel"], GIVEN)
    assert kernel.answer == 21
    assert kernel.__name__ == "engine.ops.kernel"
    assert Path(kernel.__file__ or "").parent == place / "engines/engine/ops"
    assert not [name for name in sys.modules if name.split(".")[0] == "engine"]


def test_a_wheel_will_do(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(place / "engine-1-py3-none-any.whl", "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    monkeypatch.setenv(VARIABLE, str(place))
    assert Engine("engine", "engine==1").load(["engine.ops.helper"], GIVEN)[0].double == 14


def test_an_import_that_nobody_gave_is_named(place: Path) -> None:
    with pytest.raises(MissingEngineError, match=r"engine\.ops\.moved .*engine\.somewhere.*take a release .* such as engine==1"):
        Engine("engine", "engine==1").load(["engine.ops.moved"], GIVEN)


def test_a_release_without_the_file_is_named(place: Path) -> None:
    engine = Engine("engine", "engine==1")
    assert not engine.has("engine.ops.gone")
    with pytest.raises(MissingEngineError, match=r"has no engine\.ops\.gone"):
        engine.load(["engine.ops.gone"], GIVEN)


def test_an_engine_that_is_nowhere_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(MissingEngineError, match="pip download --no-deps -d engines no-such-engine==1"):
        Engine("no_such_engine", "no-such-engine==1")


def test_a_place_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/no/such/place")
    with pytest.raises(MissingEngineError, match="/no/such/place, which does not exist"):
        Engine("engine", "engine==1")


def test_a_damaged_wheel_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "engine-1.whl").write_text("half a wheel")
    monkeypatch.setenv(VARIABLE, str(place / "engine-1.whl"))
    with pytest.raises(MissingEngineError, match="download it again"):
        Engine("engine", "engine==1")


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> str:
    if os.environ.get(VARIABLE):
        return os.environ[VARIABLE]
    folder = tmp_path_factory.mktemp("engines")
    for wheel in (vllm.WHEEL, sglang.WHEEL):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), wheel]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
        if done.returncode:
            pytest.skip(f"pip cannot download {wheel}: {done.stderr.strip().splitlines()[-1:]}")
    return str(folder)


@pytest.mark.nightly
@pytest.mark.parametrize("kernels", [vllm.VllmUnified, vllm.VllmDecode, sglang.Sglang])
def test_released_kernels_keep_every_law(kernels: type, engines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, engines)
    report = check_kernels(kernels, budget_seconds=60)
    assert report.verdict == "held", str(report)
    claimed = kernels.capabilities().features  # type: ignore[attr-defined]
    expected = {"paged-equals-contiguous", "reads-only-owned", "writes-only-granted", "in-bounds", "padding-inert", "no-address-overflow"}
    expected |= {"quantised-within-bound"} if "fp8" in claimed else set()
    assert expected <= {law.law for law in report.laws if law.verdict == "held"}
