"""Gating and experts as ONNX functions; formulas and layouts in this folder's README.

The experts are a loop over those that some token chose, so that neither the others' weights are
read nor all weights of a token gathered; slots are added in the order of the gating.
"""

from __future__ import annotations

from glm5_ascend.ops.onnx.names import HEADER

# Sigmoid written out: runtimes approximate their own Sigmoid, which can flip a near-tie.
SIGMOID = f"""
{HEADER}
ExactSigmoid (x) => (y) {{
    one = Constant <value = float {{1}}> ()
    minus = Neg (x)
    power = Exp (minus)
    below = Add (one, power)
    y = Div (one, below)
}}
"""

SILU_MUL = f"""
{HEADER}
SiluMul (gate, up) => (y) {{
    share = glm5.ascend.ExactSigmoid (gate)
    open = Mul (gate, share)
    y = Mul (open, up)
}}
"""

# Equal scores: TopK of ONNX takes the lower index, as our contract does.
MOE_GATING = f"""
{HEADER}
MoeGating <top_k, norm_topk_prob, routed_scaling_factor> (logits, bias) => (weights, ids) {{
    wide = Cast <to = 1> (logits)
    score = glm5.ascend.ExactSigmoid (wide)
    shift = Cast <to = 1> (bias)
    biased = Add (score, shift)
    any = Constant <value_ints = [-1]> ()
    count = Constant <value_int: int = @top_k> ()
    k = Reshape (count, any)
    best, chosen = TopK <axis = -1, largest = 1, sorted = 1> (biased, k)
    raw = GatherElements <axis = -1> (score, chosen)
    total = ReduceSum <keepdims = 1> (raw, any)
    tiny = Constant <value = float {{1e-20}}> ()
    divisor = Add (total, tiny)
    shares = Div (raw, divisor)
    flag = Constant <value_int: int = @norm_topk_prob> ()
    normalise = Cast <to = 9> (flag)
    kept = Where (normalise, shares, raw)
    factor = Constant <value_float: float = @routed_scaling_factor> ()
    weights = Mul (kept, factor)
    ids = Cast <to = 6> (chosen)
}}
"""

# w4a8: bytes [N / 2, K] hold the even row in the low nibble. Flipping both sign bits makes the
# nibbles w + 8 in 0..15.
UNPACK_INT4 = f"""
{HEADER}
UnpackInt4 (packed) => (codes) {{
    signs = Constant <value = int8 {{-120}}> ()
    flipped = BitwiseXor (packed, signs)
    bytes = Cast <to = 2> (flipped)
    low = Constant <value = uint8 {{15}}> ()
    four = Constant <value = uint8 {{4}}> ()
    even = BitwiseAnd (bytes, low)
    odd = BitShift <direction = "RIGHT"> (bytes, four)
    middle = Constant <value_ints = [1]> ()
    even_rows = Unsqueeze (even, middle)
    odd_rows = Unsqueeze (odd, middle)
    pairs = Concat <axis = 1> (even_rows, odd_rows)
    any = Constant <value_ints = [-1]> ()
    width = Shape <start = 1> (packed)
    shape = Concat <axis = 0> (any, width)
    codes = Reshape (pairs, shape)
}}
"""

# y = x_scale · (scale · Σ (x_q − 8) w + scale_bias). A zero point of 136 takes the codes, moved
# by 128, to x_q − 8; the one of 8 takes the nibbles to w.
EXPERT_LINEAR_W4A8 = f"""
{HEADER}
ExpertLinearW4A8 (x, packed, weight_scale, scale_bias) => (y) {{
    codes, x_scale = glm5.ascend.DynamicQuant (x)
    sign = Constant <value = int8 {{-128}}> ()
    flipped = BitwiseXor (codes, sign)
    a = Cast <to = 2> (flipped)
    rows = glm5.ascend.UnpackInt4 (packed)
    b = Transpose <perm = [1, 0]> (rows)
    a_zero = Constant <value = uint8 {{136}}> ()
    b_zero = Constant <value = uint8 {{8}}> ()
    product = MatMulInteger (a, b, a_zero, b_zero)
    real = Cast <to = 1> (product)
    any = Constant <value_ints = [-1]> ()
    scale = Reshape (weight_scale, any)
    scaled = Mul (real, scale)
    bias = ReduceSum <keepdims = 0> (scale_bias, any)
    biased = Add (scaled, bias)
    y = Mul (biased, x_scale)
}}
"""


