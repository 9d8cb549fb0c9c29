"""The trace format: JSON lines, a header, one line for each operation that ran, and an end line. `docs/schemas/trace.json` is its JSON Schema.

    {"kvproof":1,"kind":"trace","target":"production","config":{"num_blocks":8,"block_size":2},"capabilities":{...},"sees":{"tables":"always"}}
    {"i":0,"op":{"op":"admit","seq":0,"prompt":[5,6,7]}}
    {"i":1,"op":{"op":"extend","seq":0,"count":3},"out":{"answer":"grant"},"tables":[[0,0,0,null,[4,2]]]}
    {"end":2,"crc32":1234567,"more":false}

Lines carry what changed since the line before, so that a million operations stay small.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from kvproof.fuzz.programs import FORMAT, BadFile, PoolConfig
from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.ops import AnyOp
from kvproof.models.outcomes import Grant, Hit, OutOfBlocksSeen, Raised, RefusedSeen

Field: TypeAlias = Literal["tables", "refcounts", "free", "cached", "retiring", "free_count", "worker_tables", "events"]
Looks: TypeAlias = Literal["always", "sometimes"]
"""`always`: a field that is absent on a line is unchanged. `sometimes`: a field that is absent was not looked at."""

Source: TypeAlias = Literal["record", "engine", "check", "vllm", "sglang"]
"""Who wrote a trace: a recorder around an adapter, an engine, a run of a program, or an importer of the events that an engine emits."""

BOOK_FIELDS: Final[tuple[Field, ...]] = ("refcounts", "free", "cached", "retiring", "free_count")


class BadTrace(BadFile):
    """A trace that cannot be read: one sentence that names the line, the cause and the mend."""


class Claims(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`Capabilities` as a file holds them: `capacity` is a number, and there is nothing about the pools that a suite may build."""

    groups: tuple[Group, ...] = (Group(),)
    prefix: bool = False
    fork: bool = False
    truncate: bool = False
    drafts: bool = False
    steps: bool = False
    evict: bool = False
    reset: bool = False
    swap: bool = False
    transfer: bool = False
    snapshot: bool = False
    events: bool = False
    mirror: bool = False
    namespace_fields: tuple[str, ...] = ()
    null_blocks: tuple[int, ...] = ()
    policy: tuple[str, ...] = ()
    capacity: int | None = None
    split_pool: bool = False

    @classmethod
    def of(cls, capabilities: Capabilities, num_blocks: int) -> Claims:
        """What `capabilities` claim for a pool of this size."""
        claimed = {name: getattr(capabilities, name) for name in cls.__struct_fields__}
        for name in ("namespace_fields", "null_blocks", "policy"):
            claimed[name] = tuple(sorted(claimed[name]))
        capacity = capabilities.capacity
        claimed["capacity"] = capacity(num_blocks) if callable(capacity) else capacity
        claimed["groups"] = tuple(capabilities.groups)
        return cls(**claimed)

    def capabilities(self) -> Capabilities:
        """The same for the spec."""
        claimed = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in ("namespace_fields", "null_blocks", "policy"):
            claimed[name] = frozenset(claimed[name])
        return Capabilities(**claimed)


class Header(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """The first line of a trace. `part` and `first` number the files of one recording, and the first operation of each."""

    kvproof: int = FORMAT
    kind: Literal["trace"] = "trace"
    target: str
    config: PoolConfig
    capabilities: Claims
    sees: dict[str, Looks]
    """Which fields the lines carry. A field that this release does not know is one of a later release, and is left out."""
    redacted: bool = False
    """Whether tokens are salted digests of whole prefixes, and the strings of namespaces digests."""
    source: Source = "record"
    part: int = 0
    first: int = 0
    started: str = ""
    """When the recording began: ISO 8601, in UTC."""


Nanoseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class Free(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the ordered free list changed: `left` are removed, then each (index, blocks) of `joined` is inserted, at the end where the index is null. Or `is`: all of it."""

    left: tuple[int, ...] = ()
    joined: tuple[tuple[int | None, tuple[int, ...]], ...] = ()
    whole: tuple[int, ...] | None = msgspec.field(default=None, name="is")


class Blocks(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a set of blocks changed."""

    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


Slice: TypeAlias = tuple[int, int, int, int | None, tuple[int | None, ...]]
"""(sequence, group, start, stop, blocks): `table[start:stop] = blocks`, to the end where stop is null."""

Taken: TypeAlias = tuple[Literal["stored", "removed", "cleared"], tuple[int, ...]]
"""One event: its kind and its blocks."""

Answer: TypeAlias = Hit | Grant | OutOfBlocksSeen | RefusedSeen | Raised | bool | int | None
"""What an operation answered: `kvproof.models.spec.Outcome`, spelt out for msgspec."""


class Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One operation, what it answered, and what was seen to change. Times are nanoseconds: `at` since the recording began, `took` in the operation."""

    i: int
    op: AnyOp
    out: Answer = None
    at: Nanoseconds | None = None
    took: Nanoseconds | None = None
    tables: tuple[Slice, ...] = ()
    refcounts: tuple[tuple[int, int], ...] | UnsetType | None = UNSET
    free: Free | UnsetType | None = UNSET
    cached: Blocks | UnsetType | None = UNSET
    retiring: Blocks | UnsetType | None = UNSET
    free_count: int | UnsetType | None = UNSET
    worker_tables: tuple[tuple[int, int, tuple[int | None, ...]], ...] = ()
    events: tuple[Taken, ...] | UnsetType = UNSET


class LaterLine(Line, omit_defaults=True, forbid_unknown_fields=False):
    """The same with fields that this release does not know: the header has named them."""


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last line of a part: the number after its last operation, the CRC-32 of all bytes before this line, and whether another part follows."""

    end: int
    crc32: int
    more: bool = False


def header_line(header: Header) -> bytes:
    """The first line of a part. The version and the kind are written although they are defaults."""
    whole = {"kvproof": header.kvproof, "kind": header.kind, **msgspec.to_builtins(header)}
    return msgspec.json.encode(whole) + b"\n"
