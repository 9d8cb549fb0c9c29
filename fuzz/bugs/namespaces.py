"""What must agree besides the tokens: how two namespaces become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvproof.fuzz.bugs.registry import seeded
from kvproof.impl.production.cache import PagedCache

Fields = dict[str, str | None]


class KeyedCache(PagedCache):
    """Makes its own key of a namespace. Not a bug by itself: that depends on the key."""

    def admit(self, seq: int, prompt: Iterable[int], namespace: Mapping[str, str | None] | None = None) -> None:
        """A request is known, in the namespace that its key stands for."""
        super().admit(seq, prompt, self.key(dict(namespace or {})))

    def key(self, fields: Fields) -> Fields:
        """What the cache compares of the fields of a namespace."""
        raise NotImplementedError


@seeded(
    "tenant-is-not-in-the-key",
    laws=("hit-same-namespace",),
    story="A tenant can find out by timing what another tenant has asked.",
)
class TenantIsNotInTheKey(KeyedCache):
    """Leaves one field out."""

    def key(self, fields: Fields) -> Fields:
        """Every field but the tenant."""
        return fields | {"tenant": None}


@seeded(
    "key-fields-are-joined",
    laws=("hit-same-namespace",),
    story="The adapter `bc` of tenant `a` and the adapter `c` of tenant `ab` answer for each other.",
    like=("B53",),
)
class KeyFieldsAreJoined(KeyedCache):
    """Writes the fields one after the other, with nothing between them."""

    def key(self, fields: Fields) -> Fields:
        """One text."""
        return {"key": "".join(value for value in fields.values() if value is not None)}


@seeded(
    "key-fields-are-untagged",
    laws=("hit-same-namespace",),
    story="A base-model request whose tenant is called like an adapter is answered with the adapter's weights.",
    like=("B16",),
)
class KeyFieldsAreUntagged(KeyedCache):
    """Keeps the values of the fields, not which field each belongs to."""

    def key(self, fields: Fields) -> Fields:
        """The values in order."""
        values = [value for value in fields.values() if value is not None]
        return {str(place): value for place, value in enumerate(values)}


@seeded(
    "unset-field-is-the-text-none",
    laws=("hit-same-namespace",),
    story="The tenant who is called None shares a cache with everybody who is not logged in.",
)
class UnsetFieldIsTheTextNone(KeyedCache):
    """Turns every field into text."""

    def key(self, fields: Fields) -> Fields:
        """The text of each field."""
        return {field: str(value) for field, value in fields.items()}


@seeded(
    "empty-field-is-unset",
    laws=("hit-same-namespace",),
    story="A request with an empty salt shares a cache with those that asked for none.",
)
class EmptyFieldIsUnset(KeyedCache):
    """Asks whether a field is true instead of whether it is set."""

    def key(self, fields: Fields) -> Fields:
        """The fields that are not empty."""
        return {field: value or None for field, value in fields.items()}


@seeded(
    "key-fields-are-joined-by-a-slash",
    laws=("hit-same-namespace",),
    story="A tenant whose name has a slash in it reads the cache of another.",
    like=("B53",),
)
class KeyFieldsAreJoinedByASlash(KeyedCache):
    """Writes the fields into one text, with a separator that a name may contain."""

    def key(self, fields: Fields) -> Fields:
        """One text, like a path."""
        return {"key": "/".join("\0" if value is None else value for value in fields.values())}


@seeded(
    "key-ignores-case",
    laws=("hit-same-namespace",),
    story="Tenants whose names differ only in capital letters share a cache.",
)
class KeyIgnoresCase(KeyedCache):
    """Compares names as a file system of some desktops does."""

    def key(self, fields: Fields) -> Fields:
        """The fields in lower case."""
        return {field: value and value.lower() for field, value in fields.items()}


@seeded(
    "namespace-is-kept-by-the-last-bits",
    laws=("hit-same-namespace", "hit-is-true-prefix"),
    story="Once request 16 has come, request 0 is answered in its name.",
)
class NamespaceIsKeptByTheLastBits(PagedCache):
    """Keeps what a request may share in a table of sixteen rows, by its number."""

    def admit(self, seq: int, prompt: Iterable[int], namespace: Mapping[str, str | None] | None = None) -> None:
        """A request is known, and writes its row."""
        super().admit(seq, prompt, namespace)
        for other in self._sequences.values():
            if other.seq % 16 == seq % 16:
                other.namespace = self._sequences[seq].namespace
