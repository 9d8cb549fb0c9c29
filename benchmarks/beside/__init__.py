"""The production cache beside the caches of engines: `players` drive them, `work` is what they are given, `worker` is one process, `show` tells."""
