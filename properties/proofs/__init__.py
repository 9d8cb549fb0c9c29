"""Statements about the arithmetic and the spec that CrossHair proves: it runs each with symbolic integers, along every path, and asks a solver for a counterexample.

    python -m kvproof.properties.proofs                    # needs pip install 'kvproof[symbolic]'

`arithmetic` has statements about `models.layouts` and `models.capacity`, `transitions` about single steps of the spec. Each is a function with a contract in its docstring
(PEP 316): `pre:` what its arguments may be, `post:` what then holds. They are formulated so that a solver can finish: block sizes and shapes are fixed, lengths and ids are not.
`prove` runs them.
"""
