"""The checks of a GPU run beside captured graphs: every kernel law that applies, a pool beyond 32-bit addresses, the low-bit scheme, a long decode."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import torch

from kvproof.kernels.check import Progress, check_kernels
from kvproof.kernels.contract import KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.gpu.device import on_device
from kvproof.kernels.gpu.report import Check
from kvproof.kernels.laws.judges import SENTENCES
from kvproof.kernels.laws.overflow import LAW as OVERFLOW
from kvproof.kernels.lowbit import PAGED, RINGS, LowBitPool, LowBitScheme
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.kernels.paged.lowbit import LowBitTriton
from kvproof.kernels.paged.lowbit_torch import LowBitTorch
from kvproof.kernels.paged.torch_path import PagedTorch
from kvproof.kernels.report import LawResult


class ShortSplits(PagedTriton):
    """Splits of three tiles, so that the suite's sequences have several of them, and a loop has several tiles on their way: a tile for each split would
    leave the pipeline out.
    """

    split_tokens = 192


COMPILE_SECONDS = 120.0
"""Processor time of one call: its first launch compiles, which is no sign of a loop that never ends."""

SHAPES = KernelCapabilities(
    dtypes=("bfloat16", "float32"),
    head_sizes=(128, 80),
    gqa_ratios=(4, 1),
    block_sizes=(16, 12),
    layouts=("NHD", "HND"),
    mla_sizes=((512, 64),),
    low_bits=(LowBitScheme(4, 16, 16, 20),),
)
"""What the groups claim, each with features of its own: compiling takes most of the time, so there are few of each."""

GROUPS: dict[str, frozenset[str]] = {
    "decode": frozenset({"decode", "window", "sinks", "soft-cap"}),
    "prefill": frozenset({"prefill", "window", "sinks", "soft-cap"}),
    "quantised": frozenset({"decode", "copy", "fp8", "fp8-token", "int8", "hnd-scales"}),
    "mla": frozenset({"mla", "mla-prefill", "mla-quantised", "fp8-token", "copy"}),
    "low bits": frozenset({"low-bits", "prefill", "copy", "window", "sinks", "soft-cap"}),
    "moves": frozenset({"decode", "int8", "hnd-scales", "gather", "scatter", "move"}),
}
"""Features that are checked together. A group that the time does not reach is reported, and the others are not lost."""

HALF_PRECISION = dataclasses.replace(SHAPES, dtypes=("float16", "bfloat16"))


def claims_of(group: str) -> KernelCapabilities:
    """What a group of features claims."""
    return dataclasses.replace(HALF_PRECISION if group == "mla" else SHAPES, features=GROUPS[group])


def laws(group: str, device: str, seconds: float, tell: Callable[[Sequence[Check]], None]) -> None:
    """The kernel laws on the device for one group of features. Laws that only the IR machine can see do not apply.

    `tell` is given the entries of the group before each case and at the end. Until then the group is not finished, and its laws have held or been
    broken as far as they were judged: that stays true if the process is ended.
    """
    name, start = f"laws: {group}", time.monotonic()

    def so_far(progress: Progress) -> None:
        unfinished = Check(name, "not finished", f"{progress.cases} cases, then {progress.case}", progress.seconds)
        tell([unfinished, *_judged(group, progress.laws)])

    report = check_kernels(
        on_device(ShortSplits, device, claims_of(group)),
        budget_seconds=seconds,
        # Giant pools exist on the IR machine only.
        laws=set(SENTENCES) - {OVERFLOW},
        shrink_seconds=10.0,
        call_seconds=COMPILE_SECONDS,
        on_progress=so_far,
        whole_sweep=False,
    )
    whole = Check(name, report.verdict, report.error or f"{report.cases} cases", time.monotonic() - start)
    tell([whole, *_judged(group, report.laws)])


def _judged(group: str, found: Sequence[LawResult]) -> list[Check]:
    """Entries of the laws that were put to the test."""
    return [
        Check(f"{group}: {law.law}", law.verdict, f"{law.reason} {law.case}".strip() or f"{law.exercised} cases")
        for law in found
        if law.verdict in ("held", "broken")
    ]


def timed(name: str, check: Callable[[], str]) -> Check:
    """A check that returns what is wrong, or nothing."""
    start = time.monotonic()
    problem = check()
    return Check(name, "broken" if problem else "held", problem, time.monotonic() - start)


def large_pool(kernels: PagedKernels, device: str, pool_bytes: int) -> str:
    """Store, attend and copy in the last blocks of a pool of more than 2^32 bytes, against the same blocks of a small one."""
    heads, head, block = 2, 128, 16
    blocks = pool_bytes // (block * heads * head * 2)
    shape = (blocks, block, heads, head)
    large = KVPool(torch.empty(shape, dtype=torch.bfloat16, device=device), torch.empty(shape, dtype=torch.bfloat16, device=device), block)
    wanted = [blocks - 1, 0, blocks // 2, 2**31 // (block * heads * head) % blocks, blocks - 2, *range(1, 6)]
    places = torch.tensor(list(dict.fromkeys(wanted))[:6], device=device)
    small = KVPool(large.key[:6].clone(), large.value[:6].clone(), block)
    tokens = 5 * block - 3
    key, value = (torch.randn(tokens, heads, head, device=device).to(torch.bfloat16) for _ in range(2))
    query = torch.randn(1, 8, head, device=device).to(torch.bfloat16)
    at, lens = torch.arange(tokens, device=device), torch.tensor([tokens], dtype=torch.int32, device=device)
    outputs = []
    for pool, table in ((large, places[:5]), (small, torch.arange(5, device=device))):
        kernels.store(pool, key, value, table[at // block] * block + at % block)
        tables = table.to(torch.int32).unsqueeze(0)
        outputs.append(kernels.attend(pool, query, tables, lens, scale=head**-0.5))
        prefill = query.expand(tokens, -1, -1)
        outputs.append(kernels.attend(pool, prefill, tables, lens, scale=head**-0.5, query_lens=lens))
    if not torch.equal(outputs[0], outputs[2]) or not torch.equal(outputs[1], outputs[3]):
        return f"attention in a pool of {2 * pool_bytes} bytes differs from the same attention in a small one"
    kernels.copy_blocks(large, torch.stack([places[:1], places[5:6]], 1))
    if not torch.equal(large.key[places[5]], large.key[places[0]]) or not torch.equal(large.value[places[5]], large.value[places[0]]):
        return f"a block copied in a pool of {2 * pool_bytes} bytes is not what its source is"
    return ""


def low_bits(device: str) -> str:
    """Triton against torch: the same numbers, scales, zeros and windows after each pass, and attention within what half precision allows."""
    pools = [LowBitPool.empty(12, 32, 2, 128, rings=3, recent=40, device=device, dtype=torch.bfloat16) for _ in range(2)]
    kernels = (LowBitTriton(), LowBitTorch())
    tables = torch.arange(12, dtype=torch.int32, device=device).view(2, 6).flip(1).contiguous()
    rings = torch.tensor([2, 0], dtype=torch.int32, device=device)
    lens = torch.zeros(2, dtype=torch.int32, device=device)
    counts: list[torch.Tensor] = [lens, lens]
    for turn, new in enumerate(((90, 3), (1, 1), (40, 50))):
        after = lens + torch.tensor(new, dtype=torch.int32, device=device)
        rows = torch.randn(2, sum(new), 2, 128, device=device).to(torch.bfloat16)
        for at in range(2):
            counts[at] = kernels[at].store(pools[at], rows[0], rows[1], tables, rings, lens, after, counts[at])
        lens = after
        if not torch.equal(counts[0], counts[1]):
            return f"pass {turn} quantises other tokens than the same pass in torch"
        for name in (*PAGED, *RINGS):
            if not torch.equal(getattr(pools[0], name), getattr(pools[1], name)):
                return f"pass {turn} stores another {name} than the same pass in torch"
    query = torch.randn(2, 8, 128, device=device).to(torch.bfloat16)
    ours, theirs = (kernels[at].attend(pools[at], query, tables, rings, lens, counts[at], scale=128**-0.5) for at in range(2))
    worst = float((ours.float() - theirs.float()).abs().max())
    return f"attention differs from torch's by {worst:.3g}" if not worst <= 0.03 else ""


def against_torch(kernels: PagedKernels, device: str, queries: int = 0) -> str:
    """One long decode, as it is measured, against the torch path: splits of the default size and their merge. With `queries` an append of as many
    tokens to each sequence that has them.
    """
    block, heads, head, lens = 16, 8, 128, (8192, 1, 4097, 0)
    width = 8192 // block
    shape = (4 * width, block, heads, head)
    key, value = (torch.randn(shape, device=device).to(torch.bfloat16) for _ in range(2))
    pool = KVPool(key, value, block)
    tables = torch.randperm(4 * width, device=device).view(4, width).to(torch.int32)
    counts = [min(queries, length) for length in lens]
    query = torch.randn(sum(counts) if queries else 4, 32, head, device=device).to(torch.bfloat16)
    seq_lens = torch.tensor(lens, dtype=torch.int32, device=device)
    query_lens = torch.tensor(counts, dtype=torch.int32, device=device) if queries else None
    ours, theirs = (
        one.attend(pool, query, tables, seq_lens, scale=head**-0.5, query_lens=query_lens).float() for one in (kernels, PagedTorch())
    )
    # Averages of 8192 values have a spread of 0.02, and one tile of 64 tokens has a part of 0.005 in them. What is lawful is less: weights and
    # outputs are rounded to bfloat16.
    worst = float(((ours - theirs).abs() - theirs.abs() / 128).max())
    what = f"an append of {queries} tokens to" if queries else "a decode over"
    return f"{what} 8192 tokens differs from torch's by {worst:.3g} more than rounding" if not worst <= 0.001 else ""
