"""The same with low-bit storage: blocks with scales and zeros, and for each sequence a ring of recent tokens in full precision.

What belongs to a sequence beside its blocks, its ring and how many of its tokens have left it, is the engine's to carry: a fork copies the ring, a
swap takes it along, a preemption gives it back. Two limits follow from the scheme, and the adapter states both as refusals: a truncation must not
reach behind what was quantised, nor may so many drafts be rejected. And no prefix is shared: a block is matchable as soon as it is full, while
its last tokens are still in the ring of whoever filled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Final

import msgspec
import torch
from torch import Tensor

from kvproof.impl.engine.adapter import Wanted, model_of
from kvproof.impl.engine.batch import Batch, Pass
from kvproof.impl.engine.config import ModelConfig
from kvproof.impl.engine.engine import Engine
from kvproof.impl.engine.store import Store
from kvproof.impl.engine.worker import Worker
from kvproof.impl.production.records import HostCopies
from kvproof.kernels.lowbit import LowBitPool
from kvproof.kernels.paged.lowbit_rows import paged_tensors
from kvproof.kernels.paged.lowbit_torch import LowBitTorch
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import ReleaseReason
from kvproof.models.outcomes import Grant, Refused
from kvproof.properties.tensors.adapter import AttentionAdapter, Look
from kvproof.properties.tensors.engine import RowEngine, RowWorker
from kvproof.properties.tensors.rows import Rows

GROUP: Final = 16
"""Tokens that are quantised together: the fewest that the kernels take."""

RECENT: Final = 4
"""Tokens that stay in full precision at least, and so the most drafts of a pass."""

BITS: Final = 4
CHANNELS: Final = 8
RINGS: Final = 64
"""More than the sequences that a program has alive."""


@dataclass(frozen=True)
class LowBitBatch(Batch):
    """`rings` and `before`, `after` `[seqs]` int32: whose window, and how many tokens are quantised before this pass and after it."""

    rings: Tensor
    before: Tensor
    after: Tensor


@dataclass
class LowBitStore(Store):
    """Pools of another kind, with kernels of their own."""

    @classmethod
    def of(cls, config: ModelConfig, kernels: Any, *, num_blocks: int, host_blocks: int, block_size: int, **_: Any) -> Store:  # noqa: ANN401
        """Room for that many blocks and RINGS windows, full of NaN where there are numbers."""
        device, host = ([_empty(config, blocks, block_size) for _ in range(config.layers)] for blocks in (num_blocks, host_blocks))
        return cls(kernels, device, host, config.windows, config.scale)  # type: ignore[arg-type]

    def write(self, layer: int, key: Tensor, value: Tensor, batch: Batch) -> None:
        """To the rings, and what leaves them to the blocks."""
        assert isinstance(batch, LowBitBatch)
        old = batch.seq_lens - batch.query_lens
        tables = batch.groups[0].tables
        done = self._lowbit.store(self._pool(layer), key, value, tables, batch.rings, old, batch.seq_lens, batch.before)
        assert torch.equal(done, batch.after)

    def attend(self, layer: int, query: Tensor, batch: Batch) -> Tensor:
        """Over blocks and ring."""
        assert isinstance(batch, LowBitBatch)
        return self._lowbit.attend(
            self._pool(layer),
            query,
            batch.groups[0].tables,
            batch.rings,
            batch.seq_lens,
            batch.after,
            scale=self.scale,
            query_lens=batch.query_lens,
        )

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Blocks with their scales and zeros."""
        for layer in range(len(self.pools)):
            if copies:
                self._lowbit.copy_blocks(self._pool(layer), torch.tensor([pair[1:] for pair in copies]))

    def copy_ring(self, source: int, target: int) -> None:
        """A recent window."""
        for layer in range(len(self.pools)):
            self._lowbit.copy_rings(self._pool(layer), torch.tensor([[source, target]]))

    def swap_out(self, blocks: Sequence[tuple[int, int, int]]) -> None:
        """Blocks with their scales and zeros."""
        for pool, host in zip(self.pools, self.host, strict=True):
            for tensor, other in zip(self.tensors(pool), self.tensors(host), strict=True):
                other[[pair[2] for pair in blocks]] = tensor[[pair[1] for pair in blocks]]

    def swap_in(self, blocks: Sequence[tuple[int, int, int]]) -> None:
        """The way back."""
        for pool, host in zip(self.pools, self.host, strict=True):
            for tensor, other in zip(self.tensors(pool), self.tensors(host), strict=True):
                tensor[[pair[1] for pair in blocks]] = other[[pair[2] for pair in blocks]]

    @property
    def _lowbit(self) -> LowBitTorch:
        return self.kernels  # type: ignore[return-value]

    def _pool(self, layer: int) -> LowBitPool:
        return self.pools[layer]  # type: ignore[return-value]

    @staticmethod
    def tensors(pool: object) -> list[Tensor]:
        """Everything that lies in blocks."""
        assert isinstance(pool, LowBitPool)
        return paged_tensors(pool)


