"""Address proofs: the same IR that the machine runs, given to Z3 with program ids, block ids, lanes and loop counters as unknowns."""
