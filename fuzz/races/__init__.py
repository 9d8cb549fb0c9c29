"""Interleavings: what a cache answers when several threads call it at once.

    kvproof race production                     # every scenario, every order of its threads that matters
    kvproof race mypkg.kv:Adapter --mode stress # real threads, as fast as they go

A *scenario* is a state to start from and a short program for each thread. A run of it leaves a *history*: who called what, when, and what came back. A history is
good if its calls can be put in one order, which respects who had returned before who began, in which the spec accepts every answer and then everything that the
cache shows once the threads are done. `linear` looks for that order, `explore` runs the scenario again and again under other schedules, `draw` shows what went wrong.
"""
