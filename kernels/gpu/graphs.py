"""Captured graphs with padded lanes: a step is captured once with nothing but padding, then replayed for batches of other sizes and lengths.

Every replay must give the bits of the same calls made directly, leave the same bits in the pool, and zeros in rows of padded lanes. Buffers are
poisoned with NaN, tables of padded lanes hold no block ids, and between replays everything changes: blocks, lengths, contents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import torch

from kvproof.kernels.contract import KVPool, PagedKernels
from kvproof.kernels.lowbit import PAGED, RINGS, LowBitPool

Capture: TypeAlias = Callable[[Callable[[], torch.Tensor]], tuple[torch.Tensor, Callable[[], object]]]

LANES, WIDTH, BLOCK, HEADS = 8, 40, 16, 2
BATCHES = (1, 5, 8, 3)
"""Live lanes of the replays, one after the other."""

NO_BLOCK = 2**31 - 1


class Step:
    """Store and decode. Subclasses are other steps: `fill` makes the next batch in the same buffers, `run` is what is captured, `memory` what it
    writes, `idle` the rows of its output that nobody owns.
    """

    head: ClassVar[int] = 128
    size: ClassVar[int] = BLOCK
    heads: ClassVar[int] = HEADS

    def __init__(self, kernels: PagedKernels, device: str) -> None:
        self.kernels, self.device = kernels, device
        self.generator = torch.Generator().manual_seed(0)
        self.pool = self.make_pool()
        self.key, self.value = (self.poison(LANES, self.heads, self.head) for _ in range(2))
        self.query = self.poison(LANES, 4 * self.heads, self.head)
        self.tables = torch.full((LANES, WIDTH), NO_BLOCK, dtype=torch.int32, device=device)
        self.lens = torch.zeros(LANES, dtype=torch.int32, device=device)
        self.slots = torch.full((LANES,), -1, dtype=torch.int64, device=device)

    def poison(self, *size: int) -> torch.Tensor:
        """A buffer full of NaN."""
        return torch.full(size, float("nan"), dtype=torch.bfloat16, device=self.device)

    def make_pool(self) -> KVPool:
        """Full of NaN."""
        shape = (LANES * WIDTH, self.size, self.heads, self.head)
        return KVPool(self.poison(*shape), self.poison(*shape), self.size)

    @property
    def memory(self) -> Sequence[torch.Tensor]:
        """What the step may write."""
        return (self.pool.key, self.pool.value)

    def run(self) -> torch.Tensor:
        """The calls of one step."""
        self.kernels.store(self.pool, self.key, self.value, self.slots)
        return self.kernels.attend(self.pool, self.query, self.tables, self.lens, scale=0.1)

    def idle(self, live: int) -> int:
        """The first row of the output that no live lane has."""
        return live

    def fill(self, live: int) -> None:
        """Other lengths, other blocks, other content, in the same buffers."""
        lens, order = self.draw(live)
        self.slots.fill_(-1)
        last = lens - 1
        self.slots[:live] = (order.long()[torch.arange(live), last // self.size] * self.size + last % self.size).to(self.device)
        for tensor in (self.query, self.key, self.value):
            tensor.fill_(float("nan"))
            tensor[:live] = self.random(live, *tensor.shape[1:])
        self.fill_pool(lens, order)

    def draw(self, live: int, shortest: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Lengths and blocks of live lanes, to the buffers as well."""
        lens = torch.randint(shortest, WIDTH * self.size, (live,), generator=self.generator)
        order = torch.randperm(LANES * WIDTH, generator=self.generator).view(LANES, WIDTH)[:live].to(torch.int32)
        self.tables.fill_(NO_BLOCK)
        self.tables[:live] = order.to(self.device)
        self.lens.zero_()
        self.lens[:live] = lens.to(torch.int32).to(self.device)
        return lens, order

    def fill_pool(self, lens: torch.Tensor, order: torch.Tensor) -> None:
        """Tokens in the blocks of live lanes, NaN in all others."""
        for tensor in self.memory:
            tensor.fill_(float("nan"))
            for seq, length in enumerate(lens.tolist()):
                blocks = order[seq, : -(-length // self.size)].long().to(self.device)
                tensor[blocks] = self.random(len(blocks), *tensor.shape[1:])

    def random(self, *size: int) -> torch.Tensor:
        """Normal values."""
        return torch.randn(size, generator=self.generator).to(torch.bfloat16).to(self.device)


class AppendStep(Step):
    """Runs of one to a dozen query tokens, so that some lanes are appended to and some prefilled; rows behind the last query are padding."""

    most = 12

    def __init__(self, kernels: PagedKernels, device: str) -> None:
        super().__init__(kernels, device)
        self.query = self.poison(LANES * self.most, 4 * self.heads, self.head)
        self.query_lens = torch.zeros(LANES, dtype=torch.int32, device=device)

    def run(self) -> torch.Tensor:
        """Attention over what is there."""
        return self.kernels.attend(self.pool, self.query, self.tables, self.lens, scale=0.1, query_lens=self.query_lens)

    def fill(self, live: int) -> None:
        """Other query lengths as well."""
        lens, order = self.draw(live, self.most)
        counts = torch.randint(1, self.most + 1, (live,), generator=self.generator)
        self.query_lens.zero_()
        self.query_lens[:live] = counts.to(torch.int32).to(self.device)
        self.rows = int(counts.sum())
        self.query.fill_(float("nan"))
        self.query[: self.rows] = self.random(self.rows, *self.query.shape[1:])
        self.fill_pool(lens, order)

    def idle(self, live: int) -> int:  # noqa: ARG002 - rows, not lanes, are padded
        """Behind the last query."""
        return self.rows


class LatentStep(Step):
    """Store and decode over latents of 512 + 64."""

    head: ClassVar[int] = 576
    heads: ClassVar[int] = 1

    def make_pool(self) -> KVPool:
        """Values are a view of the keys."""
        key = self.poison(LANES * WIDTH, self.size, 1, 576)
        return KVPool(key, key[..., :512], self.size)

    @property
    def memory(self) -> Sequence[torch.Tensor]:
        """Keys hold the values."""
        return (self.pool.key,)

    def run(self) -> torch.Tensor:
        """The value of a token is a part of its key."""
        self.kernels.store(self.pool, self.key, self.key[..., :512], self.slots)
        return self.kernels.attend(self.pool, self.query, self.tables, self.lens, scale=0.05)


class LatentAppendStep(AppendStep, LatentStep):
    """The same runs of query tokens over latents."""


class CopyStep(Step):
    """Copies of blocks, the batch being padded with pairs of -1."""

    def __init__(self, kernels: PagedKernels, device: str) -> None:
        super().__init__(kernels, device)
        self.pairs = torch.full((LANES, 2), -1, dtype=torch.int64, device=device)
        self.nothing = torch.zeros(1, device=device)

    def run(self) -> torch.Tensor:
        """Nothing but the copies; what they write is compared."""
        self.kernels.copy_blocks(self.pool, self.pairs)
        return self.nothing

    def fill(self, live: int) -> None:
        """Other pairs."""
        order = torch.randperm(LANES * WIDTH, generator=self.generator)[: 2 * live].view(live, 2)
        self.pairs.fill_(-1)
        self.pairs[:live] = order.to(self.device)
        for tensor in self.memory:
            tensor.copy_(self.random(*tensor.shape))
        self.wanted = [tensor.clone() for tensor in self.memory]
        for tensor in self.wanted:
            tensor[self.pairs[:live, 1]] = tensor[self.pairs[:live, 0]]

    def idle(self, live: int) -> int:  # noqa: ARG002 - no output
        """No rows."""
        return len(self.nothing)


class LowBitStep(Step):
    """Store and decode over the low-bit scheme. A padded lane has as many tokens after the pass as before."""

    size: ClassVar[int] = 32

    def __init__(self, kernels: PagedKernels, device: str) -> None:
        super().__init__(kernels, device)
        self.rings, self.before, self.quantised = (torch.zeros(LANES, dtype=torch.int32, device=device) for _ in range(3))
        # As many rows as lanes, but a store takes as many as there are new tokens: padded lanes have none, so their rows come last.
        self.low_bits = LowBitPool.empty(
            LANES * WIDTH, self.size, self.heads, self.head, rings=2 * LANES, recent=40, device=device, dtype=torch.bfloat16
        )

    @property
    def memory(self) -> Sequence[torch.Tensor]:
        """All tensors of the pool."""
        return [getattr(self.low_bits, name) for name in (*PAGED, *RINGS)]

    def run(self) -> torch.Tensor:
        """One new token for each live lane."""
        arguments = (self.tables, self.rings, self.before, self.lens)
        done = self.kernels.store_low_bits(self.low_bits, self.key, self.value, *arguments, self.quantised)
        return self.kernels.attend_low_bits(self.low_bits, self.query, self.tables, self.rings, self.lens, done, scale=0.1)

    def fill(self, live: int) -> None:
        """Other rings as well. Every other lane has a whole group that leaves its ring in this pass."""
        lens, order = self.draw(live, 100)
        group, recent = self.low_bits.group, self.low_bits.recent
        lens[::2] = lens[::2] // group * group + recent % group
        lens = lens.clamp(max=WIDTH * self.size)
        self.lens[:live] = lens.to(torch.int32).to(self.device)
        self.before.zero_()
        self.before[:live] = self.lens[:live] - 1
        self.quantised.copy_(self.low_bits.quantised_after(torch.zeros_like(self.before), self.before))
        self.rings[:live] = torch.randperm(2 * LANES, generator=self.generator)[:live].to(torch.int32).to(self.device)
        for tensor in (self.query, self.key, self.value):
            tensor.fill_(float("nan"))
            tensor[:live] = self.random(live, *tensor.shape[1:])
        for name in (*PAGED, *RINGS):
            tensor = getattr(self.low_bits, name)
            tensor.fill_(0xA7 if tensor.dtype == torch.uint8 else float("nan"))
            held = self.rings[:live].long() if name in RINGS else order.flatten().long().to(self.device)
            rows = self.random(len(held), *tensor.shape[1:])
            tensor[held] = (rows.abs() * 40).to(tensor.dtype) if tensor.dtype == torch.uint8 else rows.to(tensor.dtype)


STEPS: dict[str, type[Step]] = {
    "store and decode": Step,
    "prefill and append": AppendStep,
    "store and decode of latents": LatentStep,
    "prefill and append of latents": LatentAppendStep,
    "block copies": CopyStep,
    "store and decode of low bits": LowBitStep,
}
"""What is captured."""


def cuda_graph(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], object]]:
    """Capture a run: where its output will lie, and the replay."""
    stream: Any = torch.cuda.Stream
    side = stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return out, graph.replay


