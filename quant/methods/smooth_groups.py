"""Which tensors one smoothing vector divides and multiplies, so that the model stays the same.

A vector ``s`` divides one activation channel by channel. What makes the activation is divided by
it, *every* matrix that reads the activation has its columns multiplied by it; a reader that is
forgotten (indexer, router) computes something else. Vectors act after folding and rotation:

=====================  ==============================  ======================================
activation             divided                         multiplied (columns)
=====================  ==============================  ======================================
input_layernorm        its γ                           q_a, kv_a, indexer wk and weights_proj
q_a_layernorm          its γ                           q_b, indexer wq_b
post_attention_..norm  its γ                           router, gate and up of all experts and
                                                       of the shared one; or of the dense block
value heads            value rows of kv_b              o_proj
up of one block        rows of up                      down of the same block
=====================  ==============================  ======================================

Legal with and without rotation, as said from where they act: behind a rotation γ is ones, and
``1 / s`` takes its place in the rotated basis; a vector before the rotation would be folded away
together with γ. Everything else is refused:

=====================  ====================================================================
activation             why
=====================  ====================================================================
residual stream        read by a norm over all channels, which must see it unscaled
kv_a_layernorm         its only reader, kv_b, stays float: nothing to gain
query and key heads    attention's dot products are not quantised, and rope mixes pairs
indexer's k_norm       rope mixes pairs of channels; its readers are not quantised
enorm, hnorm           read by eh_proj, which stays float
model.norm, MTP norm   read by the head, which stays float; the MTP layer reads it too
=====================  ====================================================================

Xiao et al., "SmoothQuant" (2022); Lin et al., "AWQ" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError
from glm5_ascend.quant.solutions import SmoothScales

ACTIVATIONS = ("input_layernorm", "q_a_layernorm", "post_attention_layernorm", "values")


@dataclass(frozen=True, slots=True)
class Group:
    """One activation with everything that makes and reads it.

    Attributes:
        activation: name of the activation below its layer.
        width: its channels.
        producer: the tensor whose rows (or, for a norm, γ) are divided.
        rows: int64 [width], the rows of ``producer`` in the order of the activation's channels.
        producer_rows: all rows of ``producer``.
        consumers: the matrices whose columns are multiplied, in model order.
    """

    activation: str
    width: int
    producer: str
    rows: Tensor
    producer_rows: int
    consumers: tuple[str, ...]


def group_of(config: Glm5Config, layer: int, activation: str) -> Group:
    """Return the group of an activation of one layer (the MTP layer has the last index).

    Args:
        config: of the model.
        layer: index.
        activation: one of ``ACTIVATIONS``, or the block of a gated MLP, whose up projection feeds
            its down projection: ``mlp``, ``mlp.shared_experts``, ``mlp.experts.<e>``.

    Raises:
        ConfigError: an activation that no vector may divide, or that the layer does not have.
    """
    prefix = f"model.layers.{layer}"
    attention = f"{prefix}.self_attn"
    if activation == "input_layernorm":
        names = ["q_a_proj", "kv_a_proj_with_mqa"]
        if config.has_indexer(layer):
            names += ["indexer.wk", "indexer.weights_proj"]
        readers = [f"{attention}.{name}.weight" for name in names]
        return _norm_group(activation, config.hidden_size, f"{prefix}.input_layernorm", readers)
    if activation == "q_a_layernorm":
        names = ["q_b_proj"] + (["indexer.wq_b"] if config.has_indexer(layer) else [])
        readers = [f"{attention}.{name}.weight" for name in names]
        return _norm_group(activation, config.q_lora_rank, f"{attention}.q_a_layernorm", readers)
    if activation == "post_attention_layernorm":
        readers = _feed_forward_readers(config, layer)
        norm = f"{prefix}.post_attention_layernorm"
        return _norm_group(activation, config.hidden_size, norm, readers)
    if activation == "values":
        return _value_group(config, attention)
    if activation in _blocks(config, layer):
        return _gated_group(config, prefix, activation)
    raise ConfigError(
        f"layer {layer}: {activation} cannot be smoothed",
        "choose among " + ", ".join(ACTIVATIONS) + " and the blocks of gated MLPs",
    )


def factors(group: Group, vector: Tensor) -> dict[str, SmoothScales]:
    """Return what each tensor of ``group`` is multiplied by, float64, for ``vector`` [width].

    Raises:
        ValueError: another length, or entries that are not positive and finite.
    """
    exact = vector.double()
    if exact.shape != (group.width,) or not bool(((exact > 0) & torch.isfinite(exact)).all()):
        raise ValueError(f"{group.producer}: a positive vector of {group.width} is needed")
    rows = torch.ones(group.producer_rows, dtype=torch.float64)
    rows[group.rows] = 1.0 / exact
    result = {group.producer: SmoothScales(rows=rows)}
    return result | {name: SmoothScales(columns=exact) for name in group.consumers}


def merged(parts: list[dict[str, SmoothScales]]) -> dict[str, SmoothScales]:
    """Join the factors of several groups; the same side of a tensor is multiplied."""
    result: dict[str, SmoothScales] = {}
    for part in parts:
        for name, new in part.items():
            old = result.get(name, SmoothScales())
            result[name] = SmoothScales(
                _product(old.rows, new.rows), _product(old.columns, new.columns)
            )
    return result


def _product(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left * right


def _norm_group(activation: str, width: int, norm: str, readers: list[str]) -> Group:
    return Group(activation, width, f"{norm}.weight", torch.arange(width), width, tuple(readers))


def _feed_forward_readers(config: Glm5Config, layer: int) -> list[str]:
    prefix = f"model.layers.{layer}"
    router = [f"{prefix}.mlp.gate.weight"] if config.is_moe(layer) else []
    pairs = [
        f"{prefix}.{block}.{part}_proj.weight"
        for block in _blocks(config, layer)
        for part in ("gate", "up")
    ]
    return router + pairs


def _blocks(config: Glm5Config, layer: int) -> list[str]:
    if not config.is_moe(layer):
        return ["mlp"]
    experts = [f"mlp.experts.{expert}" for expert in range(config.n_routed_experts)]
    return [*experts, "mlp.shared_experts"]


def _value_group(config: Glm5Config, attention: str) -> Group:
    nope, value = config.qk_nope_head_dim, config.v_head_dim
    heads = config.num_attention_heads
    rows = torch.arange(heads * (nope + value)).view(heads, nope + value)[:, nope:].reshape(-1)
    return Group(
        "values",
        heads * value,
        f"{attention}.kv_b_proj.weight",
        rows,
        heads * (nope + value),
        (f"{attention}.o_proj.weight",),
    )


def _gated_group(config: Glm5Config, prefix: str, block: str) -> Group:
    width = config.intermediate_size if block == "mlp" else config.moe_intermediate_size
    if block == "mlp.shared_experts":
        width *= config.n_shared_experts
    module = f"{prefix}.{block}"
    return Group(
        block,
        width,
        f"{module}.up_proj.weight",
        torch.arange(width),
        width,
        (f"{module}.down_proj.weight",),
    )
