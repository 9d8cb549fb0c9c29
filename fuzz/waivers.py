"""Waivers: broken laws that are known and accepted, each with its reason and a reference. A waiver whose law holds again is an error.

    [[waiver]]
    law = "eviction-follows-policy"
    target = "mypkg.kv:Adapter"
    reason = "Eviction is by insertion order until the new index lands."
    reference = "https://example.org/issues/123"

All four keys are needed, and `target` is the name that was checked. Waivers of other targets are left alone.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kvproof.fuzz.verdicts import LawVerdict
from kvproof.models.laws import BY_NAME

DEFAULT_FILE: Final = Path("kvproof-waivers.toml")
"""Read where it exists and no other file is named."""


class Waiver(msgspec.Struct, frozen=True):
    """`law` may be broken by `target`, for this reason; `reference` says where that is followed up."""

    law: str
    target: str
    reason: str
    reference: str


class BadWaivers(ValueError):
    """A waiver file that cannot be used: one sentence that names the cause and the mend."""


def read_waivers(path: Path) -> tuple[Waiver, ...]:
    """Every waiver in the file, whatever its target. Raises BadWaivers."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadWaivers(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadWaivers(f"{path} is not UTF-8 text; TOML files are.") from error
    except tomllib.TOMLDecodeError as error:
        raise BadWaivers(f"{path} is not TOML: {error}.") from error
    entries = content.pop("waiver", [])
    if content:
        raise BadWaivers(f"{path} has {next(iter(content))!r} at its top level; it may hold nothing but [[waiver]] entries.")
    if not isinstance(entries, list):
        raise BadWaivers(f"{path} has one [waiver] table; write [[waiver]], with double brackets.")
    waivers = tuple(_waiver(path, number, entry) for number, entry in enumerate(entries, start=1))
    _check_repeats(path, waivers)
    return waivers


def waivers_for(waivers: Iterable[Waiver], target: str) -> dict[str, Waiver]:
    """Law -> waiver, of those that speak of `target`."""
    return {waiver.law: waiver for waiver in waivers if waiver.target == target}


def stale_waivers(waivers: Mapping[str, Waiver], laws: Mapping[str, LawVerdict]) -> dict[str, str]:
    """Law -> complaint, for each waiver that no broken law needs any more. A law that was not exercised decides nothing."""
    complaints = {}
    for law, waiver in waivers.items():
        verdict = laws[law].verdict if law in laws else "not-applicable"
        if verdict == "held":
            complaints[law] = f"The waiver of {law} for {waiver.target} is stale, because the law held: remove it ({waiver.reference})."
        elif verdict == "not-applicable":
            complaints[law] = (
                f"The waiver of {law} for {waiver.target} is stale, because the law does not apply: remove it ({waiver.reference})."
            )
    return complaints


def _waiver(path: Path, number: int, entry: Mapping[str, Any]) -> Waiver:
    fields = Waiver.__struct_fields__
    if not isinstance(entry, Mapping):
        raise BadWaivers(f"{path}: waiver {number} is not a table; write it under [[waiver]].")
    unknown = [key for key in entry if key not in fields]
    if unknown:
        raise BadWaivers(f"{path}: waiver {number} has the unknown key {unknown[0]!r}; the keys are {', '.join(fields)}.")
    for field in fields:
        value = entry.get(field)
        if value is not None and not isinstance(value, str):
            raise BadWaivers(f"{path}: the {field} of waiver {number} is {value!r}; write it as a string.")
        if value is None or not value.strip():
            raise BadWaivers(f"{path}: waiver {number} has no {field}; every waiver needs {', '.join(fields[:-1])} and {fields[-1]}.")
    if entry["law"] not in BY_NAME:
        near = difflib.get_close_matches(entry["law"], BY_NAME, n=1)
        hint = f"did you mean {near[0]}?" if near else "`kvproof laws` lists them."
        raise BadWaivers(f"{path}: waiver {number} names {entry['law']!r}, which is no law; {hint}")
    return Waiver(**entry)


def _check_repeats(path: Path, waivers: Iterable[Waiver]) -> None:
    seen: set[tuple[str, str]] = set()
    for waiver in waivers:
        if (waiver.law, waiver.target) in seen:
            raise BadWaivers(f"{path} waives {waiver.law} for {waiver.target} twice; keep one of the two.")
        seen.add((waiver.law, waiver.target))
