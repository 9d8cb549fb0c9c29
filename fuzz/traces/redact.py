"""Replace tokens by salted digests, so that a trace can leave the house and still be judged by every law.

A law only asks whether two whole prefixes are equal. So a token at position p becomes a digest of the salt and of all tokens up to p: two digests are equal exactly
where the prefixes are, and a frequent token does not stand out. Which requests share which prefixes stays visible, since that is what a cache is about.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

import msgspec

from kvproof.models.ops import NAMESPACE_FIELDS, Admit, AnyOp, Append, Commit, Extend, Fork, Namespace, Release, Tokens, Truncate

DIGEST_BITS: Final = 52
"""Digests are numbers that JavaScript can hold exactly. Two continuations of the same prefix collide with a chance of 2**-52."""


class Redactor:
    """Redacts one recording; it follows the known tokens of every live sequence. The salt is never written anywhere."""

    def __init__(self, salt: bytes | None = None) -> None:
        self._salt = (secrets.token_bytes(32) if salt is None else hashlib.blake2b(salt, digest_size=32).digest())[:32]
        self._known: dict[int, list[int]] = {}
        self._drafts: dict[int, Tokens] = {}

    def op(self, op: AnyOp, *, answered: bool = True) -> AnyOp:
        """The operation with digests for tokens. `answered`: whether the cache did it, rather than refuse."""
        match op:
            case Admit():
                known = self._chain([], op.prompt)
                if answered:
                    self._known[op.seq] = known
                return Admit(op.seq, tuple(known), self._namespace(op.namespace))
            case Append():
                known = self._known.setdefault(op.seq, [])
                new = self._chain(known, op.tokens)
                if answered:
                    known += new
                return Append(op.seq, tuple(new))
            case Extend():
                drafts = tuple(self._chain(self._known.get(op.seq, []), op.drafts))
                if answered:
                    self._drafts[op.seq] = drafts
                return Extend(op.seq, op.count, drafts)
        if answered:
            self._follow(op)
        return op

    def _follow(self, op: AnyOp) -> None:
        match op:
            case Commit():
                self._known.setdefault(op.seq, []).extend(self._drafts.pop(op.seq, ())[: op.accepted])
            case Truncate():
                del self._known.setdefault(op.seq, [])[op.length :]
            case Fork():
                self._known[op.child] = list(self._known.get(op.parent, ()))
            case Release():
                self._drafts.pop(op.seq, None)
                if op.reason != "preempt":
                    self._known.pop(op.seq, None)

    def _chain(self, known: list[int], tokens: Tokens) -> list[int]:
        last = known[-1] if known else 0
        found = []
        for token in tokens:
            text = b"%d,%d" % (last, token)
            last = int.from_bytes(hashlib.blake2b(text, digest_size=8, key=self._salt).digest()) >> (64 - DIGEST_BITS)
            found.append(last)
        return found

    def _namespace(self, namespace: Namespace) -> Namespace:
        changed = {name: self._name(value) for name in NAMESPACE_FIELDS if (value := getattr(namespace, name)) is not None}
        return msgspec.structs.replace(namespace, **changed) if changed else namespace

    def _name(self, value: str) -> str:
        return hashlib.blake2b(value.encode(), digest_size=8, key=self._salt).hexdigest()
