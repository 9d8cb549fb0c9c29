"""The least that an adapter can be: a cache in 30 lines that shares nothing and keeps no books.

kvproof check examples/minimal_adapter.py:Adapter
"""

from kvproof import CacheAdapter, Capabilities, Grant, OutOfBlocks


class Adapter(CacheAdapter):
    def __init__(self, *, num_blocks, block_size):
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.tables = {}
        self.known = {}  # how many tokens each request knows
        self.computed = {}  # how many of them have keys and values in the cache
        self.end = {}  # where the pass of its last extend ends

    @classmethod
    def capabilities(cls):
        return Capabilities()

    def admit(self, seq, prompt, namespace):
        self.tables[seq], self.known[seq], self.computed[seq] = [], len(prompt), 0

    def extend(self, seq, count, drafts=()):
        end = min(self.computed[seq] + count, self.known[seq])
        missing = -(-end // self.block_size) - len(self.tables[seq])
        if missing > len(self.free):
            raise OutOfBlocks
        self.tables[seq] += [self.free.pop() for _ in range(missing)]
        self.end[seq] = end
        return Grant()

    def commit(self, seq, accepted):
        self.computed[seq] = self.end[seq]

    def append(self, seq, tokens):
        self.known[seq] += len(tokens)

    def release(self, seq, reason):
        self.free += self.tables[seq]
        self.tables[seq], self.computed[seq] = [], 0

    def block_table(self, seq, group=0):
        return self.tables[seq]
