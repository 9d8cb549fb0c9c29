"""Imports some modules of an unpacked engine, and stubs the rest of it and what it would pull.

Only imports that the engine itself makes are touched: everybody else in the process gets what is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from kvproof.impl.foreign.stubs import StubModule, Watch


class StubLoader(Loader):
    """Makes a stub in place of a module."""

    def __init__(self, hook: EngineHook) -> None:
        self.hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The stub."""
        package = spec.name.partition(".")[0] == self.hook.package
        return Shell(spec.name, self.hook) if package else StubModule(spec.name, self.hook.watch)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing runs."""


class Shell(StubModule):
    """A package of the engine whose own code does not run: its real modules are found in it, everything else is a stub."""

    def __init__(self, name: str, hook: EngineHook) -> None:
        super().__init__(name, hook.watch)
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        if self._hook.is_real(f"{self.__name__}.{name}"):
            return importlib.import_module(f"{self.__name__}.{name}")
        return super().__getattr__(name)


class EngineHook(MetaPathFinder):
    """The import hook for one engine: `package` from the folder `root`.

    `real` names the modules that run, each with all that lies below it; `kept` the third parties that the engine gets as they are, where they are installed.
    """

    def __init__(self, package: str, root: Path, real: Sequence[str], kept: Sequence[str], watch: Watch) -> None:
        self.package = package
        self.root = root
        self.real = tuple(real)
        self.kept = frozenset(name for name in kept if importlib.util.find_spec(name) is not None)
        self.watch = watch
        self.ran: set[str] = set()
        self._stubs = StubLoader(self)

    def is_real(self, name: str) -> bool:
        """Whether the module `name` of the engine runs, and is there."""
        return self._named(name) and self.file(name) is not None

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """A real module of the engine, a stub, or None for whatever is not the engine's affair."""
        top = fullname.partition(".")[0]
        if top == self.package:
            file = self.file(fullname) if self._named(fullname) else None
            if file is None:
                return ModuleSpec(fullname, self._stubs, is_package=True)
            self.ran.add(fullname)
            return importlib.util.spec_from_file_location(
                fullname, file, submodule_search_locations=[str(file.parent)] if file.name == "__init__.py" else None
            )
        if top in sys.stdlib_module_names or top in self.kept or top == "kvproof" or not self._asked_by_engine():
            return None
        return ModuleSpec(fullname, self._stubs, is_package=True)

    def _named(self, name: str) -> bool:
        return any(name == real or name.startswith(f"{real}.") for real in self.real)

    def file(self, name: str) -> Path | None:
        """The file of a module of the engine, real or not; None where there is none."""
        base = self.root.joinpath(*name.split("."))
        return next((file for file in (base / "__init__.py", base.with_name(f"{base.name}.py")) if file.is_file()), None)

    def _asked_by_engine(self) -> bool:
        """Whether the import statement that runs now stands in a module of the engine."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            name: str = frame.f_globals.get("__name__", "")
            if not name.startswith(("importlib", "_frozen_importlib")):
                return name.partition(".")[0] == self.package
            frame = frame.f_back
        return False


def hooked(hook: EngineHook) -> None:
    """Install the hook, for good."""
    sys.meta_path.insert(0, hook)
