"""The protocol checker around every adapter: it tells a faulty adapter from a faulty cache.

    capabilities = read_capabilities(MyAdapter)
    cache = Checked(MyAdapter, capabilities, num_blocks=8, block_size=2)
    cache.do(Admit(0, (5, 6, 7)))
    cache.tables(0)

What an adapter returns is checked for type and range and copied at once into the tuples that the spec works on, so neither side can change the other's lists.
Anything that the contract rules out, whatever the cache did, raises `AdapterFault`: one sentence that names the method, the cause and the mend.

`checked` calls the adapter; `claims` reads its capabilities, `answers`, `blocks` and `snapshots` what it returns; `faults` and `misuse` have the words.
"""

from kvproof.impl.checker.checked import Checked
from kvproof.impl.checker.claims import CLAIMED, REQUIRED, read_capabilities
from kvproof.impl.checker.faults import AdapterFault, Hung, Raises, call_of

__all__ = ["CLAIMED", "REQUIRED", "AdapterFault", "Checked", "Hung", "Raises", "call_of", "read_capabilities"]
