"""The state space of a small scope as SVG: a column for each number of operations, a dot for each state, a line for each operation that leads to another state.

Dark lines are those by which a state was first met; pale ones lead to states that were known. Each dot names its program when it is pointed at.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from kvproof.fuzz.exhaust.search import Search
from kvproof.fuzz.reports import wording
from kvproof.models.spec import Spec

MOST_STATES: Final = 2000
"""More than these cannot be told apart."""

COLUMN: Final = 150
ROW: Final = 22
MARGIN: Final = 60

KINDS: Final[dict[str, tuple[str, str]]] = {
    "flight": ("#d1495b", "device work is out"),
    "swapped": ("#8d6a9f", "a sequence is on the slower tier"),
    "held": ("#2e86ab", "blocks are held"),
    "cached": ("#66a182", "nothing is held, something is matchable"),
    "empty": ("#9a9a9a", "nothing is held or matchable"),
}
"""Kind of a state -> (colour, meaning); the first that applies."""


def kind(spec: Spec) -> str:
    """What a state is coloured by."""
    if spec.passes or spec.steps:
        return "flight"
    if any(sequence.swapped for sequence in spec.live.values()):
        return "swapped"
    if spec.owners:
        return "held"
    return "cached" if spec.seen.books.cached else "empty"


def svg(search: Search, title: str) -> str:
    """The picture. The search must have remembered its transitions. Raises ValueError for more states than can be drawn."""
    if len(search.states) > MOST_STATES:
        raise ValueError(f"{len(search.states)} states are too many for a picture; draw a scope of at most {MOST_STATES}")
    places = _places(search)
    width = 2 * MARGIN + COLUMN * max(search.depths)
    height = 2 * MARGIN + ROW * max(search.per_depth()) + 24 * len(KINDS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN / 2:g}" y="24" font-size="14">{escape(title)}</text>',
    ]
    lines += _edges(search, places)
    lines += (_dot(search, state, places[state]) for state in range(len(search.states)))
    lines += _legend(height)
    return "\n".join([*lines, "</svg>\n"])


def _places(search: Search) -> list[tuple[float, float]]:
    """Where each state goes: children near their parents, and no two on one spot."""
    columns: dict[int, list[int]] = {}
    for state, depth in enumerate(search.depths):
        columns.setdefault(depth, []).append(state)
    tallest = max(len(column) for column in columns.values())
    places = [(0.0, 0.0)] * len(search.states)
    for depth, column in sorted(columns.items()):
        column.sort(key=lambda state: (places[search.parents[state]][1], state))
        top = MARGIN + ROW * (tallest - len(column)) / 2
        for row, state in enumerate(column):
            places[state] = (MARGIN + COLUMN * depth, top + ROW * row)
    return places


def _edges(search: Search, places: list[tuple[float, float]]) -> Iterable[str]:
    pale, dark = [], []
    for state, number, other in search.edges:
        if state == other:
            continue
        (x, y), (u, v) = places[state], places[other]
        first = search.parents[other] == state and search.via[other] == number
        bend = 0 if first else (40 if u > x else -40)
        path = f'<path d="M{x:g} {y:g} C{x + 40:g} {y - bend / 4:g} {u - 40:g} {v - bend:g} {u:g} {v:g}" fill="none" '
        if first:
            dark.append(path + 'stroke="#555" stroke-width="1"/>')
        else:
            pale.append(path + 'stroke="#ccc" stroke-width="0.5"/>')
    return [*pale, *dark]


def _dot(search: Search, state: int, place: tuple[float, float]) -> str:
    x, y = place
    colour = KINDS[kind(search.at(state).spec)][0]
    program = "; ".join(wording.operation(op) for op in search.program(state)) or "the fresh cache"
    last = wording.operation(search.operations[search.via[state]]) if state else ""
    return (
        f'<g><title>{escape(program)}</title><circle cx="{x:g}" cy="{y:g}" r="4" fill="{colour}"/>'
        f'<text x="{x + 7:g}" y="{y - 4:g}" fill="#333" font-size="8">{escape(last)}</text></g>'
    )


def _legend(height: float) -> Iterable[str]:
    top = height - 24 * len(KINDS)
    for row, (colour, meaning) in enumerate(KINDS.values()):
        y = top + 22 * row
        yield f'<circle cx="{MARGIN}" cy="{y}" r="5" fill="{colour}"/><text x="{MARGIN + 12}" y="{y + 4}">{escape(meaning)}</text>'
