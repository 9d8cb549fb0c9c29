"""What an adapter claims to be able to do, read and checked before any cache is built."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from kvproof.impl.adapter import CacheAdapter
from kvproof.impl.checker.faults import AdapterFault, described, told
from kvproof.impl.checker.misuse import is_async, place, unknown_field
from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.ops import NAMESPACE_FIELDS

REQUIRED: Final = ("admit", "extend", "commit", "append", "release", "block_table")
CLAIMED: Final[dict[str, tuple[str, ...]]] = {
    "prefix": ("match",),
    "fork": ("fork",),
    "truncate": ("truncate",),
    "steps": ("begin_step", "end_step"),
    "evict": ("evict",),
    "reset": ("reset",),
    "swap": ("swap_out", "swap_in"),
    "snapshot": ("snapshot",),
    "mirror": ("worker_table",),
    "events": ("take_events",),
}
"""The methods that each claimed capability needs."""

POLICIES: Final = ("lru", "tight", "exact", "rewrites", "groups-together", "groups-in-turn")


def read_capabilities(target: type) -> Capabilities:
    """The capabilities that `target` claims, checked. Raises AdapterFault."""
    name = target.__qualname__
    method = getattr(target, "capabilities", None)
    if not callable(method):
        raise AdapterFault(
            f"{name} has no capabilities(); give it a classmethod that returns kvproof.Capabilities for a cache, or kvproof.KernelCapabilities for kernels."
        )
    _check_called_plainly(name, "capabilities", method)
    try:
        claimed = method()
    except NotImplementedError:
        raise AdapterFault(f"{name} does not define capabilities(); give it a classmethod that returns kvproof.Capabilities.") from None
    except Exception as error:
        if isinstance(error, TypeError) and not place(error):
            raise AdapterFault(f"{name}.capabilities() could not be called on the class ({error}); make it a classmethod.") from error
        unknown = unknown_field(error)
        if unknown:
            raise AdapterFault(f"{name}.capabilities(): {unknown}") from error
        raise AdapterFault(f"{name}.capabilities() raised {told(error)}.") from error
    if not isinstance(claimed, Capabilities):
        raise AdapterFault(f"{name}.capabilities() returned {described(claimed)}; it must return kvproof.Capabilities.")
    _check_capabilities(name, claimed)
    for method_name in REQUIRED:
        _check_method(target, method_name, "every cache needs it")
    for capability, methods in CLAIMED.items():
        if getattr(claimed, capability):
            for method_name in methods:
                _check_method(target, method_name, f"the capability {capability} is claimed")
    return claimed


def _check_method(target: type, method: str, why: str) -> None:
    found = getattr(target, method, None)
    if found is None or found is getattr(CacheAdapter, method):
        raise AdapterFault(f"{target.__qualname__} does not define {method}(), but {why}; define it, or do not claim the capability.")
    if not callable(found):
        raise AdapterFault(f"{target.__qualname__}.{method} is {described(found)}, not a method.")
    _check_called_plainly(target.__qualname__, method, found)


def _check_called_plainly(name: str, method: str, found: object) -> None:
    if is_async(found):
        raise AdapterFault(
            f"{name}.{method}() is async, but the suite calls it and takes what comes back for the answer; "
            f"define it with def, and run what it awaits to its end inside, as by asyncio.run()."
        )


def _check_capabilities(name: str, claimed: Any) -> None:  # noqa: ANN401 -- a struct that was built, not validated
    def fail(what: str) -> AdapterFault:
        return AdapterFault(f"{name}.capabilities(): {what}.")

    for field in ("groups", "namespace_fields", "null_blocks", "policy", "block_sizes"):
        value = getattr(claimed, field)
        if isinstance(value, str) or not isinstance(value, Collection):
            raise fail(f"{field} is {described(value)}; it must be a collection")
    if not claimed.groups:
        raise fail("groups is empty; a cache has at least one group of layers")
    for group in claimed.groups:
        if not isinstance(group, Group):
            raise fail(f"groups holds {described(group)}; it must hold kvproof.Group")
        _check_group(fail, group)
    _check_names(fail, "namespace_fields", claimed.namespace_fields, NAMESPACE_FIELDS, "fields")
    _check_names(fail, "policy", claimed.policy, POLICIES, "policies")
    _check_sizes(fail, claimed)


def _check_names(fail: Callable[[str], AdapterFault], field: str, names: Collection[Any], known: Collection[str], what: str) -> None:
    odd = [name for name in names if not isinstance(name, str)]
    if odd:
        raise fail(f"{field} holds {described(odd[0])}; it must hold strings")
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise fail(f"{field} names {unknown[0]!r}; the {what} are {', '.join(known)}")


def _check_sizes(fail: Callable[[str], AdapterFault], claimed: Any) -> None:  # noqa: ANN401 -- a struct that was built, not validated
    odd = [block for block in claimed.null_blocks if not isinstance(block, int)]
    if odd:
        raise fail(f"null_blocks holds {described(odd[0])}; it must hold block ids")
    if not claimed.block_sizes or not all(isinstance(size, int) and size >= 1 for size in claimed.block_sizes):
        raise fail(f"block_sizes is {claimed.block_sizes!r}; give at least one, each 1 or more")
    if not isinstance(claimed.max_blocks, int) or claimed.max_blocks < 1:
        raise fail(f"max_blocks is {claimed.max_blocks!r}; it must be 1 or more")
    capacity = claimed.capacity
    if capacity is not None and not callable(capacity) and (not isinstance(capacity, int) or capacity < 0):
        raise fail(f"capacity is {described(capacity)}; give a number, a function of num_blocks, or None")


def _check_group(fail: Callable[[str], AdapterFault], group: Any) -> None:  # noqa: ANN401 -- a struct that was built, not validated
    if group.kind in ("compressed", "state"):
        raise fail(f"the group kind {group.kind!r} is not driven yet; full and sliding_window are")
    if group.kind not in ("full", "sliding_window"):
        raise fail(f"there is no group kind {group.kind!r}; there are full, sliding_window, compressed and state")
    if group.kind == "sliding_window" and (not isinstance(group.window, int) or group.window < 1):
        raise fail(f"a sliding_window group needs a window of 1 token or more, not {group.window!r}")
    if group.block_size is not None and (not isinstance(group.block_size, int) or group.block_size < 1):
        raise fail(f"a group's block_size must be 1 token or more, not {group.block_size!r}")
