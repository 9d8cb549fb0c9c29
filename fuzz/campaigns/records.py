"""What was done, one record for each batch, and how the records of many workers and machines become one.

`merge` is associative, commutative and idempotent: records may come twice, in any order, from a log that was cut off or from two workers that did the same batch, and the
totals are the same. The identity of a record is its campaign and the number of its batch; of two records with one identity the better one stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from kvproof.fuzz.programs import FORMAT


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of one batch.

    `seed`: its programs are those of `seed:0`, `seed:1`, ... `seconds`: of one worker. `exercised`: how often each law was put to the test. `situations`: those that the
    worker had not seen before. `failures`: for each broken law how many programs broke it, shrunk or not; "" counts faults. `lost`: how the batch was given up, if it was.
    """

    campaign: str
    batch: int
    seed: str
    attempt: int = 1
    programs: int = 0
    operations: int = 0
    seconds: float = 0.0
    exercised: dict[str, int] = {}
    refusals: dict[str, int] = {}
    situations: tuple[str, ...] = ()
    failures: dict[str, int] = {}
    lost: str = ""
    kvproof: int = FORMAT


Records: TypeAlias = dict[tuple[str, int], Record]
"""(campaign, batch) -> its record."""


def merge(one: Mapping[tuple[str, int], Record], two: Mapping[tuple[str, int], Record]) -> Records:
    """Everything that either side knows; neither is changed."""
    merged = dict(one)
    for identity, record in two.items():
        known = merged.get(identity)
        merged[identity] = record if known is None else max(known, record, key=_worth)
    return merged


def collected(records: Iterable[Record]) -> Records:
    """The merge of single records."""
    merged: Records = {}
    for record in records:
        identity = (record.campaign, record.batch)
        merged[identity] = max(merged.get(identity, record), record, key=_worth)
    return merged


def _worth(record: Record) -> tuple[bool, int, bytes]:
    """A total order: a batch that was done before one that was given up, the one that did more, and then any order that everybody agrees on."""
    return not record.lost, record.programs, msgspec.json.encode(record, order="deterministic")


class Totals(msgspec.Struct):
    """The sums of all records."""

    batches: int = 0
    programs: int = 0
    operations: int = 0
    exercised: Counter[str] = msgspec.field(default_factory=Counter)
    refusals: Counter[str] = msgspec.field(default_factory=Counter)
    failures: Counter[str] = msgspec.field(default_factory=Counter)
    situations: set[str] = msgspec.field(default_factory=set)
    lost: list[str] = msgspec.field(default_factory=list)

    def add(self, record: Record) -> None:
        """Count one record that was not counted before."""
        self.batches += 1
        self.programs += record.programs
        self.operations += record.operations
        self.exercised.update(record.exercised)
        self.refusals.update(record.refusals)
        self.failures.update(record.failures)
        self.situations.update(record.situations)
        if record.lost:
            self.lost.append(record.lost)


def totals(records: Mapping[tuple[str, int], Record]) -> Totals:
    """The sums of merged records."""
    found = Totals()
    for record in records.values():
        found.add(record)
    return found
