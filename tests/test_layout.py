"""The layout of the repository: who may import whom, what the core leaves alone, and what the packages hold."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("models", "impl", "kernels", "properties", "fuzz")
"""The folders that are imported as kvproof.models, kvproof.impl, ...; the folder kvproof itself is the face."""

MAY_IMPORT = {
    "models": {"models"},
    "impl": {"models", "impl"},
    "impl/engine": {"models", "impl", "kernels"},
    "kernels": {"models", "kernels"},
    "properties": {"models", "impl", "kernels", "properties"},
    "fuzz": {"models", "impl", "kernels", "properties", "fuzz"},
    "kvproof": {"models", "impl", "kernels", "properties", "fuzz", "kvproof"},
}
"""A folder inside a part may have arrows of its own. An engine is where cache and kernels meet: `impl/engine` needs both, and nothing in `impl` or `kernels`
needs an engine, so there is no circle.
"""

OUTSIDE = {"os", "sys", "io", "pathlib", "socket", "subprocess", "tempfile", "time", "random", "threading", "signal", "shutil", "logging"}
"""Modules of the standard library that the specification has no business with: it is pure."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def sources(part: str) -> list[Path]:
    """The modules of a part that are no tests, but for the folders in it that have arrows of their own."""
    apart = [ROOT / folder for folder in MAY_IMPORT if folder.startswith(f"{part}/")]
    return [
        path
        for path in sorted((ROOT / part).rglob("*.py"))
        if not path.name.startswith("test_") and path.name != "conftest.py" and not any(path.is_relative_to(folder) for folder in apart)
    ]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of everything that `path` imports, wherever in the file. `from a import b` gives a and, in case it is one, a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; imports are absolute here"
            assert node.module is not None
            yield node.lineno, node.module
            if node.module == "kvproof":
                yield from ((node.lineno, f"kvproof.{alias.name}") for alias in node.names)


def part_of(module: str) -> str | None:
    """The part that an import reaches into; `kvproof` is the face, None what is not ours."""
    names = module.split(".")
    if names[0] != "kvproof":
        return None
    return names[1] if len(names) > 1 and names[1] in PARTS else "kvproof"


def told(path: Path, line: int, module: str) -> str:
    return f"{path.relative_to(ROOT)}:{line} imports {module}"


# -- arrows ---------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_the_parts_below_it(part):
    assert sources(part), f"{part} has no modules"
    wrong = []
    for path in sources(part):
        for line, module in imports(path):
            # `from kvproof import impl` names the face first and then the part: only the part counts.
            found = part_of(module)
            if found is not None and found not in MAY_IMPORT[part]:
                wrong.append(told(path, line, module))
    assert wrong == []


def test_nothing_but_users_imports_the_face():
    """Examples, benchmarks, tests and docs are users."""
    wrong = [
        told(path, *found)
        for part in MAY_IMPORT
        if part != "kvproof"
        for path in sources(part)
        for found in imports(path)
        if part_of(found[1]) == "kvproof"
    ]
    assert wrong == []


def test_no_command_imports_the_command_line():
    """It declares and registers them, so that there is no circle. Only the entry loads it."""
    commands = [path for path in sources("kvproof") if path.name != "entry.py"]
    wrong = [told(path, *found) for path in commands for found in imports(path) if found[1].startswith("kvproof.cli")]
    assert wrong == []


def test_no_part_needs_an_engine():
    """But those that judge one."""
    wrong = [
        told(path, *found)
        for part in ("models", "impl", "kernels")
        for path in sources(part)
        for found in imports(path)
        if found[1].startswith("kvproof.impl.engine")
    ]
    assert wrong == []


