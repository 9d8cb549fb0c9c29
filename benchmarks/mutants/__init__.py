"""Is the suite any good? Ordinary small faults are put into the production cache and into the checker of the protocol, one at a time, and the suite must notice each.

    python -m benchmarks.mutants --minutes 9 --results mutants.jsonl       # again, to go on
    python -m benchmarks.mutants --results mutants.jsonl --report          # the score and the survivors
    python -m benchmarks.mutants --kind others --first 250                 # a sample of another kind; there are `further` and `by-hand` too

`sources` makes the mutants, `further`, `by_hand` and `others` make those of other kinds, `kill` runs the suite on one, `equivalent.toml` says of survivors why nothing can notice them.
"""
