"""One launch compiled for a device that need not be here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature


def compile_for(target: GPUTarget, kernel: JITFunction[Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:  # noqa: ANN401 - Triton's own
    """Triton's compiled kernel, specialised as a launch with these arguments specialises it; Triton's cache on disk keeps it for such launches.
    Raises what Triton's compiler raises.
    """
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    # Named, because Triton 3.9 warns where it is left to the default that all these releases share.
    bound, specialisation, rest = bind(*args, **{**options, "enable_fp_fusion": True})
    parsed, signature, constants, attributes = kernel._pack_args(backend, {**rest}, bound, specialisation, rest)
    return triton.compile(ASTSource(kernel, signature, constants, attributes), target=target, options=parsed.__dict__)
