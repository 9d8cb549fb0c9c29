"""Source locations of the printed IR: `#loc7 = loc("file.py":12:4)` and what is built from them."""

from __future__ import annotations

import re

from kvproof.kernels.machine.ir import Location

_DEFINITION = re.compile(r"^#(loc\d*) = loc\((.*)\)$", re.MULTILINE)
_FILE = re.compile(r'^"((?:[^"\\]|\\.)*)":(\d+):(\d+)$')
_LIBRARY = re.compile(r"[/\\]triton[/\\]language[/\\]")
"""Frames inside Triton's own standard library say nothing about the user's kernel; the caller's line does."""


class Locations:
    """The location table of one printed module."""

    def __init__(self, text: str) -> None:
        self._definitions = dict(_DEFINITION.findall(text))
        self._resolved: dict[str, list[Location]] = {}

    def resolve(self, text: str) -> Location:
        """The innermost line outside Triton's library that `text`, the inside of a `loc(...)`, stands for."""
        frames = self._frames(text.strip())
        for frame in frames:
            if frame.line and not _LIBRARY.search(frame.file):
                return frame
        return frames[0] if frames else Location()

    def _frames(self, text: str) -> list[Location]:
        if text not in self._resolved:
            self._resolved[text] = []  # A cycle would otherwise never end; the printer makes none.
            self._resolved[text] = self._parse(text)
        return self._resolved[text]

    def _parse(self, text: str) -> list[Location]:
        if text.startswith("#"):
            return self._frames(self._definitions.get(text[1:], "unknown"))
        if found := _FILE.match(text):
            return [Location(found[1], int(found[2]), int(found[3]))]
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            return self._frames(callee) + self._frames(caller)
        if text.startswith("fused"):
            return [frame for part in re.findall(r"#loc\d*", text) for frame in self._frames(part)]
        if found := re.match(r'^"(?:[^"\\]|\\.)*"\((.*)\)$', text):
            return self._frames(found[1])
        return []


def _split_callsite(text: str) -> tuple[str, str]:
    """Split `callee at caller` at the `at` outside all parentheses and quotes."""
    depth, quoted = 0, False
    for at, char in enumerate(text):
        quoted ^= char == '"'
        if quoted:
            continue
        depth += (char == "(") - (char == ")")
        if depth == 0 and text.startswith(" at ", at):
            return text[:at], text[at + 4 :]
    return text, "unknown"


def strip_locations(line: str) -> tuple[str, str]:
    """The line without its `loc(...)` parts, and the inside of the last one ("unknown" where there is none)."""
    last, kept, at = "unknown", [], 0
    while (start := line.find(" loc(", at)) >= 0:
        depth, quoted, end = 0, False, start + 4
        while end < len(line):
            quoted ^= line[end] == '"' and line[end - 1] != "\\"
            if not quoted:
                depth += (line[end] == "(") - (line[end] == ")")
                if depth == 0:
                    break
            end += 1
        kept.append(line[at:start])
        last = line[start + 5 : end]
        at = end + 1
    kept.append(line[at:])
    return "".join(kept).rstrip(), last
