"""`python -m kvproof.properties.proofs`: prove every statement, with one line for each, and end with 1 if one is refuted.

--seconds N     how long each may take (default: 20)
--only TEXT     only those with TEXT in their name
--least N       end with 1 if fewer than N are proved
--json FILE     write how far each came, one after another; statements that are in FILE already are not run again
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import msgspec

from kvproof.properties.proofs.prove import STATEMENT_SECONDS, Proof, Unavailable, prove, statements


def main() -> int:
    """Prove, print, and give the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m kvproof.properties.proofs", description="Let CrossHair prove the statements about arithmetic and spec."
    )
    parser.add_argument("--seconds", type=float, default=STATEMENT_SECONDS)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--least", type=int, default=0, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    proofs: list[Proof] = msgspec.json.decode(asked.json.read_bytes(), type=list[Proof]) if asked.json and asked.json.exists() else []
    known = {proof.name for proof in proofs}
    for subject, function in statements():
        if asked.only in function.__name__ and function.__name__ not in known:
            try:
                proof = prove(function, subject, seconds=asked.seconds)
            except Unavailable as error:
                print(error, file=sys.stderr)
                return 2
            proofs.append(proof)
            if asked.json:
                asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(proofs)) + b"\n")
            print(f"{proof.standing:9} {proof.seconds:6.1f} s  {proof.subject:10}  {proof.name}  {proof.message}".rstrip(), flush=True)
    count = Counter(proof.standing for proof in proofs)
    print(f"{count['proved']} proved over all paths, {count['searched']} searched, {count['refuted']} refuted.")
    return 1 if count["refuted"] or count["proved"] < asked.least else 0


if __name__ == "__main__":
    sys.exit(main())
