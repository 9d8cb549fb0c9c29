"""Which code a search speaks of. That no program of a scope breaks a law is said of one cache, and not of half a cache before a change and half of it after."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path


def code_of(target: type) -> str:
    """A digest of kvproof's version, of the files of `target` and its base classes, and of all modules that are loaded from the same packages, or from the same
    directory where such a file is in no package. Packages that they use from elsewhere are not looked at.
    """
    digest = hashlib.blake2b(importlib.metadata.version("kvproof").encode(), digest_size=16)
    names = {kind.__module__ for kind in target.__mro__}
    loaded = dict(_loaded())
    homes = {_home(loaded[name]) for name in names & loaded.keys() if not _is_ours(name)}
    for name, file in sorted(loaded.items()):
        if name in names or (not _is_ours(name) and any(_belongs(file, home) for home in homes)):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _loaded() -> Iterator[tuple[str, Path]]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).is_file():
            yield name, Path(file)


def _is_ours(name: str) -> bool:
    """Modules of kvproof go by its version: which of them are loaded differs from command to command."""
    return name.partition(".")[0] == "kvproof"


def _home(file: Path) -> Path:
    """The directory of the package that a file belongs to, the outermost one, or of the file."""
    home = file.parent
    while (home.parent / "__init__.py").exists():
        home = home.parent
    return home


def _belongs(file: Path, home: Path) -> bool:
    return file.is_relative_to(home) and "site-packages" not in (home.name, *file.relative_to(home).parts)