def _empty(config: ModelConfig, blocks: int, block_size: int) -> LowBitPool:
    pool = LowBitPool.empty(
        blocks, block_size, config.kv_heads, config.head_size,
        rings=RINGS, bits=BITS, group=GROUP, channels=CHANNELS, recent=RECENT, dtype=torch.float32,
    )  # fmt: skip
    for field in fields(pool):
        tensor = getattr(pool, field.name)
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            tensor.fill_(float("nan"))
    return pool


class LowBitWorker(RowWorker):
    """`rings` and `quantised`: what belongs to each sequence on the device, beside its blocks."""

    def __init__(self, model: Any, store: Store) -> None:  # noqa: ANN401 -- a Transformer, of which only the sizes are used
        super().__init__(model, store)
        self.rings: dict[int, int] = {}
        self.quantised: dict[int, int] = {}
        self._free = list(range(RINGS))
        self._saved: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def batch(self, passes: Sequence[Pass]) -> Batch:
        """With rings and counts. What a pass quantises is known at its launch: it follows from lengths."""
        before = [self.quantised.get(work.seq, 0) for work in passes]
        for work in passes:
            if work.seq not in self.rings:
                self.rings[work.seq] = self._free.pop()
            self.quantised[work.seq] = max(self.quantised.get(work.seq, 0), quantised_of(work.end))
        rings = [self.rings[work.seq] for work in passes]
        after = [self.quantised[work.seq] for work in passes]
        counts = (torch.tensor(values, dtype=torch.int32) for values in (rings, before, after))
        batch = super().batch(passes)
        return LowBitBatch(batch.passes, batch.positions, batch.query_lens, batch.seq_lens, batch.groups, *counts)

    def fork(self, parent: int, child: int) -> None:
        """The child gets a ring of its own, with the same tokens in it."""
        if parent in self.rings:
            self.rings[child] = self._free.pop()
            self.quantised[child] = self.quantised.get(parent, 0)
            self._queue.append((None, partial(self.lowbit.copy_ring, self.rings[parent], self.rings[child])))

    def forget(self, seq: int) -> None:
        """The ring is free: whoever gets it next writes behind what was queued for it."""
        if seq in self.rings:
            self._free.append(self.rings.pop(seq))
        self.quantised.pop(seq, None)

    def swap_out(self, copies: HostCopies) -> None:
        """Blocks, and the ring."""
        super().swap_out(copies)
        self._queue.append((None, partial(self._save, copies.seq, self.rings[copies.seq])))
        self._free.append(self.rings.pop(copies.seq))

    def swap_in(self, copies: HostCopies) -> None:
        """Blocks, and the ring, to another place."""
        super().swap_in(copies)
        self.rings[copies.seq] = self._free.pop()
        self._queue.append((None, partial(self._restore, copies.seq, self.rings[copies.seq])))

    @property
    def lowbit(self) -> LowBitStore:
        """The store."""
        assert isinstance(self.store, LowBitStore)
        return self.store

    def _save(self, seq: int, ring: int) -> None:
        self._saved[seq] = [(pool.ring_key[ring].clone(), pool.ring_value[ring].clone()) for pool in self.lowbit.pools]  # type: ignore[attr-defined]

    def _restore(self, seq: int, ring: int) -> None:
        for pool, (key, value) in zip(self.lowbit.pools, self._saved.pop(seq), strict=True):
            pool.ring_key[ring], pool.ring_value[ring] = key, value  # type: ignore[attr-defined]


class LowBitEngine(RowEngine):
    """Tells the worker what becomes of sequences."""

    store_class: ClassVar[type[Store]] = LowBitStore
    worker_class: ClassVar[type[Worker]] = LowBitWorker

    @property
    def rings(self) -> LowBitWorker:
        """The worker."""
        assert isinstance(self.worker, LowBitWorker)
        return self.worker

    def fork(self, parent: int, child: int) -> None:
        """Blocks are shared, the ring is copied."""
        super().fork(parent, child)
        self.rings.fork(parent, child)

    def release(self, seq: int) -> None:
        """Blocks and ring."""
        super().release(seq)
        self.rings.forget(seq)

    def preempt(self, seq: int) -> None:
        """Blocks and ring."""
        super().preempt(seq)
        self.rings.forget(seq)


