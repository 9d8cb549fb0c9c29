"""A scheduler on the production cache: which calls, in which order. The model is a stand-in; the standard library is all it needs.

python examples/scheduler.py
"""

from collections import deque

from kvproof.impl.production import PagedCache, WorkerMirror
from kvproof.impl.production.errors import OutOfBlocks


class Device:
    """What a worker would do. It keeps its own block tables, fed by what changed, and samples a token for each sequence of a step."""

    def __init__(self):
        self.tables = WorkerMirror()

    def run(self, plan):
        self.tables.apply(plan)
        # Here a worker copies plan.copies, all at once, and then runs one forward pass over plan.sequences, which reads and writes by self.tables.
        return {seq: len(self.tables.table(seq)) for seq in plan.sequences}


class Scheduler:
    """First come, first served; the youngest make room."""

    def __init__(self, cache, chunk_tokens):
        self.cache = cache
        self.device = Device()
        self.chunk_tokens = chunk_tokens
        self.waiting = deque()
        self.running = []  # the oldest first
        self.uncomputed = {}  # tokens that no pass was asked for yet
        self.left = {}  # tokens to sample
        self.preemptions = 0

    def submit(self, seq, prompt, new_tokens, tenant):
        self.cache.admit(seq, prompt, {"tenant": tenant})
        self.uncomputed[seq], self.left[seq] = len(prompt), new_tokens
        self.waiting.append(seq)

    def step(self):
        """Fill a step, run it, and take in what it sampled. Returns the sequences that have finished."""
        self.prefill()
        plan = self.cache.begin_step()
        sampled = self.device.run(plan)
        self.cache.end_step(plan.step)
        if not sampled:
            self.preempt_youngest()
        return self.take_in(sampled)

    def prefill(self):
        """Room for the next chunk of every prompt, as long as there is some."""
        for seq in [*(seq for seq in self.running if self.uncomputed[seq]), *self.waiting]:
            try:
                grant = self.cache.extend(seq, self.chunk_tokens)
            except OutOfBlocks:
                return
            self.uncomputed[seq] = max(0, self.uncomputed[seq] - grant.adopted - self.chunk_tokens)
            if seq not in self.running:
                self.running.append(seq)
                self.waiting.remove(seq)

    def take_in(self, sampled):
        """Commit what was computed: chunks one by one, and all that decode in one call. Who has its last token leaves."""
        finished, decoding = [], []
        for seq, token in sampled.items():
            self.left[seq] -= not self.uncomputed[seq]
            if self.uncomputed[seq]:
                self.cache.commit(seq)
            elif self.left[seq]:
                decoding.append(seq)
            else:
                finished.append((seq, [*self.cache.tokens(seq), token]))
                self.cache.commit(seq)
                self.cache.release(seq)
                self.running.remove(seq)
        short = self.cache.decode(decoding, [sampled[seq] for seq in decoding])
        self.make_room(short)
        return finished

    def make_room(self, short):
        """Who found no room for its token tries again, until it has some or was preempted itself."""
        for seq in short:
            while seq in self.running:
                try:
                    self.cache.extend(seq, 1)
                    break
                except OutOfBlocks:
                    self.preempt_youngest()

    def preempt_youngest(self):
        seq = self.running.pop()
        self.cache.preempt(seq)
        self.uncomputed[seq] = len(self.cache.tokens(seq))
        self.waiting.appendleft(seq)
        self.preemptions += 1


def main():
    cache = PagedCache(num_blocks=10, block_size=4)
    scheduler = Scheduler(cache, chunk_tokens=8)
    system = [7, 3, 9, 1, 4, 4, 2, 8]
    for seq in range(4):
        scheduler.submit(seq, [*system, seq, seq + 1], new_tokens=9, tenant="a")
    while scheduler.waiting or scheduler.running:
        for seq, tokens in scheduler.step():
            print(f"request {seq}:", *tokens)
    stats = cache.stats()
    print(
        f"{stats.hit_tokens} of {stats.lookup_tokens} tokens were found computed, {scheduler.preemptions} preemptions, {stats.used_blocks} blocks in use"
    )


if __name__ == "__main__":
    main()
