"""Run CrossHair on every statement, and say of each how far it came."""

from __future__ import annotations

import importlib.util
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final, Literal, TypeAlias

import msgspec

from kvproof.properties.proofs import arithmetic, transitions

STATEMENT_SECONDS: Final = 20.0
"""How long one statement may take; those that can be confirmed take one to ten seconds on an idle core."""

Standing: TypeAlias = Literal["proved", "searched", "refuted"]


class Proof(msgspec.Struct, frozen=True):
    """How far a statement came.

    `proved`: CrossHair confirmed it over all paths. `searched`: it found no counterexample in its time. `refuted`: it found one, which `message` tells.
    """

    name: str
    subject: str
    sentence: str
    standing: Standing
    seconds: float
    message: str = ""


class Unavailable(ImportError):
    """CrossHair is not installed."""


def statements() -> Iterator[tuple[str, Callable[..., bool]]]:
    """(subject, function) of every statement, in the order in which they are written."""
    for subject, module in (("arithmetic", arithmetic), ("spec", transitions)):
        yield from ((subject, function) for function in _functions(module))


def _functions(module: ModuleType) -> Iterator[Callable[..., bool]]:
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield value


def sentence(function: Callable[..., bool]) -> str:
    """What a statement says, in words."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def prove(function: Callable[..., bool], subject: str, *, seconds: float = STATEMENT_SECONDS) -> Proof:
    """Let CrossHair look for a counterexample. Raises Unavailable."""
    if importlib.util.find_spec("crosshair") is None:
        raise Unavailable("The proofs need the package crosshair-tool, which is not installed; run `pip install 'kvproof[symbolic]'`.")
    from crosshair.core_and_libs import MessageType, analyze_function, run_checkables
    from crosshair.options import AnalysisKind, AnalysisOptionSet

    options = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.PEP316], report_all=True, per_condition_timeout=seconds, per_path_timeout=seconds
    )
    start = time.monotonic()
    with _structs_built_as_ever():
        messages = run_checkables(analyze_function(function, options))
    taken = time.monotonic() - start
    states = {message.state for message in messages}
    standing: Standing = "refuted"
    if states == {MessageType.CONFIRMED}:
        standing = "proved"
    elif states and states <= {MessageType.CONFIRMED, MessageType.CANNOT_CONFIRM}:
        standing = "searched"
    text = "" if standing == "proved" else "; ".join(message.message for message in messages)
    return Proof(function.__name__, subject, sentence(function), standing, taken, text)


@contextmanager
def _structs_built_as_ever() -> Iterator[None]:
    """CrossHair builds objects by `__new__` and `__init__`, to look at contracts of both; msgspec's structs have neither, and are built by their metaclass."""
    from crosshair import enforce

    usual = enforce.manual_constructor

    def constructor(kind: type) -> Callable[..., object]:
        if not isinstance(kind, type(msgspec.Struct)):
            made: Callable[..., object] = usual(kind)
            return made

        def _crosshair_wrapper(
            *arguments: object, **named: object
        ) -> object:  # by this name CrossHair knows calls that it should not look into again
            return kind(*arguments, **named)

        return _crosshair_wrapper

    enforce.manual_constructor = constructor  # type: ignore[assignment]  # it is called with a class, and what it returns with anything
    try:
        yield
    finally:
        enforce.manual_constructor = usual
