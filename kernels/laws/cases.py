"""Cases as data. A case is a few numbers; `build` turns it into tensors, always the same ones, so that a smaller case is the same case with
less in it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kvproof.kernels.contract import MOVES, KernelCapabilities, fitting
from kvproof.kernels.lowbit import LowBitScheme

if TYPE_CHECKING:
    import torch

Operation: TypeAlias = Literal["attend", "store", "copy", "gather", "scatter", "move"]
Garbage: TypeAlias = Literal["zero", "nan", "inf", "huge"]
"""What slots hold that no sequence owns."""
Tail: TypeAlias = Literal["zero", "foreign", "wild"]
"""Table entries past a sequence's blocks: 0, blocks of others, or no block at all."""

LONGEST_TOKENS = 200
"""A dozen blocks of 16: long enough for rounding errors of a narrow accumulator to show, short enough for hundreds of cases in a minute."""


LONG_TOKENS = 1100
"""One sequence beyond a thousand tokens: fixed numbers of tiles, tokens or pairs and sums in half precision show here."""

MANY_SEQUENCES = 33
"""One batch of more than 32 sequences: what takes a warp's width for the batch shows here."""


SOFT_CAPS = (2.0, 30.0)
"""One that bends most scores, and one as models have it, which bends large scores only."""

PEAKS = (6.0, 48.0)
"""Factors of the queries of peaked cases, sequence by sequence in turn: scores of twenty, and scores beyond 88, where `exp` of float32 overflows
unless the largest score is taken from all of them first.
"""

ZERO_ROWS_EVERY = 9
"""Of rows that are quantised some are zeros, which have no largest magnitude to divide by: of keys and of values those of different tokens,
and of the first head alone.
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of a kernel.

    `lens`: tokens of each sequence (attend), or for store the number of tokens to each, 0 adding a padding row. `query_lens`: None for
    decode. `shared`: sequence 1 shares the leading whole blocks of sequence 0. `permuted`: physical blocks in random order. `interleaved`:
    keys and values are views into one tensor, inputs rows of a wider one. `spare`: unowned blocks beside the owned ones, a third of which
    hold `garbage` between them. `peaked`: large scores. `cancelling`: values of a
    sequence's second half take back those of the first, so that of its output little but rounding is left: its bits then show any other
    order of summation. `rope`: elements of the rotary part of an MLA pool, whose latents then have
    `head_size` elements; 0 for other pools. `low_bits`: fields of a `LowBitScheme`, and the pool is one of it. `freed`: blocks that the window
    has passed are nobody's. `target`: layout, block size and further heads of the pool that a move goes to.
    """

    operation: Operation
    dtype: str = "float32"
    quantisation: Literal["", "fp8", "fp8-token", "int8"] = ""
    layout: str = "NHD"
    block_size: int = 16
    head_size: int = 64
    kv_heads: int = 1
    ratio: int = 1
    lens: tuple[int, ...] = (1,)
    query_lens: tuple[int, ...] | None = None
    window: int | None = None
    sinks: bool = False
    soft_cap: float | None = None
    rope: int = 0
    low_bits: tuple[int, int, int, int, str] | None = None
    freed: bool = False
    target: tuple[str, int, int] | None = None
    shared: bool = False
    permuted: bool = False
    interleaved: bool = False
    peaked: bool = False
    cancelling: bool = False
    garbage: Garbage = "nan"
    tail: Tail = "foreign"
    spare: int = 2
    seed: int = 0

    def attention_options(self, scale: float, query_lens: torch.Tensor | None, sinks: torch.Tensor | None) -> dict[str, Any]:
        """Keyword arguments of attention, only those that the case has: an adapter need not know the others."""
        options = {"query_lens": query_lens, "window": self.window, "sinks": sinks, "soft_cap": self.soft_cap}
        return {"scale": scale} | {name: value for name, value in options.items() if value is not None}

    def peak(self, seq: int) -> float:
        """What the queries of a sequence are multiplied by."""
        return PEAKS[seq % len(PEAKS)] if self.peaked else 1.0

    @property
    def key_size(self) -> int:
        """Elements of one head of a key or a query."""
        return self.head_size + self.rope

    def __str__(self) -> str:
        """Only what differs from the plainest case."""
        plain = Case(self.operation)
        fields = [f.name for f in dataclasses.fields(self) if f.name != "operation" and getattr(self, f.name) != getattr(plain, f.name)]
        return f"Case({self.operation!r}" + "".join(f", {name}={getattr(self, name)!r}" for name in fields) + ")"


def generate(capabilities: KernelCapabilities, seed: int) -> Iterator[Case]:
    """Cases without end: first a sweep over every claimed value at the boundary lengths, then random ones."""
    rng = random.Random(seed)
    yield from sweep(capabilities, rng)
    while True:
        yield allowed(random_case(capabilities, rng), capabilities)


