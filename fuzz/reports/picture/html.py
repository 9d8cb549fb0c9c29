"""One HTML file that needs nothing else: the files of `page/`, joined, and the data.

    path.write_bytes(html(document))

The page is plain HTML, CSS and JavaScript without any library, kept in small files; joining them is all the building there is. It may be
opened from a disk: a content security policy forbids it to load anything.
"""

from __future__ import annotations

import base64
import gzip
from html import escape
from importlib.resources import files
from typing import Final

import msgspec

from kvproof.fuzz.reports.picture.document import Document

SCRIPTS: Final = (
    "words.js",
    "state.js",
    "movie.js",
    "colours.js",
    "bars.js",
    "map.js",
    "timeline.js",
    "steps.js",
    "changes.js",
    "sequences.js",
    "books.js",
    "block.js",
    "search.js",
    "facts.js",
    "lane.js",
    "compare.js",
    "address.js",
    "keys.js",
    "app.js",
    "main.js",
)
"""The scripts in the order in which they are joined; they share one scope, so that nothing of them is visible from outside."""

STYLES: Final = ("theme.css", "layout.css", "panels.css")

MOST_PLAIN_BYTES: Final = 100_000
"""Data up to this size stays readable in the file; more is packed with gzip, which browsers unpack ten times faster than it is read from a disk."""


def html(document: Document) -> bytes:
    """The whole page, UTF-8."""
    page = _read("page.html")
    scripts = "\n".join(_read(name) for name in SCRIPTS)
    parts = {
        "title": escape(document.title),
        "styles": "\n".join(_read(name) for name in STYLES),
        "scripts": f'(() => {{\n"use strict";\n{scripts}\n}})();',
        "data": _data(document),
    }
    for name, text in parts.items():
        page = page.replace(f"<!--{name}-->", text, 1)
    return page.encode()


def _data(document: Document) -> str:
    """The data as an element that a browser does not run. Nothing in it can end the element: `<` is written as an escape."""
    data = msgspec.json.encode(document)
    if len(data) <= MOST_PLAIN_BYTES:
        return f'<script id="data" type="application/json">{data.decode().replace("<", chr(92) + "u003c")}</script>'
    packed = base64.b64encode(gzip.compress(data, mtime=0)).decode()
    return f'<script id="data" type="application/gzip">{packed}</script>'


def _read(name: str) -> str:
    return files("kvproof.fuzz.reports.picture").joinpath("page", name).read_text(encoding="utf-8")
