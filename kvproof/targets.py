"""From a name to the adapter that it means.

A target is `module:Class`, `path/to/file.py:Class`, a name that kvproof brings along (`production`), a release of an engine (`vllm==0.33.0`), `bug:NAME` for a
seeded bug of a cache, `kernel-bug:NAME` for a seeded bug of kernels, or `race-bug:NAME` for a cache that is wrong only where threads meet. What kind of target a class is, its contract says: see `kvproof.fuzz.kernels_check`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Final, TypeVar

from kvproof.engines import find_engine
from kvproof.fuzz import kernels_check
from kvproof.fuzz.reports.wording import closest, joined
from kvproof.impl.adapter import CacheAdapter
from kvproof.impl.foreign.registry import ENGINES
from kvproof.impl.foreign.releases import BadRelease

BUILT_IN: Final[dict[str, str]] = {
    "production": "kvproof.impl.production.adapter:ProductionAdapter",
    "production-hybrid": "kvproof.impl.production.adapter:HybridAdapter",
    "production-sync": "kvproof.impl.production.adapter:SynchronousAdapter",
    "production-batched": "kvproof.impl.production.batched_adapter:BatchedAdapter",
    "engine": "kvproof.impl.engine.adapter:EngineAdapter",
    "kernels": "kvproof.kernels.plain.triton_kernels:PlainTriton",
    "kernels-torch": "kvproof.kernels.plain.torch_kernels:PlainTorch",
    "kernels-paged": "kvproof.kernels.paged.adapter:PagedTriton",
    "kernels-paged-torch": "kvproof.kernels.paged.torch_path:PagedTorch",
    "kernels-vllm": "kvproof.kernels.foreign.vllm:VllmUnified",
    "kernels-vllm-decode": "kvproof.kernels.foreign.vllm:VllmDecode",
    "kernels-sglang": "kvproof.kernels.foreign.sglang:Sglang",
}
"""The targets that kvproof brings along, and where they are."""

BUILT_IN_WORDS: Final[dict[str, str]] = {
    "production": "the built-in production cache",
    "production-hybrid": "the built-in production cache with a sliding window",
    "production-sync": "the built-in production cache without device steps",
    "production-batched": "the built-in production cache, decoding in batches",
    "engine": "the built-in engine: cache, kernels and a small transformer",
    "kernels": "the built-in Triton kernels",
    "kernels-torch": "the built-in kernels in plain torch",
    "kernels-paged": "the built-in Triton kernels for GPUs",
    "kernels-paged-torch": "the built-in kernels for GPUs in plain torch",
    "kernels-vllm": "vLLM's reshape-and-cache and unified attention",
    "kernels-vllm-decode": "vLLM's reshape-and-cache and decode attention",
    "kernels-sglang": "SGLang's reshape-and-cache, decode and extend attention",
}
"""What each of them is, in a few words."""

DEFAULT_TARGET: Final = "production"

BUG_REGISTRY: Final = "kvproof.fuzz.bugs"

RACE_PREFIX: Final = "race-bug:"

Loaded = TypeVar("Loaded")


class BadTarget(ValueError):
    """A target that cannot be used: one sentence that names the cause and the mend."""


def find_target(name: str) -> type:
    """The class that `name` means, an adapter of a cache or kernels. The current directory can be imported from. Raises BadTarget."""
    if name.startswith("bug:"):
        return _seeded_bug(name.removeprefix("bug:"))
    if name.startswith("kernel-bug:"):
        return _seeded_kernel_bug(name.removeprefix("kernel-bug:"))
    if name.startswith(RACE_PREFIX):
        return _seeded_race(name.removeprefix(RACE_PREFIX))
    engine = _engine(name)
    if engine is not None:
        return engine
    place, _, attribute = BUILT_IN.get(name, name).rpartition(":")
    if not place or not attribute:
        raise BadTarget(_unknown(name))
    module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    return _class_in(module, place, attribute)


def find_cache(name: str) -> type:
    """`find_target` for what only caches are asked. As in a check, a cache need not derive from CacheAdapter. Raises BadTarget."""
    target = find_target(name)
    if kernels_check.is_kernels(target) or not hasattr(target, "capabilities"):
        raise BadTarget(f"The target {name} is no cache; name a class that derives from kvproof.CacheAdapter.")
    return target


def _engine(name: str) -> type | None:
    """The adapter of a release of an engine, if `name` is one."""
    try:
        return find_engine(name)
    except BadRelease as error:
        raise BadTarget(str(error)) from error


def _unknown(name: str) -> str:
    """Why a name without a class cannot be a target, and what it may have meant."""
    if Path(name).is_dir():
        return _directory(name)
    place = f"{name}.py" if Path(f"{name}.py").is_file() else name.removesuffix(":")
    if place.endswith(".py") or Path(name).is_file():
        return f"The target {name} names no class; write {place}:Adapter, if Adapter is your class."
    engines = [engine for engine in ENGINES if engine.startswith(f"{name}-")]
    near = engines or difflib.get_close_matches(name, [*BUILT_IN, *ENGINES], n=1, cutoff=0.5)
    hint = f"did you mean {joined(near, 'or')}?" if near else f"write module:Class, path/to/file.py:Class, or one of {', '.join(BUILT_IN)}."
    return f"There is no target {name!r}; {hint}"


def _directory(name: str) -> str:
    return f"The target {name} is a directory; name one class in it, as module:Class or path/to/file.py:Class."


# -- modules -------------------------------------------------------------------------------------------------------------------------------


def _from_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        if Path(name).is_dir():
            raise BadTarget(_directory(name))
        raise BadTarget(
            f"{name!r} is not the name of a module; write a dotted name as in `import`, or the path of a file that ends in .py."
        )
    _make_importable(Path.cwd())
    try:
        return _imported(name, lambda: importlib.import_module(name))
    except ModuleNotFoundError as error:
        raise BadTarget(
            f"There is no module {error.name!r} to import {name} from; run kvproof where it is installed or in the directory that holds it."
        ) from error


def _from_file(path: Path) -> ModuleType:
    """Run a file as a module of its own, named by its stem, as it would be if its directory could be imported from."""
    if not path.is_file():
        raise BadTarget(f"The file {path} does not exist; name a Python file, relative to {Path.cwd()}.")
    path = path.resolve()
    loaded = next((module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == str(path)), None)
    if loaded is not None:
        return loaded
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"kvproof_target_{abs(hash(str(path)))}"
    _make_importable(Path.cwd())
    _make_importable(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickle and dataclasses look for it
    loader = spec.loader
    try:
        _imported(str(path), lambda: loader.exec_module(module))
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _imported(name: str, load: Callable[[], Loaded]) -> Loaded:
    """What `load` gives. Any exception becomes a BadTarget, except that the module `name` itself is missing."""
    try:
        return load()
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise
        if error.name in kernels_check.EXTRA:
            raise BadTarget(kernels_check.missing([error.name], who=_called(name))) from error
        raise BadTarget(_raised(name, error)) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BadTarget(_raised(name, error)) from error


def _called(module: str) -> str:
    """What a user calls a module: the target that kvproof brings along, or the module itself."""
    target = next((target for target, place in BUILT_IN.items() if place.partition(":")[0] == module), None)
    return f"The target {module if target is None else target}"


def _raised(name: str, error: BaseException) -> str:
    """The exception of a module as one sentence, with the line that raised it."""
    if isinstance(error, SyntaxError):
        place, message = f"{error.filename}:{error.lineno}", error.msg
    else:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith("<frozen importlib") and frame.filename != __file__
        ]
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown line"
        message = str(error).partition("\n")[0]
    told = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"Importing {name} raised {told.rstrip('.')}, at {place}; a target must be importable on its own."


def _make_importable(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


# -- classes -------------------------------------------------------------------------------------------------------------------------------


def _class_in(module: ModuleType, place: str, attribute: str) -> type:
    found: object = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise BadTarget(f"{place} has no {attribute}; {_adapters_in(module)}.")
    if not isinstance(found, type):
        raise BadTarget(
            f"{place}:{attribute} is of type {type(found).__name__}, not a class; name a class that derives from kvproof.CacheAdapter."
        )
    return found


def _adapters_in(module: ModuleType) -> str:
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, CacheAdapter) and value is not CacheAdapter
    ]
    return f"its adapters are {', '.join(names)}" if names else "it has no class that derives from kvproof.CacheAdapter"


def _seeded_bug(name: str) -> type:
    if importlib.util.find_spec(BUG_REGISTRY) is None:
        raise BadTarget(
            f"The seeded bug {name!r} cannot be looked up, because this installation has no {BUG_REGISTRY}; install a release that has it."
        )
    bugs = importlib.import_module(BUG_REGISTRY).BUGS
    if name not in bugs:
        raise BadTarget(f"There is no seeded bug {name!r}; {_suggestion(name, list(bugs))}")
    adapter: type = bugs[name].adapter
    return adapter


def _seeded_kernel_bug(name: str) -> type:
    names = kernels_check.seeded()
    if name not in names:
        raise BadTarget(f"There is no seeded kernel bug {name!r}; {_suggestion(name, names)}")
    if kernels_check.missing():
        raise BadTarget(kernels_check.missing())
    return kernels_check.build_seeded(name)


def _seeded_race(name: str) -> type:
    from kvproof.fuzz.races.bugs import RACES

    if name not in RACES:
        raise BadTarget(f"There is no seeded race {name!r}; there are {joined(list(RACES))}.")
    return RACES[name].adapter


def _suggestion(name: str, names: Collection[str]) -> str:
    near = closest(name, names)
    if near:
        return f"did you mean {joined(near, 'or')}?"
    looks = difflib.get_close_matches(name, names, n=3, cutoff=0)
    return f"the closest names are {joined(looks)}; `kvproof laws LAW` names those that break a law."
