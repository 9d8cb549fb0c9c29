"""What only a GPU shows: the kernel laws on real hardware, captured graphs, and speed against what the same device can do.

    python benchmarks/gpu.py --out report

writes report.md and report.json as it goes. docs/run-on-your-gpu.md says what they hold.
"""
