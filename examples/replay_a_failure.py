"""What `kvproof replay` does, as a library: read a failure file, run it on its target, and look at each step.

python examples/replay_a_failure.py examples/double_free.json
"""

import sys
from pathlib import Path

from kvproof.fuzz.programs import read_program
from kvproof.properties.lockstep import run
from kvproof.properties.paste import op_source
from kvproof.targets import find_target

program = read_program(Path(sys.argv[1]))
config = program.config
result = run(program.ops, find_target(program.target), num_blocks=config.num_blocks, block_size=config.block_size, keep_trace=True)

for number, step in enumerate(result.trace):
    tables = {seq: list(tables[0]) for seq, tables in step.seen.tables.items()}
    print(f"{number}  {op_source(step.op):28} block tables: {tables}")
print(f"recorded: {program.violation.law}")
print(f"now:      {result.violation.law if result.violation else 'no law breaks'}")
