"""What `kvproof replay` does, as a library: read a failure file, run it on its target, and look at each step.

python examples/replay_a_failure.py examples/double_free.json
"""

import sys
from pathlib import Path

from kvproof.fuzz.programs import BadFile, read_program
from kvproof.properties.lockstep import run
from kvproof.properties.paste import op_source
from kvproof.targets import BadTarget, find_target


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("Name one failure file: python examples/replay_a_failure.py examples/double_free.json", file=sys.stderr)
        return 2
    try:
        program = read_program(Path(arguments[0]))
        target = find_target(program.target)
    except (BadFile, BadTarget) as error:
        print(error, file=sys.stderr)
        return 2
    config = program.config
    result = run(program.ops, target, num_blocks=config.num_blocks, block_size=config.block_size, keep_trace=True)
    for number, step in enumerate(result.trace):
        tables = {seq: list(tables[0]) for seq, tables in step.seen.tables.items()}
        print(f"{number}  {op_source(step.op):28} block tables: {tables}")
    print(f"recorded: {program.violation.law if program.violation else 'no violation'}")
    print(f"now:      {result.violation.law if result.violation else 'no law breaks'}")
    return 0 if result.violation is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
