"""Values of element-wise instructions in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray

_LOW = {
    "int16": -(2**15),
    "int32": -(2**31),
    "int64": -(2**63),
    "int8": -128,
    "uint8": 0,
    "int4": -8,
}
_HIGH = {"int16": 2**15, "int32": 2**31, "int64": 2**63, "int8": 128, "uint8": 256, "int4": 8}


def fused(a: Array, b: Array, c: Array, kind: str) -> Array:
    """a * b + c, rounded once: the sum in F64 is made odd where it is not exact."""
    x, y, z = (np.asarray(v).astype(np.float64) for v in (a, b, c))
    product = x * y
    total = product + z
    back = total - product
    error = (product - (total - back)) + (z - back)
    bits = np.atleast_1d(total).view(np.int64).copy()
    inexact = (np.atleast_1d(error) != 0) & np.isfinite(np.atleast_1d(total)) & (bits % 2 == 0)
    outward = (np.atleast_1d(error) > 0) == (np.atleast_1d(total) > 0)
    bits[inexact] += np.where(outward[inexact], 1, -1)
    odd = bits.view(np.float64)
    if kind == "float":
        return odd.astype(np.float32)
    # F64 to half is one rounding in NumPy.
    return odd.astype(np.float16)


def _wide(x: Array) -> Array:
    return x.astype(np.float64)


def _nan_first(choose: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: choose(a, np.broadcast_to(b, a.shape))


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "And": np.bitwise_and,
    "Or": np.bitwise_or,
}
SCALAR: dict[str, Callable[[Array, Array], Array]] = {
    "Adds": np.add,
    "Muls": np.multiply,
    "Maxs": _nan_first(np.maximum),
    "Mins": _nan_first(np.minimum),
    "LeakyRelu": lambda a, s: np.where(a < 0, a * s, a),
}
UNARY: dict[str, Callable[[Array], Array]] = {
    "Exp": lambda a: np.exp(_wide(a)),
    "Ln": lambda a: np.log(_wide(a)),
    "Sqrt": lambda a: np.sqrt(_wide(a)),
    "Rsqrt": lambda a: 1 / np.sqrt(_wide(a)),
    "Reciprocal": lambda a: 1 / a,
    "Abs": np.abs,
    "Relu": lambda a: np.where(a <= 0, np.zeros_like(a), a),
    "Not": np.invert,
}
# Ours and NumPy's logarithms and exponentials may round differently.
ULPS = {"Exp": 1, "Ln": 1}


def shifted(name: str, a: Array, by: int, rounding: bool, width: int) -> Array:
    """ShiftLeft and ShiftRight in plain integers."""
    if name == "ShiftLeft":
        return (
            np.array([(int(x) << by) & (2**width - 1) for x in a], np.uint64)
            .astype(f"u{width // 8}")
            .view(a.dtype)
        )
    half = 1 << (by - 1) if rounding and by else 0
    wide = [(int(x) + half) >> by for x in a]
    return np.array(wide, np.int64).astype(a.dtype)


def whole(x: Array, mode: str) -> Array:
    """Whole numbers next to x, in F64 or exact integers of F64."""
    if mode == "ROUND":
        return np.copysign(np.floor(np.abs(x.astype(np.float64)) + 0.5), x)
    return {
        "RINT": np.rint,
        "NONE": np.rint,
        "FLOOR": np.floor,
        "CEIL": np.ceil,
        "TRUNC": np.trunc,
    }[mode](x)


def quantised(x: Array, mode: str, digits: int, least: int, most: float) -> Array:
    """x rounded to ``digits`` binary digits, the last not below 2**least; up to ``most``."""
    wide = x.astype(np.float64)
    finite = np.isfinite(wide) & (wide != 0)
    exponent = np.where(finite, np.frexp(np.where(finite, wide, 1))[1] - digits, 0)
    step = np.ldexp(1.0, np.maximum(exponent, least))
    scaled = np.where(finite, wide, 0) / step
    if mode == "ODD":
        down = np.trunc(scaled)
        digit = np.where((scaled != down) & (down % 2 == 0), down + np.sign(scaled), down)
    else:
        digit = whole(scaled, mode)
    result = np.where(finite, np.copysign(np.abs(digit * step), wide), wide)
    over = np.isfinite(wide) & (np.abs(result) > most)
    inward = {"TRUNC": True, "ODD": True}.get(mode, False)
    kept = (
        np.full(result.shape, inward)
        | ((mode == "FLOOR") & (wide > 0))
        | ((mode == "CEIL") & (wide < 0))
    )
    limit = np.where(kept, most, np.inf)
    return np.where(over, np.copysign(limit, wide), result)


def to_integer(x: Array, mode: str, kind: str) -> Array:
    """Saturated whole numbers; NaN is 0. ``x`` is F64."""
    digit = whole(np.where(np.isnan(x), 0, x), mode)
    return np.array(
        [
            int(min(max(v, float(_LOW[kind])), float(_HIGH[kind]))) - int(v >= _HIGH[kind])
            for v in digit
        ],
        dtype=object,
    )


def float_of(x: Array, mode: str) -> Array:
    """F32 next to integers, by exact comparison."""
    out = []
    for value in (int(v) for v in x):
        near = np.float32(value)
        if mode not in ("NONE", "RINT") and int(near) != value:
            other = np.nextafter(near, np.float32(-np.inf if int(near) > value else np.inf))
            low, high = sorted((near, other))
            middle = 2 * value == int(low) + int(high)
            away = high if value > 0 else low
            near = {
                "FLOOR": low,
                "CEIL": high,
                "TRUNC": low if value > 0 else high,
                "ROUND": away if middle else near,
            }[mode]
        out.append(near)
    return np.array(out, np.float32)


def cast(x: Array, source: str, target: str, mode: str, scale: float) -> Array:
    """Cast of values ``x`` (bfloat16 as bits); bfloat16 results are bits."""
    if source == "bf16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    if source in ("int32", "int64"):
        if target == "float":
            return float_of(x, mode)
        if target == "half":
            return (x.astype(np.float32) * np.float32(scale)).astype(np.float16)
        low, high = _LOW[target], _HIGH[target] - 1
        return np.array([min(max(int(v), low), high) for v in x], np.int64)
    if target == "half":
        return quantised(x, mode, 11, -24, 65504).astype(np.float16)
    if target == "bf16":
        most = float(np.uint32(0x7F7F0000).view(np.float32))
        return (quantised(x, mode, 8, -133, most).astype(np.float32).view(np.uint32) >> 16).astype(
            np.uint16
        )
    if target == "float":
        return x.astype(np.float32) if source != "float" else whole(x, mode)
    return to_integer(x.astype(np.float64), mode, target)