class LowBitAdapter(AttentionAdapter):
    """Four bits, blocks of two groups, the smallest window that drafts allow."""

    engine_class: ClassVar[type[Engine]] = LowBitEngine
    kernels: ClassVar[Any] = LowBitTorch

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self._quantised: dict[int, int] = {}

    @classmethod
    def capabilities(cls) -> Capabilities:
        """What has to do with prefixes is not claimed."""
        return msgspec.structs.replace(
            super().capabilities(),
            prefix=False,
            evict=False,
            reset=False,
            events=False,
            namespace_fields=frozenset(),
            policy=frozenset({"tight", "exact"}),
            block_sizes=(2 * GROUP,),  # so that a tail that is copied may hold a group that is quantised
            max_blocks=12,
        )

    def build(self, num_blocks: int, block_size: int) -> Engine:
        """Without prefix caching."""
        model, self.oracle = model_of(self.config)
        return self.engine_class(
            model, num_blocks=num_blocks, block_size=block_size, host_blocks=num_blocks, kernels=self.kernels(), prefix_caching=False
        )

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """Refuses more drafts than the window can take back."""
        if len(drafts) > RECENT:
            raise Refused(f"{len(drafts)} drafts may be rejected, and only {RECENT} tokens are certain to be in full precision")
        return super().extend(seq, count, drafts)

    def truncate(self, seq: int, length: int) -> None:
        """Refuses to cut into what was quantised."""
        if length < self._quantised.get(seq, 0):
            raise Refused(f"{self._quantised[seq]} tokens of sequence {seq} are quantised; they cannot be cut to {length}")
        super().truncate(seq, length)

    def fork(self, parent: int, child: int) -> Grant:
        """The child has as many quantised tokens."""
        grant = super().fork(parent, child)
        self._quantised[child] = self._quantised.get(parent, 0)
        return grant

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """None are left."""
        super().release(seq, reason)
        self._quantised.pop(seq, None)

    def begin_step(self) -> int:
        """A launched pass quantises what its length asks for."""
        for seq, wanted in list(self._waiting.items()):
            self._quantised[seq] = max(self._quantised.get(seq, 0), quantised_of(len(wanted.tokens)))
            self._waiting[seq] = LowBitWanted(wanted.tokens, wanted.start, wanted.adapter, self._quantised[seq])
        return super().begin_step()

    def _look(self, seq: int, tokens: tuple[int, ...], adapter: str) -> Wanted:
        return LowBitLook(tokens, len(tokens) - 1, adapter, self._quantised.get(seq, 0))

    def _as_read(self, rows: Rows, wanted: Wanted) -> Rows:
        assert isinstance(wanted, LowBitWanted | LowBitLook)
        done = min(wanted.quantised, len(rows.key))
        key = torch.cat([*(rounded(rows.key[at : at + GROUP], 0) for at in range(0, done, GROUP)), rows.key[done:]])
        value = rows.value[:done].reshape(done, rows.value.shape[1], -1, CHANNELS) if done else rows.value[:0, ..., None]
        return Rows(key, torch.cat([rounded(value, -1).flatten(-2), rows.value[done:]]), rows.query)


@dataclass(frozen=True)
class LowBitWanted(Wanted):
    """`quantised`: how many tokens of the history have left the window."""

    quantised: int = 0


@dataclass(frozen=True)
class LowBitLook(Look):
    """`quantised`: how many tokens of the history have left the window."""

    quantised: int = 0


def quantised_of(tokens: int) -> int:
    """How many tokens have left the window of a sequence that has this many: whole groups."""
    return max(0, (tokens - RECENT) // GROUP * GROUP)


def rounded(x: Tensor, axis: int) -> Tensor:
    """What numbers read as after they were quantised along an axis: whole steps from the least, step and least in half precision."""
    least = x.amin(axis, keepdim=True).half().float()
    step = ((x.amax(axis, keepdim=True) - least) / (2**BITS - 1)).half().float()
    return ((x - least) / step).add(0.5).floor().clamp(0, 2**BITS - 1) * step + least
