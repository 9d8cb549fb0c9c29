"""What the paged kernels refuse, each in one sentence: both paths ask here before they touch a tensor.

Shapes, types and strides alone are looked at, never contents, so that nothing waits for a device and every call can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from kvproof.kernels.contract import LAYOUTS, KVPool
from kvproof.kernels.lowbit import PAGED, RINGS, LowBitPool
from kvproof.kernels.paged.memory import LARGEST

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Types of keys, values and queries that are not quantised."""

WIDEST_HEAD, MOST_HEADS, MOST_IN_A_GRID = 256, 128, 65_535
"""What the Triton kernels take: elements of a head and query heads of a key head, by the registers of a program, and sequences of a batch, by the
limit of a grid.
"""


def check_layout(pool: KVPool) -> None:
    """Raise ValueError where the tensors of a pool do not lie as it says: all that copies and moves need, which know no numbers."""
    if pool.layout not in LAYOUTS:
        _refuse(f"A pool's layout is one of {', '.join(LAYOUTS)}, got {pool.layout!r}.")
    if pool.key.dim() != 4 or pool.value.dim() != 4 or pool.key.shape[:3] != pool.value.shape[:3]:
        _refuse(f"Keys and values of a pool have four dimensions, the first three alike, got {_of(pool.key)} and {_of(pool.value)}.")
    if min(pool.key.shape[1:]) < 1:
        _refuse(f"A block has at least one token, head and element, got {_of(pool.key)}.")
    if pool.block_size != pool.slot_view(pool.key).shape[1]:
        _refuse(
            f"The pool says blocks of {pool.block_size} tokens, but its keys {_of(pool.key)} in layout {pool.layout} have blocks of "
            f"{pool.slot_view(pool.key).shape[1]}."
        )
    _check_rows(pool.key, "keys")
    _check_rows(pool.value, "values")
    within = pool.value.data_ptr() == pool.key.data_ptr() and pool.value.stride() == pool.key.stride()
    if pool.latent_size is not None and (pool.kv_heads != 1 or pool.latent_size > pool.head_size or not within):
        _refuse(
            f"Keys of {pool.head_size} elements and values of {pool.latent_size} are a pool of latents: one head, and values are the first elements "
            f"of the keys in the same memory. Here they are something else."
        )


def check_pool(pool: KVPool) -> None:
    """Raise ValueError where a pool does not hold numbers that can be stored and read: the same, their type, and the scales that belong to it."""
    check_layout(pool)
    if pool.key.dtype != pool.value.dtype or pool.key.dtype not in (*FLOATS, *LARGEST):
        _refuse(
            f"Keys and values of a pool are both float32, float16, bfloat16, int8 or float8_e4m3fn, got {pool.key.dtype} and {pool.value.dtype}."
        )
    _check_scales(pool)


def _check_scales(pool: KVPool) -> None:
    scales = [scale for scale in (pool.key_scale, pool.value_scale) if scale is not None]
    quantised = pool.key.dtype in LARGEST
    if len(scales) != 2 * quantised:
        _refuse(f"A pool of {pool.key.dtype} has {'scales of keys and of values' if quantised else 'no scales'}, got {len(scales)} of 2.")
    each = (pool.blocks, pool.block_size, pool.kv_heads)
    for scale in scales:
        if scale.dtype != torch.float32 or tuple(scale.shape) not in ((1,), each) or scale.shape != scales[0].shape:
            _refuse(f"Scales are float32, [1] or {list(each)} for keys and for values alike, got {scale.dtype} {_of(scale)}.")


def check_kernel_scales(pool: KVPool) -> None:
    """Raise ValueError for scales of a pool that the kernels do not find their way in."""
    for scale in (pool.key_scale, pool.value_scale):
        if scale is not None and not scale.is_contiguous():
            _refuse(
                f"The kernels take scales that are contiguous, got {_of(scale)} with strides {list(scale.stride())}; store them on their own."
            )


