"""Speed of the paged kernels against what the same device does: bandwidth of a copy and of a sum, rate of a matrix product, torch's attention on
gathered tensors.

A decode reads every key and value of its sequences once, so its rate is those bytes over its time; a causal prefill multiplies half of a square
twice, so its rate is 2 * queries * keys * head * query heads operations for each sequence over its time. Each is the median of `RUNS`, with a
cache of the device flushed by the size of what is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kvproof.kernels.contract import KVPool
from kvproof.kernels.gpu.report import Measurement
from kvproof.kernels.lowbit import PAGED, RINGS, LowBitPool
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.kernels.paged.lowbit import LowBitTriton

DEVICE = "cuda"

UNITS = {"GB/s": 1e9, "TFLOP/s": 1e12}

RUNS, WARM = 20, 3
"""Timed runs of each measurement, and untimed ones between two looks at the clock."""

WARM_SECONDS = 0.2
"""So long the device is kept busy before it is timed: while a kernel is compiled it turns its clocks down, and takes milliseconds to turn them up."""

LAYERS = 4
"""Runs in one graph, each behind the other as the layers of a model are. What a replay costs before its first kernel, some microseconds of a run of
half a millisecond, is then shared out as it is in a model. None finds in the cache what the one before it read: each reads several times its size.
"""


@dataclasses.dataclass(frozen=True)
class Rates:
    """What the device was measured to do, 0 where it was not: bytes that a copy reads and writes each second, bytes that a sum reads, operations of a
    matrix product; and `peak`, the bytes each second that its memory could do by its clock and width.
    """

    copy: float = 0.0
    sum: float = 0.0
    peak: float = 0.0
    product: float = 0.0

    def of(self, *names: str) -> dict[str, float]:
        """Those that are known."""
        return {name: getattr(self, name) for name in names if getattr(self, name)}


READS = ("sum", "copy", "peak")
"""What kernels are compared with that only read, as a decode does."""

COPIES = ("copy", "peak")
"""What kernels are compared with that read and write alike."""


@dataclasses.dataclass(frozen=True)
class Load:
    """A batch of `seqs` sequences of `tokens`. `stored`: torch name of the pool's type; `scales` for each token where it is quantised."""

    seqs: int = 64
    tokens: int = 8192
    kv_heads: int = 8
    ratio: int = 4
    head: int = 128
    block: int = 16
    stored: str = "bfloat16"
    layout: str = "NHD"


def milliseconds(run: Callable[[], object], *, graph: bool = False) -> list[float]:
    """Times of `RUNS` runs on the current CUDA device, of LAYERS each from a graph where the host's launches would count. Without a device
    that of a single one.
    """
    if DEVICE != "cuda":
        start = time.perf_counter()
        run()
        return [1e3 * (time.perf_counter() - start)]
    run()  # compiles
    torch.cuda.synchronize()
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for _ in range(LAYERS):
                run()
        run = captured.replay
    stop = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < stop:
        for _ in range(WARM):
            run()
        torch.cuda.synchronize()
    event: Any = torch.cuda.Event
    events = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(RUNS)]
    for begin, end in events:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / (LAYERS if graph else 1) for begin, end in events]


def entry(name: str, times: list[float], work: float, unit: str, rates: Mapping[str, float]) -> Measurement:
    """A measurement of `work` bytes or operations in each run; `rates` by name are what the shares are of."""
    median = statistics.median(times)
    speed = work / (median / 1e3)
    shares = {of: speed / rate for of, rate in rates.items()}
    return Measurement(name, median, speed / UNITS[unit], unit, len(times), shares, min(times), max(times), work)


def device_rates(megabytes: int, size: int) -> Iterator[tuple[Rates, Measurement]]:
    """What the device does with `megabytes` MiB of memory, many times its caches, and with bfloat16 matrices of `size` rows and columns: each
    measurement as it is known, and the rates so far.
    """
    rates = Rates(peak=peak_bandwidth())
    source = torch.ones(megabytes << 18, dtype=torch.float32, device=DEVICE)
    target, stored = torch.empty_like(source), 4.0 * source.numel()
    copied = entry(f"copy of {megabytes} MiB", milliseconds(lambda: target.copy_(source)), 2 * stored, "GB/s", rates.of("peak"))
    rates = dataclasses.replace(rates, copy=copied.value * UNITS["GB/s"])
    yield rates, copied
    summed = entry(f"sum of {megabytes} MiB", milliseconds(source.sum), stored, "GB/s", rates.of("peak"))
    rates = dataclasses.replace(rates, sum=summed.value * UNITS["GB/s"])
    yield rates, summed
    left, right = (torch.randn(size, size, device=DEVICE).to(torch.bfloat16) for _ in range(2))
    product = entry(f"product of {size} x {size} bfloat16", milliseconds(lambda: left @ right), 2.0 * size**3, "TFLOP/s", {})
    yield dataclasses.replace(rates, product=product.value * UNITS["TFLOP/s"]), product


