"""`kvproof new`: an adapter to start from. The template is a module of this package, so that it is checked like the rest of it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

from kvproof.fuzz.programs import writing

TEMPLATE: Final = "adapter_template.py"


class BadPlace(ValueError):
    """The file is there already, or could not be checked: one sentence that names the cause and the mend."""


def skeleton() -> str:
    """The source of an adapter with a small cache of its own, which keeps every law that applies to it."""
    return resources.files("kvproof").joinpath(TEMPLATE).read_text(encoding="utf-8")


def write_skeleton(path: Path) -> None:
    """Write the adapter to start from. Raises BadPlace rather than overwrite anything, and BadFile where it cannot be written."""
    if path.suffix != ".py":
        raise BadPlace(f"{path} does not end in .py, so it could not be checked; name a Python file.")
    if path.exists():
        raise BadPlace(f"{path} is there already and stays as it is; name a file that does not exist.")
    if not path.parent.is_dir():
        raise BadPlace(f"There is no directory {path.parent} to write {path.name} to; create it, or name another place.")
    with writing(path), path.open("x", encoding="utf-8") as file:
        file.write(skeleton())
