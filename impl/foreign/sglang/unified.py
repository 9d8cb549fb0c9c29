"""SGLang's `UnifiedRadixCache`: the tree that its scheduler builds by default since 0.5.19, with its tree core in Python.

The calls are those of `radix`. Beside the compiled tree core the wheels have one in Python, which SGLang itself takes where the compiled one cannot run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvproof.impl.foreign.loading import LoadedEngine
from kvproof.impl.foreign.sglang.engine import CACHE
from kvproof.impl.foreign.sglang.radix import Keyed
from kvproof.impl.foreign.sglang.trees import Shape, below


class UnifiedShape(Shape):
    """One tree for all kinds of layers: a node has a component for each kind."""

    module = f"{CACHE}.unified_radix_cache"
    name = "UnifiedRadixCache"

    def extras(self, engine: LoadedEngine) -> dict[str, Any]:
        """The component of full attention, and the tree core in Python."""
        return {"tree_components": (component_types(engine).FULL,), "tree_core_backend": "python"}

    def nodes(self, tree: Any) -> Iterator[tuple[Any, bool]]:
        """The slots of full attention of each node, and whether they are locked."""
        return component(tree, tree.tree_components[0])


def component(tree: Any, kind: Any) -> Iterator[tuple[Any, bool]]:
    """The slots that the nodes keep for one kind of layers, and whether they are locked; nodes without are left out."""
    for node in below(getattr(tree, "tree_core", tree).root_node):
        data = node.component_data[kind]
        if data.value is not None:
            yield data.value, data.lock_ref > 0


def component_types(engine: LoadedEngine) -> Any:
    """The names of the components, in the module that this release keeps them in."""
    places = (f"{CACHE}.unified_cache.component_type", f"{CACHE}.unified_cache_components")
    place = next((place for place in places if engine.has(place)), places[0])
    return engine.symbol(place, "ComponentType")


class Unified(Keyed):
    """`keyed` on the unified tree."""

    shape = UnifiedShape()


class UnifiedEagle(Unified):
    """The same with the keys that EAGLE's drafter needs: pairs of a token and the next one."""

    eagle = True
