"""What stands for the parts of an engine that are left out, and how a stub is told from the real thing.

A stub lets the engine's modules be imported: it can be called, subscripted, inherited from and used as a decorator, and gives stubs. Once the engine has been
loaded, using one raises `StubUsed`, since an answer made up here would be judged as the engine's. Stubs that may be used all the same (loggers) are *inert*.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class StubUsed(Exception):
    """The engine asked a stub for an answer while it was being judged."""


class Watch:
    """Whether stubs may be used freely (`loading`), which may be used always, and which names have an honest answer all the same."""

    def __init__(self, inert: frozenset[str], answers: Mapping[str, object]) -> None:
        self.inert = inert
        self.answers = answers
        self.loading = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Within it modules are imported, and stubs may be used freely. Stubs of third parties are nobody else's affair: they go at the end."""
        before, outer = set(sys.modules), self.loading
        self.loading = True
        try:
            yield
        finally:
            self.loading = outer
            for name in set(sys.modules) - before:
                if type(sys.modules[name]) is StubModule:
                    del sys.modules[name]

    def use(self, name: str) -> None:
        """Note that the stub `name` was asked for an answer. Raises StubUsed after loading, unless it is inert."""
        if not self.loading and not any(name == inert or name.startswith(f"{inert}.") for inert in self.inert):
            raise StubUsed(
                f"the engine used {name}, which is not loaded here and has no honest answer; name its module among the engine's real modules"
            )


class Inherited:
    """What a class inherits in place of a stub."""

    def __init_subclass__(cls, **options: object) -> None:
        """Takes any keyword of the class that a stub stands for."""
        super().__init_subclass__()


class Stub:
    """One name of a module that is left out. Everything it gives is a stub, except that a decorator gives what it decorates."""

    def __init__(self, name: str, watch: Watch) -> None:
        self.__dict__.update(_stub_name=name, _stub_watch=watch, __name__=name.rpartition(".")[2], __qualname__=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return made_up(f"{self._stub_name}.{name}", self._stub_watch)

    def __call__(self, *arguments: object, **options: object) -> Any:
        """Another stub; what is decorated stays as it is."""
        self._stub_watch.use(self._stub_name)
        decorates = len(arguments) == 1 and not options and (inspect.isfunction(arguments[0]) or inspect.isclass(arguments[0]))
        return arguments[0] if decorates else self

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (
            ()
            if any(base is not self and (isinstance(base, type) or is_stub(base)) for base in bases[: bases.index(self)])
            else (Inherited,)
        )

    def __getitem__(self, key: object) -> Stub:
        return self

    def __or__(self, other: object) -> Stub:
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[object]:
        self._stub_watch.use(self._stub_name)
        return iter(())

    def __bool__(self) -> bool:
        self._stub_watch.use(self._stub_name)
        return False

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Stub):
            return bool(self._stub_name == other._stub_name)
        self._stub_watch.use(self._stub_name)
        return False

    def __hash__(self) -> int:
        return hash(self._stub_name)

    def __instancecheck__(self, instance: object) -> bool:
        self._stub_watch.use(self._stub_name)
        return False

    def __subclasscheck__(self, other: type) -> bool:
        self._stub_watch.use(self._stub_name)
        return False

    def __enter__(self) -> Stub:
        self._stub_watch.use(self._stub_name)
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __repr__(self) -> str:
        return f"<stub {self._stub_name}>"


def _arithmetic(self: Stub, _other: object) -> Stub:
    self._stub_watch.use(self._stub_name)
    return self


def _comparison(self: Stub, _other: object) -> bool:
    self._stub_watch.use(self._stub_name)
    return False


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "floordiv", "mod", "pow", "lshift", "and", "rand"):
    setattr(Stub, f"__{_name}__", _arithmetic)
for _name in ("lt", "le", "gt", "ge"):
    setattr(Stub, f"__{_name}__", _comparison)


class StubModule(ModuleType):
    """A module that is left out, or a package of which only some modules are loaded."""

    def __init__(self, name: str, watch: Watch) -> None:
        super().__init__(name)
        self._stub_watch = watch
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        whole = f"{self.__name__}.{name}"
        if name.startswith("__") and name.endswith("__") and whole not in self._stub_watch.answers:
            raise AttributeError(name)
        return made_up(whole, self._stub_watch)


def made_up(name: str, watch: Watch) -> Any:
    """What stands for `name`: its honest answer where it has one, a stub otherwise."""
    return watch.answers[name] if name in watch.answers else Stub(name, watch)


def is_stub(thing: object) -> bool:
    """Whether `thing` is made up here."""
    return isinstance(type(thing), type) and issubclass(type(thing), (Stub, StubModule))
