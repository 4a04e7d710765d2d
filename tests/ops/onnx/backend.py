"""The exported functions as a backend of the conformance suite: ``call(function, **arguments)``
takes and returns what the public function does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.lightning_indexer import onnx_graph as lightning_indexer
from glm5_ascend.ops.mlapo import onnx_graph as mlapo
from glm5_ascend.ops.norm_rope.onnx_graph import inverse_frequencies
from glm5_ascend.ops.onnx.sizes import Sizes
from glm5_ascend.ops.sparse_flash_attention import onnx_graph as sparse_flash_attention
from glm5_ascend.ops.verify.case import Unsupported
from tests.ops.onnx.session import NAMES, Session, call_model

_of_text = cache(Session.of_text)
_SCHEME = {"float": "", "w8a8": "W8A8", "w4a8": "W4A8"}


def onnx_backend(function: str, /, **arguments: Any) -> Any:
    """Run one public function as its exported graph."""
    if function not in _FUNCTIONS:
        raise Unsupported(f"{function} has no ONNX form")
    if any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in arguments.values()):
        raise Unsupported("the ONNX functions compute in F32")
    return _FUNCTIONS[function](**arguments)


def _rows(layout_query: str, layout_key: str) -> bool:
    """Whether the layouts are those of the paged form."""
    layouts = layout_query, layout_key
    if layouts not in (("BSND", "BSND"), ("TND", "PA_BSND")):
        raise Unsupported(f"there is no ONNX form for queries {layouts[0]} with keys {layouts[1]}")
    return layouts[0] == "TND"


def _lengths(given: Tensor | None, padded: Tensor) -> Tensor:
    if given is not None:
        return given.int()
    return torch.full((padded.shape[0],), padded.shape[1], dtype=torch.int32)


def _indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    sorted: bool = False,
    return_value: bool = False,
) -> tuple[Tensor, Tensor]:
    paged = _rows(layout_query, layout_key)
    if sorted or return_value:
        raise Unsupported("the ONNX form returns ascending positions without scores")
    heads, width = query.shape[-2:]
    text = lightning_indexer.graph(
        Sizes(index_heads=heads, index_dim=width, index_topk=sparse_count),
        NAMES[query.dtype],
        paged=paged,
        sparse_mode=sparse_mode,
        weights_dtype=NAMES[weights.dtype],
    )
    table = {"block_table": block_table.int()} if block_table is not None else {}
    result = _of_text(text)(
        query=query,
        key=key,
        weights=weights,
        actual_seq_lengths_query=_lengths(actual_seq_lengths_query, query),
        actual_seq_lengths_key=_lengths(actual_seq_lengths_key, key),
        **table,
    )
    return result["sparse_indices"], query.new_empty(0)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    sparse_indices: Tensor,
    scale_value: float,
    sparse_block_size: int = 1,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    attention_mode: int = 2,
    return_softmax_lse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    paged = _rows(layout_query, layout_kv)
    heads, width = query.shape[-2:]
    if query_rope is None or key_rope is None:
        query_rope = query.new_zeros(*query.shape[:-1], 2)
        key_rope = key.new_zeros(*key.shape[:-1], 2)
    rope = query_rope.shape[-1]
    own = None if value is None or value is key else value
    text = sparse_flash_attention.graph(
        # The scale is an attribute; nope only serves to make it.
        Sizes(heads=heads, kv_lora=width, rope=rope, index_topk=sparse_indices.shape[-1]),
        NAMES[query.dtype],
        paged=paged,
        sparse_mode=sparse_mode,
        sparse_block_size=sparse_block_size,
        own_value=0 if own is None else own.shape[-1],
        scale=scale_value,
    )
    optional = {"block_table": block_table, "value": own}
    result = _of_text(text)(
        query=query,
        key=key,
        sparse_indices=sparse_indices,
        query_rope=query_rope,
        key_rope=key_rope,
        actual_seq_lengths_query=_lengths(actual_seq_lengths_query, query),
        actual_seq_lengths_kv=_lengths(actual_seq_lengths_kv, key),
        **{name: x for name, x in optional.items() if x is not None},
    )
    if return_softmax_lse:
        return result["out"], result["softmax_max"], result["softmax_sum"]
    return result["out"], torch.empty(0), torch.empty(0)


def _mlapo(token_x: Tensor, **arguments: Any) -> tuple[Tensor, ...]:
    given = {name: x for name, x in arguments.items() if isinstance(x, Tensor)}
    kv_cache, kr_cache = given["kv_cache"], given["kr_cache"]
    if token_x.dtype == torch.int8 or arguments.get("query_quant_mode"):
        raise Unsupported("the ONNX form takes and returns float activations")
    if kv_cache.dtype == torch.int8:
        raise Unsupported("the ONNX form writes unpacked cache rows")
    mode = arguments.get("weight_quant_mode", 0)
    if mode and arguments.get("query_norm_flag") and arguments.get("query_norm_quantised", True):
        raise Unsupported("the ONNX form returns the q latent in float")
    static = "quant_scale_cq" in given
    quantised = "W8A8" if static else "W8A8_DYNAMIC"
    down = "FLOAT" if mode < 2 else "W8A8" if "quant_scale_x" in given else "W8A8_DYNAMIC"
    heads, nope, kv_lora = given["weight_uk"].shape
    rope = kr_cache.shape[-1]
    hidden, q_lora = given["weight_dq"].shape
    eps = [arguments.get(f"rmsnorm_epsilon_{x}", 1e-5) for x in ("cq", "ckv")]
    if eps[0] != eps[1]:
        raise Unsupported("one epsilon for both norms")
    sizes = Sizes(
        hidden=hidden,
        heads=heads,
        q_lora=q_lora,
        kv_lora=kv_lora,
        nope=nope,
        rope=rope,
        eps=eps[0],
    )
    session = _of_text(
        mlapo.graph(sizes, NAMES[token_x.dtype], down, quantised if mode else "FLOAT")
    )
    lead = token_x.shape[:-1]
    feeds = {name: x for name, x in given.items() if name in session.inputs}
    for name in feeds:
        if name.startswith(("dequant_scale", "quant_scale", "quant_offset")):
            feeds[name] = feeds[name].float().flatten()
    for name in ("rope_cos", "rope_sin"):
        feeds[name] = feeds[name][..., : rope // 2].flatten(0, -2).float()
    feeds["cache_index"] = feeds["cache_index"].flatten().long()
    result = session(token_x=token_x.flatten(0, -2), **feeds)
    kv_cache.copy_(result["kv_cache_out"])
    kr_cache.copy_(result["kr_cache_out"])
    nothing = token_x.new_empty(0)
    norm = result["query_norm"] if arguments.get("query_norm_flag") else None
    return (
        result["query"].view(*lead, heads, kv_lora),
        result["query_rope"].view(*lead, heads, rope),
        nothing.float(),
        nothing if norm is None else norm.view(*lead, q_lora),
        nothing.float(),
    )


def call(
    function: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[tuple[torch.dtype, int]],
    **attributes: Any,
) -> list[Tensor]:
    """Call one of the functions directly; ``outputs`` are dtype and number of axes."""
    forms = tuple((x.dtype, x.ndim) for x in inputs)
    key = function, forms, tuple(outputs), tuple(attributes.items())
    if key not in _SESSIONS:
        _SESSIONS[key] = Session(call_model(function, inputs, outputs, **attributes))
    return list(_SESSIONS[key](**{f"x{i}": x for i, x in enumerate(inputs)}).values())


_SESSIONS: dict[Any, Session] = {}


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return call("RmsNorm", (x, weight), ((x.dtype, x.ndim),), eps=eps)[0]


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    return call("LayerNorm", (x, weight, bias), ((x.dtype, x.ndim),), eps=eps)[0]


def _rotary(
    x: Tensor,
    positions: Tensor | None = None,
    theta: float | None = None,
    *,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> Tensor:
    if cos is None or sin is None:
        assert positions is not None
        assert theta is not None
        inverse = torch.from_numpy(inverse_frequencies(x.shape[-1], theta))
        outputs = [(torch.float32, 2)] * 2
        cos, sin = call("RotaryTable", (positions, inverse), outputs)
    return call("RotaryInterleaved", (x, cos, sin), ((x.dtype, x.ndim),))[0]


def _dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    codes, scale = call("DynamicQuant", (x,), ((torch.int8, x.ndim), (torch.float32, x.ndim)))
    return codes, scale


def _dynamic(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    # GLM-5's layers have no bias, and the function neither; added here before the one rounding.
    flat = x.flatten(0, -2).float()
    y = call("LinearW8A8Dynamic", (flat, weight, weight_scale), ((torch.float32, 2),))[0]
    return (y if bias is None else y + bias).to(x.dtype).view(*x.shape[:-1], -1)


def _static(x: Tensor, *others: Tensor, **named: Tensor) -> Tensor:
    names = ("weight", "input_scale", "input_offset", "quant_bias", "deq_scale")
    others = others or tuple(named[name] for name in names)
    return call("LinearW8A8Static", (x.flatten(0, -2), *others), ((x.dtype, 2),))[0].view(
        *x.shape[:-1], -1
    )


def _gating(
    logits: Tensor,
    correction_bias: Tensor,
    top_k: int,
    routed_scaling_factor: float,
    norm_topk_prob: bool = True,
) -> tuple[Tensor, Tensor]:
    weights, ids = call(
        "MoeGating",
        (logits, correction_bias),
        ((torch.float32, 2), (torch.int32, 2)),
        top_k=top_k,
        routed_scaling_factor=float(routed_scaling_factor),
        norm_topk_prob=int(norm_topk_prob),
    )
    return weights, ids


def _experts(
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    w13: Tensor,
    w2: Tensor,
    *,
    scheme: str = "float",
    expert_map: Tensor | None = None,
    apply_router_weight_on_input: bool = False,
    **scales: Tensor | None,
) -> Tensor:
    if expert_map is not None or apply_router_weight_on_input:
        raise Unsupported("the ONNX form holds all experts of a layer")
    names = {"float": [], "w8a8": ["scale"], "w4a8": ["scale", "scale_bias"]}[scheme]
    beside = [scales[f"{matrix}_{name}"] for name in names for matrix in ("w13", "w2")]
    tensors = [w13, w2, *(t.float() for t in beside if t is not None)]
    inputs = (x, topk_weights, topk_ids, *tensors)
    return call(f"MoeExperts{_SCHEME[scheme]}", inputs, ((x.dtype, x.ndim),))[0]


def _write(cache: Tensor, rows: Tensor, slot_mapping: Tensor) -> None:
    if cache.ndim == 3:
        cache = cache.unsqueeze(2)
    cache.copy_(call("WritePagedRows", (cache, rows, slot_mapping), ((cache.dtype, 4),))[0])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lightning_indexer": _indexer,
    "sparse_flash_attention": _attention,
    "mlapo": _mlapo,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "rotary_interleaved": _rotary,
    "dynamic_quant": _dynamic_quant,
    "linear_w8a8_dynamic": _dynamic,
    "linear_w8a8_static": _static,
    "moe_gating": _gating,
    "moe_experts": _experts,
    "write_paged_rows": _write,
}
