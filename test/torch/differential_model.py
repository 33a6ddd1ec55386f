# SPDX-License-Identifier: Apache-2.0
"""What a reduction must give: the model that differential.py judges by, and the values that it draws.

Integers and bool are exact: numpy's arithmetic, which wraps around; an average is the wrapped sum divided towards zero.

Floats are judged by an interval that holds every result the documented arithmetic allows, whatever the order of additions. Terms:
n inputs x_k; A the accumulator's type (float32 for 16- and 8-bit floats, else the type itself) with unit roundoff u, least
subnormal t and largest number M; everything below is computed in float64, which adds n 2^-53 to u.

- SUM: n-1 additions, each off by u of a partial sum, which is at most sum|x_k|: E = (n-1) u sum|x_k| (Higham, Accuracy and Stability,
  4.4). No term for underflow: a sum of floats that is subnormal is exact. The accumulator's value lies in [S-E, S+E].
- AVG: one division more: u |S/n| for rounding, t for underflow. Of 16- and 8-bit floats over hosts: never infinite where the inputs are
  finite (but where float32 ends), u a rounding, and t a rank, since what crosses is divided first.
- PREMUL_SUM: each x_k times the factor is rounded to the type first, which is repeated here exactly; then as SUM.
- PRODUCT: n-1 roundings, E = ((n-1) u) |P| and n t prod max(1, |x_k|) for what underflows and is multiplied up again.
- Complex SUM, AVG: real and imaginary parts, each as above. Complex PRODUCT: a product is off by sqrt(5) u of its magnitude (Brent,
  Percival, Zimmermann, 2007): E = 3 (n-1) u prod|x_k| in either part.
- MIN, MAX: exact; NaN wins; of zeros MIN takes -0.0 and MAX +0.0.

The result is that value rounded once to the type; rounding is monotonic, so it lies between the rounded ends. Where partial results
could overflow (sum|x_k| or prod max(1, |x_k|) above M and n > 2), or a partial product underflow beside an infinity, the order decides, and
anything is right. A sum of zeros is -0.0 only if all are, and never in complex numbers (of one rank alone it is what was given). NaN in,
or infinities of both signs, is NaN out.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED_ONLY = [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.complex32]
REDUCED = FLOATS + INTEGERS + COMPLEX + [torch.bool]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]


def is_supported(op: str, dtype: torch.dtype) -> bool:
    """The table of docs/pytorch.md."""
    if dtype in MOVED_ONLY:
        return False
    if dtype == torch.bool:
        return op not in ("AVG", "PREMUL_SUM")
    if dtype.is_complex:
        return op in ("SUM", "AVG", "PRODUCT", "PREMUL_SUM")
    if dtype.is_floating_point:
        return op not in ("BAND", "BOR", "BXOR")
    return op != "PREMUL_SUM"


# ---------------------------------------------------------------- bits


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory in the order of its elements."""
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def join(tensors: list[torch.Tensor]) -> torch.Tensor:
    """torch.cat along the first dimension, for every dtype."""
    first = tensors[0]
    rows = sum(t.shape[0] for t in tensors)
    return torch.cat([bits(t) for t in tensors]).contiguous().view(first.dtype).reshape(rows, *first.shape[1:])


# ---------------------------------------------------------------- values

KINDS = {"float": ["whole", "normal", "wide", "special", "tiny"], "integer": ["small", "any"]}


def draw_floats(rng: np.random.Generator, dtype: torch.dtype, count: int, kind: str) -> torch.Tensor:
    info = torch.finfo(dtype)
    value: np.ndarray
    if kind == "whole":
        value = rng.integers(-8, 9, count).astype(np.float64)
    elif kind == "tiny":  # about the least numbers, subnormal ones among them
        value = rng.integers(-20, 21, count) * (float(info.smallest_normal) * info.eps)
    elif kind == "wide":
        low, high = np.log2(float(info.smallest_normal)), np.log2(float(info.max))
        value = rng.choice([-1.0, 1.0], count) * np.exp2(rng.uniform(low, high, count))
    else:
        value = rng.standard_normal(count)
    tensor = torch.from_numpy(np.ascontiguousarray(value)).to(dtype)
    if kind == "special" and count:
        pool = [float("nan"), float("inf"), -float("inf"), -0.0, -0.0, 0.0, float(info.max), -float(info.max), float(info.tiny)]
        if dtype == torch.float8_e4m3fn:
            pool = [x for x in pool if not np.isinf(x)]
        special = torch.tensor(pool, dtype=torch.float64).to(dtype).view(torch.uint8).reshape(len(pool), -1)
        where = torch.from_numpy(rng.random(count) < 0.4)
        which = torch.from_numpy(rng.integers(0, len(pool), count))
        tensor.view(torch.uint8).reshape(count, -1)[where] = special[which][where]
    return tensor


