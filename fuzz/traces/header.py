"""How a trace file is opened, and its first line: whether it is a trace at all, of a version that can be read, and of a pool that can be followed."""

from __future__ import annotations

import gzip
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path
from typing import BinaryIO, Final, cast

import msgspec

from kvproof.fuzz.programs import FORMAT, other_version
from kvproof.fuzz.traces.format import BadTrace, Header

MOST_SLOTS: Final = 1 << 27
"""Blocks times tokens: a pool larger than any that is served, whose ghosts take a gigabyte."""

MOST_LINE_BYTES: Final = 1 << 24
"""A prompt of a million tokens takes less, digests in place of tokens included. What is longer is no line: a file without line ends must not be read into memory."""

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What is raised for a line that is no JSON, or not the JSON of a trace, or nested without end."""


def is_trace(path: Path) -> bool:
    """Whether the file begins as a trace does."""
    try:
        return msgspec.json.decode(first_line(path), type=_Kind).kind == "trace"
    except (BadTrace, *UNREADABLE):
        return False


def read_header(path: Path, line: bytes) -> Header:
    """What the first line of a trace says. Raises BadTrace."""
    if line.startswith((BOM_UTF8, BOM_UTF16_LE, BOM_UTF16_BE)):
        raise BadTrace(
            f"line 1 of {path} begins with a byte order mark, as some editors write it; a trace is UTF-8 without one: save it again like that."
        )
    if not line.strip():
        raise BadTrace(
            f"{path} is empty or begins with an empty line, so it is no trace: its recorder may have died before it wrote anything."
        )
    try:
        kind = msgspec.json.decode(line, type=_Kind)
    except UNREADABLE as error:
        raise BadTrace(
            _what_else(path) or f"line 1 of {path} is no trace header ({error}); a trace begins with a JSON object whose kind is trace."
        ) from error
    if kind.kind != "trace":
        raise BadTrace(_what_else(path) or f"{path} is no trace: line 1 has no kind that says so; record one with kvproof.record.")
    if kind.kvproof != FORMAT:
        raise BadTrace(other_version(path, kind.kvproof))
    try:
        header = msgspec.json.decode(line, type=Header)
    except UNREADABLE as error:
        raise BadTrace(f"line 1 of {path} is damaged: {error}.") from error
    wrong = _impossible(header)
    if wrong:
        raise BadTrace(f"line 1 of {path} is damaged: {wrong}.")
    return header


def _impossible(header: Header) -> str:
    """Why no cache can have this pool or these groups; empty if one can."""
    config, groups = header.config, header.capabilities.groups
    sizes = [config.block_size, *(group.block_size for group in groups if group.block_size is not None)]
    if config.num_blocks < 1 or min(sizes) < 1:
        return f"its pool has {config.num_blocks} blocks of {min(sizes)} tokens"
    if config.num_blocks * max(sizes) > MOST_SLOTS:
        return f"its pool has {config.num_blocks} blocks of {max(sizes)} tokens, more than the {MOST_SLOTS} slots that can be followed"
    if not groups:
        return "it has no group of layers"
    for group in groups:
        if group.kind not in ("full", "sliding_window"):
            return f"it has a group of kind {group.kind}, and only full and sliding_window are judged"
        if group.kind == "sliding_window" and (group.window is None or group.window < 1):
            return "it has a sliding window without a length"
    return ""


def _what_else(path: Path) -> str:
    """What a file is that is no trace, in a sentence with the mend; empty where it is none of ours either."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Whole)
    except (OSError, *UNREADABLE):
        return ""
    if found.ops is not msgspec.UNSET:
        return f"{path} is a program or a failure file, not a trace; see it with `kvproof replay {path}`, or write its trace with `kvproof record {path}`."
    if found.verdict is not msgspec.UNSET:
        return f"{path} is a report, not a trace; see it with `kvproof open {path}`."
    return ""


class _Whole(msgspec.Struct):
    """What tells programs and reports from other JSON files."""

    kvproof: int
    ops: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    verdict: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Kind(msgspec.Struct):
    kind: str = ""
    kvproof: int = 0


def open_trace(path: Path) -> BinaryIO:
    """The file, unpacked where its name ends in .gz."""
    return cast("BinaryIO", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def first_line(path: Path) -> bytes:
    """The line that should be the header. Raises BadTrace for a file that cannot be read."""
    try:
        with open_trace(path) as file:
            return file.readline(MOST_LINE_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise BadTrace(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
