"""An adapter for kvproof: it tells the suite how to drive a cache.

It passes as it is, with the small cache below. Replace that cache by yours, then claim one capability after the other in `capabilities`
and write the methods that it needs. Check it with

    kvproof check FILE:Adapter

where FILE is the path of this file. The suite builds a fresh adapter for every program.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvproof import CacheAdapter, Capabilities, Grant, Namespace, OutOfBlocks, Snapshot


class ToyCache:
    """Stands in for your cache: blocks from a free list, nothing shared. Delete it and import your own."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.tables: dict[int, list[int]] = {}

    def reserve(self, request: int, tokens: int) -> bool:
        """Make the table of `request` long enough for `tokens` tokens; False, and nothing changed, if the pool is too small."""
        table = self.tables.get(request, [])
        missing = -(-tokens // self.block_size) - len(table)
        if missing > len(self.free):
            return False
        self.tables[request] = table + [self.free.pop(0) for _ in range(missing)]
        return True

    def free_request(self, request: int) -> None:
        """Give back every block of `request`."""
        self.free += self.tables.pop(request, [])


class Adapter(CacheAdapter):
    """Drives the cache; the engine around it is played by the suite."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        """Build your cache with a pool of `num_blocks` blocks, ids 0 to num_blocks - 1, of `block_size` tokens each."""
        self.cache = ToyCache(num_blocks, block_size)
        # What the engine keeps of each request. If your cache keeps these itself, ask it instead.
        self.known: dict[int, int] = {}  # tokens that are known: the prompt and what was appended
        self.computed: dict[int, int] = {}  # of those, the leading ones whose keys and values are in the cache
        self.running: dict[int, int] = {}  # tokens of the pass that extend made room for and commit will finish

    @classmethod
    def capabilities(cls) -> Capabilities:
        """What the cache claims. A claim is tested; what is not claimed is reported as not applicable."""
        return Capabilities(
            # Claim `snapshot` first: with the cache's own books, a leak is seen at the step that makes it.
            snapshot=True,
            # What to claim next, each with the methods that it needs (kvproof.CacheAdapter documents them):
            # - prefix: requests reuse the blocks of equal prompts. Write match(); extend() then adopts what match() found.
            # - namespace_fields={"tenant", ...}: what the prefix index tells apart besides tokens.
            # - drafts: extend() makes room for draft tokens too, and commit() keeps the accepted ones.
            # - truncate and fork: write the methods of these names.
            # - steps: passes run on a device behind your back. Write begin_step() and end_step().
            # - evict, reset, swap: write evict(), reset(), and swap_out() with swap_in().
            # - events and mirror: write take_events() and worker_table().
            # - policy={"tight", "exact", "lru"}: tables are never longer than needed; an extend fails only if free and evictable
            #   blocks do not suffice; the least recently used block is evicted first.
            # - groups=(Group(), Group(kind="sliding_window", window=...)): layers that keep their blocks apart.
            # - null_blocks={0}, where block 0 is never handed out; block_sizes and max_blocks, where not every pool can be built.
        )

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A request is known; it holds nothing yet. Keep the tokens, and the namespace, if your cache reuses prefixes."""
        self.known[seq] = len(prompt)
        self.computed[seq] = 0

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """Make room for the next `count` known tokens (fewer, if fewer are known). If there is none, raise OutOfBlocks, nothing changed."""
        count = min(count, self.known[seq] - self.computed[seq])
        if not self.cache.reserve(seq, self.computed[seq] + count):
            raise OutOfBlocks
        self.running[seq] = count
        return Grant()  # with block copies, blocks to clear, and adopted tokens, where your cache has them

    def commit(self, seq: int, accepted: int) -> None:
        """The pass of the last extend is done: its tokens are computed."""
        self.computed[seq] += self.running.pop(seq)

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Tokens become known (sampled, or the next turn of the user); none is computed yet."""
        self.known[seq] += len(tokens)

    def release(self, seq: int, reason: str) -> None:
        """Give everything back. After "preempt" the request stays known and starts over; a second release changes nothing."""
        self.cache.free_request(seq)
        self.running.pop(seq, None)
        self.computed[seq] = 0

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The block of each logical block, in the order of positions; empty if the request holds nothing."""
        return self.cache.tables.get(seq, [])

    def snapshot(self) -> Snapshot:
        """What the cache's books say: how many holders each block has, and which blocks could be handed out now, in order."""
        return Snapshot(
            refcounts={block: 1 for table in self.cache.tables.values() for block in table},
            free=self.cache.free,
            cached=(),  # blocks whose content a prefix match could still find
            retiring=(),  # blocks that wait for device work to finish
        )
