"""Loads one release of an engine into this process: as it is installed, or from its fetched files behind the import hook.

A process holds one engine in one release, for good. `kvproof check` is such a process; whoever needs several starts one for each.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kvproof.impl.foreign.fetched import Say, provide
from kvproof.impl.foreign.hook import EngineHook, hooked
from kvproof.impl.foreign.releases import BadRelease, Release, installed
from kvproof.impl.foreign.stubs import Watch, is_stub


class LoadedEngine:
    """An engine that can be used here. Everything is asked for by module and name, and is the real thing or an error."""

    def __init__(self, release: Release, hook: EngineHook | None, origin: str, fetched: str = "") -> None:
        self.release = release
        self.hook = hook
        self.origin = origin
        """Where its files came from, in words."""
        self.fetched = fetched
        """The distribution, with its version, of which they were fetched; empty where they are the installed ones."""

    def has(self, module: str) -> bool:
        """Whether this release has the real module."""
        return self.hook.is_real(module) if self.hook else importlib.util.find_spec(module) is not None

    def module(self, name: str) -> ModuleType:
        """A real module. Raises BadRelease where this release has none of that name."""
        if not self.has(name):
            raise self.moved(f"it has no module {name}")
        try:
            if self.hook is None:
                return importlib.import_module(name)
            with self.hook.watch.open():
                return importlib.import_module(name)
        except Exception as error:
            raise self.moved(f"importing {name} raised {type(error).__name__}: {error}") from error

    def source(self, name: str) -> str:
        """The text of a module, which is not run; empty where this release has none of that name."""
        if self.hook is not None:
            file = self.hook.file(name)
        else:
            spec = importlib.util.find_spec(name)
            file = None if spec is None or spec.origin is None else Path(spec.origin)
        return "" if file is None else file.read_text(encoding="utf-8")

    def symbol(self, module: str, name: str) -> Any:
        """A real name of a real module. Raises BadRelease where it is missing or a stub."""
        found = getattr(self.module(module), name, None)
        if found is None:
            raise self.moved(f"{module} has no {name}")
        if is_stub(found):
            raise self.moved(f"{name} in {module} is only a stub, because the module that defines it is not loaded")
        return found

    def optional(self, module: str, name: str) -> Any:
        """The same, or None where this release does not have it."""
        if not self.has(module):
            return None
        found = getattr(self.module(module), name, None)
        return None if found is None or is_stub(found) else found

    def fit(self, function: Callable[..., Any], **offered: Any) -> dict[str, Any]:
        """Those of the offered arguments that `function` takes in this release. Raises BadRelease where it needs one that is not offered."""
        parameters = inspect.signature(function).parameters
        missing = [
            name
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and name not in offered
            and name != "self"
        ]
        if missing:
            raise self.moved(f"{function.__qualname__} needs the argument {missing[0]!r}, which the adapter does not know")
        return {name: value for name, value in offered.items() if name in parameters}

    def moved(self, what: str) -> BadRelease:
        """The error that says what of this release's surface is not where the adapter expects it."""
        engine = self.release.engine
        return BadRelease(
            f"The surface of {engine.name} {self.release.version} moved: {what}. Releases {engine.oldest} to {engine.newest} are known."
        )


def _mends(absent: Sequence[str]) -> list[str]:
    """The commands that install what is missing. torch is no part of the extra: which build of it fits is for the user to say."""
    extra = ["`pip install 'kvproof[engines]'`"] if set(absent) - {"torch"} else []
    torch = ["`pip install torch` (a build for CPUs is enough)"] if "torch" in absent else []
    return extra + torch


_LOADED: list[LoadedEngine] = []

HELD: Final = "KVPROOF_ENGINE"
"""Environment variable by which worker processes that are not forked learn which engine to load."""


def load(release: Release, say: Say = lambda _: None, *, as_installed: bool = True) -> LoadedEngine:
    """Make `release` usable in this process. Raises BadRelease.

    Where just this release is installed, it is imported as it is; with `as_installed` False its fetched files are used all the same.
    """
    if _LOADED:
        held = _LOADED[0].release
        if (held.engine.name, held.version) == (release.engine.name, release.version):
            return _LOADED[0]
        raise BadRelease(
            f"This process holds {held.engine.name} {held.version}, and a process can hold one engine in one release; "
            f"judge {release.name} in a process of its own."
        )
    engine = release.engine
    absent = [name for name in engine.needs if importlib.util.find_spec(name) is None]
    if absent:
        raise BadRelease(f"{engine.name} needs {', '.join(absent)}; run {' and '.join(_mends(absent))}.")
    if "torch" in engine.needs:  # a process whose tensors have started threads hangs in the workers that it forks
        importlib.import_module("torch").set_num_threads(1)
    if as_installed and installed(engine) == release.version and importlib.util.find_spec(engine.package) is not None:
        loaded = LoadedEngine(release, None, "as it is installed")
    else:
        folder, manifest = provide(release, say)
        hook = EngineHook(engine.package, folder, engine.real, engine.kept, Watch(frozenset(engine.inert), engine.answers))
        hooked(hook)
        loaded = LoadedEngine(release, hook, f"from {manifest.wheel}", manifest.source)
    _LOADED.append(loaded)
    os.environ[HELD] = release.name
    return loaded


def fetched_release(target: type) -> str:
    """The distribution, with its version, whose fetched files stand behind the adapter `target`; empty where what is installed does, or no engine."""
    of_engine = any(base.__module__.startswith("kvproof.impl.foreign.") for base in target.__mro__)
    return _LOADED[0].fetched if of_engine and _LOADED else ""


def loaded_engine() -> LoadedEngine:
    """The engine that this process holds, or the one that held the adapter when a worker was started without its memory. Adapters ask for it."""
    if not _LOADED and HELD in os.environ:
        from kvproof.impl.foreign.registry import find_release  # the registry itself needs this module

        release = find_release(os.environ[HELD])
        assert release is not None
        load(release)
    if not _LOADED:
        raise BadRelease("No engine has been loaded in this process; name it as a target, for example `kvproof check vllm==0.33.0`.")
    return _LOADED[0]
