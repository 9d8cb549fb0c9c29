"""Which engine, which release, which variant: `vllm`, `vllm==0.33.0`, `vllm[hybrid]==0.33.0`."""

from __future__ import annotations

import difflib
import importlib.metadata
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec


class BadRelease(ValueError):
    """A release that cannot be used: one sentence that names the cause and the mend."""


class Variant(msgspec.Struct, frozen=True):
    """One way to drive an engine: the adapter as `module:Class`, what it is in a few words, and a module that only releases with it have."""

    adapter: str
    words: str
    marker: str


class Engine(msgspec.Struct, frozen=True):
    """What kvproof knows of an engine.

    `sources`: distributions that hold its Python files, the smallest first, each of them tried for a release. `keep`: files of the wheel that are kept, as
    prefixes of their paths; `edition` is counted up when more are, so that folders with fewer are fetched again. `real`: modules that run, each with all that lies below it. `kept`: third parties that it gets as they are installed; `needs`: those
    among them without which it cannot run. `inert`: stubs that may be used, with the reason why no answer depends on them. `answers`: names of modules that do not
    run, and what they are where there is no engine around the cache.
    """

    name: str
    package: str
    sources: Sequence[str]
    keep: Sequence[str]
    real: Sequence[str]
    variants: Mapping[str, Variant]
    newest: str
    oldest: str
    kept: Sequence[str] = ()
    needs: Sequence[str] = ()
    edition: int = 1
    inert: Mapping[str, str] = {}
    answers: Mapping[str, Any] = {}


class Release(msgspec.Struct, frozen=True):
    """One release of an engine, in one variant; an empty variant stands for the first one that the release has."""

    engine: Engine
    version: str
    variant: str = ""

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return f"{self.engine.name}{f'[{self.variant}]' if self.variant else ''}=={self.version}"

    @property
    def folder(self) -> str:
        """The name of its folder in the cache."""
        return f"{self.engine.name}-{self.version}"


REQUEST: Final = re.compile(r"(?P<engine>[A-Za-z0-9][A-Za-z0-9_.-]*)(\[(?P<variant>[a-z0-9-]+)\])?(==(?P<version>[0-9][0-9A-Za-z.+-]*))?")


def parse(text: str, engines: Mapping[str, Engine]) -> Release | None:
    """The release that `text` names, or None where it names no engine. Without a version it is the installed one, or else the newest that is known.

    Raises BadRelease for an engine that is asked for in a way that it does not have.
    """
    request = REQUEST.fullmatch(text)
    if request is None:
        return None
    if request["engine"] not in engines:
        if request["version"] is None:
            return None
        raise BadRelease(no_engine(request["engine"], engines))
    engine = engines[request["engine"]]
    if request["variant"] and request["variant"] not in engine.variants:
        raise BadRelease(f"{engine.name} is not driven as {request['variant']!r}; its variants are {', '.join(engine.variants)}.")
    return Release(engine, request["version"] or installed(engine) or engine.newest, request["variant"] or "")


def no_engine(name: str, engines: Iterable[str]) -> str:
    """What to say where `name` names no engine."""
    near = [engine for engine in engines if engine.startswith(f"{name}-")] or difflib.get_close_matches(name, engines, n=1)
    hint = f"did you mean {' or '.join(near)}?" if near else f"kvproof drives {', '.join(engines)}."
    return f"There is no engine {name!r}; {hint}"


def is_known(release: Release) -> bool:
    """Whether the release lies between the oldest and the newest that the adapters were tried on."""
    return in_order(release.engine.oldest) <= in_order(release.version) <= in_order(release.engine.newest)


def in_order(version: str) -> list[int]:
    """What versions are sorted by: 0.9.2 comes before 0.10.0."""
    return [int(number) for number in re.findall(r"\d+", version)]


def installed(engine: Engine) -> str | None:
    """The version of the engine that is installed in this environment."""
    for source in engine.sources:
        try:
            return importlib.metadata.version(source)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
