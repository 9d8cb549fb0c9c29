"""The mutants that measure the suite: what is changed, that it can be put in, and that the suite notices some in no time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SOURCE = '''
from __future__ import annotations

class Pool:
    """Blocks."""

    def take(self, count: int) -> int:
        """Hands out blocks."""
        assert count > 0
        if count < self.free and self.ok:
            self.free -= count
        raise ValueError(f"no room for {count + 1}")
'''


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    yield
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


def test_conditions_operators_numbers_and_statements_are_changed_and_messages_are_not():
    from benchmarks.mutants.sources import mutants, ordinary

    made = [mutant for mutant, _ in mutants("pool", SOURCE, ordinary)]
    assert {mutant.function for mutant in made} == {"Pool.take"}
    assert {mutant.after for mutant in made} == {
        "count <= self.free",
        "count < self.free or self.ok",
        "never: if False:",
        "self.free += count",
        "left out: self.free -= count",
        "left out: raise ValueError(f'no room for {count + 1}')",
    }
    assert len({mutant.name for mutant in made}) == len(made)


def test_the_code_of_a_mutant_does_what_it_says():
    from benchmarks.mutants.sources import mutants, ordinary

    class Pool:
        free, ok = 5, True

        def take(self, count):
            raise NotImplementedError

    [code] = [code for mutant, code in mutants("pool", SOURCE, ordinary) if mutant.after == "self.free += count"]
    Pool.take.__code__ = code
    pool = Pool()
    with pytest.raises(ValueError, match="no room"):
        pool.take(2)
    assert pool.free == 7


def test_every_mutant_of_the_production_cache_can_be_put_in():
    from benchmarks.mutants import __main__ as command
    from benchmarks.mutants.kill import function
    from benchmarks.mutants.sources import mutants, ordinary

    module = "kvproof.impl.production.pool"
    for mutant, code in mutants(module, command._source(module), ordinary):
        assert len(function(mutant).__code__.co_freevars) == len(code.co_freevars)


def test_the_report_tells_the_score_and_the_survivors(capsys, tmp_path, monkeypatch):
    from benchmarks.mutants import __main__ as command

    mutant = {
        "module": "kvproof.impl.production.pool",
        "function": "BlockPool.take",
        "number": 0,
        "line": 7,
        "before": "a < b",
        "after": "a <= b",
    }
    results = tmp_path / "results.jsonl"
    lines = [
        {"mutant": {**mutant, "number": number}, "noticed": noticed, "seconds": 0.1}
        for number, noticed in enumerate(["law no-leak", "survived"])
    ]
    explained = {"before": "split < 0", "after": "split <= 0"}  # one of those in equivalent.toml
    lines.append({"mutant": {**mutant, **explained, "number": 2}, "noticed": "survived", "seconds": 0.1})
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = tmp_path / "mutants.md"
    monkeypatch.setattr(sys, "argv", ["mutants", "--results", str(results), "--report", "--page", str(page), "--least", "95"])
    assert command.main() == 1
    out = capsys.readouterr().out
    assert "pool.py:7 BlockPool.take: a < b  ->  a <= b" in out
    assert "split" not in out
    assert "1 of 3 mutants noticed, 33.3 %; 1 of the 2 that survive change no answer, and of the others 50.0 % are noticed." in out
    told = page.read_text()
    assert "`split < 0  ->  split <= 0` | Taking no idle block changes nothing. |" in told
    assert "`a < b  ->  a <= b` | *not explained: the suite should notice it* |" in told


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="each mutant runs in a forked process")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_suite_notices_a_mutant_and_not_the_unchanged_code(monkeypatch):
    from benchmarks.mutants import __main__ as command
    from benchmarks.mutants import kill
    from benchmarks.mutants.sources import mutants, ordinary

    monkeypatch.setattr(kill, "PROGRAMS", 12)
    module = "kvproof.impl.production.pool"
    made = list(mutants(module, command._source(module), ordinary))
    dropped = next((mutant, code) for mutant, code in made if mutant.after == "left out: refs[block] = count - 1")
    told, _ = kill.verdict(*dropped, ())
    assert told.startswith("law ")
    same = kill.function(dropped[0]).__code__
    told, _ = kill.verdict(
        dropped[0], same, ("tests/test_mutants.py::test_conditions_operators_numbers_and_statements_are_changed_and_messages_are_not",)
    )
    assert told == "survived"


def test_every_mutant_that_is_explained_is_one_that_there_is():
    from benchmarks.mutants.__main__ import KINDS, MODULES, _reasons, _source

    made = {
        (mutant.function, f"{mutant.before}  ->  {mutant.after}")
        for make in KINDS.values()
        for module in MODULES
        for mutant, _ in make(module, _source(module))
    }
    assert _reasons().keys() - made == set()


FURTHER = """
def f(self, a, b):
    with self.lock:
        for x in a[b:]:
            if x < 1 and b:
                continue
            a.append("key")
        try:
            b += -(a // 2)
        except KeyError:
            return list(b)
"""


def test_further_changes_are_those_of_the_maintained_tools():
    from benchmarks.mutants.further import further
    from benchmarks.mutants.sources import mutants

    made = list(mutants("module", FURTHER, further))
    assert [mutant.after for mutant, _ in made] == [
        "left out: with self.lock:",
        "once: for x in a[b:]:",
        "for x in ():",
        ":",
        "b + 1:",
        "b - 1:",
        "if not (x < 1 and b):",
        "always: if True:",
        "b",
        "x < 1",
        "x > 1",
        "0",
        "break",
        "a.append(None)",
        "a.insert(0, 'key')",
        "'key_'",
        "left out: except KeyError:",
        "b = -(a // 2)",
        "a // 2",
        "a % 2",
        "a",
        "2",
        "1",
        "list(None)",
        "b",
    ]


def test_a_fault_by_hand_is_text_that_is_there_once(monkeypatch):
    from benchmarks.mutants import by_hand

    fault = by_hand.Fault("pool", "Pool.take", "more is taken than there is", "count < self.free", "count < 9000")
    monkeypatch.setattr(by_hand, "_faults", lambda module: [fault])
    [(mutant, code)] = by_hand.by_hand("pool", SOURCE)
    assert (mutant.line, mutant.before, mutant.after) == (10, "count < self.free", "more is taken than there is")
    assert 9000 in code.co_consts
    with pytest.raises(ValueError, match=r"Pool.take has 0 times, not once: 'count < self.free'; mend by_hand.toml"):
        list(by_hand.by_hand("pool", SOURCE.replace("<", ">")))


OTHERS = '''
LIMIT = 3

def f(self, held=None):
    """Words."""
    if held is None:
        return [x for x in self.left]
    elif not held:
        self.count = -(-held // LIMIT)
    else:
        raise KeyError(f"{held}")
'''


def test_other_changes_are_those_of_a_judge_and_each_is_python():
    from benchmarks.mutants.others import others

    made = [(mutant, source()) for mutant, source in others("module", OTHERS)]
    for mutant, source in made:
        compile(source, mutant.name, "exec")
        assert source != OTHERS
    assert {(mutant.function, mutant.operator, mutant.after) for mutant, _ in made} >= {
        ("<module>", "default", "4"),
        ("f", "default", "0"),
        ("f", "truth", "not held"),
        ("f", "truth", "(held) is None"),
        ("f", "returned", "return []"),
        ("f", "rounds", "[x for x in list(self.left)[1:]]"),
        ("f", "container", "(x for x in self.left)"),
        ("f", "other name", "self.right"),
        ("f", "other name", "wanted"),
        ("f", "again", "self.count += -(-held // LIMIT)"),
        ("f", "rounded", "held // LIMIT"),
        ("f", "exception", "raise RuntimeError(f'{held}')"),
        ("f", "early", "return ; self.count = -(-held // LIMIT)"),
    }
    assert "continue" not in {mutant.after.partition(" ")[0] for mutant, _ in made}


def test_of_each_operator_as_many_are_drawn():
    from benchmarks.mutants.__main__ import _evenly
    from benchmarks.mutants.sources import Mutant

    drawn = [(Mutant("m", "f", number, 1, "", "", operator), str, ()) for number, operator in enumerate("aaabba")]
    assert [mutant.operator for mutant, _, _ in _evenly(drawn)] == [*"ab", *"ab", *"aa"]


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="each mutant runs in a forked process")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(("loss", "told"), [("count", "law refcount-equals-holders"), ("count - 1", "survived")])
def test_a_changed_module_is_imported_anew(monkeypatch, loss, told):
    from benchmarks.mutants import __main__ as command
    from benchmarks.mutants import kill
    from benchmarks.mutants.sources import Mutant

    source = command._source("kvproof.impl.production.pool").replace("refs[block] = count - 1", f"refs[block] = {loss}")
    mutant = Mutant("kvproof.impl.production.pool", "BlockPool.drop", 0, 1, "", "")
    assert kill.verdict(mutant, lambda: source, ("tests/test_mutants.py::test_of_each_operator_as_many_are_drawn",))[0] == told
