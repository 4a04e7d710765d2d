"""MLA pre-processing as ONNX functions; formulas in this folder's README.

``Mlapo`` makes queries and the new rows of the caches from the normalised layer input, with weights
[out, in] as in a checkpoint. ``MlapoPaged`` has the inputs of npu_mla_prolog_v3, weights [in, out],
and returns the caches with those rows. One of each per pair of weight schemes.
"""

from __future__ import annotations

from glm5_ascend.ops.onnx.names import HEADER
from glm5_ascend.ops.onnx.sizes import Sizes

# By scheme: function of the linear layer, suffix of its name, and the tensors beside the weight.
LINEARS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "FLOAT": ("Linear", "Float", ()),
    "W8A8_DYNAMIC": ("LinearW8A8Dynamic", "W8A8Dynamic", ("weight_scale",)),
    "W8A8": (
        "LinearW8A8Static",
        "W8A8",
        ("input_scale", "input_offset", "quant_bias", "deq_scale"),
    ),
}


def name(down: str, up: str, *, paged: bool = False) -> str:
    """Name of the function for the schemes of the down projections (q_a, kv_a) and of q_b."""
    suffix = "" if down == up == "FLOAT" else LINEARS[down][1] + LINEARS[up][1]
    return f"Mlapo{'Paged' if paged else ''}{suffix}"


def _matrices(down: str, up: str) -> list[list[str]]:
    """For each projection the names of its weight and of what belongs to it."""
    return [
        [matrix, *(f"{matrix}_{leaf}" for leaf in LINEARS[scheme][2])]
        for matrix, scheme in (("weight_dq", down), ("weight_uq_qr", up), ("weight_dkv_kr", down))
    ]


def _mlapo(down: str, up: str) -> str:
    dq, uq_qr, dkv_kr = (", ".join(names) for names in _matrices(down, up))
    first, second = (f"glm5.ascend.{LINEARS[scheme][0]}" for scheme in (down, up))
    return f"""
{HEADER}
{name(down, up)} <eps_cq, eps_ckv>
(x, {dq}, {uq_qr}, {dkv_kr}, weight_uk, gamma_cq, gamma_ckv, cos, sin)
=> (query, query_rope, query_norm, latent, key_rope) {{
    q_latent = {first} (x, {dq})
    query_norm = glm5.ascend.RmsNorm <eps: float = @eps_cq> (q_latent, gamma_cq)
    q_flat = {second} (query_norm, {uq_qr})
    tokens = Shape <end = 1> (x)
    heads = Shape <end = 1> (weight_uk)
    half = Shape <start = -1> (cos)
    two = Constant <value_ints = [2]> ()
    rope = Mul (half, two)
    nope = Shape <start = 1, end = 2> (weight_uk)
    width = Add (nope, rope)
    q_shape = Concat <axis = 0> (tokens, heads, width)
    q = Reshape <allowzero = 1> (q_flat, q_shape)
    q_parts = Concat <axis = 0> (nope, rope)
    q_nope, q_turning = Split <axis = -1> (q, q_parts)
    q_wide = Cast <to = 1> (q_nope)
    uk_wide = Cast <to = 1> (weight_uk)
    by_head = Transpose <perm = [1, 0, 2]> (q_wide)
    absorbed = MatMul (by_head, uk_wide)
    by_token = Transpose <perm = [1, 0, 2]> (absorbed)
    query = CastLike (by_token, x)
    query_rope = glm5.ascend.RotaryInterleaved (q_turning, cos, sin)
    compressed = {first} (x, {dkv_kr})
    lora = Shape <start = -1> (gamma_ckv)
    kv_parts = Concat <axis = 0> (lora, rope)
    raw, k_turning = Split <axis = -1> (compressed, kv_parts)
    latent = glm5.ascend.RmsNorm <eps: float = @eps_ckv> (raw, gamma_ckv)
    key_rope = glm5.ascend.RotaryInterleaved (k_turning, cos, sin)
}}
"""


