"""The statements that CrossHair proves: all of them hold for a few values, most are confirmed over all paths, and a wrong one is refuted."""

from __future__ import annotations

import importlib.util
import inspect
import itertools

import pytest

from kvproof.properties.proofs.prove import prove, sentence, statements

STATEMENTS = {function.__name__: (subject, function) for subject, function in statements()}
LEAST_PROVED = 30

crosshair = pytest.mark.skipif(
    importlib.util.find_spec("crosshair") is None, reason="the proofs need crosshair-tool: pip install 'kvproof[symbolic]'"
)


def preconditions(function):
    return [line.strip().removeprefix("pre:").strip() for line in inspect.getdoc(function).splitlines() if line.strip().startswith("pre:")]


def values(name, annotation, subject):
    if annotation == "bool":
        return (False, True)
    if subject == "spec":
        return range(11)
    return (0, 1, 2, 3, 15, 16, 17, 64, 5000) if name != "size_bytes" else (0, 1024, 1028, 5000, 70_000)


def allowed(name):
    """Arguments within the preconditions of a statement."""
    subject, function = STATEMENTS[name]
    parameters = inspect.signature(function).parameters.values()
    wanted = [compile(text, name, "eval") for text in preconditions(function)]
    for chosen in itertools.product(*(values(parameter.name, parameter.annotation, subject) for parameter in parameters)):
        arguments = dict(zip((parameter.name for parameter in parameters), chosen, strict=True))
        if all(eval(text, {}, arguments) for text in wanted):
            yield arguments


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_holds_for_some_values_and_is_not_empty(name):
    tried = list(allowed(name))
    assert len(tried) >= 2
    for arguments in tried:
        assert STATEMENTS[name][1](**arguments) is True, arguments


def test_there_are_enough_statements_and_each_is_a_sentence():
    assert len(STATEMENTS) >= LEAST_PROVED
    for _, function in STATEMENTS.values():
        assert sentence(function).endswith(".")
        assert "post: _" in function.__doc__


@crosshair
@pytest.mark.filterwarnings("ignore")
def test_the_arithmetic_is_proved_over_all_paths():
    proofs = [prove(function, subject) for subject, function in STATEMENTS.values() if subject == "arithmetic"]
    assert [proof for proof in proofs if proof.standing == "refuted"] == []
    assert sum(proof.standing == "proved" for proof in proofs) >= LEAST_PROVED


@crosshair
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, (subject, _) in STATEMENTS.items() if subject == "spec"])
def test_a_transition_is_not_refuted(name):
    assert prove(STATEMENTS[name][1], "spec").standing != "refuted"


def off_by_one(tokens: int) -> bool:
    """Wrong on purpose: blocks of 16 never waste 15 tokens.

    pre: tokens >= 0
    post: _
    """
    from kvproof.models.layouts import tail_waste

    return tail_waste(tokens, 16) < 15


@crosshair
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_statement_is_refuted_with_an_example():
    proof = prove(off_by_one, "arithmetic")
    assert proof.standing == "refuted"
    assert "off_by_one(" in proof.message


@pytest.mark.skipif(
    importlib.util.find_spec("hypothesis_crosshair_provider") is None, reason="needs hypothesis-crosshair: pip install 'kvproof[symbolic]'"
)
@pytest.mark.filterwarnings("ignore")
def test_the_symbolic_backend_of_hypothesis_finds_what_random_values_do_not():
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    from kvproof.models.layouts import blocks_for

    quiet = settings(database=None, deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
    lengths = st.integers(0, 10**9)

    @quiet
    @given(lengths)
    def at_random(tokens):
        assert blocks_for(tokens, 16) != 61_728  # not true of 16 in a billion lengths

    @settings(quiet, backend="crosshair")
    @given(lengths)
    def symbolically(tokens):
        assert blocks_for(tokens, 16) != 61_728

    at_random()
    with pytest.raises(AssertionError):
        symbolically()
