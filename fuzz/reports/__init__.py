"""What a check found, for people and for machines: `terminal` for a reader, `junit` and `github` for a CI, `source` for a test file.

`steps` replays a program and keeps what each operation did; every picture of a program is drawn from that.
"""
