"""From a launch to TTIR: Triton specialises the arguments and compiles to its first-level IR, which needs no device."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from kvproof.kernels.machine.ir import Program
from kvproof.kernels.machine.parse import parse

TARGET = GPUTarget("cuda", 89, 32)
"""The newest generation on which Triton itself lowers tensor descriptors to plain pointers in the first stage, and which has both fp8
types.
"""

OPTIONS = {"enable_fp_fusion": False, "debug": True, "sanitize_overflow": False}
"""`debug` keeps device assertions in the IR; the sanitizer would add one to every integer operation, which the machine need not be told."""

MAX_CACHED_PROGRAMS = 512
"""Kernels times specialisations kept; the oldest goes first."""

Constants: TypeAlias = frozenset[tuple[int, ...]]
"""Where the compiler took a value for a constant: the place of a parameter, and behind it the places within tuples."""


@dataclasses.dataclass
class Lowered:
    """A specialised kernel: `program` takes the launch arguments `bound`, flattened, in order, without those at `constants`."""

    program: Program
    ttir: str
    bound: dict[str, Any]
    constants: Constants


_cache: dict[tuple[int, str], tuple[JITFunction[Any], Program, str, Constants]] = {}
_binders: dict[int, tuple[JITFunction[Any], Any]] = {}
_backend: Any = None


def lower(function: JITFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lowered:
    """Bind, specialise as Triton does (divisibility by 16, ones, constexprs), and compile to TTIR. Raises what Triton's compiler raises."""
    backend = _get_backend()
    bound, specialization, options = _binder(function, backend)(*args, **{**kwargs, **OPTIONS})
    # The source hash is part of the key: a kernel whose globals or callees changed is compiled again.
    key = (id(function), f"{function.cache_key}{specialization}{options}")
    if key not in _cache:
        parsed, signature, constexprs, attrs = function._pack_args(backend, {**options}, bound, specialization, options)
        source = ASTSource(function, signature, constexprs, attrs)
        text = _ttir(source, backend, parsed)
        constants = frozenset(constexprs)
        if len(_cache) >= MAX_CACHED_PROGRAMS:
            _cache.pop(next(iter(_cache)))
        _cache[key] = (function, parse(text), text, constants)
    _, program, text, constants = _cache[key]
    return Lowered(program, text, bound, constants)


def _get_backend() -> Any:
    global _backend
    if _backend is None:
        _backend = make_backend(TARGET)
    return _backend


def _binder(function: JITFunction[Any], backend: Any) -> Any:
    if id(function) not in _binders:
        _binders[id(function)] = (function, create_function_from_signature(function.signature, function.params, backend))
    return _binders[id(function)][1]


def _ttir(source: Any, backend: Any, options: Any) -> str:
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(TARGET, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    return str(stages["ttir"](module, {}).str())
