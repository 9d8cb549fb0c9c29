"""Kernels on the command line: how a target is recognised, and what a check of it prints, writes and returns."""

import dataclasses
import json
import re
import sys
import xml.etree.ElementTree as ET

import msgspec
import pytest

from kvproof import CacheAdapter, KernelCapabilities, PagedKernels
from kvproof.cli import main
from kvproof.fuzz.kernels_check import as_report, is_kernels, missing
from kvproof.fuzz.reports.source import case_source
from kvproof.fuzz.verdicts import Report
from kvproof.kernels.report import KernelReport, LawResult
from kvproof.models.laws import KERNEL_LAWS

KERNEL_NAMES = {law.name for law in KERNEL_LAWS}

needs_extra = pytest.mark.skipif(bool(missing()), reason=missing() or "all is there")

OWN = """
from kvproof.kernels.plain.torch_kernels import PlainTorch


class Late(PlainTorch):
    def attend(self, pool, query, block_tables, seq_lens, **options):
        return super().attend(pool, query, block_tables, (seq_lens - 1).clamp(min=0), **options)


class Modest:
    def __init__(self):
        self.plain = PlainTorch()

    @classmethod
    def capabilities(cls):
        return PlainTorch.capabilities()

    def store(self, *arguments):
        self.plain.store(*arguments)

    def attend(self, *arguments, **options):
        return self.plain.attend(*arguments, **options)

    def copy_blocks(self, *arguments):
        self.plain.copy_blocks(*arguments)


class Confused(PlainTorch):
    @classmethod
    def capabilities(cls):
        raise KeyError("heads")


class Claimless(PlainTorch):
    @classmethod
    def capabilities(cls):
        return None


class Leaving(PlainTorch):
    def attend(self, *arguments, **options):
        raise SystemExit(0)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_kernels.py").write_text(OWN)
    return tmp_path


@pytest.fixture
def kvproof(capfd):
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        return (status, *capfd.readouterr())

    return run


# -- which targets are kernels -----------------------------------------------------------------------------------------------------------------


class Claims:
    @classmethod
    def capabilities(cls):
        return KernelCapabilities()

    def store(self): ...

    def attend(self): ...


class Broken(Claims):
    @classmethod
    def capabilities(cls):
        raise RuntimeError


class Half:
    @classmethod
    def capabilities(cls):
        return KernelCapabilities()


@pytest.mark.parametrize(
    ("target", "wanted"), [(PagedKernels, True), (Claims, True), (Broken, False), (Half, False), (CacheAdapter, False), (object, False)]
)
def test_kernels_are_told_from_caches(target, wanted):
    assert is_kernels(target) is wanted


# -- a report of kernels as a report -------------------------------------------------------------------------------------------------------------

FOUND = KernelReport(
    "m:K",
    (
        LawResult("in-bounds", "broken", 3, "out-of-bounds: somewhere", "Case('attend')"),
        LawResult("copy-is-complete", "not-applicable", reason="needs copy, which is not claimed"),
        LawResult("feature sinks", "not-exercised", reason="the suite has no cases for it"),
    ),
    cases=4,
    launches=5,
    seconds=0.5,
    seed=6,
)


def test_a_kernel_report_becomes_a_report():
    report = as_report(FOUND, "name")

    assert (report.target, report.verdict, report.exit_status, report.programs, report.operations) == ("name", "broken", 1, 4, 5)
    assert [(found.law, found.program, found.steps) for found in report.violations] == [("in-bounds", "Case('attend')", 1)]
    assert report.laws["copy-is-complete"].verdict == "not-applicable"
    assert report.notes["feature sinks"] == "the suite has no cases for it"
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_a_waived_law_of_kernels_does_not_accuse():
    report = as_report(FOUND, "name", waived={"in-bounds"})

    assert (report.verdict, report.laws["in-bounds"].verdict) == ("held", "waived")


def test_an_error_outweighs_a_broken_law():
    assert as_report(dataclasses.replace(FOUND, error="K.store is not implemented"), "name").exit_status == 2


def test_a_long_case_is_folded_and_the_source_compiles():
    case = "Case('attend', block_size=128, head_size=128, lens=(1, 2, 3, 4, 5, 6, 7), permuted=True, interleaved=True)"
    source = case_source("in-bounds", case, "m:K", PagedKernels)

    compile(source, "case", "exec")
    assert "        lens=(1, 2, 3, 4, 5, 6, 7),\n" in source
    assert "from m import K\n" in source


# -- without the extra -----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_torch(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("kvproof.kernels.plain.", "torch."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.parametrize("target", ["kernels", "kernels-torch", "kernel-bug:padding-slots-are-written", "plain_kernels.py:Kernels"])
def test_without_torch_one_sentence_says_what_to_install(kvproof, place, without_torch, target):
    (place / "plain_kernels.py").write_text(
        "from kvproof import KernelCapabilities, PagedKernels\n\nclass Kernels(PagedKernels):\n"
        "    @classmethod\n    def capabilities(cls):\n        return KernelCapabilities()\n"
    )
    status, _, err = kvproof("check", target, "--budget", "1")

    assert status == 2
    assert "torch" in err
    assert "pip install 'kvproof[kernels]'" in err
    assert err.count("\n") == 1


def test_a_kernel_law_names_its_seeded_bugs(kvproof, without_torch):
    status, out, _ = kvproof("laws", "padding-inert")

    assert status == 0
    assert "`kvproof check kernel-bug:padding-slots-wrap-to-the-last-block` shows one." in out


# -- checks ----------------------------------------------------------------------------------------------------------------------------------------


@needs_extra
def test_plain_torch_holds(kvproof, place):
    status, out, _ = kvproof("check", "kernels-torch", "--budget", "0.1", "--seed", "1", "--json", "r.json")

    assert status == 0
    assert "- paged-equals-contiguous: held (exercised " in out
    assert "- in-bounds: not applicable (no Triton kernel was launched, so no access was seen)" in out
    assert "kernels-torch was tried with " in out
    assert "(0 launches)" in out
    assert out.endswith("kernels-torch keeps 7 laws.\n")
    written = json.loads((place / "r.json").read_text())
    assert set(written["laws"]) == KERNEL_NAMES
    assert (written["verdict"], written["violations"]) == ("held", [])


@needs_extra
def test_a_class_that_is_only_like_kernels_is_judged(kvproof, place):
    status, out, _ = kvproof("check", "own_kernels:Modest", "--budget", "0.1", "--seed", "1")

    assert status == 0
    assert out.endswith("own_kernels:Modest keeps 7 laws.\n")


@needs_extra
def test_a_broken_law_comes_with_a_case_to_paste(kvproof, place, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    status, out, _ = kvproof("check", "own_kernels.py:Late", "--budget", "0.1", "--seed", "1", "--json", "r.json", "--junit", "r.xml")

    assert status == 1
    assert "paged-equals-contiguous is broken\n  The law: Attention over the paged pool equals" in out
    assert "The smallest case that shows it:\n\n    Case('attend')\n" in out
    assert re.search(r"^::error title=paged-equals-contiguous,file=own_kernels.py,line=\d+::output\[0, 0, 0\] is 0", out, re.MULTILINE)
    [found] = json.loads((place / "r.json").read_text())["violations"]
    assert (found["law"], found["program"], found["steps"]) == ("paged-equals-contiguous", "Case('attend')", 1)
    suite = ET.parse(place / "r.xml").getroot()
    failure = suite.find(".//failure[@type='paged-equals-contiguous']")
    assert failure is not None
    with pytest.raises(AssertionError):
        run_test(failure.text)
    status, out, _ = kvproof("replay", "r.json")
    assert status == 1
    assert "paged-equals-contiguous breaks again: Output[0, 0, 0] is 0, it must be " in out


def run_test(source: str) -> None:
    space: dict = {}
    exec(source, space)
    next(value for name, value in space.items() if name.startswith("test_"))()


@needs_extra
def test_a_failure_file_of_kernels_is_judged_again(kvproof, place):
    _, out, _ = kvproof("check", "own_kernels.py:Late", "--budget", "0.1", "--seed", "1")
    [file] = (place / ".kvproof/failures").iterdir()
    written = json.loads(file.read_text())

    assert f"kvproof replay .kvproof/failures/{file.name}" in out
    assert (written["kvproof"], written["law"], written["case"]) == (1, "paged-equals-contiguous", "Case('attend')")
    assert kvproof("replay", str(file))[0] == 1
    status, out, _ = kvproof("replay", str(file), "kernels-torch")
    assert status == 0
    assert out.endswith("No law breaks: the violation of paged-equals-contiguous is gone on kernels-torch.\n")


@needs_extra
@pytest.mark.parametrize(
    ("case", "arguments", "told"),
    [
        ("Case('attend', width=3)", (), "cannot be read"),
        ("Case(__import__('os').getcwd())", (), "cannot be read"),
        ("print('attend')", (), "it is not a call of Case"),
        ("Case('attend')", ("production",), "production is no class of kernels"),
    ],
)
def test_a_failure_file_that_cannot_be_judged_is_told_in_one_sentence(kvproof, place, case, arguments, told):
    (place / "f.json").write_text(json.dumps({"kvproof": 1, "target": "kernels-torch", "law": "in-bounds", "case": case}))
    status, _, err = kvproof("replay", "f.json", *arguments)

    assert status == 2
    assert told in err
    assert err.count("\n") == 1


def test_a_case_of_kernels_is_not_shrunk_again(kvproof, place):
    (place / "f.json").write_text(json.dumps({"kvproof": 1, "target": "kernels-torch", "law": "in-bounds", "case": "Case('attend')"}))
    status, _, err = kvproof("shrink", "f.json")

    assert status == 2
    assert "judge it with `kvproof replay f.json`" in err


@needs_extra
def test_a_seeded_bug_of_kernels_is_a_target(kvproof, place):
    status, out, _ = kvproof("check", "kernel-bug:padding-slots-are-written", "--budget", "0.1", "--seed", "1")

    assert status == 1
    assert "find_target('kernel-bug:padding-slots-are-written')" in out
    assert "kernel-bug:padding-slots-are-written breaks " in out


@needs_extra
def test_a_waiver_keeps_a_broken_law_from_failing(kvproof, place):
    (place / "w.toml").write_text(
        '[[waiver]]\nlaw = "paged-equals-contiguous"\ntarget = "own_kernels:Late"\nreason = "being mended"\nreference = "#1"\n'
    )
    status, out, _ = kvproof("check", "own_kernels:Late", "--budget", "0.1", "--seed", "1", "--waivers", "w.toml")

    assert status == 0
    assert "paged-equals-contiguous is broken and waived: being mended (#1)" in out


@needs_extra
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("own_kernels:Confused",), "capabilities() of own_kernels:Confused raised KeyError: 'heads'."),
        (("own_kernels:Claimless",), "capabilities() of own_kernels:Claimless returned NoneType, where KernelCapabilities are due."),
        (("own_kernels:Leaving",), "own_kernels:Leaving ended the process (SystemExit: 0); kernels must return."),
        (("kernels-torch", "--programs", "5"), "kernels are judged by cases; leave it out and give a --budget."),
        (("kernel-bug:padding-slots-are-writen",), "did you mean padding-slots-are-written?"),
    ],
)
def test_what_cannot_be_judged_is_told_in_one_sentence(kvproof, place, arguments, told):
    status, _, err = kvproof("check", *arguments, "--budget", "0.1")

    assert status == 2
    assert told in err
    assert err.count("\n") == 1
