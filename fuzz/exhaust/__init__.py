"""Exhaustion: every program over a small scope, on spec and cache together, until no new abstract state appears.

    kvproof exhaust production --scope tiny
    kvproof exhaust mypkg.kv:Adapter --sequences 2 --blocks 3 --length 4 --seconds 600 --state run.kvx

`scope` says which operations a program may have, `key` when two states are the same, `search` goes through them breadth first, `picture` draws the smallest, `code` tells a cache from what it was before a change.
"""
