"""Waiver files: what they may hold, and when a waiver is stale."""

import pytest

from kvproof.fuzz.verdicts import LawVerdict
from kvproof.fuzz.waivers import BadWaivers, Waiver, read_waivers, stale_waivers, waivers_for

ENTRY = """
[[waiver]]
law = "no-leak"
target = "production"
reason = "The pool is leaked on cancel."
reference = "#12"
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "waivers.toml"
        path.write_text(text)
        return path

    return write


def complaint(path):
    with pytest.raises(BadWaivers) as caught:
        read_waivers(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_read(written):
    waiver = Waiver("no-leak", "production", "The pool is leaked on cancel.", "#12")

    assert read_waivers(written(ENTRY)) == (waiver,)
    assert waivers_for([waiver], "production") == {"no-leak": waiver}
    assert waivers_for([waiver], "production-sync") == {}


def test_empty_file(written):
    assert read_waivers(written("")) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ENTRY.replace('reference = "#12"', ""), "waiver 1 has no reference"),
        (ENTRY.replace('"The pool is leaked on cancel."', '"  "'), "waiver 1 has no reason"),
        (ENTRY.replace('"#12"', "12"), "the reference of waiver 1 is 12; write it as a string."),
        (ENTRY.replace("no-leak", "no-leaks"), "names 'no-leaks', which is no law; did you mean no-leak?"),
        (ENTRY.replace("no-leak", "zzz"), "`kvproof laws` lists them."),
        (ENTRY + "until = 2030", "unknown key 'until'; the keys are law, target, reason, reference."),
        (ENTRY + ENTRY, "waives no-leak for production twice"),
        (ENTRY.replace("[[waiver]]", "[waiver]"), "write [[waiver]], with double brackets."),
        ("waiver = [1]", "waiver 1 is not a table"),
        ("[[waivers]]", "has 'waivers' at its top level"),
        ("[[waiver", "is not TOML"),
    ],
)
def test_bad_files(written, text, words):
    assert words in complaint(written(text))


def test_unreadable_files(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")

    assert "cannot be read: No such file or directory." in complaint(tmp_path / "none.toml")
    assert "is not UTF-8 text" in complaint(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("held", "is stale, because the law held: remove it (#12)."),
        ("not-applicable", "is stale, because the law does not apply: remove it"),
    ],
)
def test_stale(written, verdict, words):
    waivers = waivers_for(read_waivers(written(ENTRY)), "production")

    assert words in stale_waivers(waivers, {"no-leak": LawVerdict(verdict)})["no-leak"]


@pytest.mark.parametrize("verdict", ["waived", "not-exercised", "broken"])
def test_not_stale(written, verdict):
    waivers = waivers_for(read_waivers(written(ENTRY)), "production")

    assert stale_waivers(waivers, {"no-leak": LawVerdict(verdict)}) == {}
