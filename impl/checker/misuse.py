"""Mistakes of adapters that Python tells in its own words, in those of the contract: a method that cannot take the call, one that is async, a capability that does not exist."""

from __future__ import annotations

import difflib
import inspect
import re
from pathlib import Path
from typing import Final

from kvproof.impl.adapter import CacheAdapter
from kvproof.models.capabilities import Capabilities, Group

_CALLER: Final = f"{__package__}."
"""How the modules begin that call adapters and read what they return."""


def place(error: BaseException) -> str:
    """Where the adapter raised `error`, as ` at file.py:3`; empty where the call itself failed, before anything of the adapter ran."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or str(traceback.tb_frame.f_globals.get("__name__")).startswith(_CALLER):
        return ""
    return f" at {Path(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"


def unfit(error: BaseException, call: str, method: object) -> str:
    """If `error` says that `method` cannot take `call`, such as `extend(0, 1, ())`, a sentence that says what it must take; else nothing."""
    name = call.partition("(")[0]
    wanted = getattr(CacheAdapter, name, None)
    if wanted is None or not _failed_as_a_call(error):
        return ""
    plain = _plain(inspect.signature(wanted))
    arguments = list(plain.parameters)[1:]
    has = _unbound(method, arguments, {})
    if not has:
        return ""
    return f"{call} does not fit {name}{has}, which the suite calls as {name}({', '.join(arguments)}); define it as {name}{plain}."


def unfit_class(error: BaseException, target: type, **arguments: int) -> str:
    """The same of the call that builds a cache."""
    has = _unbound(target, [], arguments) if _failed_as_a_call(error) else ""
    if not has:
        return ""
    name, given = target.__qualname__, ", ".join(f"{name}={value}" for name, value in arguments.items())
    return f"{name}({given}) does not fit {name}{has}; define __init__(self, *, {', '.join(arguments)}), and give a default to whatever else it takes."


def _failed_as_a_call(error: BaseException) -> bool:
    return isinstance(error, TypeError) and not place(error)


def _unbound(callee: object, arguments: list[str], named: dict[str, int]) -> str:
    """The signature of `callee`, if it cannot be called so."""
    try:
        signature = inspect.signature(callee)  # type: ignore[arg-type]  # a TypeError is what it raises for what cannot be called
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        return str(_plain(signature))
    return ""


def _plain(signature: inspect.Signature) -> inspect.Signature:
    """A signature without its types."""
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return inspect.Signature(bare)


def is_async(method: object) -> bool:
    """Whether a call of `method` gives something to be awaited in place of an answer."""
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


def unknown_field(error: Exception) -> str:
    """The field that `error` says neither Capabilities nor Group has, and the nearest that one of them does; empty where it says something else."""
    found = re.fullmatch(r"Unexpected keyword argument '(\w+)'", str(error))  # the words of msgspec
    if found is None or not isinstance(error, TypeError):
        return ""
    fields = {field: struct.__name__ for struct in (Group, Capabilities) for field in struct.__struct_fields__}
    near = difflib.get_close_matches(found[1], fields, n=1)
    struct = fields[near[0]] if near else "Capabilities"
    nearest = f"; the nearest one is {near[0]!r}" if near else ""
    return f"kvproof.{struct} has no field {found[1]!r}{nearest}; all fields stand in docs/contract.md and in help(kvproof.{struct})."
