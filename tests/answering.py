"""An adapter that answers whatever a test wants, and how a test asks the checker about it."""

from __future__ import annotations

import pytest

from kvproof import CacheAdapter, Capabilities
from kvproof.impl.checker import AdapterFault, Checked

ALL = Capabilities(
    prefix=True,
    fork=True,
    truncate=True,
    drafts=True,
    steps=True,
    evict=True,
    reset=True,
    swap=True,
    snapshot=True,
    events=True,
    mirror=True,
)


class Answering(CacheAdapter):
    """Answers every call with what it was told to; an exception is raised."""

    answer: object = None

    def _said(self, *_, **__):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    admit = extend = commit = append = release = block_table = match = fork = truncate = _said
    begin_step = end_step = evict = reset = swap_out = swap_in = snapshot = worker_table = take_events = _said

    @classmethod
    def capabilities(cls):
        return ALL


def checked(answer=None, capabilities=ALL, num_blocks=4):
    made = Checked(Answering, capabilities, num_blocks=num_blocks, block_size=2)
    made.adapter.answer = answer
    return made


def fault_of(call):
    with pytest.raises(AdapterFault) as caught:
        call()
    return str(caught.value)


def is_one_sentence(text):
    return text.endswith(".") and text == text.strip() and "\n" not in text
