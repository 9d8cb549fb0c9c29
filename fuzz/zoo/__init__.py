"""The zoo: released caches with a known bug. The faulty release has to be caught by a fitting law, and the release that mended it has to pass the same run."""
