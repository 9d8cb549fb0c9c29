"""Small kernels that between them use every kind of operation the machine implements. Each takes `x`, `y`, `out` of N elements."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def integers(x, y, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    b = tl.where(b == 0, 7, b)
    r = (a * b) ^ (a << 3) ^ (a >> 5) ^ (a // b) ^ (a % b) + tl.maximum(a, b) - tl.minimum(a, -b)
    u = a.to(tl.uint32, bitcast=True)
    w = b.to(tl.uint32, bitcast=True)
    r += ((u // w) ^ (u % w) ^ (u >> 4) ^ tl.umulhi(u, w)).to(tl.int32, bitcast=True)
    r ^= (a.to(tl.int64) * b.to(tl.int64) >> 7).to(tl.int32) ^ a.to(tl.int8).to(tl.int32) ^ (u > w).to(tl.int32) ^ (~a) ^ tl.abs(b)
    tl.store(out + i, r)


@triton.jit
def floats(x, y, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    r = tl.exp(a * 0.25) + tl.log(tl.abs(b) + 1.0) - tl.sqrt(tl.abs(a)) / (b + 10.0) + tl.sin(a) * tl.cos(b) + tl.floor(a) - tl.ceil(b)
    r += tl.exp2(a * 0.5) + tl.log2(tl.abs(a) + 1) + tl.maximum(a, b) + tl.clamp(a, -0.5, 0.5) + tl.rsqrt(tl.abs(b) + 1)
    r += a.to(tl.int32).to(tl.float32) + tl.where((a > b) | (a != a), a, b)
    tl.store(out + i, r)


@triton.jit
def narrow(x, y, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    h = a.to(tl.float16) * b.to(tl.float16) + 0.5
    g = a.to(tl.bfloat16).to(tl.float32) + b.to(tl.bfloat16).to(tl.float32)
    e = a.to(tl.float8e5).to(tl.float32) + b.to(tl.float8e4nv).to(tl.float32)
    bits = h.to(tl.int16, bitcast=True).to(tl.float32) * 1e-6
    tl.store(out + i, h.to(tl.float32) + g + e + bits)


@triton.jit
def _larger(av, ai, bv, bi):
    take = (av > bv) | ((av == bv) & (ai < bi))
    return tl.where(take, av, bv), tl.where(take, ai, bi)


@triton.jit
def _affine(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def reductions(x, y, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    m = tl.reshape(a, (8, N // 8))
    v, k = tl.reduce((a, tl.arange(0, N)), 0, _larger)
    s = tl.sum(m, 1) + tl.max(m, 1) - tl.min(m, 1) + tl.argmax(m, 1) + tl.argmin(m, 1)
    full = tl.reshape(tl.broadcast_to(s[:, None], (8, N // 8)), (N,))
    p, q = tl.associative_scan((a * 0.1, b), 0, _affine)
    r = tl.cumsum(a, 0) + tl.cumprod(b * 0.5, 0) + tl.cumsum(b, 0, reverse=True) + full + v + k + p + q
    r += tl.sort(a) + tl.flip(b) + tl.xor_sum((a * 100).to(tl.int32), 0)
    tl.store(out + i, r)


@triton.jit
def shapes(x, y, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    c = tl.interleave(a, b)
    lo, hi = tl.split(tl.reshape(c, (N, 2)))
    t = tl.trans(tl.reshape(a, (4, N // 4)))
    g = tl.gather(b, (N - 1 - tl.arange(0, N)), 0)
    j = tl.permute(tl.reshape(c, (2, N // 2, 2)), (2, 0, 1))
    z = tl.sum(tl.reshape(j, (2, N)), 0)
    w = tl.cat(a, b)
    h = tl.histogram(tl.abs(a * 3).to(tl.int32) % 16, 16)
    r = lo + hi * 2 + tl.reshape(t, (N,)) + g + z + tl.sum(w, 0) + tl.sum(h * tl.arange(0, 16), 0)
    tl.store(out + i, r)


@triton.jit
def dots(x, y, out, N: tl.constexpr):
    r, c = tl.arange(0, 16)[:, None], tl.arange(0, N // 16)[None, :]
    a = tl.load(x + tl.program_id(0) * N + r * (N // 16) + c)
    b = tl.load(y + tl.program_id(0) * N + r * (N // 16) + c)
    d = tl.dot(a, tl.trans(b), input_precision="ieee")
    e = tl.dot(a.to(tl.float16), tl.trans(b).to(tl.float16))
    i = tl.dot((a * 9).to(tl.int8), tl.trans((b * 9).to(tl.int8)))
    k = tl.dot((d + e + i).to(tl.float32), b, input_precision="ieee")
    tl.store(out + tl.program_id(0) * N + r * (N // 16) + c, k)


@triton.jit
def alternating_pointers(x, y, out, N: tl.constexpr):
    """Two pointers that change places on every trip, through a `for` and through a `while`."""
    i = tl.arange(0, N)
    here, there = x + tl.program_id(0) * N, y + tl.program_id(0) * N
    total = tl.zeros([N], tl.float32)
    for trip in range(3 + tl.program_id(0)):
        total += tl.load(here + i) * (trip + 1)
        here, there = there, here
    left = 3
    while left > 0:
        total -= tl.load(there + i) * left
        here, there = there, here
        left -= 1
    tl.store(out + tl.program_id(0) * N + i, total)


@triton.jit
def twice_or_difference(a, b):
    return a * 2 if a > b else b - a


@triton.jit
def mapped(x, y, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.map_elementwise(twice_or_difference, tl.load(x + i), tl.load(y + i)))


@triton.jit
def early_returns(x, y, out, N: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * N + tl.arange(0, N)
    if pid == 1:
        return
    tl.store(out + i, tl.load(x + i))
    if pid > 2:
        return
    tl.store(out + i, tl.load(y + i))


@triton.jit
def control(x, y, out, N: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * N + tl.arange(0, N)
    a = tl.load(x + i)
    if pid == 2:
        tl.store(out + i, a)
        return
    s = tl.zeros((N,), tl.float32)
    for k in range(pid, 2 * pid + 3, 2):
        if k % 3 == 0:
            s += tl.load(y + i, mask=i % 4 != k % 4, other=0.25) * k
        else:
            s -= a
            for j in range(k % 5):
                s += j
    n = pid * 3
    t = 0
    while n > 1:
        n = tl.where(n % 2 == 0, n // 2, 3 * n + 1)
        t += 1
    if t > 3:
        s = s * 2.0
    p = y + i
    for _ in range(pid):
        s += tl.load(p)
        p += 0
    for u in tl.static_range(3):
        s += u * a
    tl.store(out + i, s + t)


@triton.jit(noinline=True)
def _helper(p, i, k):
    v = tl.load(p + i)
    if k > 1:
        return v * k
    return v + 1.0


@triton.jit
def never_inlined(x, y, out, N: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(out + pid * N, _helper(x, pid * N, pid) + _helper(y, pid, 2))


@triton.jit
def descriptors(x, y, out, N: tl.constexpr):
    pid = tl.program_id(0)
    d = tl.make_tensor_descriptor(x, [tl.num_programs(0), N - 4], [N, 1], [1, N])
    o = tl.make_tensor_descriptor(out, [tl.num_programs(0), N], [N, 1], [1, N])
    o.store([pid, 0], d.load([pid, 0]))


@triton.jit
def atomics(x, y, out, N: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, N)
    v = tl.load(x + pid * N + i)
    tl.atomic_add(out + i % 4, v)
    tl.atomic_max(out + 4 + i % 4, v, mask=i > 2)
    tl.atomic_add(out + 8, 1.0)
    old = tl.atomic_add(out + 9, 1.0)
    tl.store(out + 10 + pid, old)


@triton.jit
def random_numbers(x, y, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.rand(7, i) + tl.randint(3, i).to(tl.float32) * 1e-9)


@triton.jit
def bfloat16_dot(x, y, out, N: tl.constexpr):
    r, c = tl.arange(0, 16)[:, None], tl.arange(0, N // 16)[None, :]
    a = tl.load(x + r * (N // 16) + c).to(tl.bfloat16)
    b = tl.load(y + r * (N // 16) + c).to(tl.bfloat16)
    tl.store(out + r * 16 + tl.arange(0, 16)[None, :], tl.dot(a, tl.trans(b)))


@triton.jit
def tf32_dot(x, y, out, N: tl.constexpr):
    r, c = tl.arange(0, 16)[:, None], tl.arange(0, N // 16)[None, :]
    a = tl.load(x + r * (N // 16) + c)
    b = tl.load(y + r * (N // 16) + c)
    tl.store(out + r * 16 + tl.arange(0, 16)[None, :], tl.dot(a, tl.trans(b), input_precision="tf32"))


@triton.jit
def library(x, y, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(
        out + i,
        libdevice.tanh(tl.load(x + i))
        + libdevice.pow(tl.abs(tl.load(y + i)), 1.5)
        + libdevice.expm1(tl.load(x + i))
        + tl.erf(tl.load(y + i))
        + tl.fma(tl.load(x + i), 2.0, 1.0),
    )


@triton.jit
def pointer_table(table, out, N: tl.constexpr):
    source = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, N)
    tl.store(out + tl.program_id(0) * N + i, tl.load(source + i))


@triton.jit
def assembly(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x + i)], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out + i, v)


@triton.jit
def out_of_bounds(x, out, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out + i, v)


@triton.jit
def choosing(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    if tl.program_id(0) % 2 == 0:
        source = x
        target = out
    else:
        source = y + 1
        target = out + N
    tl.store(target + i, tl.load(source + i, mask=i < N - 1, other=0.0) + tl.load(tl.where(i % 2 == 0, x + i, y + i)))


@triton.jit
def asserting(x, n, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.device_assert(v < n, "too large")
    tl.device_print("v", v)


@triton.jit
def racing(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + tl.program_id(0) * N + i))


@triton.jit
def shifting(x, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(x + i, tl.load(x + i + N))


@triton.jit
def one_condition(x, y, out, N: tl.constexpr):
    """An `if` that chooses between tensors that are there before it becomes a selection by a scalar: of masks, of values and of pointers."""
    i = tl.arange(0, N)
    p = tl.program_id(0)
    large, middle = i > 2, (i > 2) & (i < N // 2)
    a, b = x + i, y + i
    if p % 2 == 0:
        large = middle
        a = b
    s = tl.load(a)
    t = -s
    if p > 2:
        s = t
    tl.store(out + p * N + i, tl.where(large, s, 1.0))


INTEGERS = ("integers",)
FLOATS = (
    "floats",
    "narrow",
    "reductions",
    "shapes",
    "dots",
    "control",
    "one_condition",
    "early_returns",
    "alternating_pointers",
    "never_inlined",
    "descriptors",
    "atomics",
    "random_numbers",
)
