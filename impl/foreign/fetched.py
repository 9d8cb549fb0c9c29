"""The cache folder of fetched releases: what pip downloads, and of it only the Python files that an adapter may need.

A release is fetched once. The wheel goes through pip, its SHA-256 is compared with the one that pip reports for it, its `.py` files are unpacked beside a manifest,
and the wheel is deleted. The whole wheel is downloaded although few of its files are kept: only so can the hash that the index vouches for be checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from kvproof.impl.foreign.releases import BadRelease, Release

FORMAT: Final = 1
"""Version of the manifest; a folder with another one is fetched again."""

MAX_CACHE_BYTES: Final = 512 * 2**20
"""What all fetched releases may take together; the least recently used go first. A release of vLLM takes 5 to 15 MiB."""

PIP_SECONDS: Final = 1800
"""How long pip may take; the largest wheels have 500 MB."""

PLATFORMS: Final = ("manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 42)))
"""Wheels are taken for Linux on x86-64 wherever kvproof runs: only their Python files are used."""

MANIFEST: Final = "kvproof.json"

Say = Callable[[str], None]


class Manifest(msgspec.Struct, frozen=True):
    """Where the files of one folder came from."""

    kvproof: int
    engine: str
    version: str
    source: str
    """The distribution, with its version."""
    wheel: str
    sha256: str
    wheel_bytes: int
    files: int
    bytes: int
    edition: int = 1
    """That of the engine's `keep`."""


def cache_folder() -> Path:
    """Where releases are kept: `KVPROOF_CACHE`, or the user's cache folder."""
    if named := os.environ.get("KVPROOF_CACHE"):
        return Path(named) / "engines"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kvproof" / "engines"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvproof" / "engines"


def provide(release: Release, say: Say = lambda _: None) -> tuple[Path, Manifest]:
    """The folder with the files of `release`, fetched where it is not there yet. Raises BadRelease."""
    folder = cache_folder() / release.folder
    manifest = read_manifest(folder)
    if manifest is None or manifest.edition != release.engine.edition:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            manifest = _fetch(release, folder, say)
        except BadRelease:
            if manifest is None:
                raise  # else the files of an older edition are here, and do for most variants
        shrink(MAX_CACHE_BYTES, but=folder)
    os.utime(folder / MANIFEST)
    return folder, manifest


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a whole folder of this format; None where there is none."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None
    return manifest if manifest.kvproof == FORMAT else None


def shrink(limit_bytes: int, but: Path) -> list[str]:
    """Remove the least recently used releases until all take at most `limit_bytes`; never `but`. Returns the names of those that went."""
    manifests = but.parent.glob(f"*/{MANIFEST}")
    used = [(manifest.stat().st_mtime, _size_bytes(manifest.parent), manifest.parent) for manifest in manifests]
    total, gone = sum(size for _, size, _ in used), []
    for _, size, folder in sorted(used):
        if total <= limit_bytes:
            break
        if folder != but:
            shutil.rmtree(folder)
            gone.append(folder.name)
            total -= size
    return gone


def _size_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _fetch(release: Release, folder: Path, say: Say) -> Manifest:
    refusals = []
    for source in release.engine.sources:
        try:
            return _fetch_from(f"{source}=={release.version}", release, folder, say)
        except NotThere as missing:
            refusals.append(str(missing))
    raise BadRelease(
        f"{release.engine.name} {release.version} cannot be fetched: {'; '.join(refusals)}. "
        f"Releases {release.engine.oldest} to {release.engine.newest} are known; name another one, or check the connection."
    )


class NotThere(Exception):
    """pip finds no such distribution."""


def _fetch_from(wanted: str, release: Release, folder: Path, say: Say) -> Manifest:
    url, promised = _promised(wanted)
    say(f"fetching {wanted} through pip")
    with _scratch(folder.parent) as scratch:
        _pip("download", "--no-deps", "--no-cache-dir", "--dest", str(scratch), *_wheels_only(), wanted)
        wheels = list(scratch.glob("*.whl"))
        if len(wheels) != 1:
            raise BadRelease(f"pip downloaded no wheel for {wanted}; a release without wheels cannot be driven.")
        wheel = wheels[0]
        digest = _sha256(wheel)
        if digest != promised:
            raise BadRelease(f"The wheel {wheel.name} has the SHA-256 {digest}, but pip reports {promised} for {url}; nothing was kept.")
        unpacked = scratch / "tree"
        files, size = unpack(wheel, unpacked, release.engine.keep)
        if not files:
            raise BadRelease(f"{wheel.name} has none of the files that the adapters of {release.engine.name} need; its layout moved.")
        manifest = Manifest(
            FORMAT,
            release.engine.name,
            release.version,
            wanted,
            wheel.name,
            digest,
            wheel.stat().st_size,
            files,
            size,
            release.engine.edition,
        )
        (unpacked / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        if folder.exists():
            shutil.rmtree(folder)
        unpacked.rename(folder)
    return manifest


def unpack(wheel: Path, place: Path, keep: Sequence[str]) -> tuple[int, int]:
    """Unpack the Python files of `wheel` that lie under one of `keep`. Returns how many there are, and their bytes."""
    files = size = 0
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = member.filename
            if name.endswith(".py") and name.startswith(tuple(keep)) and ".." not in name.split("/"):
                archive.extract(member, place)
                files += 1
                size += member.file_size
    return files, size


def _promised(wanted: str) -> tuple[str, str]:
    """The file that pip would install for `wanted`, and the SHA-256 that it reports for it."""
    with tempfile.TemporaryDirectory() as nowhere:
        told = _pip(
            "install",
            "--dry-run",
            "--ignore-installed",
            "--no-deps",
            "--report",
            "-",
            "--quiet",
            "--target",
            nowhere,
            *_wheels_only(),
            wanted,
        )
    info = json.loads(told)["install"][0]["download_info"]
    digest = info.get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest is None:
        raise BadRelease(f"The index gives no SHA-256 for {wanted}, so what it serves cannot be verified; use an index that does.")
    return info["url"].rpartition("/")[2], digest


def _wheels_only() -> list[str]:
    platforms = [argument for platform in PLATFORMS for argument in ("--platform", f"{platform}_x86_64")]
    return ["--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp", *platforms]


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PIP_SECONDS)  # noqa: S603 -- pip, with a release that was parsed
    except subprocess.TimeoutExpired:
        raise BadRelease(f"pip took more than {PIP_SECONDS} s for {arguments[-1]}; try again with a faster connection.") from None
    if done.returncode == 0:
        return done.stdout
    if "No module named pip" in done.stderr:
        raise BadRelease(f"{sys.executable} has no pip to fetch {arguments[-1]} with; run `python -m ensurepip`.")
    if "No matching distribution" in done.stderr:
        raise NotThere(f"there is no wheel of {arguments[-1]}")
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
    raise BadRelease(f"pip could not fetch {arguments[-1]}: {errors[-1].removeprefix('ERROR: ')}")


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A folder beside the others, so that what was unpacked can be moved into place at once."""
    place = Path(tempfile.mkdtemp(prefix=".fetch-", dir=parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
