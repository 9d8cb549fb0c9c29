"""The failures of a target: those that were kept, what this run found, and which of them fail now."""

from __future__ import annotations

from kvproof.fuzz.campaigns.causes import Cause, causes
from kvproof.fuzz.campaigns.findings import distinct, identity
from kvproof.fuzz.campaigns.store import Store
from kvproof.fuzz.verdicts import Finding


class Failures:
    """Distinct failures, each with its shortest program, in step with the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.found: dict[str, Finding] = distinct(store.findings())
        """identity -> finding."""
        self.new: list[str] = []
        """The identities of what this run found and nobody had found before."""
        self.seen_again: set[str] = set()
        """Those of kept findings that failed again in this run."""
        self.surpassed: list[Finding] = []
        """What was kept until this run found a shorter program of the same shape."""
        self._causes: list[Cause] | None = None
        """Of `found`, once somebody has asked."""

    def keep(self, finding: Finding) -> None:
        """Take in what a worker found. Of equal ones the shortest is kept."""
        key = identity(finding)
        before = self.found.get(key)
        if before is None:
            self.new.append(key)
        elif key not in self.new:
            self.seen_again.add(key)
        best = distinct([finding] if before is None else [before, finding])[key]
        if best is not before:
            self._store.keep_finding(best)
            if before is not None:
                self._store.drop_finding(before)
                self.surpassed.append(before)
            self.found[key] = best
            self._causes = None

    def replace(self, finding: Finding, shorter: Finding) -> None:
        """`shorter` is the same failure, shrunk further. It is kept before the longer one is dropped."""
        key, old = identity(shorter), identity(finding)
        met = key in self.found
        self.keep(shorter)
        if key == old or shorter.law != finding.law:  # a leak that was made shorter may break another law: both are told
            return
        if not met and old in self.seen_again:  # no news either
            self.new.remove(key)
            self.seen_again.add(key)
        self._store.drop_finding(finding)
        self.surpassed.append(finding)
        del self.found[old]
        self._causes = None

    def broken(self) -> dict[str, Finding]:
        """What fails now: what this run found, and what was kept and failed again."""
        return {key: finding for key, finding in self.found.items() if key in self.new or key in self.seen_again}

    def causes(self) -> list[Cause]:
        """What fails now, by cause."""
        return causes(self.broken().values())

    def fresh_causes(self) -> list[Cause]:
        """Those that nobody had met before this run: a further shape of a known cause is no news."""
        new = set(self.new)
        return [cause for cause in self.causes() if all(identity(member) in new for member in cause.members)]

    def all_causes(self) -> list[Cause]:
        """Of everything that is kept."""
        if self._causes is None:
            self._causes = causes(self.found.values())
        return self._causes
