"""Linear layers as ONNX functions: float, W8A8 dynamic and static; formulas in the README.

Weights are [N, K] as in the checkpoint. F32 accumulation, integer products exact.
"""

from __future__ import annotations

from glm5_ascend.ops.onnx.names import HEADER

LINEAR = f"""
{HEADER}
Linear (x, weight) => (y) {{
    wide = Cast <to = 1> (x)
    matrix = Cast <to = 1> (weight)
    product = Gemm <transB = 1> (wide, matrix)
    y = CastLike (product, x)
}}
"""

DYNAMIC_QUANT = f"""
{HEADER}
DynamicQuant (x) => (codes, scale) {{
    wide = Cast <to = 1> (x)
    magnitude = Abs (wide)
    last = Constant <value_ints = [-1]> ()
    peak = ReduceMax <keepdims = 1> (magnitude, last)
    most = Constant <value = float {{127}}> ()
    scale = Div (peak, most)
    zero = Constant <value = float {{0}}> ()
    one = Constant <value = float {{1}}> ()
    silent = Equal (scale, zero)
    divisor = Where (silent, one, scale)
    real = Div (wide, divisor)
    whole = Round (real)
    least = Constant <value = float {{-127}}> ()
    clipped = Clip (whole, least, most)
    codes = Cast <to = 3> (clipped)
}}
"""

# int32 [T, N] of int8 codes [T, K] and int8 weight [N, K]. Both are moved to uint8 by flipping the
# sign bit: on x86 without VNNI, runtimes add pairs of products of uint8 and int8 in 16 bits, which
# saturates; products of uint8 and uint8 are exact everywhere.
INT_PRODUCT = f"""
{HEADER}
IntProduct (codes, weight) => (y) {{
    sign = Constant <value = int8 {{-128}}> ()
    middle = Constant <value = uint8 {{128}}> ()
    flipped_codes = BitwiseXor (codes, sign)
    flipped_weight = BitwiseXor (weight, sign)
    a = Cast <to = 2> (flipped_codes)
    rows = Cast <to = 2> (flipped_weight)
    b = Transpose <perm = [1, 0]> (rows)
    y = MatMulInteger (a, b, middle, middle)
}}
"""

LINEAR_W8A8_DYNAMIC = f"""
{HEADER}
LinearW8A8Dynamic (x, weight, weight_scale) => (y) {{
    codes, x_scale = glm5.ascend.DynamicQuant (x)
    product = glm5.ascend.IntProduct (codes, weight)
    real = Cast <to = 1> (product)
    any = Constant <value_ints = [-1]> ()
    w_wide = Cast <to = 1> (weight_scale)
    w_scale = Reshape (w_wide, any)
    half_scaled = Mul (real, w_scale)
    scaled = Mul (half_scaled, x_scale)
    y = CastLike (scaled, x)
}}
"""

# QuantizeLinear would add the offset after rounding, which breaks ties differently.
LINEAR_W8A8_STATIC = f"""
{HEADER}
LinearW8A8Static (x, weight, input_scale, input_offset, quant_bias, deq_scale) => (y) {{
    wide = Cast <to = 1> (x)
    divisor = Cast <to = 1> (input_scale)
    offset = Cast <to = 1> (input_offset)
    real = Div (wide, divisor)
    shifted = Add (real, offset)
    whole = Round (shifted)
    least = Constant <value = float {{-128}}> ()
    most = Constant <value = float {{127}}> ()
    clipped = Clip (whole, least, most)
    codes = Cast <to = 3> (clipped)
    product = glm5.ascend.IntProduct (codes, weight)
    biased = Add (product, quant_bias)
    total = Cast <to = 1> (biased)
    scale = Cast <to = 1> (deq_scale)
    scaled = Mul (total, scale)
    y = CastLike (scaled, x)
}}
"""

FUNCTIONS = (LINEAR, DYNAMIC_QUANT, INT_PRODUCT, LINEAR_W8A8_DYNAMIC, LINEAR_W8A8_STATIC)
