"""Programs and failures as files: JSON with a format version. A failure file is a program with the violation that it shows."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from kvproof.impl.foreign.registry import find_release
from kvproof.impl.foreign.releases import BadRelease, installed
from kvproof.models.ops import AnyOp
from kvproof.models.spec import Violation

FORMAT: Final = 1
"""The version that this release writes and reads."""

FAILURES: Final = Path(".kvproof/failures")
"""Where failure files go, if nothing else is asked for."""

VARIANTS: Final = "variants"
"""The folder beneath them for what else a campaign has of a failure that is told."""


class PoolConfig(msgspec.Struct, frozen=True):
    """The pool that a program runs on."""

    num_blocks: int
    block_size: int


class Program(msgspec.Struct, frozen=True, omit_defaults=True):
    """A list of operations for one target, and where they came from."""

    kvproof: int
    target: str
    config: PoolConfig
    ops: tuple[AnyOp, ...]
    seed: str | int | None = None
    violation: Violation | None = None
    fault: str = ""
    """Where the adapter, not the cache, is at fault: what it did."""
    unfinished: bool = False
    """Whether shrinking was ended by the time and not by a program that no pass makes simpler: `kvproof shrink FILE` goes on."""


class BadFile(ValueError):
    """A file that cannot be read as what it should be, or cannot be written: one sentence that names the cause and the mend."""


def read_program(path: Path) -> Program:
    """Read a program or failure file. Raises BadFile."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}.") from error
    if not text.strip():
        raise BadFile(f"{path} is empty, so it is no program: whatever wrote it may have been cut off; write it again.")
    try:
        header = msgspec.json.decode(text, type=_Header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFile(f"{path} is not a kvproof program ({error}); it is JSON with the keys kvproof, target, config and ops.") from error
    if header.kvproof != FORMAT:
        raise BadFile(other_version(path, header.kvproof))
    if header.verdict is not None:
        raise BadFile(
            f"{path} is a report, not a program; name a failure file, or replay the program of one of its violations with `kvproof replay {path}`."
        )
    if header.case is not None:
        raise BadFile(f"{path} holds a case of kernels, not a program of a cache; judge it with `kvproof replay {path}`.")
    try:
        program = msgspec.json.decode(text, type=Program)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFile(f"{path} is damaged: {error}.") from error
    check_pool(path, program.config)
    return program


def check_pool(path: Path, config: PoolConfig) -> None:
    """Raises BadFile where no cache can have this pool."""
    if config.num_blocks < 1 or config.block_size < 1:
        raise BadFile(
            f"{path} is damaged: its pool has {config.num_blocks} blocks of {config.block_size} tokens, and both must be 1 or more."
        )


def other_version(path: Path, version: int) -> str:
    """What to say of a file of another format version."""
    mend = "use the kvproof that wrote it, or a later one" if version > FORMAT else "record it again with this release"
    return f"{path} has format version {version}, and this kvproof reads version {FORMAT}; {mend}."


def write_program(path: Path, program: Program) -> None:
    """Write a program or failure file, whole or not at all."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(program), indent=1) + b"\n")


def keep_program(directory: Path, what: str, program: Program) -> Path:
    """Write the failure file of `program` into `directory`; `what` begins its name. Raises OSError."""
    path = directory / failure_name(what, program)
    write_program(path, program)
    return path


def failure_name(what: str, program: Program) -> str:
    """The name of a failure file, the same for the same program."""
    digest = hashlib.sha256(msgspec.json.encode((local(program.target), program.config, program.ops))).hexdigest()[:8]
    return f"{what}-{digest}.json"


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` beside `path` and move it there, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


@contextlib.contextmanager
def writing(place: Path, option: str = "") -> Iterator[None]:
    """Around whatever writes `place`, which the user chooses by `option`. Raises BadFile where it cannot be written."""
    try:
        yield
    except OSError as error:
        mend = f"name another place with {option}" if option else "name a place that can be"
        raise BadFile(f"{place} cannot be written ({error.strerror}); {mend}.") from error


def write_output(place: Path, option: str, data: bytes) -> None:
    """Write what the user asked for by `option`, whole or not at all. Raises BadFile where it cannot be written."""
    with writing(place, option):
        write_whole(place, data)


class _Header(msgspec.Struct):
    kvproof: int
    verdict: object = None
    """Only a report has one."""
    case: object = None
    """Only a failure of kernels has one."""


def portable(name: str) -> str:
    """The same target, to be found from any directory and by any kvproof: a file by its absolute path, an engine that is not installed here by its release."""
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py"):
        return f"{Path(place).resolve()}:{attribute}"
    try:
        release = find_release(name)
    except BadRelease:  # whoever looks for the target says so
        release = None
    return name if release is None or installed(release.engine) else release.name


def portable_program(program: Program) -> Program:
    """The program with a target that can be found from any directory."""
    return msgspec.structs.replace(program, target=portable(program.target))


def local(name: str) -> str:
    """The same target as it is shown here: a file below the current directory by its path from there."""
    place, _, attribute = name.rpartition(":")
    if not place.endswith(".py") or not Path(place).is_relative_to(Path.cwd()):
        return name
    return f"{Path(place).relative_to(Path.cwd())}:{attribute}"
