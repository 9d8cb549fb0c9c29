"""Seeded bugs: the plain kernels with one line changed, and the law that the change must break.

Each bug is a replacement in the source of `kernels/plain`; where the text is no longer found, the bug fails loudly rather than testing
nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import kvproof.kernels.plain as plain

SOURCE = Path(plain.__file__).parent


@dataclasses.dataclass(frozen=True)
class Bug:
    """`changes`: (old, new) texts, in `kernels.py` or the adapter, whichever has them. `law` must be broken by it; `like` names a real bug
    of its kind.
    """

    law: str
    changes: tuple[tuple[str, str], ...]
    like: str = ""


def one(law: str, old: str, new: str, like: str = "") -> Bug:
    """A bug of a single change."""
    return Bug(law, ((old, new),), like)


BLOCK_LOAD = "block = tl.load(table_ptr + seq * table_stride + index).to(tl.int64)"
SCORE = "tl.sum(key * query[None, :], 1) * scale"
VALUE_LOAD = "tl.load(value_ptr + value_where, mask=seen[:, None] & value_within[None, :], other=0.0)"
KEY_LOAD = "tl.load(key_ptr + where, mask=seen[:, None] & within[None, :], other=0.0)"

BUGS: dict[str, Bug] = {
    "attend multiplies block ids in 32 bits": one("no-address-overflow", BLOCK_LOAD, BLOCK_LOAD.removesuffix(".to(tl.int64)"), "B37"),
    "store multiplies block ids in 32 bits": one(
        "no-address-overflow", "block = slot // BLOCK", "block = (slot // BLOCK).to(tl.int32)", "B37"
    ),
    "copy multiplies block ids in 32 bits": one(
        "no-address-overflow", "target = tl.load(pairs_ptr + pair * 2 + 1)", "target = tl.load(pairs_ptr + pair * 2 + 1).to(tl.int32)"
    ),
    "padding slots are written": one("writes-only-granted", "if slot < 0:", "if slot < -1:", "B34"),
    "padding slots wrap to the last block": one(
        "padding-inert", "if slot < 0:\n        return", "if slot < 0:\n        slot = slot + 16", "B34"
    ),
    "the current token is not attended to": one("paged-equals-contiguous", "(at <= position)", "(at < position)"),
    "one token too many is read": one("reads-only-owned", "(at <= position)", "(at <= position + 1)"),
    "values are loaded without a mask": one(
        "reads-only-owned",
        VALUE_LOAD,
        "tl.load(value_ptr + value_where, mask=value_within[None, :] & (offset < BLOCK)[:, None], other=0.0)",
        "B35",
    ),
    "unmasked values are multiplied by zero": one(
        "garbage-independent",
        VALUE_LOAD + ".to(tl.float32)",
        "tl.load(value_ptr + value_where, mask=value_within[None, :] & (offset < BLOCK)[:, None], other=0.0).to(tl.float32) * seen[:, None]",
        "B32",
    ),
    "keys are loaded without a mask": one(
        "reads-only-owned", KEY_LOAD, "tl.load(key_ptr + where, mask=within[None, :] & (offset < BLOCK)[:, None], other=0.0)"
    ),
    "the padded head is read": one("in-bounds", KEY_LOAD, "tl.load(key_ptr + where, mask=seen[:, None], other=0.0)"),
    "table entries past the sequence are followed": Bug(
        "in-bounds",
        (
            ("(position + BLOCK) // BLOCK):", "(position + BLOCK) // BLOCK + 1):"),
            (KEY_LOAD, "tl.load(key_ptr + where, mask=within[None, :] & (offset < BLOCK)[:, None], other=0.0)"),
        ),
    ),
    "the window starts one token early": one("paged-equals-contiguous", "position - WINDOW + 1", "position - WINDOW"),
    "the window is cut to whole blocks": one("paged-equals-contiguous", "(at >= first) & (at <= position)", "(at <= position)", "B65"),
    "query heads are dealt round": one("paged-equals-contiguous", "kv_head = head // RATIO", "kv_head = head % kv_heads"),
    "the last partial block is forgotten": one("paged-equals-contiguous", "(position + BLOCK) // BLOCK", "(position + 1) // BLOCK", "B89"),
    "scores are not taken off their largest": one(
        "paged-equals-contiguous", "new_largest = tl.maximum(largest, tl.max(score, 0))", "new_largest = tl.maximum(largest, 0.0)"
    ),
    "an assumption does not hold": one("paged-equals-contiguous", "first = 0\n", "first = 0\n    tl.assume(position > 0)\n"),
    "a row is not the multiple it promises": one(
        "paged-equals-contiguous",
        "kv_head = head // RATIO",
        "kv_head = tl.multiple_of(head + tl.program_id(0), 16) - tl.program_id(0)\n    kv_head = kv_head // RATIO",
    ),
    "sums are not rescaled": one("paged-equals-contiguous", "acc = acc * shrink + ", "acc = acc + "),
    "scores are kept in bfloat16": one(
        "paged-equals-contiguous",
        SCORE,
        "(tl.sum(key * query[None, :], 1) * scale).to(tl.bfloat16).to(tl.float32)",
    ),
    "sums are kept in bfloat16": one(
        "paged-equals-contiguous",
        "tl.sum(weight[:, None] * value, 0)\n",
        "tl.sum(weight[:, None] * value, 0)\n        acc = acc.to(tl.bfloat16).to(tl.float32)\n",
    ),
    "weights are kept in float16": one(
        "paged-equals-contiguous",
        "weight = tl.exp(score - new_largest)",
        "weight = tl.exp(score - new_largest).to(tl.float16).to(tl.float32)",
    ),
    "the softmax scale is forgotten": one("paged-equals-contiguous", SCORE, "tl.sum(key * query[None, :], 1)"),
    "the softmax scale is hard-wired": one("paged-equals-contiguous", SCORE, "tl.sum(key * query[None, :], 1) / tl.sqrt(HEAD + 0.0)"),
    "at most 64 blocks are read": one(
        "paged-equals-contiguous", "(position + BLOCK) // BLOCK)", "tl.minimum((position + BLOCK) // BLOCK, first // BLOCK + 64))"
    ),
    "one table entry too many is read": one("in-bounds", "(position + BLOCK) // BLOCK)", "(position + BLOCK) // BLOCK + 1)"),
    "an empty sequence divides by zero": one("padding-inert", "tl.where(total > 0, total, 1.0)", "total"),
    "an empty sequence leaves its row unwritten": one(
        "padding-inert",
        "    position = tl.load(row_position_ptr + row)\n",
        "    position = tl.load(row_position_ptr + row)\n    if position < 0:\n        return\n",
    ),
    "attention advances the lengths": one(
        "writes-only-granted", "out = query.new_empty(", "seq_lens.add_(1)\n        out = query.new_empty("
    ),
    "layouts are confused": one(
        "paged-equals-contiguous", "block, slot, head, _ = pool.slot_view(tensor).stride()", "block, slot, head, _ = tensor.stride()", "B40"
    ),
    "values are stored from keys": one(
        "paged-equals-contiguous",
        "(value, pool.value, pool.value_scale)):\n            block_stride",
        "(key, pool.value, pool.value_scale)):\n            block_stride",
    ),
    "store takes rows for contiguous": one(
        "paged-equals-contiguous", "source_ptr + token * token_stride", "source_ptr + token * kv_heads * HEAD"
    ),
    "store writes the padded head": one(
        "writes-only-granted",
        "tl.store(target, row.to(pool_ptr.dtype.element_ty), mask=lane < HEAD)",
        "tl.store(target, row.to(pool_ptr.dtype.element_ty))",
    ),
    "store takes blocks for powers of two": one("writes-only-granted", "block = slot // BLOCK", "block = slot // 16"),
    "at most 64 pairs are copied": one(
        "copy-is-complete", "copy_kernel[(len(pairs), outer, inner)]", "copy_kernel[(min(len(pairs), 64), outer, inner)]"
    ),
    "at most 1024 tokens are stored": one(
        "paged-equals-contiguous", "store_kernel[(len(slots), pool.kv_heads)]", "store_kernel[(min(len(slots), 1024), pool.kv_heads)]"
    ),
    "copies leave the scales behind": one(
        "copy-is-complete", "if scale is not None and scale.dim() > 1:", "if scale is not None and scale.dim() > 3:", "B82"
    ),
    "copies leave the values behind": one(
        "copy-is-complete",
        "for tensor in (pool.key, pool.value):\n            _copy",
        "for tensor in (pool.key,):\n            _copy",
        "B82",
    ),
    "copies run backwards": Bug(
        "writes-only-granted",
        (
            ("source = tl.load(pairs_ptr + pair * 2)\n", "source = tl.load(pairs_ptr + pair * 2 + 1)\n"),
            ("target = tl.load(pairs_ptr + pair * 2 + 1)", "target = tl.load(pairs_ptr + pair * 2)"),
        ),
    ),
    "copies move one token of a block": one(
        "copy-is-complete", "row = tl.program_id(1) * outer_stride + ", "row = 0 * outer_stride + ", "B38"
    ),
    "the value scale is forgotten on one path": one(
        "paged-equals-contiguous", "value = value * tl.load(value_scale_ptr)\n", "value = value * 1.0\n", "B59"
    ),
    "fp8 is scaled the wrong way": one(
        "quantised-within-bound", "row.to(tl.float32) / tl.load(scale_ptr)", "row.to(tl.float32) * tl.load(scale_ptr)"
    ),
    "int8 wastes a bit": one("quantised-within-bound", "largest / 127.0", "largest / 63.0"),
    "int8 divides rows of zeros by zero": one(
        "quantised-within-bound",
        "scale = tl.where(largest > 0, largest / 127.0, 1.0)\n        tl.store(scale_ptr + slot * kv_heads + head, scale)",
        "scale = largest / 127.0\n        tl.store(scale_ptr + slot * kv_heads + head, tl.where(largest > 0, scale, 1.0))",
    ),
    "int8 rounds down": one(
        "quantised-within-bound", "tl.where(scaled >= 0, tl.floor(scaled + 0.5), tl.ceil(scaled - 0.5))", "tl.floor(scaled)"
    ),
    "the table stride is taken for the length": one(
        "paged-equals-contiguous", BLOCK_LOAD, "block = tl.load(table_ptr + seq * tl.cdiv(position + 1, BLOCK) + index).to(tl.int64)"
    ),
    "heads of a row write over each other": one(
        "writes-only-granted", "(row * tl.num_programs(1) + head) * VALUE_HEAD", "row * tl.num_programs(1) * VALUE_HEAD"
    ),
    "a batch takes another path": one(
        "batch-invariant",
        SCORE,
        "tl.where(tl.num_programs(0) == 1, tl.sum(key * query[None, :], 1) * scale, tl.sum(key * (query * scale)[None, :], 1))",
    ),
    "block parity leaks into scores": one(
        "rename-invariant",
        SCORE,
        "tl.sum(key * query[None, :], 1) * (scale * (1.0 + 4e-7 * (block % 2)))",
    ),
    "sinks are forgotten": one("paged-equals-contiguous", "largest = tl.load(sink_ptr + head)\n        total = 1.0", "total = 0.0"),
    "sinks are scaled like scores": one("paged-equals-contiguous", "tl.load(sink_ptr + head)", "tl.load(sink_ptr + head) * scale"),
    "sinks are those of key heads": one("paged-equals-contiguous", "tl.load(sink_ptr + head)", "tl.load(sink_ptr + kv_head)"),
    "an empty sequence shows its sink": one(
        "padding-inert", "result = acc / tl.where(total > 0, total, 1.0)", "result = acc / tl.where(total > 0, total, 1.0) + (position < 0)"
    ),
    "the soft cap is a hard one": one(
        "paged-equals-contiguous", "cap * (2.0 * tl.sigmoid(2.0 * score / cap) - 1.0)", "tl.clamp(score, -cap, cap)"
    ),
    "the soft cap comes before the scale": one(
        "paged-equals-contiguous",
        "cap * (2.0 * tl.sigmoid(2.0 * score / cap) - 1.0)",
        "cap * (2.0 * tl.sigmoid(2.0 * score / scale / cap) - 1.0) * scale",
    ),
    "the rotary part of a latent is not scored": one("paged-equals-contiguous", "HEAD=pool.head_size,\n", "HEAD=value_size,\n"),
    "values of a latent are taken from its end": one(
        "paged-equals-contiguous", "value_slot_stride + value_lane[None, :]", "value_slot_stride + value_lane[None, :] + HEAD - VALUE_HEAD"
    ),
    "an empty sequence of a prefill takes a row": one(
        "paged-equals-contiguous", "torch.cumsum(query_lens.long(), 0)", "torch.cumsum(query_lens.clamp(min=1).long(), 0)"
    ),
    "prefill rows start at zero": one("paged-equals-contiguous", "((seq_lens - query_lens)[row_seq] + within)", "within"),
}


def build(name: str, directory: Path) -> type[Any]:
    """The faulty adapter, made from the changed sources in `directory`."""
    bug = BUGS[name]
    package = "faulty_" + "".join(char if char.isalnum() else "_" for char in name)
    kernels, adapter = ((SOURCE / file).read_text() for file in ("kernels.py", "triton_kernels.py"))
    for old, new in bug.changes:
        if (old in kernels) == (old in adapter):
            raise AssertionError(f"bug {name!r} does not fit the plain kernels any more: {old!r}")
        kernels, adapter = kernels.replace(old, new), adapter.replace(old, new)
    adapter = adapter.replace("kvproof.kernels.plain.kernels", f"{package}_kernels")
    _load(f"{package}_kernels", directory / f"{package}_kernels.py", kernels)
    module = _load(f"{package}_adapter", directory / f"{package}_adapter.py", adapter)
    return module.PlainTriton  # type: ignore[no-any-return]


def _load(name: str, path: Path, text: str) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