def draw_values(rng: np.random.Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """`kind` is one of KINDS, or "bits": anything that the memory can hold."""
    count = int(np.prod(shape))
    if dtype == torch.bool:
        return torch.from_numpy(rng.integers(0, 2, count).astype(np.bool_)).reshape(shape)
    if kind in ("bits", "any"):
        memory = torch.empty(count * dtype.itemsize, dtype=torch.uint8)
        memory.copy_(torch.from_numpy(rng.integers(0, 256, len(memory), dtype=np.uint8)))
        return memory.view(dtype).reshape(shape)
    if dtype.is_complex:
        parts = draw_floats(rng, dtype.to_real(), 2 * count, kind)
        return torch.view_as_complex(parts.reshape(*shape, 2))
    if dtype.is_floating_point:
        return draw_floats(rng, dtype, count, kind).reshape(shape)
    low = 0 if str(dtype).startswith("torch.uint") else -10
    return torch.from_numpy(rng.integers(low, 11, count)).to(dtype).reshape(shape)


# ---------------------------------------------------------------- the model


def to_wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float64).numpy().reshape(-1)


def round_to(value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return to_wide(torch.from_numpy(np.ascontiguousarray(value, dtype=np.float64)).to(dtype))


def accumulator_of(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.float64, torch.float32) else torch.float32


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The first half of PREMUL_SUM."""
    wide = tensor.to(accumulator_of(tensor.dtype))
    return (wide * torch.tensor(factor, dtype=torch.float64).to(wide.dtype)).to(tensor.dtype)


class Interval:
    """All that is right for each element: between low and high; or NaN; or anything."""

    def __init__(self, low: np.ndarray, high: np.ndarray, nan: np.ndarray, loose: np.ndarray) -> None:
        self.low, self.high, self.nan, self.loose = low, high, nan, loose

    def wrong(self, got: np.ndarray) -> np.ndarray:
        inside = (got >= self.low) & (got <= self.high)
        return ~(np.where(self.nan, np.isnan(got), inside) | self.loose)


def sum_interval(x: np.ndarray, dtype: torch.dtype, acc: torch.dtype, divisor: int) -> Interval:
    n, info = len(x), torch.finfo(acc)
    u, tiny = info.eps / 2, float(info.smallest_normal) * info.eps
    finite = np.where(np.isfinite(x), x, 0.0)
    total, magnitude = finite.sum(0), np.abs(finite).sum(0)
    plus, minus = (x == np.inf).any(0), (x == -np.inf).any(0)
    loose = (magnitude > float(info.max) * (1 - 1e-6)) & (n > 2)
    error = np.where(np.isfinite(magnitude), magnitude * ((n - 1) * u * 1.01 + n * 2.0**-53), 0.0)
    if n <= 2:  # a single addition is rounded right; float64 has done just that, and anything narrower is rounded once below
        error = error * 0.0 if acc == torch.float64 else error
    low, high = round_to(total - error, acc), round_to(total + error, acc)
    if divisor > 1:
        low, high = low / divisor, high / divisor
        low = low - np.abs(np.where(np.isinf(low), 0, low)) * u * 1.01 - tiny
        high = high + np.abs(np.where(np.isinf(high), 0, high)) * u * 1.01 + tiny
    low, high = round_to(round_to(low, acc), dtype), round_to(round_to(high, acc), dtype)
    low, high = np.where(plus, np.inf, np.where(minus, -np.inf, low)), np.where(plus, np.inf, np.where(minus, -np.inf, high))
    return Interval(low, high, np.isnan(x).any(0) | (plus & minus), loose & ~np.isnan(x).any(0))


def shared_average_interval(x: np.ndarray, dtype: torch.dtype) -> Interval:
    """AVG of small floats over hosts: each host's sum is divided by a power of two before it is rounded to dtype and crosses."""
    n, info = len(x), torch.finfo(dtype)
    u, tiny = info.eps / 2, float(info.smallest_normal) * info.eps
    finite = np.where(np.isfinite(x), x, 0.0)
    magnitude = np.abs(finite).sum(0)
    plus, minus, nan = (x == np.inf).any(0), (x == -np.inf).any(0), np.isnan(x).any(0)
    error = magnitude / n * n * u * 1.01 + n * tiny
    low, high = (round_to(np.clip(finite.sum(0) / n + side * error, -float(info.max), float(info.max)), dtype) for side in (-1, 1))
    low, high = np.where(plus, np.inf, np.where(minus, -np.inf, low)), np.where(plus, np.inf, np.where(minus, -np.inf, high))
    # Inside a host the sum is float32's, and infinite where that ends.
    return Interval(low, high, nan | (plus & minus), (magnitude > float(torch.finfo(torch.float32).max) * (1 - 1e-6)) & ~nan)


def product_interval(x: np.ndarray, dtype: torch.dtype, acc: torch.dtype) -> Interval:
    n, info = len(x), torch.finfo(acc)
    u, tiny, least = info.eps / 2, float(info.smallest_normal) * info.eps, float(info.smallest_normal)
    infinite, zero, nan = np.isinf(x).any(0), (x == 0).any(0), np.isnan(x).any(0)
    finite = np.where(np.isfinite(x), x, 1.0)
    total = finite.prod(0)
    above, below = np.maximum(np.abs(finite), 1).prod(0), np.where(finite == 0, 1.0, np.minimum(np.abs(finite), 1)).prod(0)
    loose = ((above > float(info.max) * (1 - 1e-6)) | (infinite & (below < least))) & (n > 2)
    bound = np.abs(total) * ((n - 1) * u * 1.01 + n * 2.0**-53) + (n * tiny * above if n > 1 else 0.0)
    error = np.where(np.isfinite(bound), bound, 0.0)
    low, high = round_to(round_to(total - error, acc), dtype), round_to(round_to(total + error, acc), dtype)
    sign = np.where(np.signbit(x), -1.0, 1.0).prod(0) * np.inf
    low, high = np.where(infinite, sign, low), np.where(infinite, sign, high)
    return Interval(low, high, nan | (infinite & zero), loose & ~nan)


def extreme(op: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """MIN or MAX: the value (NaN wins) and whether it has a minus sign."""
    value = x.min(0) if op == "MIN" else x.max(0)  # numpy's also let NaN win
    zeros, minus = x == 0, np.signbit(x)
    negative = (zeros & minus).any(0) if op == "MIN" else ~(zeros & ~minus).any(0)
    return value, np.where(value == 0, negative, np.signbit(value))


def judge_floats(
    op: str, inputs: list[torch.Tensor], got: torch.Tensor, factor: float, acc: Optional[torch.dtype], strict: bool
) -> tuple[np.ndarray, Any]:
    """(which elements are wrong, what was expected)."""
    dtype, n = got.dtype, len(inputs)
    if op == "PREMUL_SUM":
        inputs = [scaled(tensor, factor) for tensor in inputs]
    x, result = np.stack([to_wide(tensor) for tensor in inputs]), to_wide(got)
    acc = acc or accumulator_of(dtype)
    if op in ("MIN", "MAX"):
        value, negative = extreme(op, x)
        nan = np.isnan(value)
        if not strict:
            return ~(nan | (result == value)), (value, value)
        return ~np.where(nan, np.isnan(result), (result == value) & (np.signbit(result) == negative)), (value, value)
    if op == "PRODUCT":
        interval = product_interval(x, dtype, acc)
        return interval.wrong(result), (interval.low, interval.high)
    if op == "AVG" and acc.itemsize < 4:
        interval = shared_average_interval(x, dtype)
    else:
        interval = sum_interval(x, dtype, acc, n if op == "AVG" else 1)
    wrong = interval.wrong(result)
    if strict:
        all_zero = (x == 0).all(0)
        wrong |= all_zero & (np.signbit(result) != np.signbit(x).all(0))
    return wrong, (interval.low, interval.high)


def judge_complex_product(inputs: list[torch.Tensor], got: torch.Tensor) -> tuple[np.ndarray, Any]:
    part = got.dtype.to_real()
    info, n = torch.finfo(part), len(inputs)
    x = np.stack([tensor.to(torch.complex128).numpy().reshape(-1) for tensor in inputs])
    total, magnitude = x[0].copy(), np.abs(x).prod(0)
    for other in x[1:]:
        total = total * other
    above = np.maximum(np.abs(x), 1).prod(0) * 2**n
    loose = ~np.isfinite(x).all(0) | ~(above < float(info.max)) | ~np.isfinite(total)
    tiny = float(info.smallest_normal) * info.eps
    error = 3 * (n - 1) * (info.eps / 2 + 2.0**-53) * magnitude + (4 * n * tiny * above if n > 1 else 0.0)
    result = got.to(torch.complex128).numpy().reshape(-1)
    error = error + (info.eps * magnitude if part == torch.float32 else 0.0)  # the model is not rounded to the part's type
    wrong = (np.abs(result.real - total.real) > error) | (np.abs(result.imag - total.imag) > error)
    return wrong & ~loose, (total, error)


def reduce_integers(op: str, inputs: list[torch.Tensor]) -> np.ndarray:
    x = [tensor.contiguous().numpy().reshape(-1) for tensor in inputs]
    if x[0].dtype == np.bool_:
        op = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}.get(op, op)
    combine = {"SUM": np.add, "AVG": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "BAND": np.bitwise_and,
               "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}[op]
    total = x[0].copy()
    for other in x[1:]:
        total = combine(total, other)
    if op != "AVG":
        return total
    return np.array([int(v) // len(x) if v >= 0 else -(-int(v) // len(x)) for v in total], dtype=total.dtype)


def judge(
    op: str,
    inputs: list[torch.Tensor],
    got: torch.Tensor,
    factor: float = 1.0,
    acc: Optional[torch.dtype] = None,
    strict: bool = True,
) -> str:
    """What is wrong with `got` as the reduction of `inputs`; "" when nothing. `acc`: another accumulator than Quoit's; not strict:
    signs of zeros, and NaN in MIN and MAX, are free."""
    if got.shape != inputs[0].shape or got.dtype != inputs[0].dtype:
        return f"shape {tuple(got.shape)} {got.dtype}"
    if got.numel() == 0:
        return ""
    with np.errstate(all="ignore"):
        if not got.dtype.is_floating_point and not got.dtype.is_complex:
            expected = reduce_integers(op, inputs)
            wrong, ends = got.contiguous().numpy().reshape(-1) != expected, (expected, expected)
        elif got.dtype.is_complex and op == "PRODUCT":
            wrong, ends = judge_complex_product(inputs, got)
        else:
            if got.dtype.is_complex:
                inputs, got = [torch.view_as_real(tensor) for tensor in inputs], torch.view_as_real(got)
                minus, strict = strict and len(inputs) > 1, False
                wrong, ends = judge_floats(op, inputs, got, factor, acc, strict)
                if minus and op != "AVG":  # the quotient of a tiny sum may be -0.0
                    wrong |= (to_wide(got) == 0) & np.signbit(to_wide(got))
            else:
                wrong, ends = judge_floats(op, inputs, got, factor, acc, strict)
    if not wrong.any():
        return ""
    i = int(np.argmax(wrong))
    given = [repr(tensor.reshape(-1)[i].item()) for tensor in inputs]
    return (f"{int(wrong.sum())} of {len(wrong)} elements are wrong; element {i}: {op} of {', '.join(given)}"
            f"{f' (factor {factor})' if op == 'PREMUL_SUM' else ''} gave {got.reshape(-1)[i].item()!r}, "
            f"expected {ends[0][i]!r} .. {ends[1][i]!r}")
