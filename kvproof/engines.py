"""Engines as targets: `vllm==0.33.0` on the command line, and the commands that fetch and list releases.

kvproof fetch vllm==0.33.0              take the Python files of a release into the cache folder
kvproof engines                         what can be judged, and what has been fetched
"""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.table import Table

from kvproof.console import Output
from kvproof.fuzz.reports.terminal import NARROW_COLUMNS, say
from kvproof.fuzz.verdicts import HELD
from kvproof.impl.foreign.fetched import MANIFEST, Say, cache_folder, provide, read_manifest
from kvproof.impl.foreign.registry import ENGINES, described, engine_adapter, find_release
from kvproof.impl.foreign.releases import BadRelease, Engine, Release, in_order, installed, is_known, no_engine

MEBIBYTE = 2**20


def find_engine(name: str) -> type | None:
    """The adapter of the engine that `name` names, its release fetched where needed; None where it names no engine. Raises BadRelease."""
    release = find_release(name)
    if release is None:
        return None
    with Waiting() as say:
        return engine_adapter(release, say)


def engine_words(name: str) -> str:
    """What the target is, in a few words; empty where it is no engine."""
    release = find_release(name)
    return "" if release is None else described(release)


class Waiting:
    """A line that moves while pip works, where somebody looks."""

    def __init__(self) -> None:
        self._status = Output(stderr=True).status("")

    def __enter__(self) -> Say:
        return self._say

    def _say(self, what: str) -> None:
        self._status.update(f"{what} ...")
        self._status.start()

    def __exit__(self, *error: object) -> None:
        self._status.stop()


@click.command()
@click.argument("releases", nargs=-1, required=True)
def fetch(releases: tuple[str, ...]) -> int:
    """Fetch the Python files of RELEASES (vllm==0.33.0, ...) into the cache folder, so that `check` finds them there.

    The wheel goes through pip, its hash is compared with the one that pip reports, and only the files that the adapters may need are kept.
    """
    for name in releases:
        release = _asked(name)
        with Waiting() as say:
            folder, manifest = provide(release, say)
        click.echo(
            f"{release.engine.name} {release.version}: {manifest.files} files, {manifest.bytes / MEBIBYTE:.1f} MiB of {manifest.wheel} "
            f"({manifest.wheel_bytes / MEBIBYTE:.0f} MiB), in {folder}"
        )
        if not is_known(release):
            known = f"{release.engine.oldest} to {release.engine.newest}"
            click.echo(
                f"This release is not among those that are known ({known}); `kvproof check {release.name}` says whether its surface moved."
            )
    return HELD


def _asked(name: str) -> Release:
    release = find_release(name)
    if release is None:
        raise BadRelease(f"{no_engine(name.partition('==')[0], ENGINES)} Write vllm==0.33.0, for example.")
    return release


@click.command()
def engines() -> int:
    """List the engines that can be judged, how, and which releases have been fetched."""
    console = Output()
    rows = [row for engine in ENGINES.values() for row in _rows(engine)]
    if console.width < NARROW_COLUMNS:
        for target, words, releases, here in rows:
            say(console, f"- {target}: {words}" + (f"; releases {releases}" if releases else "") + (f"; here {here}" if here else ""))
        return HELD
    table = Table("target", "what is judged", "releases", "here", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    return HELD


def _rows(engine: Engine) -> Iterator[tuple[str, str, str, str]]:
    """(target, what is judged, releases, those that are here) of each variant; what is the same for all stands beside the first."""
    here = [f"{version} (installed)"] if (version := installed(engine)) else []
    here += sorted(_fetched(engine.name), key=in_order)
    for number, (variant, what) in enumerate(engine.variants.items()):
        if number == 0:
            yield engine.name, what.words, f"{engine.oldest} to {engine.newest}", ", ".join(here)
        else:
            yield f"{engine.name}[{variant}]", what.words, "", ""


def _fetched(name: str) -> list[str]:
    manifests = (read_manifest(file.parent) for file in cache_folder().glob(f"*/{MANIFEST}"))
    return [manifest.version for manifest in manifests if manifest is not None and manifest.engine == name]
