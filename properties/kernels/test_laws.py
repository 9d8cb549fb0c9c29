"""Right kernels keep every law; every seeded bug breaks the law that it names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from kvproof.kernels.check import check_kernels, judge_case
from kvproof.kernels.contract import KernelCapabilities, PagedKernels
from kvproof.kernels.laws.cases import Case
from kvproof.kernels.plain.torch_kernels import PlainTorch
from kvproof.kernels.plain.triton_kernels import PlainTriton

from . import arriving
from .bugs import BUGS, build
from .grouped import Grouped
from .paged_bugs import ALL_BUGS


def test_pairs_of_blocks_that_look_like_a_block_table_are_none() -> None:
    assert judge_case(PlainTriton, Case("copy", block_size=1, lens=(1, 1))) == {}


def test_the_plain_triton_kernels_keep_every_law() -> None:
    report = check_kernels(PlainTriton, budget_seconds=15)
    assert report.verdict == "held", str(report)
    assert {law.law for law in report.laws if law.verdict != "held"} == {"relayout-is-bijection"}, str(report)


def test_grouped_dots_split_over_the_sequence_keep_every_law() -> None:
    report = check_kernels(Grouped, budget_seconds=10)
    assert report.verdict == "held", str(report)


def test_the_last_program_to_arrive_may_merge() -> None:
    report = check_kernels(arriving.Arriving, budget_seconds=5)
    assert report.verdict == "held", str(report)


@pytest.mark.parametrize("faulty", arriving.BUGS)
def test_a_merge_that_does_not_wait_or_adds_up_breaks_its_law(faulty: type[PagedKernels]) -> None:
    law = arriving.BUGS[faulty]
    assert check_kernels(faulty, budget_seconds=20, laws={law}, shrink_seconds=0.5).law(law).verdict == "broken"


class Uncompiled(PlainTriton):
    def attend(self, pool, query, block_tables, seq_lens, **options) -> torch.Tensor:
        odd_range[(1,)](query, N=3)
        return query


@triton.jit
def odd_range(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 0.0)


def test_a_kernel_that_does_not_compile_is_named() -> None:
    reason = judge_case(Uncompiled, Case("attend", lens=(1,)))["paged-equals-contiguous"]
    assert reason.startswith("attend raised CompilationError: at 2:")
    assert " of kernel 'odd_range' ... " in reason
    assert reason.endswith("must be a power of 2")


def test_plain_torch_is_judged_by_its_results() -> None:
    report = check_kernels(PlainTorch, budget_seconds=5)
    assert report.verdict == "held", str(report)
    missing = {law.law for law in report.laws if law.verdict == "not-applicable"}
    assert missing == {"reads-only-owned", "in-bounds", "no-address-overflow", "quantised-within-bound", "relayout-is-bijection"}


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_breaks_its_law(name: str, tmp_path: Path) -> None:
    bug = BUGS[name]
    report = check_kernels(build(name, tmp_path), budget_seconds=20, laws={bug.law}, shrink_seconds=0.5)
    result = report.law(bug.law)
    assert result.verdict == "broken", str(report)
    assert result.reason
    assert result.case.startswith("Case(")


def test_a_reported_case_can_be_judged_again(tmp_path: Path) -> None:
    faulty = build("the current token is not attended to", tmp_path)
    report = check_kernels(faulty, budget_seconds=20, laws={"paged-equals-contiguous"}, shrink_seconds=1)
    case = eval(report.law("paged-equals-contiguous").case, {"Case": Case})
    assert "paged-equals-contiguous" in judge_case(faulty, case)
    assert judge_case(PlainTriton, case) == {}


def test_every_law_has_a_fault() -> None:
    report = check_kernels(PlainTriton, budget_seconds=0.1)
    assert {bug.law for bug in [*BUGS.values(), *ALL_BUGS.values()]} == {law.law for law in report.laws}


class Unfinished(PagedKernels):
    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        return KernelCapabilities()


def test_a_missing_method_is_named() -> None:
    report = check_kernels(Unfinished, budget_seconds=1)
    assert report.verdict == "broken"
    assert "Unfinished.store is not implemented" in report.law("paged-equals-contiguous").reason


class Misspelt(PagedKernels):
    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        return KernelCapabilities(layouts=("NDH",))


def test_a_claim_that_makes_no_sense_is_an_error() -> None:
    report = check_kernels(Misspelt)
    assert report.verdict == "error"
    assert "NDH" in report.error


@triton.jit
def assembled(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x + i)], dtype=tl.float32, is_pure=True, pack=1))


class Assembled(PlainTriton):
    def store(self, pool, key, value, slots) -> None:
        assembled[(1,)](torch.zeros(16), torch.zeros(16), N=16)


def test_what_the_machine_cannot_run_is_an_error_and_not_a_verdict() -> None:
    report = check_kernels(Assembled, budget_seconds=1)
    assert report.verdict == "error"
    assert report.error.startswith(
        "the machine does not implement tt.elementwise_inline_asm (inline assembly; write that step in Triton's language"
    )
    assert "used by kernel 'assembled'" in report.error


class ConvertedTables(PlainTriton):
    """Hands its kernel a table of 64-bit ids."""

    def attend(self, pool, query, block_tables, seq_lens, **options) -> torch.Tensor:
        return super().attend(pool, query, block_tables.long(), seq_lens, **options)


def test_a_converted_table_still_says_whom_a_program_serves() -> None:
    report = check_kernels(ConvertedTables, budget_seconds=1, laws={"reads-only-owned"})
    assert report.verdict == "held", str(report)


@triton.jit
def gather(pool, out, slots, starts, HEAD: tl.constexpr, SHIFT: tl.constexpr):
    """Adds up the keys of a sequence, whose slots are a part of one list; SHIFT takes those of a neighbour."""
    seq, lane = tl.program_id(0), tl.arange(0, HEAD)
    total = tl.zeros([HEAD], tl.float32)
    for at in range(tl.load(starts + seq), tl.load(starts + seq + 1)):
        slot = tl.load(slots + at)
        total += tl.load(pool + (slot + SHIFT) * HEAD + lane)
    tl.store(out + seq * HEAD + lane, total)


class Listing(PlainTriton):
    """Hands its kernel one list of slots for the whole batch."""

    shift = 0

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        return KernelCapabilities(features=frozenset({"decode", "contiguous-pools"}), gqa_ratios=(1,))

    def attend(self, pool, query, block_tables, seq_lens, **options) -> torch.Tensor:
        size, parts = pool.block_size, []
        for table, length in zip(block_tables, seq_lens.tolist(), strict=True):
            at = torch.arange(length)
            parts.append(table[at // size].long() * size + at % size)
        starts = torch.nn.functional.pad(seq_lens.cumsum(0), (1, 0))
        if pool.kv_heads == 1:
            gather[(len(seq_lens),)](pool.key, torch.zeros(len(seq_lens), 64), torch.cat(parts), starts, HEAD=64, SHIFT=self.shift)
        return super().attend(pool, query, block_tables, seq_lens, **options)


class Straying(Listing):
    shift = 1


def test_a_list_of_slots_says_whom_a_program_serves() -> None:
    assert check_kernels(Listing, budget_seconds=1, laws={"reads-only-owned"}).verdict == "held"
    strayed = check_kernels(Straying, budget_seconds=5, laws={"reads-only-owned"}).law("reads-only-owned")
    assert strayed.verdict == "broken"
    assert "gather at" in strayed.reason


class Claiming(PlainTorch):
    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        return KernelCapabilities(features=frozenset({"decode", "alibi"}))


def test_a_feature_without_cases_is_not_called_held() -> None:
    report = check_kernels(Claiming, budget_seconds=1)
    assert report.law("feature alibi").verdict == "not-exercised"


class LatentsOnly(PlainTriton):
    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        return KernelCapabilities(gqa_ratios=(16,), features=frozenset({"mla", "copy"}), mla_sizes=((64, 16), (48, 8)))

    def attend(self, pool, query, block_tables, seq_lens, *, scale) -> torch.Tensor:
        assert pool.latent_size in (48, 64)
        assert pool.value.data_ptr() == pool.key.data_ptr()
        return super().attend(pool, query, block_tables, seq_lens, scale=scale)


def test_kernels_of_latents_alone_are_given_nothing_else() -> None:
    report = check_kernels(LatentsOnly, budget_seconds=1)
    assert report.verdict == "held", str(report)
    assert report.law("no-address-overflow").exercised == 3


class WithoutExtras(PlainTriton):
    """The signature of kernels that know neither sinks nor soft caps."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        return KernelCapabilities(features=frozenset({"decode", "prefill", "window"}))

    def attend(self, pool, query, block_tables, seq_lens, *, scale, query_lens=None, window=None) -> torch.Tensor:
        return super().attend(pool, query, block_tables, seq_lens, scale=scale, query_lens=query_lens, window=window)


def test_arguments_of_unclaimed_features_are_not_passed() -> None:
    report = check_kernels(WithoutExtras, budget_seconds=1, laws={"paged-equals-contiguous"})
    assert report.verdict == "held", str(report)


def test_laws_are_asked_for_by_name() -> None:
    with pytest.raises(ValueError, match="no kernel law called"):
        check_kernels(PlainTorch, laws={"in-bound"})