def allowed(case: Case, capabilities: KernelCapabilities) -> Case:
    """The case without what the capabilities exclude. Scales of int8 are laid out as `[blocks, block_size, kv_heads]` by convention alone, so
    int8 pools have the layout that agrees with it where it is claimed, unless `hnd-scales` is claimed as well.
    """
    if "contiguous-pools" in capabilities.features:
        case = dataclasses.replace(case, interleaved=False)
    if case.quantisation == "int8" and "NHD" in capabilities.layouts and "hnd-scales" not in capabilities.features:
        target = case.target and ("NHD", *case.target[1:])
        case = dataclasses.replace(case, layout="NHD", target=target)
    return case


@dataclasses.dataclass(frozen=True)
class Family:
    """Pools of one kind, and what can be asked of kernels that claim them. `sizes`: elements of a head (of the latent) and of the rotary
    part. `low_bits`: a scheme with a block size that fits it, for pools of that kind.
    """

    kinds: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    quantisations: tuple[Any, ...]
    low_bits: tuple[Any, ...] = (None,)
    blocks: tuple[int, ...] = ()


def families(capabilities: KernelCapabilities) -> list[Family]:
    """The kinds of pool that the capabilities allow: keys and values, latents, or both."""
    features = capabilities.features
    copy = ("copy",) if "copy" in features else ()
    moves = tuple(kind for kind in MOVES if kind in features)
    attention = tuple(kind for kind in ("decode", "prefill") if kind in features)
    quantised = tuple(name for name in ("fp8", "fp8-token", "int8") if name in features)
    found = []
    if attention or not {"mla", "low-bits"} & set(features):
        found.append(Family(("store", *attention, *copy, *moves), tuple((size, 0) for size in capabilities.head_sizes), ("", *quantised)))
    if "mla" in features:
        kinds = ("store", "decode", *(("prefill",) if "mla-prefill" in features else ()), *copy, *moves)
        sizes = tuple((latent, rope) for latent, rope in capabilities.mla_sizes)
        found.append(Family(kinds, sizes, ("", *(quantised if "mla-quantised" in features else ()))))
    if "low-bits" in features:
        kinds = ("store", "decode", *(kind for kind in attention if kind == "prefill"), *copy)
        for scheme, block, head in _told_apart(capabilities):
            found.append(Family(kinds, ((head, 0),), ("",), (dataclasses.astuple(scheme),), (block,)))
    return found


def _told_apart(capabilities: KernelCapabilities) -> list[tuple[LowBitScheme, int, int]]:
    """Of each low-bit scheme the first and the last block and head size that fit it: all of them would be most of a check."""
    found = fitting(capabilities)
    chosen: list[tuple[LowBitScheme, int, int]] = []
    for scheme in dict.fromkeys(scheme for scheme, _, _ in found):
        fits = [fit for fit in found if fit[0] == scheme]
        chosen += dict.fromkeys((fits[0], fits[-1]))
    return chosen


def sweep(capabilities: KernelCapabilities, rng: random.Random) -> Iterator[Case]:
    """Every claimed value at least once with every operation, sequence lengths around block boundaries."""
    for family in families(capabilities):
        for case in _sweep_family(capabilities, family, rng):
            yield allowed(case, capabilities)


