"""A cache with a bug: it gives back the blocks of a preempted request twice, so that two later requests share one.

kvproof check examples/double_free.py:DoubleFree
kvproof replay examples/double_free.json
"""

from minimal_adapter import Adapter


class DoubleFree(Adapter):
    def release(self, seq, reason):
        if reason == "preempt":
            self.free += self.tables[seq]
        super().release(seq, reason)
