"""Caches that others wrote: their released files are fetched, the modules that matter are run as they are, and an adapter plays the scheduler's part.

    release = parse("vllm[hybrid]==0.33.0")     # releases: which engine, which release, which variant
    tree = provide(release)                     # store: from the cache folder, through pip where it is not there yet
    engine = load(release)                      # loading: the real modules behind an import hook, one engine in a process
    adapter = engine_adapter(release)           # registry: the class that the suite judges

Nothing of those packages is part of kvproof.
"""