def peak_bandwidth() -> float:
    """Bytes each second by the clock (in kHz) and the width (in bits) that NVIDIA's driver gives for the memory, which moves two bits on each line in
    a cycle; 0 where they are not known. AMD's clock is another, and older releases of torch do not pass them on.
    """
    if DEVICE != "cuda" or torch.version.hip:
        return 0.0
    properties = torch.cuda.get_device_properties(DEVICE)
    return 2 * 1e3 * getattr(properties, "memory_clock_rate", 0) * getattr(properties, "memory_bus_width", 0) / 8


@dataclasses.dataclass
class Batch:
    """Tensors of a load. Blocks are in random order."""

    pool: KVPool
    tables: torch.Tensor
    lens: torch.Tensor


def batch(load: Load) -> Batch:
    """A filled pool."""
    width = -(-load.tokens // load.block)
    blocks = load.seqs * width
    shape = (blocks, load.block, load.kv_heads, load.head)
    shape = shape if load.layout == "NHD" else (blocks, load.kv_heads, load.block, load.head)
    dtype = getattr(torch, load.stored)
    if dtype == torch.int8:
        key, value = (torch.randint(-127, 128, shape, dtype=torch.int8, device=DEVICE) for _ in range(2))
    else:
        key, value = (_random(shape, dtype) for _ in range(2))
    scales: list[torch.Tensor | None] = [None, None]
    if dtype.itemsize == 1:
        scales = [torch.full((blocks, load.block, load.kv_heads), 0.01, device=DEVICE) for _ in range(2)]
    tables = torch.randperm(blocks, device=DEVICE).view(load.seqs, width).to(torch.int32)
    return Batch(
        KVPool(key, value, load.block, load.layout, *scales),
        tables,
        torch.full((load.seqs,), load.tokens, dtype=torch.int32, device=DEVICE),
    )


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Normal values, a slice at a time: float32 for the whole pool would take four times its memory."""
    tensor = torch.empty(shape, dtype=dtype, device=DEVICE)
    for part in tensor.chunk(8):
        part.copy_(torch.randn(part.shape, device=DEVICE, dtype=torch.bfloat16).to(dtype))
    return tensor


def decode(load: Load, rates: Rates, kernels: PagedTriton, name: str = "", made: Batch | None = None) -> Measurement:
    """A decode of one token for each sequence, replayed from a graph; `made`: the tensors, where many measurements share them."""
    made = made or batch(load)
    query = torch.randn(load.seqs, load.kv_heads * load.ratio, load.head, device=DEVICE).to(torch.bfloat16)
    times = milliseconds(lambda: kernels.attend(made.pool, query, made.tables, made.lens, scale=load.head**-0.5), graph=True)
    row = load.head * made.pool.key.element_size() + (4 if made.pool.key_scale is not None else 0)
    work = 2.0 * load.seqs * load.tokens * load.kv_heads * row
    title = (
        name
        or f"decode {load.stored} {load.layout}, {load.seqs} x {load.tokens}, {load.kv_heads} x {load.head}, {load.ratio} queries a head"
    )
    return entry(title, times, work, "GB/s", rates.of(*READS))


def decode_torch(load: Load, rates: Rates) -> Iterator[Measurement]:
    """The same with torch's attention on tensors that are contiguous already; gathering them is not counted."""
    query, key, value = (
        torch.randn(load.seqs, heads, tokens, load.head, device=DEVICE, dtype=torch.bfloat16)
        for heads, tokens in ((load.kv_heads * load.ratio, 1), (load.kv_heads, load.tokens), (load.kv_heads, load.tokens))
    )
    attention = torch.nn.functional.scaled_dot_product_attention
    work = 2.0 * load.seqs * load.tokens * load.kv_heads * load.head * 2
    for name, times in by_backend(lambda: attention(query, key, value, enable_gqa=load.ratio > 1), graph=True):
        yield entry(f"torch's attention ({name}), contiguous, {load.seqs} x {load.tokens}", times, work, "GB/s", rates.of(*READS))


FUSED = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
"""Implementations of torch's attention in one kernel. Which of them take a load depends on the device and the release of torch."""


def by_backend(run: Callable[[], object], *, graph: bool = False) -> Iterator[tuple[str, list[float]]]:
    """Times of torch's attention by each fused implementation that takes the call; by single products ("math") where none does. Each comes before the
    next is tried, which may take the process with it.
    """
    refused = 0
    for name, backend in FUSED.items():
        times: list[float] = []
        with sdpa_kernel(backend), warnings.catch_warnings(), contextlib.suppress(RuntimeError):
            warnings.simplefilter("ignore")  # one for each reason of a refusal
            times = milliseconds(run, graph=graph)
        if times:
            yield name, times
        else:
            refused += 1
    if refused == len(FUSED):
        with sdpa_kernel(SDPBackend.MATH):
            times = milliseconds(run, graph=graph)
        yield "math", times


def decode_latent(load: Load, heads: int, rates: Rates, kernels: PagedTriton, new: int = 0) -> list[Measurement]:
    """MLA decode over 512 + 64, or an append of `new` tokens to each sequence: by the bytes read, and, since the heads share the row, by the operations
    of the matrix products.
    """
    seqs, tokens, block, width = load.seqs, load.tokens, 64, -(-load.tokens // 64)
    key = _random((seqs * width, block, 1, 576), getattr(torch, load.stored))
    scale = torch.full((seqs * width, block, 1), 0.01, device=DEVICE) if key.element_size() == 1 else None
    tables = torch.randperm(seqs * width, device=DEVICE).view(seqs, width).to(torch.int32)
    lens = torch.full((seqs,), tokens, dtype=torch.int32, device=DEVICE)
    query = torch.randn(seqs * max(1, new), heads, 576, device=DEVICE).to(torch.bfloat16)
    pool = KVPool(key, key[..., :512], block, "NHD", scale, scale)
    options: dict[str, Any] = {}
    if new:
        counts = torch.full_like(lens, new)
        options = {"query_lens": counts, "max_queries": new, "plan": kernels.prefill_plan(pool, query, counts)}
    times = milliseconds(lambda: kernels.attend(pool, query, tables, lens, scale=0.05, **options), graph=True)
    name = f"mla {f'append of {new} tokens' if new else 'decode'} {load.stored}, {seqs} x {tokens}, {heads} heads"
    row = 576.0 * key.element_size() + (4 if scale is not None else 0)
    return [
        entry(name, times, seqs * tokens * row, "GB/s", rates.of(*READS)),
        entry(name, times, 2.0 * len(query) * tokens * heads * (576 + 512), "TFLOP/s", rates.of("product")),
    ]


def prefill(load: Load, rates: Rates, kernels: PagedTriton, name: str = "", made: Batch | None = None) -> Measurement:
    """A causal prefill of whole sequences; the plan is made once, as for the layers of a model."""
    made = made or batch(load)
    query = torch.randn(load.seqs * load.tokens, load.kv_heads * load.ratio, load.head, device=DEVICE).to(torch.bfloat16)
    plan = kernels.prefill_plan(made.pool, query, made.lens)
    options: dict[str, Any] = {"scale": load.head**-0.5, "query_lens": made.lens, "plan": plan}
    times = milliseconds(lambda: kernels.attend(made.pool, query, made.tables, made.lens, **options))
    title = name or f"prefill {load.stored} {load.layout}, {load.seqs} x {load.tokens}, {load.ratio} queries a head of {load.head}"
    return entry(title, times, _causal(load), "TFLOP/s", rates.of("product"))


def append(load: Load, tokens: int, rates: Rates, kernels: PagedTriton) -> Measurement:
    """`tokens` query tokens for each sequence, as drafts are verified, replayed from a graph: it reads what a decode reads. The plan is made once, as
    for the layers of a model: its dozen small kernels would be a tenth of the time.
    """
    made = batch(load)
    query = torch.randn(load.seqs * tokens, load.kv_heads * load.ratio, load.head, device=DEVICE).to(torch.bfloat16)
    counts = torch.full_like(made.lens, tokens)
    plan = kernels.prefill_plan(made.pool, query, counts)
    options: dict[str, Any] = {"scale": load.head**-0.5, "query_lens": counts, "max_queries": tokens, "plan": plan}
    times = milliseconds(lambda: kernels.attend(made.pool, query, made.tables, made.lens, **options), graph=True)
    work = 2.0 * load.seqs * load.tokens * load.kv_heads * load.head * made.pool.key.element_size()
    title = f"append of {tokens} tokens, {load.seqs} x {load.tokens}, {load.ratio} queries a head"
    return entry(title, times, work, "GB/s", rates.of(*READS))


def decode_low_bits(load: Load, rates: Rates) -> Measurement:
    """A decode over 4 bits with groups of 32 and a window of 128. Its work is the bytes that it reads: numbers, scales, zeros and windows. The lengths
    that the merge counts from are made by torch, in launches of a few integers each, which are part of the call and of its time.
    """
    width = -(-load.tokens // 32)
    pool = LowBitPool.empty(
        load.seqs * width, 32, load.kv_heads, load.head, rings=load.seqs, layout=load.layout, dtype=torch.bfloat16, device=DEVICE
    )
    for name in (*PAGED, *RINGS):
        tensor = getattr(pool, name)
        tensor.random_(0, 256) if tensor.dtype == torch.uint8 else tensor.fill_(0.01)
    tables = torch.randperm(load.seqs * width, device=DEVICE).view(load.seqs, width).to(torch.int32)
    lens = torch.full((load.seqs,), load.tokens, dtype=torch.int32, device=DEVICE)
    done = pool.quantised_after(torch.zeros_like(lens), lens)
    rings = torch.arange(load.seqs, dtype=torch.int32, device=DEVICE)
    query = torch.randn(load.seqs, load.kv_heads * load.ratio, load.head, device=DEVICE).to(torch.bfloat16)
    kernels = LowBitTriton()
    times = milliseconds(lambda: kernels.attend(pool, query, tables, rings, lens, done, scale=load.head**-0.5), graph=True)
    stored = sum(getattr(pool, name).numel() * getattr(pool, name).element_size() for name in PAGED) / (width * 32) * int(done[0])
    recent = 2.0 * load.seqs * (load.tokens - int(done[0])) * load.kv_heads * load.head * 2
    title = f"decode 4 bits {load.layout}, {load.seqs} x {load.tokens}, with the small launches of its call"
    return entry(title, times, stored + recent, "GB/s", rates.of(*READS))


def prefill_torch(load: Load, rates: Rates) -> Iterator[Measurement]:
    """The same with torch's attention on contiguous tensors."""
    query, key, value = (
        torch.randn(load.seqs, heads, load.tokens, load.head, device=DEVICE, dtype=torch.bfloat16)
        for heads in (load.kv_heads * load.ratio, load.kv_heads, load.kv_heads)
    )
    attention = torch.nn.functional.scaled_dot_product_attention
    for name, times in by_backend(lambda: attention(query, key, value, is_causal=True, enable_gqa=load.ratio > 1)):
        yield entry(
            f"torch's attention ({name}), causal, {load.seqs} x {load.tokens}", times, _causal(load), "TFLOP/s", rates.of("product")
        )


def _causal(load: Load) -> float:
    """Operations of two products over the lower half of a square."""
    return 2.0 * load.seqs * load.tokens**2 * load.head * load.kv_heads * load.ratio


def store(load: Load, rates: Rates, kernels: PagedTriton) -> Measurement:
    """A store of all tokens to slots in random order."""
    made = batch(load)
    tokens = load.seqs * load.tokens
    key, value = (_random((tokens, load.kv_heads, load.head), torch.bfloat16) for _ in range(2))
    slots = torch.randperm(tokens, device=DEVICE)
    times = milliseconds(lambda: kernels.store(made.pool, key, value, slots))
    work = 2.0 * tokens * load.kv_heads * load.head * (2 + made.pool.key.element_size())
    return entry(f"store {load.stored} {load.layout}, {tokens} tokens", times, work, "GB/s", rates.of(*COPIES))


def copy_blocks(load: Load, rates: Rates, kernels: PagedTriton) -> Measurement:
    """Half of the pool's blocks to the other half."""
    made = batch(load)
    pairs = torch.randperm(made.pool.blocks, device=DEVICE).view(-1, 2)
    times = milliseconds(lambda: kernels.copy_blocks(made.pool, pairs))
    work = 2.0 * made.pool.key.numel() * made.pool.key.element_size()
    return entry(f"copy of {len(pairs)} blocks {load.stored} {load.layout}", times, work, "GB/s", rates.of(*COPIES))
