"""Names, shapes and initial values of the parameters.

Experts are fused as ``mlp.experts.gate_up_proj`` [E, 2I, H] (gate rows first) and
``mlp.experts.down_proj`` [E, H, I]; every other name is the one of the checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor

from small_glm5.config import SmallConfig

Params = dict[str, Tensor]


def shapes(cfg: SmallConfig) -> dict[str, tuple[int, ...]]:
    """Return every parameter name and shape, MTP layer included."""
    h = cfg.hidden
    res: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (cfg.vocab, h)}
    for i in range(cfg.layers + 1):
        p = f"model.layers.{i}."
        a, m = p + "self_attn.", p + "mlp."
        if i == cfg.layers:
            res[p + "eh_proj.weight"] = (h, 2 * h)
            for name in ("enorm", "hnorm", "shared_head.norm"):
                res[p + name + ".weight"] = (h,)
        res[p + "input_layernorm.weight"] = (h,)
        res[p + "post_attention_layernorm.weight"] = (h,)
        res[a + "q_a_proj.weight"] = (cfg.q_lora, h)
        res[a + "q_a_layernorm.weight"] = (cfg.q_lora,)
        res[a + "q_b_proj.weight"] = (cfg.heads * cfg.qk, cfg.q_lora)
        res[a + "kv_a_proj_with_mqa.weight"] = (cfg.kv_lora + cfg.rope, h)
        res[a + "kv_a_layernorm.weight"] = (cfg.kv_lora,)
        res[a + "kv_b_proj.weight"] = (cfg.heads * (cfg.nope + cfg.v_dim), cfg.kv_lora)
        res[a + "o_proj.weight"] = (h, cfg.heads * cfg.v_dim)
        if cfg.owner(i) == i:
            res[a + "indexer.wq_b.weight"] = (cfg.index_heads * cfg.index_dim, cfg.q_lora)
            res[a + "indexer.wk.weight"] = (cfg.index_dim, h)
            res[a + "indexer.k_norm.weight"] = (cfg.index_dim,)
            res[a + "indexer.k_norm.bias"] = (cfg.index_dim,)
            res[a + "indexer.weights_proj.weight"] = (cfg.index_heads, h)
        inter = cfg.dense_inter if i < cfg.dense_layers else cfg.expert_inter
        mlp = m if i < cfg.dense_layers else m + "shared_experts."
        res[mlp + "gate_proj.weight"] = (inter, h)
        res[mlp + "up_proj.weight"] = (inter, h)
        res[mlp + "down_proj.weight"] = (h, inter)
        if i >= cfg.dense_layers:
            res[m + "gate.weight"] = (cfg.experts, h)
            res[m + "experts.gate_up_proj"] = (cfg.experts, 2 * inter, h)
            res[m + "experts.down_proj"] = (cfg.experts, h, inter)
    res["model.norm.weight"] = (h,)
    res["lm_head.weight"] = (cfg.vocab, h)
    return res


def init_params(cfg: SmallConfig, seed: int) -> Params:
    """Return F32 parameters for training."""
    gen = torch.Generator().manual_seed(seed)
    out: Params = {}
    for name, shape in shapes(cfg).items():
        if name.endswith("norm.bias"):
            out[name] = torch.zeros(shape)
        elif "norm" in name.rsplit(".", 2)[-2]:
            out[name] = torch.ones(shape)
        else:
            std = 0.6 * shape[-1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
                std *= 0.3
            if name.startswith("model.embed"):
                std = 0.2
            elif name.startswith("lm_head"):
                std = 0.01
            out[name] = torch.randn(shape, generator=gen) * std
    return out
