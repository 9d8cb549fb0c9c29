"""A picture as columns of text: the broken law, the map, the last steps with what each changed, model beside cache, and the books.

    show_picture(console, picture)
    show_picture(console, picture, step=12)

The signs are those of the page. On the map each column is a step, or the last of several where there are more than fit; `v` above it marks the step that is shown, `!` one that breaks a law.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.picture.differences import Accusation, Difference
from kvproof.fuzz.reports.picture.document import Picture
from kvproof.fuzz.reports.picture.film import (
    ASIDE,
    CACHED,
    CONFLICT,
    FREE,
    HELD,
    MISSING,
    NO_BLOCK,
    NULL,
    RETIRING,
    SHARED,
    UNKNOWN,
    Frame,
    Out,
    SequenceChange,
)
from kvproof.fuzz.reports.picture.stage import Block, Player, Prefixes, Stage
from kvproof.fuzz.reports.terminal import say

MOST_STEPS: Final = 24
"""How many steps are listed: those before the one that is shown, and the few after it."""

STEPS_AFTER: Final = 3

MOST_BLOCKS: Final = 64
"""Larger pools show only the blocks that the listed steps changed."""

MOST_TOKENS: Final = 32
"""How many positions of a sequence are shown, counted from its end or from the first difference."""

LABEL_COLUMNS: Final = 9
"""The names of the blocks before the map."""

NAME_COLUMNS: Final = 20
"""The name and the holders of each block behind the map; what is longer is cut."""

MARKS: Final = {FREE: ".", CACHED: "c", SHARED: "+", RETIRING: "r", NULL: "-", MISSING: "?", CONFLICT: "!", UNKNOWN: "~", ASIDE: "*"}

WORDS: Final = ("free", "matchable", "held", "shared", "retiring", "null block", "in no list", "held and free", "not known", "set aside")
"""The states by their numbers, as the page words them."""

LEGEND: Final = "0-9a-z the sequence that holds it, + shared, c free but matchable, . free, r retiring, ? in no list, ! held and free, ~ not known, * accused by a fault before"

HOLDER_SIGNS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def show_picture(console: Console, picture: Picture, *, step: int | None = None) -> None:
    """Print `picture` at a step: the one that breaks the first law, or the last one, unless another is named. Of several faults the one that is shown is told in full."""
    row = _row(picture, step)
    if step is not None and step not in picture.numbers:
        say(console, f"This run has no step {step}; its last one is shown.", "yellow")
    if picture.faults:
        _accusations(console, picture, row)
    elif picture.trouble:
        console.print(Text(picture.trouble, style="bold red"))
        console.print()
    if picture.note:
        say(console, picture.note, "yellow")
        console.print()
    if row < 0:
        console.print("No operation ran.")
        return
    first, last = max(0, row - MOST_STEPS + 1), min(len(picture.frames), row + STEPS_AFTER + 1)
    _map(console, picture, row, first, last)
    _steps(console, picture, row, first, last)
    stage = Stage(picture)
    stage.advance(row)
    _sequences(console, stage)
    _books(console, stage)


def _row(picture: Picture, step: int | None) -> int:
    if step is None:
        return picture.faults[0].row if picture.faults else len(picture.frames) - 1
    return picture.numbers.index(step) if step in picture.numbers else len(picture.frames) - 1


def _accusations(console: Console, picture: Picture, row: int) -> None:
    """Every fault: in full the one of the row that is shown, or the first one, the others with their step."""
    shown = next((fault for fault in picture.faults if fault.row == row), picture.faults[0])
    for fault in picture.faults:
        console.print(Text(f"{fault.law} is broken at step {fault.step}", style="bold red"))
        if fault is shown:
            _accusation(console, fault)
    if len(picture.faults) > 1:
        say(console, f"{len(picture.faults)} laws are broken; --step shows another step.")
    console.print()


def _accusation(console: Console, accused: Accusation) -> None:
    say(console, f"  The law: {accused.sentence}")
    say(console, f"  The reason: {wording.sentence(accused.reason)}")
    for number, difference in enumerate(accused.differences[:3]):
        _difference(console, difference, first=number == 0)


def _difference(console: Console, difference: Difference, *, first: bool) -> None:
    say(console, f"  {'First difference' if first else 'Another'}: {difference.where}")
    say(console, f"      the model knows: {difference.model}")
    say(console, f"      the cache shows: {difference.cache}")


# -- the map -------------------------------------------------------------------------------------------------------------------------------


def _map(console: Console, picture: Picture, row: int, first: int, last: int) -> None:
    """One line for each block; the shown step is marked above and below."""
    width = max(20, console.width - LABEL_COLUMNS - NAME_COLUMNS - 2)
    columns = _columns(row, len(picture.frames), width)
    cells, names = _cells(picture, columns, row)
    shown = sorted(_changed(picture.frames[first:last])) if picture.num_blocks > MOST_BLOCKS else list(range(picture.num_blocks))
    broken = _faulty_columns(picture, columns)
    marker = " " * LABEL_COLUMNS + "".join("v" if column == row else "!" if column in broken else " " for column in columns)
    accused = {block for fault in picture.faults if fault.row == row for block in fault.blocks}
    say(console, f"Blocks over {wording.counted(len(picture.frames), 'operation')}, {_scale(columns)}:", "bold")
    console.print(Text(marker.rstrip(), style="bold"))
    for block in shown:
        style = "bold red" if block in accused else ""
        sign = ">" if block in accused else " "
        console.print(Text(f"{sign} {f'b{block}':<{LABEL_COLUMNS - 3}} {cells[block]}  {_cut(names[block])}", style=style), soft_wrap=True)
    say(console, f"  {LEGEND}", "dim")
    console.print()


def _faulty_columns(picture: Picture, columns: list[int]) -> set[int]:
    """The columns that hold a step which breaks a law: each stands for the rows since the one before."""
    return {columns[min(bisect_left(columns, fault.row), len(columns) - 1)] for fault in picture.faults}


def _cut(name: str) -> str:
    return name if len(name) <= NAME_COLUMNS else f"{name[: NAME_COLUMNS - 2]}.."


def _columns(row: int, rows: int, width: int) -> list[int]:
    """The rows that the columns show, each the last one of its share; the row that is shown is among them."""
    if rows <= width:
        return list(range(rows))
    columns = {(column + 1) * rows // width - 1 for column in range(width)}
    nearest = min(columns, key=lambda column: abs(column - row))
    return sorted(columns - {nearest} | {row})


def _scale(columns: list[int]) -> str:
    each = (columns[-1] + 1) / len(columns)
    return "one column for each" if each == 1 else f"one column for {each:,.0f}"


def _cells(picture: Picture, columns: list[int], row: int) -> tuple[list[str], list[str]]:
    """For each block its line, and its name and holders at `row`."""
    stage = Stage(picture)
    lines: list[list[str]] = [[] for _ in range(picture.num_blocks)]
    names = [""] * picture.num_blocks
    for column in columns:
        stage.advance(column)
        for block, line in enumerate(lines):
            line.append(_sign(stage.blocks[block]))
        if column == row:
            names = [f"{stage.name(block)} {_state(stage, block)}" for block in range(picture.num_blocks)]
    return ["".join(line) for line in lines], names


def _sign(block: Block) -> str:
    return HOLDER_SIGNS[block.holder % len(HOLDER_SIGNS)] if block.state == HELD else MARKS[block.state]


def _state(stage: Stage, block: int) -> str:
    holders = " ".join(f"s{seq}" for seq in stage.holders(block))
    return holders or WORDS[stage.blocks[block].state]


def _changed(frames: list[Frame]) -> set[int]:
    return {block for frame in frames for block in frame.b[::5]}


# -- the steps -----------------------------------------------------------------------------------------------------------------------------


def _steps(console: Console, picture: Picture, row: int, first: int, last: int) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("  step", "operation", "answer", "what changed"):
        table.add_column(title)
    stage = Stage(picture)
    stage.advance(first - 1)
    for at in range(first, last):
        was = {block: stage.blocks[block] for block in picture.frames[at].b[::5]}
        before = {change.seq: stage.players.get(change.seq) for change in picture.frames[at].s}
        stage.advance(at)
        number = picture.numbers[at]
        changes = "; ".join(_changes(stage, picture.frames[at], before, was))
        cells = (f"{'>' if at == row else ' '} {'-' if number is None else number:>4}", picture.texts[at], picture.answers[at], changes)
        table.add_row(*(Text(cell) for cell in cells), style="bold" if at == row else "dim" if number is None else None)
    console.print(table)
    console.print()


def _changes(stage: Stage, frame: Frame, before: dict[int, Player | None], was: dict[int, Block]) -> Iterator[str]:
    """What one frame changed; `before` and `was` are the sequences and blocks that it names as they were before it."""
    for change in frame.s:
        yield from _sequence_changes(stage, before[change.seq], stage.players[change.seq])
    for seq in frame.x:
        yield f"s{seq} is gone"
    for block, old in was.items():
        if old.state != stage.blocks[block].state:
            yield f"{stage.name(block)} {WORDS[old.state]} to {WORDS[stage.blocks[block].state]}"


def _sequence_changes(stage: Stage, old: Player | None, new: Player) -> Iterator[str]:
    seq = new.now.seq
    if old is None:
        yield f"s{seq} knows {wording.counted(new.now.known, 'token')}"
    else:
        yield from _token_changes(old.now, new.now)
    for group, table in enumerate(new.tables):
        had = old.tables[group] if old else []
        if had == table:
            continue
        kept = next((index for index, (a, b) in enumerate(zip(had, table, strict=False)) if a != b), min(len(had), len(table)))
        signs = [f" {sign}{stage.name(block)}" for sign, part in (("-", had), ("+", table)) for block in part[kept:]]
        yield f"s{seq} table{''.join(signs)}"


def _token_changes(old: SequenceChange, new: SequenceChange) -> Iterator[str]:
    if old.known != new.known:
        yield f"s{new.seq} knows {old.known} to {new.known}"
    if old.computed != new.computed:
        yield f"s{new.seq} computed {old.computed} to {new.computed}"


# -- model beside cache --------------------------------------------------------------------------------------------------------------------


def _sequences(console: Console, stage: Stage) -> None:
    prefixes = Prefixes(stage.picture)
    say(console, "Model and cache:" if stage.players else "No sequence is alive.", "bold")
    for seq, player in sorted(stage.players.items()):
        now = player.now
        space = prefixes.namespace(now.node)
        parts = [f"{now.computed} of {wording.counted(now.known, 'token')} computed"]
        parts += [_pass(now.out)] if now.out else []
        parts += ["swapped out"] if player.swapped else []
        parts += ["not judged: a fault before accuses it"] if player.left_out else []
        parts += [space] if space else []
        say(console, f"  s{seq}  {', '.join(parts)}")
        for group in range(len(player.tables)):
            for line in _group(stage, prefixes, player, group):
                say(console, f"      {line}", "bold red" if "first difference" in line else "")
    console.print()


def _pass(out: Out) -> str:
    start, known_end, end, _, launched = out
    place = f"position {start}" if end - start == 1 else f"positions {start} to {end - 1}"
    drafts = f", {end - known_end} of them drafts" if end > known_end else ""
    return f"a pass {'writes' if launched else 'waits to write'} {place}{drafts}"


def _group(stage: Stage, prefixes: Prefixes, player: Player, group: int) -> Iterator[str]:
    """Three lines, block by block: the tokens that the model knows, those that the cache's slots show, the block table."""
    picture, now = stage.picture, player.now
    shape, size = picture.groups[group], picture.groups[group].block_size
    nodes = prefixes.path(now.node, now.known)
    if now.out is not None and now.out[2] > now.out[1]:
        nodes += prefixes.path(now.out[3], now.out[2] - now.out[1])
    low = 0 if shape.window is None else max(0, now.computed - shape.window + 1)
    columns, wrong = [], []
    for index in range(max(len(player.tables[group]), -(-len(nodes) // size))):
        block = player.tables[group][index] if index < len(player.tables[group]) else NO_BLOCK
        model, cache = [], []
        for position in range(index * size, (index + 1) * size):
            expected = nodes[position] * len(picture.groups) + group if position < len(nodes) else 0
            shown = 0 if block == NO_BLOCK else stage.slots[block * picture.stride + position % size]
            bad = low <= position < now.computed and not player.swapped and shown != expected and stage.is_judged(player, block)
            wrong += [position] if bad else []
            model.append(str(prefixes.token(nodes[position])) if expected else "")
            token = str(prefixes.token(shown // len(picture.groups))) if shown else "."
            cache.append(("!" if bad else "") + ("" if block == NO_BLOCK and not bad else token))
        columns.append((" ".join(model).strip(), " ".join(cache).strip(), stage.name(block)))
    start = _start(columns, wrong, size)
    shown_columns = columns[start : start + max(1, MOST_TOKENS // size)]
    if len(picture.groups) > 1:
        yield f"group {group}, {shape.kind.replace('_', ' ')}" + ("" if shape.window is None else f" of {shape.window}")
    for title, part in zip(("model", "cache", "table"), range(3), strict=True):
        cells = [f"{column[part]:<{max(map(len, column))}}" for column in shown_columns]
        yield (f"{title}  {'... ' if start else ''}" + " | ".join(cells)).rstrip()
    if wrong:
        yield f"       first difference at position {wrong[0]}"


def _start(columns: list[tuple[str, str, str]], wrong: list[int], size: int) -> int:
    """The first block that is shown of a long table."""
    most = max(1, MOST_TOKENS // size)
    if wrong:
        return max(0, wrong[0] // size - most // 2)
    return max(0, len(columns) - most)


def _books(console: Console, stage: Stage) -> None:
    books = stage.picture.books
    if "free" in books:
        say(console, f"Free list, the next one first: {' '.join(map(stage.name, stage.free)) or 'empty'}")
    if "cached" in books:
        prefixes = Prefixes(stage.picture)
        say(console, "Prefix index:" if stage.matchable else "Prefix index: empty")
        for block in sorted(stage.matchable):
            tokens = [prefixes.token(content // len(stage.picture.groups)) for content in _content(stage, block) if content]
            say(console, f"  {stage.name(block):<9} {wording.numbers(tokens) or 'holds nothing'}")


def _content(stage: Stage, block: int) -> list[int]:
    return stage.slots[block * stage.picture.stride : (block + 1) * stage.picture.stride]
