"""The pytest plugin.

    pytest --kv-target mypkg.kv:Adapter              all laws of that target, without any test file
    pytest --kv-target mypkg.kv:Adapter -k no-leak   one law
    pytest --kv-target mypkg.attn:Kernels            the same for paged kernels
    pytest --kv-budget nightly --kv-seed 7           how hard and with which programs `kvproof.cache_tests` classes are checked

It is loaded in every pytest run where kvproof is installed, so it imports nothing but pytest until one of its options or classes is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvproof.cache import Asked


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("kvproof", "verification of paged KV caches")
    group.addoption(
        "--kv-target",
        action="append",
        default=[],
        metavar="TARGET",
        help="Check all laws of TARGET (module:Class or path/to/file.py:Class) without a test file; tests run only if paths are given.",
    )
    group.addoption("--kv-budget", metavar="quick|ci|nightly|SECONDS", help="How long each check searches, instead of what the tests say.")
    group.addoption("--kv-seed", type=int, metavar="N", help="Which programs each check draws, instead of what the tests say.")


def pytest_configure(config: pytest.Config) -> None:
    """Judge the options early; with `--kv-target` and no paths, no test files are collected."""
    if config.option.kv_budget is not None:
        from kvproof.cache import parse_budget

        try:
            parse_budget(config.option.kv_budget)
        except ValueError as error:
            raise pytest.UsageError(f"--kv-budget: {error}") from None
    if config.option.kv_seed is not None and config.option.kv_seed < 0:
        raise pytest.UsageError(f"--kv-seed: {config.option.kv_seed} is negative; give a number of 0 or more.")
    if config.option.kv_target and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the laws of every `--kv-target`, before `-k` and `-m` choose."""
    for name in config.option.kv_target:
        items.extend(TargetLaws.from_parent(session, name=name, nodeid=name).collect())


def pytest_terminal_summary(terminalreporter: Any) -> None:  # noqa: ANN401 -- pytest keeps the type of its reporter private
    """What was tried, one line for each check."""
    reports = (report for found in terminalreporter.stats.values() for report in found)
    for line in dict.fromkeys(_tried(reports)):
        terminalreporter.write_line(f"kvproof {line}")


def _tried(reports: Iterable[object]) -> Iterator[str]:
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == "kvproof":
                yield value


class TargetLaws(pytest.Collector):
    """The laws of one target named on the command line."""

    def collect(self) -> Iterator[LawItem]:
        """One item for each law."""
        from kvproof.cache import Asked, laws_of, marks
        from kvproof.targets import BadTarget, find_target

        try:
            target = find_target(self.name)
        except BadTarget as bad:
            raise pytest.UsageError(f"--kv-target: {bad}") from None
        asked = Asked(target, self.name)
        for law in laws_of(target):
            item: LawItem = LawItem.from_parent(self, name=law.name, asked=asked)
            for mark in marks(self.config, asked, law.name):
                item.add_marker(mark)
            yield item


class LawItem(pytest.Item):
    """One law of one target."""

    def __init__(self, *, asked: Asked, **kwargs: Any) -> None:  # noqa: ANN401 -- pytest's own arguments
        super().__init__(**kwargs)
        self.asked = asked

    def setup(self) -> None:
        """Run the check, if no other item has."""
        from kvproof.cache import prepare

        prepare(self, self.asked, self.name)

    def runtest(self) -> None:
        """Pass, fail or skip by the verdict."""
        from kvproof.cache import judge

        judge(self.config, self.asked, self.name)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where the item is: nowhere but on the command line."""
        return Path(self.config.rootpath), None, f"{self.asked.name}::{self.name}"