def test_the_face_is_imported_where_users_are():
    users = [path for folder in ("examples", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert any(part_of(module) == "kvproof" for path in users for _, module in imports(path))


def test_the_production_cache_imports_nothing_of_ours():
    own = "kvproof.impl.production"
    wrong = [
        told(path, line, module)
        for path in sources("impl/production")
        if path.name not in ("adapter.py", "batched_adapter.py")
        for line, module in imports(path)
        if module.split(".")[0] == "kvproof" and module != own and not module.startswith(f"{own}.")
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["adapter.py", "batched_adapter.py"])
def test_the_adapters_of_the_production_cache_know_the_contract_and_not_the_spec(name):
    contract = {"kvproof.impl.adapter", "kvproof.models.capabilities", "kvproof.models.ops", "kvproof.models.outcomes"}
    found = {module for _, module in imports(ROOT / "impl/production" / name) if module.split(".")[0] == "kvproof"}
    assert {module for module in found if not module.startswith("kvproof.impl.production.")} <= contract


def test_the_specification_is_pure():
    wrong = []
    for path in sources("models"):
        wrong += [told(path, line, module) for line, module in imports(path) if module.split(".")[0] in OUTSIDE]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        wrong += [f"{path.name}:{node.lineno} calls {node.func.id}()" for node in calls if node.func.id in ("open", "print", "input")]
    assert wrong == []


IMPORTED_AS = {"crosshair_tool": "crosshair", "z3_solver": "z3"}
"""Distributions whose modules have another name."""


def declared() -> set[str]:
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *(need for needs in project["optional-dependencies"].values() for need in needs)]
    names = {need.split(";")[0].strip().split(">")[0].split("=")[0].split("[")[0].strip().replace("-", "_") for need in wanted}
    return {IMPORTED_AS.get(name, name) for name in names}


def test_everything_from_outside_is_declared():
    wrong = []
    for part in MAY_IMPORT:
        for path in sources(part):
            for line, module in imports(path):
                root = module.split(".")[0]
                if root != "kvproof" and root not in sys.stdlib_module_names and root not in declared():
                    wrong.append(told(path, line, module))
    assert wrong == []


# -- what the core leaves alone -----------------------------------------------------------------------------------------------------------------


def loaded_by(*modules: str) -> set[str]:
    """The top-level modules that a fresh Python has loaded after importing these."""
    code = f"import sys; import {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_the_core_loads_neither_torch_nor_numpy():
    core = [
        "kvproof",
        "kvproof.models.spec",
        "kvproof.impl.checker",
        "kvproof.impl.production.adapter",
        "kvproof.properties.lockstep",
        "kvproof.properties.machine",
        "kvproof.fuzz.check",
        "kvproof.cli",
    ]
    assert loaded_by(*core).isdisjoint({"torch", "numpy", "triton"})


def test_an_adapter_loads_nothing_that_only_tests_need():
    assert loaded_by("kvproof").isdisjoint({"pytest", "hypothesis", "rich", "click", "multiprocessing"})


def test_the_specification_loads_nothing_but_msgspec():
    others = {name for name in loaded_by("kvproof.models.spec", "kvproof.models.capacity") if name not in sys.stdlib_module_names}
    plain = {name for name in loaded_by("msgspec") if name not in sys.stdlib_module_names}
    assert others - plain <= {"kvproof"}


# -- packages -------------------------------------------------------------------------------------------------------------------------------------

SETUPTOOLS = 77
"""The first release that takes `license` for an expression (PEP 639)."""

PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"]
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]


def folder_of(package: str) -> Path:
    """Where setuptools looks for a package: what `package-dir` says of it, or of the nearest package above."""
    rest: list[str] = []
    while package not in FOLDERS:
        package, _, name = package.rpartition(".")
        rest.insert(0, name)
    return ROOT.joinpath(FOLDERS[package], *rest)


def test_the_packages_are_the_folders_with_an_init():
    found = [path.parent.relative_to(ROOT) for part in ("kvproof", *PARTS) for path in (ROOT / part).rglob("__init__.py")]
    names = [".".join(folder.parts) if folder.parts[0] == "kvproof" else ".".join(("kvproof", *folder.parts)) for folder in found]
    assert sorted(PACKAGES) == sorted(names)


def test_every_folder_with_modules_has_an_init():
    folders = {path.parent for part in ("kvproof", *PARTS) for path in (ROOT / part).rglob("*.py")}
    assert [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_where_its_name_says(package):
    names = package.split(".")
    assert folder_of(package) == ROOT.joinpath(*(names[1:] or names))
    assert (folder_of(package) / "__init__.py").is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_an_editable_installation_finds_every_package(package):
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    if "site-packages" in spec.origin:
        pytest.skip("kvproof is installed from a wheel here")
    assert Path(spec.origin).samefile(folder_of(package) / "__init__.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> set[str]:
    """The names in a wheel that was built from a copy of the repository."""
    if importlib.util.find_spec("build") is None:
        pytest.skip("the package `build` is not installed")
    setuptools = importlib.metadata.version("setuptools")
    if int(setuptools.partition(".")[0]) < SETUPTOOLS:
        pytest.skip(f"setuptools {setuptools} is installed, and only {SETUPTOOLS} and later read the license of pyproject.toml")
    copy = tmp_path_factory.mktemp("source") / "kvproof"
    ignore = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignore)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(copy / "out"), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = (copy / "out").glob("*.whl")
    return set(zipfile.ZipFile(built).namelist())


def test_the_wheel_holds_every_module_of_every_package(wheel):
    missing = [
        f"{package}: {path.name}"
        for package in PACKAGES
        for path in folder_of(package).glob("*.py")
        if not path.name.startswith("test_") and f"{package.replace('.', '/')}/{path.name}" not in wheel
    ]
    assert missing == []


def test_the_wheel_holds_the_page_of_pictures(wheel):
    files = [path.name for path in (ROOT / "fuzz/reports/picture/page").iterdir()]
    assert [name for name in files if f"kvproof/fuzz/reports/picture/page/{name}" not in wheel] == []


def test_the_wheel_is_typed_and_licensed(wheel):
    assert "kvproof/py.typed" in wheel
    assert any(name.endswith("/LICENSE") for name in wheel)


def test_the_wheel_installs_one_import_name_and_no_tests_of_the_tools(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvproof"}
    assert not any(name.split("/")[1] in ("tests", "examples", "docs", "benchmarks") for name in wheel)


def test_the_wheel_has_the_command_and_the_pytest_plugin():
    assert PROJECT["project"]["scripts"] == {"kvproof": "kvproof.entry:main"}
    assert PROJECT["project"]["entry-points"]["pytest11"] == {"kvproof": "kvproof.plugin"}
    for target in ("kvproof.cli", "kvproof.plugin"):
        assert importlib.util.find_spec(target) is not None
