"""The page in a real browser: every interaction, and no error on its console.

Needs Chromium and the extra `browser`: on Debian `apt-get install chromium` and `pip install 'kvproof[browser]'`. CHROMIUM names another binary.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from picture_runs import COPY_NOT_ISSUED, BreaksLate, faulty_trace, film, long_picture, serving_program

from kvproof.fuzz.programs import PoolConfig, Program
from kvproof.fuzz.reports.picture.align import align
from kvproof.fuzz.reports.picture.differences import Accusation
from kvproof.fuzz.reports.picture.document import Case, Document, Picture
from kvproof.fuzz.reports.picture.html import html
from kvproof.fuzz.reports.picture.stage import Stage
from kvproof.fuzz.reports.picture.traces import film_trace
from kvproof.fuzz.traces.record import record
from kvproof.fuzz.verdicts import LawVerdict
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter
from kvproof.models.ops import Admit, Extend, Namespace
from kvproof.open_cli import HOST, handler_of
from kvproof.targets import find_target

CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'kvproof[browser]'")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")

OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

Show = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture
def show(browser, tmp_path) -> Iterator[Show]:
    """Opens the page of a document from the disk. Fails at the end if the page said anything on its console, or asked for anything."""
    said: list[str] = []
    contexts = []

    def open_page(document: Document, place: str = "", **options: Any) -> Any:
        path = tmp_path / "page.html"
        path.write_bytes(html(document))
        context = browser.new_context(
            **{"viewport": {"width": 1440, "height": 900}, "permissions": ["clipboard-read", "clipboard-write"]} | options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: said.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on(
            "request", lambda request: said.append(f"request: {request.url}") if not request.url.startswith(("file:", "data:")) else None
        )
        page.goto(f"{path.as_uri()}{place}")
        settle(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def settle(page: Any) -> None:
    """Wait until the page has drawn what it was asked for."""
    page.wait_for_selector("body[data-ready]")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)
    settle(page)


def step(page: Any) -> str:
    return page.input_value("#goto")


def chips(page: Any, section: str) -> list[str]:
    return page.locator(f'section[aria-label="{section}"] .chip').all_inner_texts()


@pytest.fixture(scope="module")
def late() -> Picture:
    """A run of some hundred operations that breaks a law in the last one."""
    return film(
        serving_program(400, num_blocks=24, target=f"{Path(__file__).parent / 'picture_runs.py'}:BreaksLate"), BreaksLate, name="late"
    )


@pytest.fixture
def page(show, late) -> Any:
    return show(Document("a late violation", [late]))


# -- what is shown ------------------------------------------------------------------------------------------------------------------------


def test_it_opens_at_the_step_that_breaks_the_law(page, late):
    accused = late.accusation
    assert step(page) == str(accused.step)
    charge = page.inner_text("#accusation")
    assert accused.law in charge
    assert accused.sentence.split("`")[0].strip()[:60] in charge
    assert accused.reason[1:] in charge
    assert page.inner_text("#verdict") == "✕ broken"
    assert page.title() == "a late violation · kvproof"
    current = page.locator('.line[aria-selected="true"]')
    assert current.count() == 1
    assert "breaks the law" in current.inner_text()


def test_the_first_difference_is_marked_once_and_is_that_of_the_recording(show):
    page = show(Document("t", [film(COPY_NOT_ISSUED)]))
    first = page.locator(".cell-c.first")
    assert first.count() == 1
    assert first.get_attribute("title") == "slot 0 of b1: nothing was written here"
    assert "first difference" in first.inner_text()
    assert page.locator(".differences tbody tr").first.inner_text().split("\t") == [
        "sequence 1, position 0",
        "shows the prefix 0",
        "block b1 offset 0 shows nothing that was written",
    ]
    assert page.locator(".chip.accused").first.inner_text() == "b1"
    press(page, "ArrowLeft")
    assert page.locator(".cell-c.first").count() == 0, "nothing differs before the step that breaks the law"
    assert page.locator(".cell-c.wrong").count() == 0


@pytest.mark.parametrize("seed", range(3))
def test_every_state_on_the_page_is_that_of_the_run(show, seed):
    """Tables down to the slots, the free list and the index, at random steps gone to in any order, against what Python puts together."""
    picture = film(serving_program(300, seed=seed, num_blocks=20), HybridAdapter)
    page = show(Document("t", [picture]))
    rng = random.Random(seed)
    for number in rng.sample([number for number in picture.numbers if number is not None], 6):
        row = picture.numbers.index(number)
        page.fill("#goto", str(number))
        page.press("#goto", "Enter")
        settle(page)
        stage = Stage(picture)
        stage.advance(row)
        assert chips(page, "Free list") == list(map(stage.name, stage.free))
        assert sorted(chips(page, "Prefix index")) == sorted(map(stage.name, stage.matchable))
        listed = [stage.name(b) if b >= 0 else "skipped" for _, p in sorted(stage.players.items()) for table in p.tables for b in table]
        shown = [chip for chip in chips(page, "Model and cache") if chip != "no block"]
        assert shown == listed
        assert page.locator(".cell-c.wrong").count() == 0


def test_fewer_than_all_blocks_of_a_long_table_are_shown_until_asked_for(show):
    program = Program(1, "production", PoolConfig(40, 2), (Admit(0, tuple(range(60))), Extend(0, 60)))
    page = show(Document("t", [film(program)]), "#step=1")
    assert len(chips(page, "Model and cache")) == 7
    page.click("button.gap")
    settle(page)
    assert len(chips(page, "Model and cache")) == 30


def test_a_cache_without_books_says_so(show):
    program = Program(1, "examples/double_free.py:DoubleFree", PoolConfig(4, 2), (Admit(0, (1, 2)), Extend(0, 2)))
    page = show(Document("t", [film(program, find_target(str(Path(__file__).parents[1] / "examples/double_free.py") + ":DoubleFree"))]))
    assert "does not show its free list" in page.inner_text("#lanes")
    assert page.inner_text("#verdict") == "✓ held"
    assert page.locator("#accusation").is_hidden()


# -- going through the steps --------------------------------------------------------------------------------------------------------------


def test_keys_go_backwards_and_forwards(page, late):
    last = len(late.frames) - 1
    for keys, expected in (
        (["ArrowLeft"], last - 1),
        (["ArrowRight"], last),
        (["ArrowRight"], last),
        (["Home"], 0),
        (["ArrowLeft"], 0),
        (["Shift+ArrowRight"], 10),
        (["PageDown"], 110),
        (["Shift+ArrowLeft", "PageUp"], 0),
        (["End"], last),
        (["Home", "v"], last),
    ):
        press(page, *keys)
        assert step(page) == str(expected), keys


def test_backwards_shows_what_forwards_showed(page):
    press(page, "Home", "PageDown")
    forwards = []
    for _ in range(12):
        forwards.append(page.inner_text(".panels"))
        press(page, "ArrowRight")
    for expected in reversed(forwards):
        press(page, "ArrowLeft")
        assert page.inner_text(".panels") == expected


def test_each_step_says_what_it_changed(show):
    page = show(Document("t", [film(COPY_NOT_ISSUED)]), "#step=1")
    assert page.inner_text(".what h3").startswith("step 1")
    assert page.locator(".changes li").all_inner_texts() == [
        "s0 table + b0#1",
        "s0 a pass writes position 0",
        "b0#1 free → held by s0, count 0 → 1, handed out anew",
        "b0#1 slot 0 written",
        "free list − b0 at the front",
    ]
    press(page, "ArrowRight")
    assert page.locator(".changes li").all_inner_texts() == ["s0 computed 0 → 1", "s0 its pass is over"]


def test_buttons_do_what_keys_do(page, late):
    last = len(late.frames) - 1
    for button, expected in (("first", 0), ("forward", 1), ("last", last), ("back", last - 1), ("violation", last)):
        page.click(f'[data-do="{button}"]')
        settle(page)
        assert step(page) == str(expected)


def test_it_plays_and_stops(page):
    press(page, "Home", " ")
    button = page.locator('[data-do="play"]')
    assert button.get_attribute("aria-pressed") == "true"
    page.wait_for_function("() => Number(document.getElementById('goto').value) >= 2")
    press(page, " ")
    assert button.get_attribute("aria-pressed") == "false"
    stopped = step(page)
    page.wait_for_timeout(500)
    assert step(page) == stopped


def test_the_scrubber_is_dragged_and_moved_by_keys(page, late):
    box = page.locator("#scrub").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    settle(page)
    middle = int(step(page))
    assert abs(middle - len(late.frames) / 2) < 8
    press(page, "ArrowRight")
    assert int(step(page)) == middle + 1
    assert page.get_attribute("#scrub", "aria-valuetext").startswith(f"step {middle + 1}: ")


def test_a_step_is_gone_to_by_its_number_or_by_its_line(page):
    page.fill("#goto", "17")
    page.press("#goto", "Enter")
    settle(page)
    assert step(page) == "17"
    page.locator('.line[data-time="20"]').click()
    settle(page)
    assert step(page) == "20"
    page.focus("#list")
    press(page, "ArrowDown", "ArrowDown", "ArrowUp")
    assert step(page) == "21"


# -- the map ------------------------------------------------------------------------------------------------------------------------------


def place(page: Any, picture: Picture, block: int, time: float, window: tuple[float, float]) -> tuple[float, float]:
    """Where on the screen a block is drawn at a time; the sizes are those of map.js."""
    box = page.locator(".map").bounding_box()
    height = (box["height"] - 2 - 20) / picture.num_blocks
    width = (page.evaluate("document.querySelector('.map').clientWidth") - 50) / (window[1] - window[0])
    return box["x"] + 1 + 46 + (time + 0.5 - window[0]) * width, box["y"] + 1 + 20 + (block + 0.5) * height


def test_the_map_tells_each_cell_and_goes_there(page, late):
    stage = Stage(late)
    stage.advance(100)
    whole = (0, len(late.frames))
    for block in range(0, late.num_blocks, 5):
        x, y = place(page, late, block, 100, whole)
        page.mouse.move(x, y)
        assert page.inner_text("#tip").startswith(f"{stage.name(block)} at step 100: ")
    page.mouse.click(x, y)
    settle(page)
    assert step(page) == "100"
    assert page.locator(".history h3").inner_text().startswith(f"Block {block}")
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()


def test_cells_have_the_colours_of_their_holders_and_the_violated_one_an_outline(show):
    page = show(Document("t", [film(COPY_NOT_ISSUED)]))
    colour = """([x, y, layer]) => {
      const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
      pen.drawImage(document.querySelectorAll(".map canvas")[layer], -x, -y);
      return [...pen.getImageData(0, 0, 1, 1).data];
    }"""
    picture = film(COPY_NOT_ISSUED)
    box = page.locator(".map").bounding_box()

    def at(block: int, time: int, layer: int, *, dx: float = 0) -> list[int]:
        x, y = place(page, picture, block, time, (0, 5))
        return page.evaluate(colour, [round(x - box["x"] - 1 + dx), round(y - box["y"] - 1), layer])

    assert at(0, 1, 0, dx=60)[:3] == [78, 121, 199], "sequence 0"
    assert at(1, 4, 0, dx=60)[:3] == [232, 150, 61], "sequence 1"
    assert at(1, 0, 0)[:3] == [238, 235, 227], "free"
    width = (page.evaluate("document.querySelector('.map').clientWidth") - 50) / 5
    assert at(1, 4, 1, dx=-width / 2)[:3] == [207, 31, 54], "the edge of the violated cell"


def test_the_map_is_zoomed_and_follows_the_step(page, late):
    press(page, "Home", "+", "+", "+")
    x, y = place(page, late, 3, 6, (0, len(late.frames) / 8))
    page.mouse.move(x, y)
    assert " at step 6: " in page.inner_text("#tip")
    press(page, "PageDown")
    box = page.locator(".map").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, y)
    under = page.inner_text("#tip")
    page.keyboard.down("Control")
    page.mouse.wheel(0, 100)
    page.keyboard.up("Control")
    settle(page)
    page.mouse.move(box["x"] + box["width"] / 2, y + 1)
    assert page.inner_text("#tip") == under, "the wheel zooms around the mouse"
    press(page, "End")
    page.mouse.move(box["x"] + box["width"] - 8, y)
    assert f" at step {len(late.frames) - 1}: " in page.inner_text("#tip")
    press(page, "0")
    x, y = place(page, late, 3, 0, (0, len(late.frames)))
    page.mouse.move(x, y)
    assert " at step 0: " in page.inner_text("#tip")


def test_rows_grow_until_names_fit(show):
    page = show(Document("t", [film(serving_program(60))]), "#step=20&block=30")
    whole = page.evaluate("document.querySelector('.map').scrollHeight")
    press(page, "r")
    assert page.get_attribute('[data-do="tall"]', "aria-pressed") == "true"
    assert page.evaluate("document.querySelector('.map').scrollHeight") > whole
    top, room = page.evaluate("[document.querySelector('.map').scrollTop, document.querySelector('.map').clientHeight]")
    assert top <= 30 * 18 <= top + room, "the chosen block is in sight"
    page.click('[data-do="tall"]')
    settle(page)
    assert page.evaluate("document.querySelector('.map').scrollHeight") == whole


def test_keys_on_the_map_choose_a_block_and_its_changes(page, late):
    page.focus(".map")
    press(page, "ArrowDown", "ArrowDown", "ArrowDown")
    assert page.locator(".history h3").inner_text().startswith("Block 2")
    assert page.inner_text("#said").startswith("b2#")
    changes = [row for row, frame in enumerate(late.frames) if 2 in frame.b[::5]]
    press(page, "Home")
    for expected in changes[:3]:
        press(page, "]")
        assert step(page) == str(expected)
    press(page, "[")
    assert step(page) == str(changes[1])
    assert page.locator(".history .now").count() == 1
    page.click(".history .close")
    settle(page)
    assert page.locator(".history").count() == 0


# -- search, links, copies ----------------------------------------------------------------------------------------------------------------


def search(page: Any, query: str) -> str:
    page.fill("#query", query)
    settle(page)
    return page.inner_text("#matches")


def test_search_finds_words_blocks_sequences_and_steps(page, late):
    rows = [row for row, text in enumerate(late.texts) if "extend" in text]
    assert search(page, "EXTEND").endswith(f"{len(rows)}")
    press(page, "Home")
    page.focus("#query")
    for expected in rows[:3]:
        press(page, "Enter")
        assert step(page) == str(expected)
    press(page, "Shift+Enter")
    assert step(page) == str(rows[1])
    assert page.inner_text("#matches") == f"2 of {len(rows)}"
    assert page.locator(".line.hit").count() > 2
    changes = [row for row, frame in enumerate(late.frames) if 4 in frame.b[::5]]
    assert search(page, "b4").endswith(str(len(changes)))
    assert search(page, "b4#1").split()[-1].isdigit()
    touched = [row for row, frame in enumerate(late.frames) if 3 in [change.seq for change in frame.s] or 3 in frame.x]
    assert search(page, "s3").endswith(str(len(touched)))
    assert search(page, "#33").endswith("1")
    assert search(page, "no such thing") == "nothing"
    page.press("#query", "Escape")
    assert page.inner_text("#matches") == ""


def test_keys_reach_the_search_and_go_on(page, late):
    rows = [row for row, text in enumerate(late.texts) if text.startswith("release")]
    press(page, "Home", "/")
    page.keyboard.type("release")
    page.keyboard.press("Tab")
    press(page, "n")
    assert step(page) == str(rows[0])
    press(page, "n", "N")
    assert step(page) == str(rows[0])


def test_an_address_leads_to_a_step_a_block_and_a_search(show, late):
    page = show(Document("t", [late]), "#step=12&block=4&q=extend")
    assert step(page) == "12"
    assert page.locator(".history h3").inner_text().startswith("Block 4")
    assert page.input_value("#query") == "extend"
    press(page, "ArrowRight")
    assert page.evaluate("location.hash") == "#step=13&block=4&q=extend"
    page.evaluate("location.hash = '#step=40'")
    page.wait_for_function("() => document.getElementById('goto').value === '40'")
    assert page.locator(".history").count() == 0
    page.reload()
    settle(page)
    assert step(page) == "40"


@pytest.mark.parametrize("place", ["#step=99999", "#step=x", "#block=999", "#run=7", "#line=-3", "#%", "#lane=5&block=1"])
def test_an_address_that_leads_nowhere_does_no_harm(show, place):
    page = show(Document("t", [film(COPY_NOT_ISSUED)]), place)
    assert step(page) in ("0", "4")
    assert page.locator(".line").count() == 5


def test_the_program_and_the_link_are_copied(show):
    picture = film(COPY_NOT_ISSUED)
    page = show(Document("t", [picture]))
    page.click('button[aria-label="Copy the program as a test that stands alone"]')
    page.wait_for_function("async (text) => (await navigator.clipboard.readText()) === text", arg=picture.source)
    page.click('.copyable summary:has-text("as a failure file")')
    page.click('button[aria-label="Copy the program as a failure file"]')
    assert page.evaluate("navigator.clipboard.readText()") == picture.program
    press(page, "l")
    assert page.evaluate("navigator.clipboard.readText()").endswith("page.html#step=4")
    press(page, "c")
    page.wait_for_function("async (text) => (await navigator.clipboard.readText()) === text", arg=picture.source)


def test_the_copied_program_is_a_test_that_fails(show, tmp_path):
    page = show(Document("t", [film(COPY_NOT_ISSUED)]))
    press(page, "c")
    space: dict[str, Any] = {}
    exec(page.evaluate("navigator.clipboard.readText()"), space)
    with pytest.raises(AssertionError, match="copy-before-write"):
        space["test_copy_before_write"]()


# -- how it looks, and for whom -----------------------------------------------------------------------------------------------------------


def test_light_and_dark(show):
    document = Document("t", [film(COPY_NOT_ISSUED)])
    ground = "getComputedStyle(document.body).backgroundColor"
    page = show(document, color_scheme="light")
    assert page.evaluate(ground) == "rgb(246, 244, 239)"
    page.click("#theme")
    assert page.evaluate(ground) == "rgb(17, 19, 24)"
    press(page, "t")
    assert page.evaluate(ground) == "rgb(246, 244, 239)"
    page = show(document, color_scheme="dark")
    assert page.evaluate(ground) == "rgb(17, 19, 24)"
    press(page, "t")
    assert page.evaluate(ground) == "rgb(246, 244, 239)"


def test_nothing_is_told_by_colour_alone(show):
    """Wrong cells have a cross, the broken step a word, sequences and blocks their names; the map has stripes, marks and a legend in words."""
    page = show(Document("t", [film(COPY_NOT_ISSUED)]))
    assert page.locator(".cell-c.wrong").first.inner_text().startswith("✕")
    assert "breaks the law" in page.locator(".cell.broken").inner_text()
    assert page.locator(".legend li").all_inner_texts()[:3] == ["held, coloured by sequence", "shared", "free, matchable"]
    assert set(page.locator(".seq").all_inner_texts()) == {"s0", "s1"}


def test_everything_has_a_name_and_keys_reach_it(page):
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, canvas, section, nav, [tabindex='0']")].filter((element) =>
          !element.closest("[aria-hidden=true]") && !(element.getAttribute("aria-label") || element.innerText?.trim() || element.title
            || element.labels?.length || element.getAttribute("aria-labelledby"))).map((element) => element.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []
    page.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className || document.activeElement.dataset.do"))
    order = [name for name in ("skip", "query", "theme", "goto", "scrub", "list", "map") if name in reached]
    assert order == ["skip", "query", "theme", "goto", "scrub", "list", "map"]
    assert [reached.index(name) for name in order] == sorted(reached.index(name) for name in order)
    assert page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((one) => one.tagName)")[0] == "H1"


def test_each_step_is_said(page, late):
    press(page, "Home", "ArrowRight")
    assert page.inner_text("#said").startswith("step 1: ")
    press(page, "v")
    assert page.inner_text("#said").endswith(f"breaks {late.accusation.law}")


def test_the_help_opens_and_closes(page):
    press(page, "?")
    assert "block 7, as it was handed out for the third time" in page.inner_text("#help")
    before = step(page)
    page.keyboard.press("ArrowLeft")
    assert step(page) == before, "keys do nothing behind the dialog"
    page.keyboard.press("Escape")
    assert page.locator("#help").is_hidden()


def test_a_telephone_shows_it_in_one_column(show, late):
    page = show(Document("t", [late]), viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".map").bounding_box()["width"] > 300


# -- other documents ----------------------------------------------------------------------------------------------------------------------


def test_two_runs_are_compared(show):
    one, other = film(COPY_NOT_ISSUED, name="broken"), film(COPY_NOT_ISSUED, find_target("production-sync"), name="sound")
    page = show(Document("two", [one, other], pairs=align(one.texts, other.texts)))
    assert page.locator(".lane").count() == 2
    assert page.locator(".lane .map").count() == 2
    assert [title.split()[0] for title in page.locator(".lane-title").all_inner_texts()] == ["A", "B"]
    assert page.locator(".line .absent").all_inner_texts() == ["not in this run"]
    press(page, "Home", "d")
    assert page.locator(".line.current.differs").count() == 1
    assert step(page) == "line 5"
    assert page.locator(".lane").nth(0).locator(".cell-c.wrong").count() == 1
    assert page.locator(".lane").nth(1).locator(".cell-c.wrong").count() == 0
    press(page, "d")
    assert step(page) == "line 6"
    assert "no such operation" in page.locator(".lane").nth(0).inner_text()
    assert page.evaluate("location.hash") == "#line=6"


def test_a_report_has_its_laws_and_a_tab_for_each_run(show):
    runs = [film(COPY_NOT_ISSUED, name="copy-before-write"), film(serving_program(30), name="another")]
    laws = {
        "copy-before-write": LawVerdict("broken", 12),
        "no-leak": LawVerdict("held", 3400),
        "mirror-follows": LawVerdict("not-applicable"),
    }
    page = show(Document("a report", runs, laws=laws, summary="900 programs."))
    assert page.locator(".laws tbody tr").all_inner_texts()[1].split("\t") == ["no-leak", "held", "3,400"]
    assert "900 programs." in page.inner_text("#facts")
    page.click('#runs button:has-text("another")')
    settle(page)
    assert page.inner_text("#verdict") == "✓ held"
    assert page.locator("#accusation").is_hidden()
    assert page.evaluate("location.hash") == "#step=0&run=1"
    page.reload()
    settle(page)
    assert page.locator('#runs [aria-current="true"]').inner_text() == "another"


def test_kernels_have_a_case_instead_of_a_run(show):
    case = Case(
        "in-bounds",
        "No access leaves its tensor.",
        "attend reads 4 bytes past `value`",
        "Case('attend', block_size=12)",
        "def test(): ...\n",
    )
    page = show(Document("kernels", [], cases=[case], laws={"in-bounds": LawVerdict("broken", 1)}))
    assert page.inner_text("#verdict") == "✕ broken"
    assert "No access leaves its tensor." in page.inner_text("#facts")
    page.click('button[aria-label="Copy the program as a case"]')
    assert page.evaluate("navigator.clipboard.readText()") == case.case
    assert page.locator("main").is_hidden()


def test_a_run_without_a_verdict_says_why(show):
    class Confused(ProductionAdapter):
        def extend(self, seq, count, drafts=()):
            return "a grant"

    page = show(Document("t", [film(Program(1, "x", PoolConfig(4, 2), (Admit(0, (1, 2)), Extend(0, 2))), Confused)]))
    assert page.inner_text("#verdict") == "! not judged"
    assert "could not be judged" in page.inner_text("#accusation")


@pytest.mark.parametrize("ops", [(), (Extend(3, 1),)])
def test_a_run_in_which_nothing_happened(show, ops):
    page = show(Document("t", [film(Program(1, "production", PoolConfig(4, 2), ops))]))
    assert page.inner_text("#verdict") == "✓ held"
    press(page, "ArrowRight", "End", "Home", "v", "d", "]", "n")


def test_text_of_others_stays_text(show):
    evil = "</script><img src=x onerror=alert(1)>"
    program = Program(1, "production", PoolConfig(4, 2), (Admit(0, (1, 2), Namespace(tenant=evil)), Extend(0, 2)))
    page = show(Document(evil, [film(program, name=evil)], summary=evil, laws={evil: LawVerdict("held")}))
    assert page.inner_text("#title") == evil
    assert page.locator("img").count() == 0
    assert evil in page.inner_text(".line >> nth=0")


def test_it_is_served_and_its_links_copied(browser):
    server = ThreadingHTTPServer((HOST, 0), handler_of(html(Document("t", [film(COPY_NOT_ISSUED)]))))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.goto(f"http://{HOST}:{server.server_port}/#step=2")
        settle(page)
        press(page, "l")
        assert page.evaluate("navigator.clipboard.readText()") == f"http://{HOST}:{server.server_port}/#step=2"
        context.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# -- a long run ---------------------------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_operations(show):
    """Nothing is measured here: that the page holds, that few lines are in the document, and that any step is right."""
    picture = long_picture(100_000)
    picture.faults = [Accusation("no-leak", "A law.", "a reason", row, row, [3], [], [], [], []) for row in (0, 50_000, 99_998)]
    page = show(Document("long", [picture]))
    press(page, "v", "v")
    assert step(page) == "99998"
    rows = len(picture.frames)
    assert rows == 100_000
    press(page, "End")
    assert step(page) == str(rows - 1)
    assert page.locator(".line").count() < 80
    assert page.locator(".line.current").count() == 1
    stage = Stage(picture)
    for row in (256, 70_001, 99_000):
        page.fill("#goto", str(row))
        page.press("#goto", "Enter")
        settle(page)
        stage.advance(row)
        assert chips(page, "Free list")[:5] == list(map(stage.name, stage.free[:5]))
    page.evaluate("document.getElementById('list').scrollTop = 1e9")
    page.wait_for_selector(f'.line[data-time="{rows - 1}"]')
    expected = sum("release" in text for text in picture.texts)
    assert search(page, "release").endswith(f"{expected:,}")
    press(page, "Enter", "Enter")
    page.focus(".map")
    assert page.get_attribute('[data-do="tall"]', "aria-pressed") == "true", "a long run opens on a part of it, with names"
    press(page, "r")
    for window in (160, 100_000):
        press(page, "Home")
        page.mouse.move(*place(page, picture, 3, 0.4 * window, (0, window)))
        name, time = re.match(r"(\S+) at step ([\d,]+): ", page.inner_text("#tip")).groups()
        row = int(time.replace(",", ""))
        assert abs(row - 0.4 * window) <= window / 500, "a pixel is about a thousandth of the map"
        stage = Stage(picture)
        stage.advance(row)
        assert name == stage.name(3)
        press(page, "0")


def test_every_fault_of_a_trace_is_marked_and_gone_to(show, tmp_path):
    picture = film_trace(faulty_trace(tmp_path / "trace.jsonl"))
    lost, overhit = picture.faults
    page = show(Document("faults", [picture]))
    assert step(page) == str(lost.step), "it opens at the first"
    links = page.locator('[aria-label="Faults"] a')
    assert links.all_inner_texts() == [f"step {lost.step}", f"step {overhit.step}"]
    assert page.inner_text(".told") == f"step {lost.step} pool-conserved"
    assert lost.sentence in page.inner_text("#accusation")
    for key, expected in (("v", overhit), ("v", lost), ("Shift+V", overhit), ("Shift+V", lost)):
        press(page, key)
        assert step(page) == str(expected.step)
        assert page.inner_text(".told").endswith(expected.law)
        assert expected.reason[1:] in page.inner_text("#accusation")
        assert "breaks the law" in page.inner_text(".line.current")
        assert page.inner_text("#said").endswith(f"breaks {expected.law}")
    press(page, "End", "Shift+V")
    assert step(page) == str(overhit.step), "back to the last one"
    page.click('[data-do="violationBefore"]')
    settle(page)
    assert step(page) == str(lost.step)
    links.nth(1).click()
    settle(page)
    assert step(page) == str(overhit.step)
    assert page.evaluate("location.hash").startswith(f"#step={overhit.step}")
    assert "set aside" in page.inner_text(".legend")
    assert page.locator(".cell-c.wrong").count() == 0


def test_a_link_to_a_fault_leads_there(show, tmp_path):
    picture = film_trace(faulty_trace(tmp_path / "trace.jsonl"))
    page = show(Document("faults", [picture]), f"#step={picture.faults[1].step}")
    assert page.inner_text(".told").endswith("hit-leaves-last-token")


def test_a_gap_is_marked_on_the_page(show, tmp_path):
    path = tmp_path / "trace.jsonl"
    with record(ProductionAdapter(num_blocks=8, block_size=2), path, num_blocks=8, block_size=2) as cache:
        for seq in range(3):
            cache.admit(seq, (seq, 1, 2))
            cache.extend(seq, 3)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], *lines[4:]]))
    page = show(Document("trace", [film_trace(path)]), "#step=4")
    assert page.inner_text("#verdict") == "! judged in part"
    assert page.inner_text(".cell.gap .verb") == "operation 2 is missing before line 4"
    assert "not known: lines are missing" in page.inner_text(".legend")
    assert "Beyond the gap only sequences that began later are followed." in page.inner_text("#accusation")
    page.locator(".cell.gap").click()
    settle(page)
    assert "only what began later is known" in page.inner_text('section[aria-label="What changed"]')


def test_the_page_leads_to_the_steps_in_which_a_violation_began(show):
    picture = film(COPY_NOT_ISSUED)
    picture.faults = [msgspec.structs.replace(picture.faults[0], began=[1, 3])]
    page = show(Document("copy", [picture]))
    assert page.inner_text(".began") == "It began in step 1, step 3."
    page.locator(".began button").nth(1).click()
    settle(page)
    assert step(page) == "3"
