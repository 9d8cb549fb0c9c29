"""The specification: what a paged KV cache promises, in pure Python with no I/O.

Read in this order: `ops` (what can be done), `outcomes` (what a cache answers), `state` (what a correct cache must remember), `spec` (the acceptor),
`laws` (the promises by name). `layouts` and `capacity` hold the arithmetic that everything rests on.
"""
