"""JUnit XML, as CI systems read it: one test case for each law."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from xml.etree import ElementTree as ET

from kvproof.fuzz.reports import wording
from kvproof.fuzz.verdicts import LawVerdict, Report, by_law
from kvproof.fuzz.waivers import Waiver
from kvproof.models.laws import BY_NAME

_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold."""


def junit(report: Report, sources: Mapping[str, str], waivers: Mapping[str, Waiver], stale: Mapping[str, str]) -> bytes:
    """The report as `testsuites`. `sources`: law -> its program as a test; `waivers`: law -> waiver; `stale`: law -> complaint."""
    suite = ET.Element("testsuite", name=_clean(report.target), time=f"{report.seconds:.3f}")
    properties = ET.SubElement(suite, "properties")
    for name in ("seed", "programs", "operations"):
        ET.SubElement(properties, "property", name=name, value=str(getattr(report, name)))
    reasons = {law: findings[0].reason for law, findings in by_law(report.violations).items()}
    for law, verdict in report.laws.items():
        case = _case(suite, report.target, law)
        if law in stale:
            _add(case, "failure", stale[law], kind="stale-waiver")
        elif report.verdict == "error" and verdict.verdict == "held":
            _add(case, "skipped", "The target could not be judged to the end, so this law is not known to hold.")
        else:
            reason = reasons.get(law) or report.notes.get(law, "")
            _judge(case, law, verdict, reason, sources.get(law, ""), waivers.get(law))
    if report.verdict == "error":
        _add(_case(suite, report.target, "target"), "error", report.error, kind="error")
    suites = ET.Element("testsuites", name="kvproof", time=f"{report.seconds:.3f}")
    suites.append(suite)
    for element in (suites, suite):
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            element.set(name, str(sum(1 for _ in suite.iter(tag))))
    ET.indent(suites)
    return bytes(ET.tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"


def _judge(case: ET.Element, law: str, verdict: LawVerdict, reason: str, source: str, waiver: Waiver | None) -> None:
    if verdict.verdict == "broken":
        _add(case, "failure", reason, kind=law, text=source)
    elif verdict.verdict == "waived":
        why = f"{waiver.reason} ({waiver.reference})" if waiver else "no reason was given"
        _add(case, "skipped", f"This law is broken and waived: {why}")
    elif verdict.verdict == "not-applicable":
        needed = wording.needs(BY_NAME[law]) if law in BY_NAME else ""
        why = reason or (f"it needs {needed}" if needed else "")
        _add(case, "skipped", "This law does not apply" + (f": {why}." if why else "."))
    elif verdict.verdict == "not-exercised":
        _add(case, "skipped", wording.sentence(reason) if reason else "No program put this law to the test; a larger budget may.")


def _case(suite: ET.Element, target: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=f"kvproof.{_clean(target)}", name=_clean(name), time="0")


def _add(case: ET.Element, tag: str, message: str, *, kind: str = "", text: str = "") -> None:
    element = ET.SubElement(case, tag, {"message": _clean(message), **({"type": kind} if kind else {})})
    element.text = _clean(text) or None


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
