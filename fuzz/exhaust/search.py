"""Breadth first through all states of a scope: the shortest program comes first, and so does the shortest violation.

    search = Search(target, name, scope)
    for progress in search.run(seconds=60, depth=None):
        ...
    search.save(path)                     # and Search.load(path, target) goes on from there

Every state keeps its parent and the operation that led to it, so its program can be told; a number of states that still wait are kept as they are, so that each
operation costs one operation and not a whole program. `no-leak` is put to the test by draining a copy: of every new state in which nobody holds anything and no device
work is out, since every other one leads there; of every new state where the cache shows no free list, because a leak would not tell two states apart.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import random
import threading
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import msgspec

from kvproof.fuzz.exhaust.code import code_of
from kvproof.fuzz.exhaust.key import FORM_BYTES, KEY_BYTES, covers, key
from kvproof.fuzz.exhaust.scope import Scope, operations
from kvproof.fuzz.programs import FORMAT, BadFile, PoolConfig, Program, write_whole
from kvproof.impl.checker import AdapterFault, Hung, read_capabilities
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import AnyOp
from kvproof.models.spec import Spec, Violation
from kvproof.properties.drain import drain
from kvproof.properties.lockstep import OP_SECONDS, LawBroken, Lockstep, time_limit

RULES: Final = 4
"""Of what makes states the same; a search that was saved under other rules cannot go on."""

REPORT_SECONDS: Final = 0.25

MOST_KEPT: Final = 150_000
"""States that are kept as they are while they wait, a kilobyte or two each; the others are made again from their program."""


class Progress(msgspec.Struct):
    """How far a search has come. `transitions`: operations tried. `waiting`: states whose operations were not tried yet. `depth`: length of the programs at work."""

    states: int
    transitions: int
    waiting: int
    depth: int
    seconds: float


class Saved(msgspec.Struct, frozen=True):
    """A search on disk."""

    kvproof: int
    target: str
    scope: Scope
    operations: list[AnyOp]
    """Every operation that occurs, once."""
    parents: bytes
    """State -> its parent, 8 bytes each."""
    via: bytes
    """State -> the operation that led to it, 4 bytes each."""
    keys: bytes
    """State -> its key, KEY_BYTES each."""
    done: int
    """How many states were expanded."""
    transitions: int
    merged: int
    seconds: float
    exercised: dict[str, int]
    edges: list[tuple[int, int, int]] = []
    rules: int = 1
    code: str = ""
    """Of which code of the target it speaks."""


class Search:
    """All states met so far, in the order in which they were met."""

    def __init__(self, target: type, name: str, scope: Scope, *, draw: bool = False) -> None:
        """`draw`: remember every transition, for a picture."""
        self.target = target
        self.name = name
        self.scope = scope
        self.capabilities = read_capabilities(target)
        self.code = code_of(target)
        self.operations: list[AnyOp] = []
        self._numbers: dict[AnyOp, int] = {}
        self.parents = array("q")
        self.via = array("i")
        self.depths = array("i")
        self.states: dict[bytes, int] = {}
        self._alike: dict[bytes, list[bytes]] = {}
        """The keys of states that differ only in what the cache may hold back, by the part that they share."""
        self.done = 0
        self.transitions = 0
        self.merged = 0
        """Transitions that led to a state which was known."""
        self.seconds = 0.0
        self.exercised: Counter[str] = Counter()
        self.failure: Program | None = None
        self.edges: list[tuple[int, int, int]] = []
        """(state, operation, state) of every transition, where they are to be drawn."""
        self._stopping = False
        self._draw = draw
        self._kept: dict[int, bytes] = {}
        self._keep = True
        if self.scope.blocks > self.capabilities.max_blocks or self.scope.block_size not in self.capabilities.block_sizes:
            raise AdapterFault(
                f"{name} takes no pool of {scope.blocks} blocks of {scope.block_size} tokens; choose --blocks and --block-size that it claims."
            )

    @cached_property
    def leaks_show(self) -> bool:
        """Whether a block that is lost makes another state, and every state leads to one in which nobody holds anything."""
        return self._fresh().cache.books().free is not None and "release" not in self.scope.without

    @property
    def exhausted(self) -> bool:
        """Whether no state is left whose operations were not tried."""
        return self.failure is None and self.done == len(self.states)

    def run(self, *, seconds: float, depth: int | None = None, op_seconds: float = OP_SECONDS) -> Iterator[Progress]:
        """Go on until everything was tried, or for `seconds`, or up to programs of `depth` operations, or to the first failure."""
        start = told = time.monotonic()
        before = self.seconds
        if not self.states:
            self._begin()
        with time_limit(op_seconds):
            while self.done < len(self.states) and self.failure is None:
                level = self.depths[self.done]
                now = time.monotonic()
                if self._stopping or now - start > seconds or (depth is not None and level >= depth):
                    break
                self._expand(self.done)
                self._kept.pop(self.done, None)
                self.done += 1
                self.seconds = before + now - start
                if now - told > REPORT_SECONDS:
                    told = now
                    yield self._progress(level)
        self.seconds = before + time.monotonic() - start
        yield self._progress(self.depths[min(self.done, len(self.states) - 1)])

    def stop(self) -> None:
        """End `run` after the state that is at work; a signal handler may call this."""
        self._stopping = True

    def program(self, state: int, last: AnyOp | None = None) -> tuple[AnyOp, ...]:
        """The operations that lead to `state`, and then `last`."""
        found = [] if last is None else [last]
        while state > 0:
            found.append(self.operations[self.via[state]])
            state = self.parents[state]
        return tuple(reversed(found))

    def key(self, spec: Spec) -> bytes:
        """What tells the state apart from others."""
        return key(spec, rename_tokens=self.scope.rename_tokens)

    def known(self, found: bytes) -> int | None:
        """The state of that key, or one that is the same and judged at least as strictly."""
        exact = self.states.get(found)
        if exact is not None:
            return exact
        return next((self.states[other] for other in self._alike.get(found[:FORM_BYTES], ()) if covers(other, found)), None)

    def per_depth(self) -> list[int]:
        """How many states were first met after each number of operations."""
        return [count for _, count in sorted(Counter(self.depths).items())]

    # -- one state ----------------------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        lockstep = self._fresh()
        self._add(self.key(lockstep.spec), 0, 0, 0)
        self._snapshot(0, lockstep)

    def _fresh(self) -> Lockstep:
        return Lockstep(self.target, num_blocks=self.scope.blocks, block_size=self.scope.block_size, capabilities=self.capabilities)

    def _expand(self, state: int) -> None:
        again = self._copies(state)
        lockstep = again()
        for number_tried, op in enumerate(list(operations(lockstep.spec, self.scope))):
            if number_tried:
                lockstep = again()
            if not self._guarded(state, op, partial(lockstep.do, op)):
                return
            self.transitions += 1
            self._count(lockstep)
            number = self._number(op)
            found = self.key(lockstep.spec)
            known = self.known(found)
            if known is not None:
                self.merged += 1
            else:
                known = self._add(found, state, number, self.depths[state] + 1)
                self._snapshot(known, lockstep)
                if self._is_to_be_drained(lockstep.spec) and not self._guarded(state, op, partial(self._drain, lockstep), lockstep):
                    return
            if self._draw:
                self.edges.append((state, number, known))

    def _is_to_be_drained(self, spec: Spec) -> bool:
        """Whether `no-leak` is asked here: see the top of the file."""
        return not (self.leaks_show and (spec.owners or spec.passes or spec.steps))

    def _drain(self, lockstep: Lockstep) -> None:
        for op in drain(random.Random(0), lockstep.spec, len(lockstep.spec.sequences)):
            lockstep.do(op)

    def _guarded(self, state: int, op: AnyOp, work: Callable[[], object], lockstep: Lockstep | None = None) -> bool:
        """Whether `work` went well; if not, its program is the failure."""
        violation: Violation | None = None
        fault = ""
        try:
            work()
        except LawBroken as broken:
            violation = broken.violation
        except AdapterFault as found:
            fault = str(found)
        except Hung as hung:
            fault = str(hung)
        if violation is None and not fault:
            return True
        ops = self.program(state, op)
        if lockstep is not None:
            ops += tuple(lockstep.ops[len(ops) :])  # type: ignore[arg-type]  # every Op is one of AnyOp
        if violation is not None:
            violation = msgspec.structs.replace(violation, step=len(ops) - 1)
        self.failure = Program(FORMAT, self.name, PoolConfig(self.scope.blocks, self.scope.block_size), ops, "exhaust", violation, fault)
        return False

    def at(self, state: int) -> Lockstep:
        """A cache and a spec in that state."""
        kept = self._kept.get(state)
        if kept is not None:
            return _thaw(zlib.decompress(kept))
        lockstep = self._fresh()
        for op in self.program(state):
            lockstep.do(op)
        lockstep.spec.exercised.clear()
        return lockstep

    def _copies(self, state: int) -> Callable[[], Lockstep]:
        """Makes a cache and a spec in that state, as often as it is called."""
        kept = self._kept.get(state)
        if kept is not None:
            return partial(_thaw, zlib.decompress(kept))
        return partial(_thaw, _freeze(self.at(state))) if self._keep else partial(self.at, state)

    def _snapshot(self, state: int, lockstep: Lockstep) -> None:
        lockstep.spec.exercised.clear()
        if self._keep and len(self._kept) < MOST_KEPT:
            try:
                self._kept[state] = zlib.compress(_freeze(lockstep), 1)
            except Exception:  # noqa: BLE001 -- a cache that cannot be copied is run again from the beginning each time
                self._keep = False

    def _count(self, lockstep: Lockstep) -> None:
        self.exercised.update(lockstep.spec.exercised)

    def _file(self, found: bytes, state: int) -> None:
        self.states[found] = state
        self._alike.setdefault(found[:FORM_BYTES], []).append(found)

    def _add(self, found: bytes, parent: int, number: int, depth: int) -> int:
        state = len(self.states)
        self._file(found, state)
        self.parents.append(parent)
        self.via.append(number)
        self.depths.append(depth)
        return state

    def _number(self, op: AnyOp) -> int:
        number = self._numbers.get(op)
        if number is None:
            number = self._numbers[op] = len(self.operations)
            self.operations.append(op)
        return number

    def _progress(self, depth: int) -> Progress:
        return Progress(len(self.states), self.transitions, len(self.states) - self.done, depth, self.seconds)

    # -- on disk ------------------------------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write everything that a later search needs to go on."""
        saved = Saved(
            FORMAT,
            self.name,
            self.scope,
            self.operations,
            self.parents.tobytes(),
            self.via.tobytes(),
            b"".join(self.states),
            self.done,
            self.transitions,
            self.merged,
            self.seconds,
            dict(self.exercised),
            self.edges,
            RULES,
            self.code,
        )
        write_whole(path, zlib.compress(msgspec.msgpack.encode(saved), 1))

    @classmethod
    def load(cls, path: Path, target: type, name: str, scope: Scope, *, draw: bool = False) -> Search:
        """Go on with a search that was saved for the same target and scope. Raises BadFile."""
        try:
            saved = msgspec.msgpack.decode(zlib.decompress(path.read_bytes()), type=Saved)
        except OSError as error:
            raise BadFile(f"{path} cannot be read: {error.strerror}.") from error
        except (zlib.error, msgspec.DecodeError) as error:
            raise BadFile(f"{path} holds no exhaustive search ({error}); name another file, or remove it to begin anew.") from error
        if (saved.kvproof, saved.rules, saved.target, saved.scope) != (FORMAT, RULES, name, scope):
            raise BadFile(
                f"{path} holds a search of {saved.target} in another scope or format; name another file, or remove it to begin anew."
            )
        search = cls(target, name, scope, draw=draw)
        if saved.code != search.code:
            raise BadFile(f"{path} holds a search of {name} before its code changed; name another file, or remove it to begin anew.")
        search.operations = saved.operations
        search._numbers = {op: number for number, op in enumerate(saved.operations)}
        search.parents.frombytes(saved.parents)
        search.via.frombytes(saved.via)
        for state, at in enumerate(range(0, len(saved.keys), KEY_BYTES)):
            search._file(saved.keys[at : at + KEY_BYTES], state)
        search.depths.append(0)
        for state in range(1, len(search.states)):
            search.depths.append(search.depths[search.parents[state]] + 1)
        search.done, search.transitions, search.merged, search.seconds = saved.done, saved.transitions, saved.merged, saved.seconds
        search.exercised = Counter(saved.exercised)
        search.edges = saved.edges
        return search


# -- copies of a running cache --------------------------------------------------------------------------------------------------------------------


_SHARED: dict[int, object] = {}
"""Capabilities, by their id: they may hold functions, and are the same for all copies."""


def _reduce_capabilities(value: Capabilities) -> tuple[Callable[[int], object], tuple[int]]:
    _SHARED[id(value)] = value
    return _shared, (id(value),)


def _shared(number: int) -> object:
    return _SHARED[number]


class _Freezer(pickle.Pickler):
    """Locks are made anew."""

    dispatch_table = copyreg.dispatch_table | {
        Capabilities: _reduce_capabilities,
        type(threading.RLock()): lambda _: (threading.RLock, ()),
        type(threading.Lock()): lambda _: (threading.Lock, ()),
    }


def _freeze(lockstep: Lockstep) -> bytes:
    file = io.BytesIO()
    _Freezer(file, protocol=5).dump(lockstep)
    return file.getvalue()


def _thaw(frozen: bytes) -> Lockstep:
    lockstep: Lockstep = pickle.loads(frozen)  # noqa: S301 -- made by ourselves
    return lockstep
