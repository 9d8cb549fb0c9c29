"""What a campaign keeps: corpus, failures, records and open orders, in a Hypothesis example database.

    Store(directory(path), target="mypkg.kv:Adapter", campaign="...")

A database is a set of values under each key, so saving twice changes nothing and several machines may save at once. Corpus and failures belong to the target: every campaign
on it goes on from them. Records and open orders belong to one campaign. Values are JSON, but for the examples of Hypothesis, which are its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase, MultiplexedDatabase, ReadOnlyDatabase

from kvproof.fuzz.campaigns.faults import BadStore
from kvproof.fuzz.campaigns.orders import Order
from kvproof.fuzz.campaigns.records import Record, Records, collected
from kvproof.fuzz.programs import FORMAT, Program
from kvproof.fuzz.verdicts import Finding

T = TypeVar("T")

REDIS_EXPIRY_DAYS: Final = 90
"""Redis forgets a corpus that nobody has used for so long."""


class Store:
    """The kept things of one target and one campaign."""

    def __init__(self, database: ExampleDatabase, *, target: str, campaign: str) -> None:
        self.database = database
        self.target = target
        self.campaign = campaign

    # -- of the target -------------------------------------------------------------------------------------------------------------------------

    def corpus(self) -> list[Program]:
        """The kept programs, in an order that is the same for everybody."""
        return sorted(self._read(self._of_target("corpus"), Program), key=lambda program: (len(program.ops), str(program.seed)))

    def keep(self, program: Program) -> None:
        """Add a program to the corpus."""
        self._save(self._of_target("corpus"), program)

    def drop(self, program: Program) -> None:
        """Take a program out of the corpus."""
        self._delete(self._of_target("corpus"), program)

    def examples(self) -> list[bytes]:
        """The kept Hypothesis examples, as Hypothesis writes them."""
        return sorted(self._values(self._of_target("examples")))

    def keep_example(self, example: bytes) -> None:
        """Add an example."""
        self._write(self._of_target("examples"), example)

    def drop_example(self, example: bytes) -> None:
        """Take an example out."""
        self._remove(self._of_target("examples"), example)

    def findings(self) -> list[Finding]:
        """What was found and not taken out since."""
        return sorted(self._read(self._of_target("failures"), Finding), key=lambda finding: (finding.law, finding.steps, finding.reason))

    def keep_finding(self, finding: Finding) -> None:
        """Add a finding."""
        self._save(self._of_target("failures"), finding)

    def drop_finding(self, finding: Finding) -> None:
        """Take a finding out."""
        self._delete(self._of_target("failures"), finding)

    # -- of the campaign -----------------------------------------------------------------------------------------------------------------------

    def records(self) -> Records:
        """The records of this campaign."""
        return collected(self._read(self._of_campaign("records"), Record))

    def keep_record(self, record: Record) -> None:
        """Add the record of a batch."""
        self._save(self._of_campaign("records"), record)

    def open_orders(self) -> list[Order]:
        """The orders that were given and not done."""
        return sorted(self._read(self._of_campaign("orders"), Order), key=lambda order: (order.number, order.attempt))

    def open_order(self, order: Order) -> None:
        """Write an order down before it is given to anybody."""
        self._save(self._of_campaign("orders"), order)

    def close_order(self, order: Order) -> None:
        """The order was done, or given up."""
        self._delete(self._of_campaign("orders"), order)

    # -- the database --------------------------------------------------------------------------------------------------------------------------

    def _of_target(self, what: str) -> bytes:
        return f"kvproof/{FORMAT}/{self.target}/{what}".encode()

    def _of_campaign(self, what: str) -> bytes:
        return f"kvproof/{FORMAT}/{self.target}/{self.campaign}/{what}".encode()

    def _save(self, key: bytes, value: msgspec.Struct) -> None:
        self._write(key, msgspec.json.encode(value))

    def _write(self, key: bytes, value: bytes) -> None:
        try:
            self.database.save(key, value)
        except Exception as error:
            raise BadStore(
                f"The store of the campaign cannot be written ({_cause(error)}); make it available and start the same command again."
            ) from error

    def _delete(self, key: bytes, value: msgspec.Struct) -> None:
        self._remove(key, msgspec.json.encode(value))

    def _remove(self, key: bytes, value: bytes) -> None:
        try:
            self.database.delete(key, value)
        except Exception as error:
            raise BadStore(
                f"The store of the campaign cannot be written ({_cause(error)}); make it available and start the same command again."
            ) from error

    def _read(self, key: bytes, kind: type[T]) -> Iterator[T]:
        """The values under `key` that this release can read. What another release wrote, or half a file, is left out."""
        for value in self._values(key):
            try:
                yield msgspec.json.decode(value, type=kind)
            except (msgspec.DecodeError, ValueError):
                continue

    def _values(self, key: bytes) -> Iterable[bytes]:
        try:
            return list(self.database.fetch(key))
        except Exception as error:
            raise BadStore(
                f"The store of the campaign cannot be read ({_cause(error)}); make it available and start the same command again."
            ) from error


def directory(path: Path) -> ExampleDatabase:
    """A database in a directory of this machine, or one that several machines mount."""
    return WholeFiles(path)


class WholeFiles(ExampleDatabase):
    """A directory for each key and a file for each value, laid out as Hypothesis lays out its own, so that either reads what the other wrote.

    Hypothesis keeps quiet where a value cannot be written, and where its directory lies on another file system than the temporary ones, a process that is killed leaves half
    a file that is never written again. Here a value is there in whole, or saving it raises OSError.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def fetch(self, key: bytes) -> Iterator[bytes]:
        """The values under a key. One that is dropped meanwhile is left out, and so is a directory, which nobody here has made."""
        with contextlib.suppress(FileNotFoundError):
            for place in sorted((self.path / _digest(key)).iterdir()):
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    yield place.read_bytes()

    def save(self, key: bytes, value: bytes) -> None:
        """Keep a value."""
        place = self._place(key, value)
        if place.exists() and place.stat().st_size == len(value):
            return
        self.path.mkdir(exist_ok=True, parents=True)
        handle, written = tempfile.mkstemp(dir=self.path)  # beside the keys, where nobody takes it for a value
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(value)
            place.parent.mkdir(exist_ok=True)
            Path(written).replace(place)
        except BaseException:
            Path(written).unlink(missing_ok=True)
            raise

    def delete(self, key: bytes, value: bytes) -> None:
        """Drop a value, if it is there."""
        self._place(key, value).unlink(missing_ok=True)

    def _place(self, key: bytes, value: bytes) -> Path:
        return self.path / _digest(key) / _digest(value)


def _digest(name: bytes) -> str:
    return hashlib.sha384(name).hexdigest()[:16]


def untouched(database: ExampleDatabase) -> ExampleDatabase:
    """The same values, and nothing that is saved reaches the database."""
    return MultiplexedDatabase(InMemoryExampleDatabase(), ReadOnlyDatabase(database))


def redis(url: str) -> ExampleDatabase:
    """A database in a Redis server, `redis://HOST:PORT/NUMBER`. Raises BadStore."""
    try:
        from datetime import timedelta

        import redis as client
        from hypothesis.extra.redis import RedisExampleDatabase
    except ImportError as error:
        raise BadStore("A store in Redis needs the package redis; run `pip install 'kvproof[redis]'`.") from error
    try:
        connection = client.Redis.from_url(url)
        connection.ping()
    except (ValueError, client.exceptions.RedisError) as error:
        raise BadStore(f"There is no Redis server at {url} ({_cause(error)}); give the address of one, as redis://HOST:PORT/0.") from error
    return RedisExampleDatabase(connection, expire_after=timedelta(days=REDIS_EXPIRY_DAYS), key_prefix=b"kvproof:")


def _cause(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