def _mlapo_paged(down: str, up: str) -> str:
    matrices = _matrices(down, up)
    inputs = ", ".join(name for names in matrices for name in names)
    turned = "\n".join(
        f"    {names[0]}_rows = Transpose <perm = [1, 0]> ({names[0]})" for names in matrices
    )
    arguments = ", ".join(part for names in matrices for part in (f"{names[0]}_rows", *names[1:]))
    return f"""
{HEADER}
{name(down, up, paged=True)} <eps_cq, eps_ckv>
(x, {inputs}, weight_uk, gamma_cq, gamma_ckv, cos, sin, kv_cache, kr_cache, slots)
=> (query, query_rope, query_norm, new_kv_cache, new_kr_cache) {{
{turned}
    query, query_rope, query_norm, latent, key_rope = glm5.ascend.{name(down, up)}
        <eps_cq: float = @eps_cq, eps_ckv: float = @eps_ckv>
        (x, {arguments}, weight_uk, gamma_cq, gamma_ckv, cos, sin)
    new_kv_cache = glm5.ascend.WritePagedRows (kv_cache, latent, slots)
    new_kr_cache = glm5.ascend.WritePagedRows (kr_cache, key_rope, slots)
}}
"""


FUNCTIONS = tuple(
    make(down, up) for make in (_mlapo, _mlapo_paged) for down in LINEARS for up in LINEARS
)


def graph(sizes: Sizes, dtype: str, down: str = "FLOAT", up: str = "FLOAT") -> str:
    """Graph with one call of the operator; inputs are named as in our ``mlapo``.

    Args:
        sizes: of the model.
        dtype: ONNX name of the dtype of activations, float weights and caches.
        down: scheme of weight_dq and weight_dkv_kr.
        up: scheme of weight_uq_qr.
    """
    q_rows = sizes.heads * (sizes.nope + sizes.rope)
    projections: list[tuple[str, str, int, int, str]] = [
        ("dq", "x", sizes.hidden, sizes.q_lora, down),
        ("uq_qr", "cq", sizes.q_lora, q_rows, up),
        ("dkv_kr", "x", sizes.hidden, sizes.kv_lora + sizes.rope, down),
    ]
    inputs = [f"{dtype}[tokens, {sizes.hidden}] token_x"]
    arguments = ["token_x"]
    for matrix, point, rows, columns, scheme in projections:
        weight = dtype if scheme == "FLOAT" else "int8"
        declared = [f"{weight}[{rows}, {columns}] weight_{matrix}"]
        scale = f"float[{columns}] dequant_scale_w_{matrix}"
        if scheme == "W8A8":
            declared += [f"float[1] quant_scale_{point}", f"float[1] quant_offset_{point}"]
            declared += [f"int32[{columns}] quant_bias_{matrix}"]
        if scheme != "FLOAT":
            declared.append(scale)
        inputs += [entry for entry in declared if entry not in inputs]
        arguments += [entry.split()[-1] for entry in declared]
    half, pages = sizes.rope // 2, "blocks, block_size, 1"
    inputs += [
        f"{dtype}[{sizes.heads}, {sizes.nope}, {sizes.kv_lora}] weight_uk",
        f"{dtype}[{sizes.q_lora}] rmsnorm_gamma_cq",
        f"{dtype}[{sizes.kv_lora}] rmsnorm_gamma_ckv",
        f"float[tokens, {half}] rope_cos",
        f"float[tokens, {half}] rope_sin",
        f"{dtype}[{pages}, {sizes.kv_lora}] kv_cache",
        f"{dtype}[{pages}, {sizes.rope}] kr_cache",
        "int64[tokens] cache_index",
    ]
    arguments += [entry.split()[-1] for entry in inputs[-8:]]
    return f"""
    mlapo ({", ".join(inputs)}) => (
        {dtype}[tokens, {sizes.heads}, {sizes.kv_lora}] query,
        {dtype}[tokens, {sizes.heads}, {sizes.rope}] query_rope,
        {dtype}[tokens, {sizes.q_lora}] query_norm,
        {dtype}[{pages}, {sizes.kv_lora}] kv_cache_out,
        {dtype}[{pages}, {sizes.rope}] kr_cache_out
    ) {{
        query, query_rope, query_norm, kv_cache_out, kr_cache_out =
            glm5.ascend.{name(down, up, paged=True)}
            <eps_cq = {sizes.eps!r}, eps_ckv = {sizes.eps!r}> ({", ".join(arguments)})
    }}"""
