"""Random Triton kernels as source text: masks, loops, branches, reductions, wrapping integers, broadcasts.

Every kernel has the signature `kernel(x, y, out, n, N)`; x and y are int32 arrays, out int32. Floats are made from the integers inside,
kept small, and written back through a bit cast, so that one comparison of bits covers everything.
"""

from __future__ import annotations

from hypothesis import strategies as st

HEADER = """import triton
import triton.language as tl


@triton.jit
def kernel(x, y, out, n, N: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * N + tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i, mask=i < n, other=3)
    f = (a % 17).to(tl.float32) * 0.25
    g = (b % 13).to(tl.float32) * 0.5 + 0.125
    m = tl.reshape(a, (4, N // 4))
    acc = a ^ b
    total = f
"""

FOOTER = """    tl.store(out + i, acc ^ total.to(tl.int32, bitcast=True), mask=i < n + 5)
"""

INTEGER = st.recursive(
    st.sampled_from(["a", "b", "acc", "i", "pid", "n", "(pid + 7)", "(pid - 5)", "(n * 65537)", "(pid + 2147483600)", "(acc ^ pid)"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "&", "|", "^"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.integers(1, 30)).map(lambda t: f"({t[0]} >> {t[1]})"),
        st.tuples(inner, st.integers(1, 9)).map(lambda t: f"(({t[0]} + a) // {t[1]})"),
        st.tuples(inner, st.integers(2, 50)).map(lambda t: f"(({t[0]} + a) % {t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"tl.maximum({t[0]} + a, {t[1]} + b)"),
        st.tuples(inner, inner, inner).map(lambda t: f"tl.where({t[0]} + a > {t[1]}, {t[2]} + a, b)"),
        inner.map(lambda e: f"({e} + a).to(tl.int8).to(tl.int32)"),
        inner.map(lambda e: f"(({e} + a).to(tl.int64) * 3 >> 2).to(tl.int32)"),
        inner.map(lambda e: f"tl.sum({e} + a, 0)"),
        inner.map(lambda e: f"tl.max({e} + b, 0)"),
        inner.map(lambda e: f"tl.cumsum({e} + a, 0)"),
        st.just("tl.reshape(tl.broadcast_to(tl.sum(m, 1)[:, None], (4, N // 4)), (N,))"),
        st.just("tl.reshape(tl.broadcast_to(tl.min(m, 0)[None, :], (4, N // 4)) * m, (N,))"),
    ),
    max_leaves=6,
)

FLOAT = st.recursive(
    st.sampled_from(["f", "g", "total", "1.5", "-0.75", "pid.to(tl.float32)"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda e: f"(({e} + f) / (g * g + 1.0))"),
        inner.map(lambda e: f"tl.exp(-tl.abs({e} + f))"),
        inner.map(lambda e: f"tl.sqrt(tl.abs({e} + f))"),
        inner.map(lambda e: f"tl.sum({e} + f, 0)"),
        inner.map(lambda e: f"tl.max({e} + g, 0)"),
        inner.map(lambda e: f"({e} + f).to(tl.float16).to(tl.float32)"),
        st.tuples(inner, inner).map(lambda t: f"tl.where({t[0]} + f < {t[1]}, f, {t[1]} + g)"),
    ),
    max_leaves=5,
)

BOUND = st.sampled_from(["3", "pid", "pid % 3 + 1", "(n + pid) % 4"])
CONDITION = st.sampled_from(["pid % 2 == 0", "pid > 1", "n > 50", "tl.load(x + pid) > 0"])


@st.composite
def statements(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """A block of assignments, loops and branches, indented by depth + 1."""
    indent, lines = "    " * (depth + 1), []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["int", "int", "float", "load", "for", "if"] if depth < 2 else ["int", "float", "load"]))
        if kind == "int":
            lines.append(f"{indent}acc = {draw(INTEGER)} + acc * 3")
        elif kind == "float":
            lines.append(f"{indent}total = ({draw(FLOAT)} + f) * 0.5")
        elif kind == "load":
            lines.append(f"{indent}acc += tl.load(x + (acc & 63), mask=acc % 3 != 0, other=1)")
        elif kind == "for":
            name = f"k{depth}"
            lines.append(f"{indent}for {name} in range({draw(BOUND)}):")
            lines.append(f"{indent}    acc += {name}")
            lines += draw(statements(depth + 1))
        else:
            lines.append(f"{indent}if {draw(CONDITION)}:")
            lines += draw(statements(depth + 1))
            lines.append(f"{indent}else:")
            lines += draw(statements(depth + 1))
    return lines


@st.composite
def kernels(draw: st.DrawFn) -> str:
    """The source of a module with one kernel."""
    body = draw(statements())
    if draw(st.booleans()):
        body.insert(draw(st.integers(0, 0)), "    if pid == 2:\n        return")
    return HEADER + "\n".join(body) + "\n" + FOOTER