def _sweep_family(capabilities: KernelCapabilities, family: Family, rng: random.Random) -> Iterator[Case]:
    options: dict[str, list[Any]] = {
        "dtype": list(capabilities.dtypes),
        "layout": list(capabilities.layouts),
        "block_size": list(family.blocks or capabilities.block_sizes),
        "head_size": list(family.sizes),
        "ratio": list(capabilities.gqa_ratios),
        "quantisation": list(family.quantisations),
        "low_bits": list(family.low_bits),
    }
    # Low-bit pools are many families, one for each scheme and size that fits it.
    rounds = 2 if family.blocks else max(2, *(len(values) for values in options.values()))
    for turn in range(rounds):
        for kind in family.kinds:
            chosen = {name: values[turn % len(values)] for name, values in options.items()}
            chosen["head_size"], chosen["rope"] = chosen["head_size"]
            block = int(chosen["block_size"])
            lens: tuple[int, ...] = (
                (2 * block + 3, block, 1, block + 1, 0, max(1, block - 1)) if turn % 2 == 0 else (0, LONGEST_TOKENS, block + 1, 1)
            )
            if family.blocks:
                lens = _low_bit_lens(chosen["low_bits"], turn)
            heads = 1 if chosen["rope"] else 1 + turn % 2
            base = Case("attend", **chosen, lens=lens, kv_heads=heads, permuted=True, seed=rng.randrange(1 << 16))
            case = _as_kind(base, kind, capabilities, rng, turn)
            yield case
            if family.blocks:
                continue
            if turn == 1 and case.operation == "attend" and not case.rope and "sinks" in capabilities.features:
                # A sink belongs to a query head, and in the turn before there may have been one of these for each key head.
                yield dataclasses.replace(case, sinks=True)
            if kind == "prefill":
                # As drafts are verified: a few tokens at the end of each sequence.
                yield dataclasses.replace(case, query_lens=tuple(min(length, 5 + at % 2) for at, length in enumerate(case.lens)))
            if turn == 0 and kind not in MOVES:
                # A loop over a thousand blocks of one token takes seconds and shows no more than one over three hundred.
                longest = LONG_TOKENS if case.operation != "attend" else min(LONG_TOKENS, max(300, 80 * block))
                long = dataclasses.replace(case, lens=(longest, 1))
                if kind == "prefill":
                    # A few tokens over a long context beside a longer run: kernels that tell them apart must do so by the sequence.
                    long = dataclasses.replace(case, lens=(LONGEST_TOKENS, longest, 1), query_lens=(5, 20, 1), cancelling=True)
                yield long
            if turn == 0 and kind not in ("prefill", *MOVES):
                # A long sequence among many short ones: alone it is computed otherwise by kernels that look at the size of the batch.
                many = (LONGEST_TOKENS, *(1 + at % (2 * block) for at in range(MANY_SEQUENCES - 1)))
                yield dataclasses.replace(case, lens=many, interleaved=True, cancelling=kind == "decode")


def _low_bit_lens(scheme: tuple[int, int, int, int, str], turn: int) -> tuple[int, ...]:
    """Around the end of the window and around whole groups."""
    _, group, _, recent, _ = scheme
    if turn % 2 == 0:
        return (recent + 3 * group + 5, 0, recent + group, 1, recent + 1)
    return (recent + group + 1, recent + 5 * group, group, 0)


def random_case(capabilities: KernelCapabilities, rng: random.Random) -> Case:
    """One case with everything chosen at random."""
    block = rng.choice(list(capabilities.block_sizes))
    edges = [0, 1, max(1, block - 1), block, block + 1, 2 * block, LONGEST_TOKENS]
    lens = tuple(rng.choice([*edges, rng.randint(1, 4 * block)]) for _ in range(rng.randint(1, 6)))
    family = _random_family(capabilities, rng)
    head_size, rope = rng.choice(family.sizes)
    low_bits = rng.choice(family.low_bits)
    if low_bits is not None:
        block = family.blocks[0]
        pool = [*_low_bit_lens(low_bits, 0), *_low_bit_lens(low_bits, 1), rng.randint(1, low_bits[3] + 4 * low_bits[1])]
        lens = tuple(rng.choice(pool) for _ in range(rng.randint(1, 4)))
    case = Case(
        "attend",
        dtype=rng.choice(list(capabilities.dtypes)),
        quantisation=rng.choice(family.quantisations),
        layout=rng.choice(list(capabilities.layouts)),
        block_size=block,
        head_size=head_size,
        rope=rope,
        low_bits=low_bits,
        kv_heads=1 if rope else rng.choice([1, 2, 3]),
        ratio=rng.choice(list(capabilities.gqa_ratios)),
        lens=lens,
        permuted=rng.random() < 0.8,
        interleaved=rng.random() < 0.3,
        cancelling=rng.random() < 0.2,
        garbage=rng.choice(["nan", "nan", "inf", "huge"]),
        seed=rng.randrange(1 << 16),
    )
    return _as_kind(case, rng.choice(family.kinds), capabilities, rng, rng.randrange(8))


def _random_family(capabilities: KernelCapabilities, rng: random.Random) -> Family:
    """Any kind of pool as often as another; of low-bit pools there are many families."""
    found = families(capabilities)
    low = [family for family in found if family.blocks]
    others = [family for family in found if not family.blocks]
    return rng.choice(low) if low and rng.random() < 1 / (1 + len(others)) else rng.choice(others or low)


