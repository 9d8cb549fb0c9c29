"""Cases as data. A case is a few numbers; `build` turns it into tensors, always the same ones, so that a smaller case is the same case with
less in it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from kvproof.kernels.contract import KernelCapabilities

Operation: TypeAlias = Literal["attend", "store", "copy"]
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


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of a kernel.

    `lens`: tokens of each sequence (attend), or for store the number of tokens to each, 0 adding a padding row. `query_lens`: None for
    decode. `shared`: sequence 1 shares the leading whole blocks of sequence 0. `permuted`: physical blocks in random order. `interleaved`:
    keys and values are views into one tensor, inputs rows of a wider one. `spare`: unowned blocks beside the owned ones, a third of which
    hold `garbage` between them. `peaked`: large scores.
    """

    operation: Operation
    dtype: str = "float32"
    quantisation: Literal["", "fp8", "int8"] = ""
    layout: str = "NHD"
    block_size: int = 16
    head_size: int = 64
    kv_heads: int = 1
    ratio: int = 1
    lens: tuple[int, ...] = (1,)
    query_lens: tuple[int, ...] | None = None
    window: int | None = None
    shared: bool = False
    permuted: bool = False
    interleaved: bool = False
    peaked: bool = False
    garbage: Garbage = "nan"
    tail: Tail = "foreign"
    spare: int = 2
    seed: int = 0

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
        yield random_case(capabilities, rng)


def operations(capabilities: KernelCapabilities) -> list[str]:
    """Kinds of call that the capabilities allow."""
    kinds = ["store"]
    kinds += ["decode"] if "decode" in capabilities.features else []
    kinds += ["prefill"] if "prefill" in capabilities.features else []
    kinds += ["copy"] if "copy" in capabilities.features else []
    return kinds


def sweep(capabilities: KernelCapabilities, rng: random.Random) -> Iterator[Case]:
    """Every claimed value at least once with every operation, sequence lengths around block boundaries."""
    options: dict[str, list[Any]] = {
        "dtype": list(capabilities.dtypes),
        "layout": list(capabilities.layouts),
        "block_size": list(capabilities.block_sizes),
        "head_size": list(capabilities.head_sizes),
        "ratio": list(capabilities.gqa_ratios),
        "quantisation": ["", *(name for name in ("fp8", "int8") if name in capabilities.features)],
    }
    rounds = max(2, *(len(values) for values in options.values()))
    for turn in range(rounds):
        for kind in operations(capabilities):
            chosen = {name: values[turn % len(values)] for name, values in options.items()}
            block = int(chosen["block_size"])
            lens = (2 * block + 3, block, 1, block + 1, 0, max(1, block - 1)) if turn % 2 == 0 else (0, LONGEST_TOKENS, block + 1, 1)
            base = Case("attend", **chosen, lens=lens, kv_heads=1 + turn % 2, permuted=True, seed=rng.randrange(1 << 16))
            case = _as_kind(base, kind, capabilities, rng, turn)
            yield case
            if turn == 0:
                # A loop over a thousand blocks of one token takes seconds and shows no more than one over three hundred.
                longest = LONG_TOKENS if case.operation != "attend" else min(LONG_TOKENS, max(300, 80 * block))
                yield dataclasses.replace(case, lens=(longest, 1), query_lens=(20, 1) if kind == "prefill" else None)
            if turn == 0 and kind != "prefill":
                yield dataclasses.replace(case, lens=tuple(1 + at % (2 * block) for at in range(MANY_SEQUENCES)), interleaved=True)


def random_case(capabilities: KernelCapabilities, rng: random.Random) -> Case:
    """One case with everything chosen at random."""
    block = rng.choice(list(capabilities.block_sizes))
    edges = [0, 1, max(1, block - 1), block, block + 1, 2 * block, LONGEST_TOKENS]
    lens = tuple(rng.choice([*edges, rng.randint(1, 4 * block)]) for _ in range(rng.randint(1, 6)))
    quantised: list[Any] = ["", *(name for name in ("fp8", "int8") if name in capabilities.features)]
    case = Case(
        "attend",
        dtype=rng.choice(list(capabilities.dtypes)),
        quantisation=rng.choice(quantised),
        layout=rng.choice(list(capabilities.layouts)),
        block_size=block,
        head_size=rng.choice(list(capabilities.head_sizes)),
        kv_heads=rng.choice([1, 2, 3]),
        ratio=rng.choice(list(capabilities.gqa_ratios)),
        lens=lens,
        permuted=rng.random() < 0.8,
        interleaved=rng.random() < 0.3,
        garbage=rng.choice(["nan", "nan", "inf", "huge"]),
        seed=rng.randrange(1 << 16),
    )
    return _as_kind(case, rng.choice(operations(capabilities)), capabilities, rng, rng.randrange(8))


def _as_kind(case: Case, kind: str, capabilities: KernelCapabilities, rng: random.Random, turn: int) -> Case:
    tail: Tail = "wild" if turn % 3 == 2 else "foreign"
    case = dataclasses.replace(case, peaked=turn % 2 == 1, tail=tail, interleaved=case.interleaved or turn % 4 == 3, shared=turn % 2 == 0)
    if kind in ("store", "copy"):
        return dataclasses.replace(case, operation=kind, peaked=False, shared=False)  # type: ignore[arg-type]
    if "window" in capabilities.features and turn % 2 == 1:
        case = dataclasses.replace(case, window=rng.choice([1, case.block_size, case.block_size + 3, 2 * case.block_size]))
    if kind == "prefill":
        lens = tuple(length or 1 for length in case.lens)
        queries = tuple(rng.choice([length, 1, max(1, length // 2)]) if length <= 40 else rng.randint(1, 20) for length in lens)
        return dataclasses.replace(case, lens=lens, query_lens=queries)
    return case


def simpler(case: Case, capabilities: KernelCapabilities) -> Iterator[Case]:
    """Cases with a little less in them, the boldest first; nothing that is not claimed."""
    yield from _fewer_sequences(case)
    yield from _shorter_sequences(case)
    yield from _fewer_queries(case)
    plain = Case(case.operation)
    for name in ("shared", "interleaved", "permuted", "peaked", "window", "tail", "spare", "kv_heads", "ratio"):
        if getattr(case, name) != getattr(plain, name) and (name != "ratio" or 1 in capabilities.gqa_ratios):
            yield _with(case, name, getattr(plain, name))
    plainest: dict[str, object] = {
        "quantisation": "",
        "dtype": capabilities.dtypes[0],
        "layout": capabilities.layouts[0],
        "block_size": min(capabilities.block_sizes),
        "head_size": min(capabilities.head_sizes),
        "seed": 0,
    }
    for name, value in plainest.items():
        if getattr(case, name) != value:
            yield _with(case, name, value)


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