# F32 [T, H] of one row [T · top_k, H] per slot and weights [T, top_k].
SUM_SLOTS = f"""
{HEADER}
SumSlots (slots, weights) => (total) {{
    per_token = Shape (weights)
    hidden = Shape <start = 1, end = 2> (slots)
    grid = Concat <axis = 0> (per_token, hidden)
    by_token = Reshape <allowzero = 1> (slots, grid)
    share = Cast <to = 1> (weights)
    last = Constant <value_ints = [-1]> ()
    column = Unsqueeze (share, last)
    weighed = Mul (by_token, column)
    second = Constant <value_ints = [1]> ()
    total = ReduceSum <keepdims = 0> (weighed, second)
}}
"""


def _experts(suffix: str, linear: str, per_matrix: tuple[str, ...]) -> str:
    """The loop over experts; ``per_matrix`` are the tensors beside each weight, with an expert
    axis."""

    def pick(matrix: str) -> str:
        names = (matrix, *(f"{matrix}_{leaf}" for leaf in per_matrix))
        return "\n".join(f"        {name}_e = Gather <axis = 0> ({name}, e)" for name in names)

    def arguments(matrix: str) -> str:
        return ", ".join(f"{name}_e" for name in (matrix, *(f"{matrix}_{x}" for x in per_matrix)))

    inputs = ", ".join(
        f"{m}{s}" for s in ("", *(f"_{x}" for x in per_matrix)) for m in ("w13", "w2")
    )
    return f"""
{HEADER}
MoeExperts{suffix} (x, weights, ids, {inputs}) => (y) {{
    wide = Cast <to = 1> (x)
    any = Constant <value_ints = [-1]> ()
    ids64 = Cast <to = 7> (ids)
    flat = Reshape (ids64, any)
    zero = Constant <value = int64 {{0}}> ()
    nobody = Less (flat, zero)
    somebody = Not (nobody)
    used = Compress (flat, somebody)
    experts, first, inverse, counts = Unique <sorted = 1> (used)
    turns = Size (experts)
    top_k = Shape <start = 1, end = 2> (ids)
    pairs = Shape (flat)
    hidden = Shape <start = 1, end = 2> (x)
    size = Concat <axis = 0> (pairs, hidden)
    empty = ConstantOfShape (size)
    go = Constant <value = bool {{1}}> ()
    slots = Loop (turns, go, empty) <body = one_expert
      (int64 turn, bool on, float[p, h] before) => (bool still, float[p, h] after) {{
        e = Gather <axis = 0> (experts, turn)
        hit = Equal (flat, e)
        row = NonZero (hit)
        rows = Transpose <perm = [1, 0]> (row)
        token = Div (row, top_k)
        front = Constant <value_ints = [0]> ()
        tokens = Squeeze (token, front)
        mine = Gather <axis = 0> (wide, tokens)
{pick("w13")}
        both = glm5.ascend.{linear} (mine, {arguments("w13")})
        gate, up = Split <axis = -1, num_outputs = 2> (both)
        inner = glm5.ascend.SiluMul (gate, up)
{pick("w2")}
        out = glm5.ascend.{linear} (inner, {arguments("w2")})
        after = ScatterND (before, rows, out)
        still = Identity (on)
    }}>
    total = glm5.ascend.SumSlots (slots, weights)
    y = CastLike (total, x)
}}
"""


FUNCTIONS = (
    SIGMOID,
    SILU_MUL,
    MOE_GATING,
    UNPACK_INT4,
    EXPERT_LINEAR_W4A8,
    SUM_SLOTS,
    _experts("", "Linear", ()),
    _experts("W8A8", "LinearW8A8Dynamic", ("scale",)),
    _experts("W4A8", "ExpertLinearW4A8", ("scale", "scale_bias")),
)
