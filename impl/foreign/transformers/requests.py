"""What the adapters of transformers' caches share: the requests that its scheduler would keep."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kvproof.impl.foreign.adapter import EngineAdapter
from kvproof.models.ops import Namespace
from kvproof.models.outcomes import Hit, Refused


class Request:
    """What the scheduler keeps of a request: a `RequestState` as far as the cache reads it."""

    def __init__(self, number: int, prompt: Sequence[int]) -> None:
        self.request_id = str(number)
        self.tokens = list(prompt)
        self.allocated_blocks = 0
        self.computed = 0
        self.out = 0
        """Where the pass that is out ends."""

    def state(self, running: Any) -> Any:
        """As the cache reads it after a batch."""
        return SimpleNamespace(request_id=self.request_id, status=running, initial_tokens=self.tokens, generated_tokens=[])


class Scheduled(EngineAdapter):
    """An adapter in the part of the scheduler, as far as both caches take the same calls. A subclass makes the `allocator` of the engine."""

    allocator: Any

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.requests: dict[int, Request] = {}

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A pending request."""
        self.requests[seq] = Request(seq, prompt)

    def match(self, seq: int) -> Hit:
        """`search_prefix_match` takes references at once."""
        raise Refused("transformers looks for a prefix only while it schedules")

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Sampled tokens."""
        self.requests[seq].tokens += tokens

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The allocator's table."""
        return list(self.allocator.block_table.get(str(seq), ()))
