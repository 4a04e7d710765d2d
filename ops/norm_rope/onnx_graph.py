"""Norms and rotary embedding as ONNX functions; formulas and sources in this folder's README.

Statistics and rotation are F32, and results are rounded once to the dtype of ``x``.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from glm5_ascend.ops.onnx.names import HEADER

RMS_NORM = f"""
{HEADER}
RmsNorm <eps> (x, weight) => (y) {{
    wide = Cast <to = 1> (x)
    square = Mul (wide, wide)
    last = Constant <value_ints = [-1]> ()
    mean = ReduceMean <keepdims = 1> (square, last)
    epsilon = Constant <value_float: float = @eps> ()
    shifted = Add (mean, epsilon)
    root = Sqrt (shifted)
    normed = Div (wide, root)
    rounded = CastLike (normed, x)
    rounded_gain = CastLike (weight, x)
    left = Cast <to = 1> (rounded)
    right = Cast <to = 1> (rounded_gain)
    product = Mul (left, right)
    y = CastLike (product, x)
}}
"""

LAYER_NORM = f"""
{HEADER}
LayerNorm <eps> (x, weight, bias) => (y) {{
    wide = Cast <to = 1> (x)
    gain = Cast <to = 1> (weight)
    shift = Cast <to = 1> (bias)
    normed = LayerNormalization <axis = -1, epsilon: float = @eps> (wide, gain, shift)
    y = CastLike (normed, x)
}}
"""

# cos, sin F32 [T, dim / 2] of positions [T] times inverse frequencies [dim / 2].
ROTARY_TABLE = f"""
{HEADER}
RotaryTable (positions, inverse) => (cos, sin) {{
    last = Constant <value_ints = [-1]> ()
    real = Cast <to = 1> (positions)
    column = Unsqueeze (real, last)
    angle = Mul (column, inverse)
    cos = Cos (angle)
    sin = Sin (angle)
}}
"""

# Turns the pairs (x[2j], x[2j + 1]) of x [T, .., dim]; pairs stay in place.
ROTARY_INTERLEAVED = f"""
{HEADER}
RotaryInterleaved (x, cos, sin) => (y) {{
    wide = Cast <to = 1> (x)
    tokens = Shape <end = 1> (x)
    half = Shape <start = -1> (cos)
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    between = Shape <start = 1, end = -1> (x)
    factors = Concat <axis = 0> (one, between)
    heads = ReduceProd <keepdims = 1> (factors)
    paired = Concat <axis = 0> (tokens, heads, half, two)
    pairs = Reshape <allowzero = 1> (wide, paired)
    even, odd = Split <axis = -1, num_outputs = 2> (pairs)
    axes = Constant <value_ints = [1, 3]> ()
    c_wide = Cast <to = 1> (cos)
    s_wide = Cast <to = 1> (sin)
    c = Unsqueeze (c_wide, axes)
    s = Unsqueeze (s_wide, axes)
    even_c = Mul (even, c)
    odd_s = Mul (odd, s)
    odd_c = Mul (odd, c)
    even_s = Mul (even, s)
    first = Sub (even_c, odd_s)
    second = Add (odd_c, even_s)
    turned = Concat <axis = -1> (first, second)
    shape = Shape (x)
    flat = Reshape <allowzero = 1> (turned, shape)
    y = CastLike (flat, x)
}}
"""

# The same for the first 2 · cos.shape[-1] values of every head; the others stay.
ROTARY_FIRST = f"""
{HEADER}
RotaryFirst (x, cos, sin) => (y) {{
    half = Shape <start = -1> (cos)
    two = Constant <value_ints = [2]> ()
    rope = Mul (half, two)
    width = Shape <start = -1> (x)
    rest = Sub (width, rope)
    sizes = Concat <axis = 0> (rope, rest)
    front, back = Split <axis = -1> (x, sizes)
    turned = glm5.ascend.RotaryInterleaved (front, cos, sin)
    y = Concat <axis = -1> (turned, back)
}}
"""

FUNCTIONS = (RMS_NORM, LAYER_NORM, ROTARY_TABLE, ROTARY_INTERLEAVED, ROTARY_FIRST)


def inverse_frequencies(dim: int, theta: float) -> NDArray[np.float32]:
    """theta^(-2j / dim) [dim / 2], with torch: NumPy's powers differ in the last bit, and positions
    magnify that."""
    step = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return (1.0 / theta**step).numpy()
