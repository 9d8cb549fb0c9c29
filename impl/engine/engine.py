"""The manager's side: the cache and the worker, one method for each thing that an engine does to a sequence.

    engine = Engine(Transformer(ModelConfig()), num_blocks=64, block_size=16)
    engine.admit(0, prompt)
    engine.extend(0, len(prompt))              # room, and a pass for the next step; or raises OutOfBlocks
    step = engine.begin_step()                 # everything that was extended is launched
    logits = engine.end_step(step)[0]          # [tokens of the pass, vocabulary]
    engine.commit(0)
    engine.append(0, [sampled])

This is all the glue that the production cache needs. What it must get right: the tokens of a pass begin where the *cache* says that the
computed ones end, for the first extend may adopt a prefix and a commit may reject drafts; copies run before the passes of their step; the
host's copies take their place in the queue of the device; and a pass is launched only if the plan says so, for a release drops it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvproof.impl.engine.batch import Pass
from kvproof.impl.engine.config import ModelConfig
from kvproof.impl.engine.model import Transformer
from kvproof.impl.engine.store import Kernels, Store
from kvproof.impl.engine.worker import Logits, Worker
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.groups import GroupSpec
from kvproof.impl.production.records import ExtendGrant
from kvproof.kernels.paged.torch_path import PagedTorch


class Engine:
    """`cache` says who owns which block, `worker` fills them. One thread; several steps may be open."""

    store_class: ClassVar[type[Store]] = Store
    worker_class: ClassVar[type[Worker]] = Worker

    def __init__(
        self,
        model: Transformer,
        *,
        num_blocks: int,
        block_size: int,
        host_blocks: int = 0,
        kernels: Kernels | None = None,
        layout: str = "NHD",
        prefix_caching: bool = True,
        events: bool = False,
    ) -> None:
        """`kernels`: `PagedTriton()` for a model on a GPU or under the IR machine; None for plain torch. Raises BadConfiguration."""
        config = model.config
        self.num_blocks = num_blocks
        self.block_size = block_size
        groups = [GroupSpec() if window is None else GroupSpec("sliding_window", window=window) for window in config.windows]
        self.cache = PagedCache(
            num_blocks,
            block_size,
            groups=groups,
            prefix_caching=prefix_caching,
            host_blocks=host_blocks,
            events=events,
            locked=False,
        )
        store = self.store_class.of(
            config,
            kernels or PagedTorch(),
            num_blocks=num_blocks,
            host_blocks=host_blocks,
            block_size=block_size,
            layout=layout,
            device=model.device,
        )
        self.worker = self.worker_class(model, store)
        self._adapters: dict[int, str] = {}
        self._passes: dict[int, Pass] = {}
        """The pass of each extend that no step has launched yet."""

    @property
    def config(self) -> ModelConfig:
        """The model's."""
        return self.worker.model.config

    def admit(self, seq: int, prompt: Sequence[int], namespace: Mapping[str, str | None] | None = None) -> None:
        """A request is known. What it may share with others depends on its namespace, and so does what the model makes of its tokens."""
        self.cache.admit(seq, prompt, namespace)
        self._adapters[seq] = adapter_of(namespace)

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> ExtendGrant:
        """Room for a pass over the next `count` known tokens and the drafts, and the pass itself, in the next step. Raises as the cache does."""
        grant = self.cache.extend(seq, count, drafts)
        start = self.start(seq)
        known = self.cache.tokens(seq)[start : start + count]
        self._passes[seq] = Pass(seq, start, (*known, *drafts), self._adapters[seq])
        return grant

    def start(self, seq: int) -> int:
        """The position of the next token to compute: adopted tokens are behind it, rejected drafts are not."""
        return self.cache.computed(seq)

    def commit(self, seq: int, accepted: int = 0) -> None:
        """The pass has finished, and its first `accepted` drafts stand."""
        self.cache.commit(seq, accepted)

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Tokens become known: sampled, or the user's."""
        self.cache.append(seq, tokens)

    def truncate(self, seq: int, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.cache.truncate(seq, length)

    def fork(self, parent: int, child: int) -> None:
        """Another sequence with the same history."""
        self.cache.fork(parent, child)
        self._adapters[child] = self._adapters[parent]

    def release(self, seq: int) -> None:
        """The sequence is gone; a pass that was launched still runs, and nobody asks for its logits."""
        self.cache.release(seq)
        self._passes.pop(seq, None)
        self._adapters.pop(seq, None)

    def preempt(self, seq: int) -> None:
        """The sequence keeps its tokens and nothing else."""
        self.cache.preempt(seq)
        self._passes.pop(seq, None)

    def begin_step(self) -> int:
        """Launch the pass of every extend since the last step; returns the number of this one."""
        plan = self.cache.begin_step()
        self.worker.launch(plan, [self._passes.pop(seq) for seq in plan.sequences])
        return plan.step

    def end_step(self, step: int) -> Logits:
        """Wait for a step, the oldest open one; returns its logits by sequence. Raises UnknownStep for any other."""
        logits = self.worker.finish(step)
        self.cache.end_step(step)
        return logits

    def swap_out(self, seq: int) -> bool:
        """To the host tier; False where it has no room."""
        copies = self.cache.swap_out(seq)
        if copies is not None:
            self.worker.swap_out(copies)
        return copies is not None

    def swap_in(self, seq: int) -> bool:
        """Back to the device; False where it has no room."""
        copies = self.cache.swap_in(seq)
        if copies is not None:
            self.worker.swap_in(copies)
        return copies is not None


def adapter_of(namespace: Mapping[str, str | None] | None) -> str:
    """The name of what a namespace makes of the model: all its fields, since requests that differ in one must not share."""
    fields = sorted((field, value) for field, value in (namespace or {}).items() if value is not None)
    return repr(fields) if fields else ""