def emulated(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], object]]:
    """A graph where there is none to capture: every replay makes the calls again."""
    out = run()
    return out, lambda: out.copy_(run())


def captured_graph(kernels: PagedKernels, device: str, capture: Capture = cuda_graph, kind: type[Step] = Step) -> str:
    """What a replay does that the same calls made directly do not, in words; nothing if all is well."""
    step = kind(kernels, device)
    out, replay = capture(step.run)
    for live in BATCHES:
        step.fill(live)
        before = [tensor.clone() for tensor in step.memory]
        replay()
        replayed, written = out.clone(), [tensor.clone() for tensor in step.memory]
        for tensor, old in zip(step.memory, before, strict=True):
            tensor.copy_(old)
        direct = step.run()
        if not _same(replayed, direct) or not all(map(_same, written, step.memory)):
            return f"a replay with {live} of {LANES} lanes differs from the same calls made directly"
        if isinstance(step, CopyStep) and not all(map(_same, written, step.wanted)):
            return f"a replay of {live} copies in a batch of {LANES} leaves other blocks than those copies make"
        if bool((replayed[step.idle(live) :] != 0).any()) or bool(replayed.isnan().any()):
            return f"a replay with {live} of {LANES} lanes leaves something other than zeros in padded lanes, or a NaN in live ones"
    return ""


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return torch.equal(left.view(kinds[left.element_size()]), right.view(kinds[right.element_size()]))