def check_store(pool: KVPool, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Raise ValueError where new rows do not fit the pool."""
    check_pool(pool)
    check_slots(slots)
    for name, rows, size in (("keys", key, pool.head_size), ("values", value, pool.value.shape[3])):
        _check_new(rows, name, [len(slots), pool.kv_heads, size])


def check_attention(
    pool: KVPool | LowBitPool,
    query: torch.Tensor,
    tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_lens: torch.Tensor | None,
    window: int | None,
    sinks: torch.Tensor | None,
    soft_cap: float | None,
) -> None:
    """Raise ValueError where a request for attention does not fit the pool, which was checked before, or itself."""
    if query.dim() != 3 or query.shape[2] != pool.head_size or query.dtype not in FLOATS:
        _refuse(f"Queries are [rows, query heads, {pool.head_size}] in float32, float16 or bfloat16, got {query.dtype} {_of(query)}.")
    if query.shape[1] == 0 or query.shape[1] % pool.kv_heads:
        _refuse(f"Each key head has equally many query heads, but {query.shape[1]} query heads do not share {pool.kv_heads} key heads.")
    _check_rows(query, "queries")
    if tables.dim() != 2 or seq_lens.dim() != 1 or len(tables) != len(seq_lens):
        _refuse(f"Block tables are [seqs, blocks] and lengths [seqs], got {_of(tables)} and {_of(seq_lens)}.")
    _check_rows(tables, "block tables")
    counts = query if query_lens is None else query_lens
    if len(counts) != len(seq_lens):
        what = "query rows of a decode" if query_lens is None else "query lengths"
        _refuse(f"There are {len(counts)} {what} for {len(seq_lens)} sequences; each sequence has one.")
    if len(seq_lens) == 0 and len(query):
        _refuse(f"There is no sequence for {len(query)} query rows.")
    if window is not None and window < 1:
        _refuse(f"A window holds at least the token itself, got {window}; None is no window.")
    if soft_cap is not None and not soft_cap > 0:
        _refuse(f"A soft cap is above 0, got {soft_cap}; None is no cap.")
    if sinks is not None and tuple(sinks.shape) != (query.shape[1],):
        _refuse(f"Sinks are one number for each query head, [{query.shape[1]}], got {_of(sinks)}.")


def check_kernel_attend(pool: KVPool, query: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """Raise ValueError where only the torch path can do what is asked."""
    check_kernel_scales(pool)
    ratio = query.shape[1] // pool.kv_heads
    if pool.latent_size is None and (pool.head_size > WIDEST_HEAD or ratio > MOST_HEADS):
        _refuse(
            f"The kernels take heads of up to {WIDEST_HEAD} elements and up to {MOST_HEADS} query heads for a key head, got {pool.head_size} and "
            f"{ratio}; PagedTorch takes any."
        )
    check_grid(seq_lens)


def check_low_bit_store(pool: LowBitPool, key: torch.Tensor, value: torch.Tensor) -> None:
    """Raise ValueError where new rows do not fit a pool of low bits."""
    for name, rows in (("keys", key), ("values", value)):
        _check_new(rows, name, [len(key), pool.kv_heads, pool.head_size])


def check_low_bit_strides(pool: LowBitPool) -> None:
    """Raise ValueError where keys and values of a pool of low bits lie differently: the kernels take one set of strides for both."""
    for key, value in ((PAGED[0], PAGED[1]), (PAGED[2], PAGED[3]), (PAGED[4], PAGED[5]), RINGS):
        strides = [list(getattr(pool, name).stride()) for name in (key, value)]
        if strides[0] != strides[1]:
            _refuse(f"The kernels take pools whose {key} and {value} have the same strides, got {strides[0]} and {strides[1]}.")


def check_move(
    origins: Sequence[torch.Tensor], goals: Sequence[torch.Tensor], source_slots: torch.Tensor, target_slots: torch.Tensor
) -> None:
    """Raise ValueError where the rows of tensors `[blocks, block_size, heads, elements]` do not fit into others, or the slots do not belong together."""
    kinds = [[f"{tensor.dtype} {list(tensor.shape[2:])}" for tensor in tensors] for tensors in (origins, goals)]
    if kinds[0] != kinds[1]:
        _refuse(
            f"Rows move between equal types, heads and elements, scales along with them; got {', '.join(kinds[0])} to {', '.join(kinds[1])}."
        )
    check_slots(source_slots)
    check_slots(target_slots)
    if len(source_slots) != len(target_slots):
        _refuse(f"Each row has a source and a target slot, got {len(source_slots)} and {len(target_slots)}.")


def check_scatter(rows: Sequence[torch.Tensor], goals: Sequence[torch.Tensor], slots: torch.Tensor) -> None:
    """Raise ValueError where contiguous rows `[tokens, heads, elements]` do not fit the slots of a pool."""
    check_move([values.unsqueeze(1) for values in rows], goals, slots, slots)
    for values in rows:
        if len(values) != len(slots):
            _refuse(f"There are {len(values)} rows for {len(slots)} slots; each slot has one.")
        _check_rows(values, "rows")


def check_slots(slots: torch.Tensor) -> None:
    """Raise ValueError for what are no slots."""
    if slots.dim() != 1 or slots.is_floating_point():
        _refuse(f"Slots are integers [tokens], got {slots.dtype} {_of(slots)}.")


def check_pairs(pairs: torch.Tensor) -> None:
    """Raise ValueError for what are no pairs of blocks."""
    if pairs.dim() != 2 or pairs.shape[1] != 2 or pairs.dtype not in (torch.int64, torch.int32):
        _refuse(f"Pairs of blocks are integers [n, 2], source and destination, got {pairs.dtype} {_of(pairs)}.")


def check_grid(batch: torch.Tensor) -> None:
    """Raise ValueError for more sequences, or with low bits query rows, than a grid takes."""
    if len(batch) > MOST_IN_A_GRID:
        _refuse(
            f"The kernels take up to {MOST_IN_A_GRID} sequences (with low bits query rows) at a time, got {len(batch)}; split the batch."
        )


def _check_new(rows: torch.Tensor, name: str, shape: list[int]) -> None:
    if list(rows.shape) != shape:
        _refuse(f"New {name} are [tokens, key heads, elements], here {shape}, got {_of(rows)}.")
    _check_rows(rows, f"new {name}")


def _check_rows(tensor: torch.Tensor, name: str) -> None:
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        _refuse(f"The last dimension of {name} is contiguous, got strides {list(tensor.stride())}.")


def _of(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))


def _refuse(sentence: str) -> NoReturn:
    raise ValueError(sentence)
