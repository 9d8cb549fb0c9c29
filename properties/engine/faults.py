"""Seeded faults of the engine: one thing that its glue gets wrong, each, on top of a cache and kernels that are right.

`FAULTS` names them. No law but `served-equals-contiguous` can see one: tables, grants and books are all in order.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final

import torch
from torch import Tensor

from kvproof.impl.engine.adapter import EngineAdapter
from kvproof.impl.engine.batch import Batch, Pass
from kvproof.impl.engine.config import ModelConfig
from kvproof.impl.engine.engine import Engine
from kvproof.impl.engine.store import Store
from kvproof.impl.engine.worker import Logits, Worker
from kvproof.impl.production.records import HostCopies, StepPlan
from kvproof.kernels.contract import KVPool

INT8: Final = ModelConfig(storage="int8")
HYBRID: Final = ModelConfig(windows=(None, 5))

FAULTS: Final[dict[str, type[EngineAdapter]]] = {}
"""By name, in the order of this file."""


def faulty(name: str, config: ModelConfig | None = None) -> type:
    """Class decorator: put a faulty store, worker or engine under the suite and enter the adapter into FAULTS; gives back the part."""

    def enter(part: type) -> type:
        engine = part if issubclass(part, Engine) else type("FaultyEngine", (Engine,), {_SEAM[part.__mro__[-2 if part.__mro__[-2] in _SEAM else 1]]: part})
        FAULTS[name] = type(part.__name__, (EngineAdapter,), {"engine_class": engine, "config": config or ModelConfig(), "__doc__": part.__doc__})
        return part

    return enter  # type: ignore[return-value]
