"""Seeded bugs of the paged kernels: one line of `kernels/paged` changed, and the law that the change must break.

The package is written out with the change, under a name of its own. Where a text is no longer found in exactly one file, the bug fails
loudly rather than testing nothing. Faulty kernels claim small shapes: bugs show there as well, and in a tenth of the time.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import kvproof.kernels.paged as paged
from kvproof.kernels.contract import ALLOWANCES, FEATURES, KernelCapabilities
from kvproof.kernels.lowbit import LowBitScheme
from kvproof.properties.kernels.bugs import Bug, one

SOURCE = Path(paged.__file__).parent

EQUALS, OWNED, PADDING = "paged-equals-contiguous", "reads-only-owned", "padding-inert"
BOUND, COPY, RELAYOUT = "quantised-within-bound", "copy-is-complete", "relayout-is-bijection"

PAGED_BUGS: dict[str, Bug] = {
    # Walking the block table.
    "tiles multiply block ids in 32 bits": one(
        "no-address-overflow",
        "return block.to(tl.uint32).to(tl.int64), ",
        "return block, ",
        "B37",
    ),
    "tiles look up one block for all lanes": one(
        EQUALS, "tl.load(table_row + (at // BLOCK).to(tl.int32)", "tl.load(table_row + (tl.min(at, 0) // BLOCK + at * 0).to(tl.int32)"
    ),
    "tiles take block sizes for powers of two": one(OWNED, ", (at % BLOCK).to(tl.int64)", ", (at & (BLOCK - 1)).to(tl.int64)"),
    "tiles look up unseen positions": one("in-bounds", "(at // BLOCK).to(tl.int32), mask=seen, other=0)", "(at // BLOCK).to(tl.int32))"),
    "padded lanes of a head are read": one(
        "in-bounds", "mask = seen[:, None] & (lane < HEAD)[None, :]\n    return", "mask = seen[:, None] & (lane < PADDED)[None, :]\n    return"
    ),
    # Split decode and its merge.
    "splits begin a tile late": one(EQUALS, "start = first // TILE * TILE + split * SPLIT", "start = first // TILE * TILE + split * (SPLIT + TILE)"),
    "splits read past the sequence": one(
        OWNED, "stop = tl.minimum(start + SPLIT, length)\n    if not SINGLE:\n        if start >= length:\n            return\n    group",
        "stop = tl.minimum(start + SPLIT, length + 1)\n    if not SINGLE:\n        if start >= length:\n            return\n    group",
    ),
    "the merge forgets to rescale": one(EQUALS, "acc = acc * shrink[:, None] + tl.sum(share", "acc = acc + tl.sum(share"),
    "the merge adds splits that never ran": one(EQUALS, "count = tl.cdiv(length - first // TILE * TILE, SPLIT)", "count = splits", "B32"),
    "the merge stops after eight splits": one(EQUALS, "for begin in range(0, count, CHUNK):", "for begin in range(0, tl.minimum(count, CHUNK), CHUNK):"),
    "a lone sequence is merged with another rounding": one(
        "batch-invariant",
        "tl.sum(share[:, None] * values, 0)[None, :]",
        "tl.sum(share[:, None] * values, 0)[None, :] * tl.where(tl.num_programs(1) == 1, 1.0000002, 1.0)",
    ),
    "a batch without tokens is not merged": Bug(PADDING, (("return finished(top, total, acc, sink, SINKS)", "return acc / total"), ("result = tl.where(length > 0, result, 0.0)", "result = result"))),
    "a decode keeps sums in half precision": one(
        EQUALS, "dtype=torch.float32, device=out.device)\n    return Parts", "dtype=torch.float16, device=out.device)\n    return Parts"
    ),
    # Appends.
    "an append is not causal among its tokens": one(EQUALS, "position = earliest + token", "position = length - 1 + token * 0"),
    "tokens of an append change rows": one(EQUALS, "part = ((seq * TOKENS + token) * (kv_heads * RATIO) + head)", "part = ((seq * TOKENS + group % TOKENS) * (kv_heads * RATIO) + head)"),
    "an append begins at the window of its last token": one(EQUALS, "low = tl.maximum(earliest - WINDOW + 1, 0)\n    start = low // TILE * TILE + split * SPLIT", "low = tl.maximum(length - WINDOW, 0)\n    start = low // TILE * TILE + split * SPLIT"),
    "appends go by the batch and not by the sequence": one("batch-invariant", "tiles = torch.where(count > short, tiles, 0)", "tiles = torch.where(count.max() > short, tiles, 0)"),
    "an append leaves the last split to nobody": one(EQUALS, "parts_of(self.split_tokens, longest, tiles, (seqs, plan.short", "parts_of(self.split_tokens, longest - tiles.tile, tiles, (seqs, plan.short"),
    # Windows, sinks, soft caps, groups of heads.
    "a window is cut to whole tiles": one(EQUALS, "seen &= at[None, :] > position[:, None] - WINDOW", "seen &= at[None, :] >= low // TILE * TILE", "B65"),
    "a prefill's window is one token wide of it": one(EQUALS, "at[None, :] > position[:, None] - WINDOW\n            score", "at[None, :] >= position[:, None] - WINDOW\n            score"),
    "sinks are taken for log2 units": one(EQUALS, "sink = tl.load(sinks + head, mask=group < RATIO, other=0.0) * LOG2E", "sink = tl.load(sinks + head, mask=group < RATIO, other=0.0)"),
    "sinks are forgotten where splits are merged": one(EQUALS, 'SINKS=options["SINKS"])', "SINKS=False)"),
    "the soft cap caps the product": one(EQUALS, "libdevice.tanh(product * (scale / soft_cap))", "libdevice.tanh(product / soft_cap)"),
    "query heads are dealt round in a prefill": one(EQUALS, "token = first_token + group // RATIO\n    head = kv_head * RATIO + group % RATIO", "token = first_token + group // RATIO\n    head = (group % RATIO) * kv_heads + kv_head"),
    "rows beyond the group overwrite the next one": one(
        "writes-only-granted", "mask = (group < RATIO)[:, None] & (element < HEAD)[None, :]\n    row = seq", "mask = (group < ROWS)[:, None] & (element < HEAD)[None, :]\n    row = seq"
    ),
    "a prefill reads blocks that its window has passed": one("garbage-independent", "if WINDOW > 0:\n            inside &= at >= low", "if WINDOW > 0:\n            inside &= at >= 0"),
    # Prefill.
    "the diagonal is open": one(EQUALS, "seen = at[None, :] <= position[:, None]", "seen = at[None, :] < length"),
    "a tile is whole one token too early": one(EQUALS, "whole = tl.maximum(earliest + 1, 0) // TILE * TILE", "whole = tl.cdiv(tl.maximum(earliest + 1, 0), TILE) * TILE"),
    "an append begins at position zero": one(EQUALS, "position = length - queries + token", "position = token"),
    "a plan gives every sequence one tile": one(EQUALS, "tiles = torch.div(count + tokens - 1, tokens, rounding_mode=\"floor\")", "tiles = (count > 0).long()"),
    # Store and its schemes.
    "padded slots are stored": one("writes-only-granted", "live = slot >= 0", "live = row < tokens", "B34"),
    "stores multiply slots in 32 bits": one("no-address-overflow", "where = (slot // BLOCK) * block_stride", "where = (slot // BLOCK).to(tl.int32) * block_stride", "B37"),
    "values are written where keys are": one(EQUALS, "value, value_pool, value_scale, slot", "value, key_pool, value_scale, slot"),
    "e4m3 wraps instead of saturating": one("quantised-within-bound", "row = tl.clamp(row, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)", "row = tl.where(tl.abs(row) > LIMIT, row * 0.0, row)"),
    "int8 is truncated": one("quantised-within-bound", "tl.floor(row + 0.5).to(tl.int8)", "row.to(tl.int8)"),
    "scales are half of what they must be": one(BOUND, "scale = tl.div_rn(tl.max(tl.abs(values), 1), LIMIT)", "scale = tl.div_rn(tl.max(tl.abs(values), 1), LIMIT * 2.0)"),
    "one scale serves two slots": one("quantised-within-bound", "tl.store(scales + slot * kv_heads + head, scale, mask=live)", "tl.store(scales + slot // 2 * kv_heads + head, scale, mask=live)"),
    "the scale of values is read for keys": one(EQUALS, "return tl.load(key_scale + scale_at, mask=seen, other=0.0)", "return tl.load(value_scale + scale_at, mask=seen, other=0.0)", "B59"),
    "scales are found without their block": one(EQUALS, "scale_at = (block * BLOCK + offset) * kv_heads + kv_head", "scale_at = offset * kv_heads + kv_head"),
    # Copies.
    "copies leave scales behind": one("copy-is-complete", 'for name in ("key", "value", "key_scale", "value_scale"):\n            tensors', 'for name in ("key", "value"):\n            tensors', "B82"),
    "copies stop after one tile": Bug(COPY, (("triton.cdiv(size, tile), layers.shape[0])]", "1, layers.shape[0])]"), ("tile = min(4096 //", "tile = min(256 //")), "B38"),
    "copies multiply block ids in 32 bits": one("no-address-overflow", "source, target = tl.load(pairs + pair * 2), tl.load(pairs + pair * 2 + 1)", "source, target = tl.load(pairs + pair * 2).to(tl.int32), tl.load(pairs + pair * 2 + 1).to(tl.int32)"),
    # Latents.
    "the rotary part of a row is not scored": one(EQUALS, "score = tl.dot(q_rope, tl.trans(rope), score, input_precision=\"ieee\") * (scale * LOG2E)", "score = score * (scale * LOG2E)"),
    "the rotary part is read from the next row": one(OWNED, "rows(pool + LATENT, base, inside, ROPE, PADDED_ROPE)", "rows(pool + LATENT + ROPE, base, inside, ROPE, PADDED_ROPE)"),
    "an append over latents is not causal": one(EQUALS, "seen = inside[None, :] & (at[None, :] <= position[:, None])", "seen = inside[None, :] & (position >= 0)[:, None]"),
    "tokens of an append over latents change rows": one(EQUALS, "row = (seq * TOKENS + token) * HEADS + head", "row = (seq * TOKENS + group % TOKENS) * HEADS + head"),
    "an append over latents takes the sequences of the prefill": one("in-bounds", "if (queries > TOKENS) | (tile * ROWS >= queries * HEADS):", "if tile * ROWS >= queries * HEADS:"),
    "a prefill over latents leaves out its last token": one(EQUALS, "tl.minimum(length - queries + first_token + TOKENS, length)", "tl.minimum(length - queries + first_token + TOKENS, length) - 1"),
    "the scores of latents are not scaled": one(EQUALS, "score *= row_scale[None, :]", "score *= 1.0"),
    "latents take the scale of the block's first slot": one(EQUALS, "token_scales(pool_scale, pool_scale, block, offset, 0, 1, inside, BLOCK)", "token_scales(pool_scale, pool_scale, block, offset * 0, 0, 1, inside, BLOCK)"),
    "scales of latents multiply block ids in 32 bits": one("no-address-overflow", "token_scales(pool_scale, pool_scale, block, offset, 0, 1, inside, BLOCK)", "token_scales(pool_scale, pool_scale, block.to(tl.int32), offset, 0, 1, inside, BLOCK)", "B37"),
    "copies of latents leave scales behind": one(COPY, "or (name.startswith(\"value\") and pools[0].latent_size):", "or (name != \"key\" and pools[0].latent_size):", "B82"),
}  # fmt: skip
"""By name; `like` names a real bug of its kind."""


MOVE_BUGS: dict[str, Bug] = {
    "moves take source blocks for target blocks": one(RELAYOUT, "(goal // TARGET_BLOCK) * target_block_stride + (goal % TARGET_BLOCK)", "(goal // SOURCE_BLOCK) * target_block_stride + (goal % SOURCE_BLOCK)"),
    "moves write where the target slot is padding": one("in-bounds", "mask = ((origin >= 0) & (goal >= 0))[:, None]", "mask = (origin >= 0)[:, None]"),
    "moves stop after one tile": one(RELAYOUT, "move_kernel[(triton.cdiv(len(source_slots), tile), heads)]", "move_kernel[(1, heads)]"),
    "moves leave scales behind": one(RELAYOUT, "return tensors + [scale.unsqueeze(-1) for scale in", "return tensors + [scale.unsqueeze(-1) for scale in () and", "B82"),
    "gathered rows of padding keep what lay there": one(RELAYOUT, "rows = torch.zeros(len(slots), *tensor.shape[2:], dtype=tensor.dtype, device=tensor.device)\n            move_rows", "rows = torch.empty(len(slots), *tensor.shape[2:], dtype=tensor.dtype, device=tensor.device)\n            move_rows"),
    "shards of heads are written from the first head on": one(RELAYOUT, "(goal % TARGET_BLOCK) * target_slot_stride + head * target_head_stride", "(goal % TARGET_BLOCK) * target_head_stride * tl.num_programs(1) + head * target_head_stride"),
}  # fmt: skip
"""Gather, scatter and move."""

LOW_BIT_BUGS: dict[str, Bug] = {
    "levels are rounded down": one(BOUND, "tl.floor(tl.div_rn(x - zero, scale) + 0.5)", "tl.floor(tl.div_rn(x - zero, scale))"),
    "the scheme forgets its zero": one(EQUALS, "* k_scale[None, :] + k_zero[None, :]", "* k_scale[None, :]"),
    "values take the scales of the first channels": one(EQUALS, "v * v_scale[:, :, None] + v_zero[:, :, None]", "v * tl.max(v_scale, 1)[:, None, None] + v_zero[:, :, None]"),
    "the first of two numbers lies in the high bits": one(BOUND, "tl.sum(parts << (tl.arange(0, EACH) * BITS)[None, None, :], 2)", "tl.sum(parts << ((EACH - 1 - tl.arange(0, EACH)) * BITS)[None, None, :], 2)"),
    "the ring is overwritten before its group is quantised": one(EQUALS, "first = tl.maximum(before, tl.load(quantised_after + seq))", "first = before"),
    "tokens that wait are taken from the new rows": one(BOUND, "return tl.where(fresh, from_new, from_ring)", "return from_new"),
    "every group of a block has the scales of its first": one(EQUALS, "(begin % BLOCK // GROUP) * key_scale_group_stride", "0 * key_scale_group_stride"),
    "the recent window is not attended to": one(EQUALS, "tl.range(tl.maximum(whole, first), length, TILE", "tl.range(whole, whole, TILE"),
    "an append sees the end of its pass": one(EQUALS, "stored = tl.minimum(length, whole)", "stored = whole"),
    "a ring is that of the first sequence": one(OWNED, "ring_row = tl.load(ring_rows + seq).to(tl.int64) * ring_row_stride + kv_head", "ring_row = tl.load(ring_rows).to(tl.int64) * ring_row_stride + kv_head"),
    "a padded lane counts as quantised": one(EQUALS, "done = torch.where(after > before, done, quantised)", "done = torch.where(after > before, done, quantised + pool.group)"),
    "low-bit windows are not cut in the ring": one(EQUALS, "tl.range(tl.maximum(whole, first), length, TILE", "tl.range(whole, length, TILE"),
    "low-bit windows are cut to whole groups": one(EQUALS, "seen = (at >= first) & (at < stored)", "seen = at < stored", "B65"),
    "low-bit windows read blocks that they have passed": one(OWNED, "start = first // GROUP * GROUP + (part - 1) * SPLIT", "start = (part - 1) * SPLIT"),
    "low bits forget their sinks": one(EQUALS, "WINDOW=0, SINKS=sinks is not None, CHUNK=8", "WINDOW=0, SINKS=False, CHUNK=8"),
    "low bits forget their soft cap": one(EQUALS, "CAPPED=soft_cap is not None,\n            STAGES=lowbit", "CAPPED=False,\n            STAGES=lowbit"),
    "low-bit blocks are taken for NHD": one(EQUALS, "or place), from head to head.\"\"\"\n    block, slot, head, _ = pool.slot_view(tensor).stride()", "or place), from head to head.\"\"\"\n    block, slot, head, _ = tensor.stride()"),
    "low bits multiply block ids in 32 bits": one("no-address-overflow", "block = tl.load(tables + seq * table_stride + begin // BLOCK).to(tl.int64)", "block = tl.load(tables + seq * table_stride + begin // BLOCK)", "B37"),
    "copies leave zeros behind": one(COPY, "return [pool.key, pool.value, pool.key_scale, pool.key_zero, pool.value_scale, pool.value_zero]", "return [pool.key, pool.value, pool.key_scale, pool.value_scale]", "B82"),
    "copies leave the ring of values behind": one(COPY, "for tensor in (pool.ring_key, pool.ring_value):\n            copy_tensors", "for tensor in (pool.ring_key,):\n            copy_tensors"),
}  # fmt: skip
"""The low-bit scheme."""

ALL_BUGS = {**PAGED_BUGS, **MOVE_BUGS, **LOW_BIT_BUGS}

LOW_BIT_FEATURES = frozenset({"low-bits", "prefill", "copy", "window", "sinks", "soft-cap", "freed-windows"})
"""What kernels with a bug of the low-bit scheme claim: with everything else beside it a check would take long to come to it."""


class Small:
    """What faulty kernels claim."""

    split_tokens = 32
    features = FEATURES - {*ALLOWANCES, "low-bits"}

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        """Every feature at small shapes: splits of two tiles, heads that are no powers of two, blocks larger and smaller than a tile."""
        return KernelCapabilities(
            dtypes=("float32", "float16"),
            head_sizes=(40, 32),
            gqa_ratios=(1, 3),
            block_sizes=(12, 64, 1),
            layouts=("NHD", "HND"),
            features=cls.features,
            max_pool_bytes=2**40,
            mla_sizes=((40, 24),),
            low_bits=(LowBitScheme(4, 16, 8, 20),),
        )


class SmallLowBits(Small):
    """What kernels with a bug of the low-bit scheme claim."""

    features = LOW_BIT_FEATURES


def build_paged(name: str, directory: Path) -> type[Any]:
    """The faulty adapter, made from the changed sources in `directory`."""
    package = write(name, ALL_BUGS[name].changes, directory)
    adapter = importlib.import_module(f"{package}.adapter")
    claims = SmallLowBits if name in LOW_BIT_BUGS else Small
    return type("PagedTriton", (claims, adapter.PagedTriton), {"__module__": adapter.__name__})


def write(name: str, changes: tuple[tuple[str, str], ...], directory: Path) -> str:
    """Write the package with its changes and make it importable; returns its name."""
    package = "faulty_" + "".join(char if char.isalnum() else "_" for char in name)
    folder = directory / package
    folder.mkdir()
    texts = {path.name: path.read_text() for path in SOURCE.glob("*.py")}
    for old, new in changes:
        found = [file for file, text in texts.items() if old in text]
        if len(found) != 1:
            raise AssertionError(f"bug {name!r} does not fit the paged kernels any more: {old!r} is in {found}")
        texts[found[0]] = texts[found[0]].replace(old, new)
    for file, text in texts.items():
        (folder / file).write_text(text.replace("kvproof.kernels.paged", package))
    spec = importlib.util.spec_from_file_location(package, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
    return package