def _as_kind(case: Case, kind: str, capabilities: KernelCapabilities, rng: random.Random, turn: int) -> Case:
    tail: Tail = "wild" if turn % 3 == 2 else "foreign"
    case = dataclasses.replace(case, peaked=turn % 2 == 1, tail=tail, interleaved=case.interleaved or turn % 4 == 3, shared=turn % 2 == 0)
    if case.low_bits:
        case = dataclasses.replace(case, shared=False, interleaved=False, cancelling=False)
    if kind in ("store", "copy", *MOVES):
        case = dataclasses.replace(case, operation=kind, peaked=False, shared=False, cancelling=False)  # type: ignore[arg-type]
        return dataclasses.replace(case, target=_target(case, capabilities, rng)) if kind == "move" else case
    if not case.rope:
        case = _with_options(case, capabilities, rng, turn)
    if kind == "prefill":
        # In every other turn empty sequences stay, without a query, as padded lanes of captured graphs do.
        lens = case.lens if turn % 2 == 0 and any(case.lens) else tuple(length or 1 for length in case.lens)
        queries = tuple(
            rng.choice([length, min(length, 1), max(min(length, 1), length // 2)]) if length <= 40 else rng.randint(1, 20)
            for length in lens
        )
        return dataclasses.replace(case, lens=lens, query_lens=queries)
    return case


def _target(case: Case, capabilities: KernelCapabilities, rng: random.Random) -> tuple[str, int, int]:
    """Another layout and block size where they are claimed, and in every other pool more heads than the source has."""
    layouts = [name for name in capabilities.layouts if name != case.layout] or [case.layout]
    blocks = [size for size in capabilities.block_sizes if size != case.block_size] or [case.block_size]
    wider = 0 if case.rope or "contiguous-pools" in capabilities.features else rng.choice([0, 1, 2])
    return rng.choice(layouts), rng.choice(blocks), wider


def _with_options(case: Case, capabilities: KernelCapabilities, rng: random.Random, turn: int) -> Case:
    """Window, sinks and soft cap where they are claimed: alone and together, both within the first two turns."""
    if "window" in capabilities.features and turn % 2 == 1:
        case = dataclasses.replace(case, window=rng.choice([1, case.block_size, case.block_size + 3, 2 * case.block_size]))
        case = dataclasses.replace(case, freed="freed-windows" in capabilities.features)
    if "sinks" in capabilities.features and turn % 4 in (0, 3):
        case = dataclasses.replace(case, sinks=True)
    if "soft-cap" in capabilities.features and turn % 4 in (1, 3):
        case = dataclasses.replace(case, soft_cap=rng.choice(SOFT_CAPS))
    return case


def simpler(case: Case, capabilities: KernelCapabilities) -> Iterator[Case]:
    """Cases with a little less in them, the boldest first; nothing that is not claimed."""
    yield from _fewer_sequences(case)
    yield from _shorter_sequences(case)
    yield from _fewer_queries(case)
    plain = Case(case.operation)
    for name in (
        "shared",
        "interleaved",
        "permuted",
        "peaked",
        "cancelling",
        "freed",
        "window",
        "sinks",
        "soft_cap",
        "tail",
        "spare",
        "kv_heads",
        "ratio",
    ):
        if getattr(case, name) != getattr(plain, name) and (name != "ratio" or 1 in capabilities.gqa_ratios):
            yield _with(case, name, getattr(plain, name))
    if case.target and case.target != (case.layout, case.block_size, 0):
        yield _with(case, "target", (case.layout, case.block_size, 0))
    plainest: dict[str, object] = {
        "quantisation": "",
        "dtype": capabilities.dtypes[0],
        "layout": capabilities.layouts[0],
        "block_size": min(capabilities.block_sizes),
        "head_size": case.head_size if case.rope else min(capabilities.head_sizes),
        "seed": 0,
    }
    for name, value in plainest.items():
        sized = case.low_bits is not None and name in ("block_size", "head_size")
        if getattr(case, name) != value and not sized:
            yield allowed(_with(case, name, value), capabilities)


def _with(case: Case, name: str, value: Any) -> Case:  # noqa: ANN401 - the field's own type
    return dataclasses.replace(case, **{name: value})


def _fewer_sequences(case: Case) -> Iterator[Case]:
    for at in range(len(case.lens)):
        if len(case.lens) > 1:
            queries = None if case.query_lens is None else case.query_lens[:at] + case.query_lens[at + 1 :]
            yield dataclasses.replace(case, lens=case.lens[:at] + case.lens[at + 1 :], query_lens=queries)


def _shorter_sequences(case: Case) -> Iterator[Case]:
    for at, length in enumerate(case.lens):
        query = 0 if case.query_lens is None else case.query_lens[at]
        for shorter in sorted({1, length // 2, length - case.block_size, length - 1}):
            if max(0, query) <= shorter < length:
                yield dataclasses.replace(case, lens=(*case.lens[:at], shorter, *case.lens[at + 1 :]))


def _fewer_queries(case: Case) -> Iterator[Case]:
    for at, query in enumerate(case.query_lens or ()):
        assert case.query_lens is not None
        for fewer in sorted({1, query // 2, query - 1}):
            if 1 <= fewer < query:
                yield dataclasses.replace(case, query_lens=(*case.query_lens[:at], fewer, *case.query_lens[at + 1 :]))
