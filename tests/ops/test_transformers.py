"""The operators, put together as the model does, against transformers' own modules."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GlmMoeDsaConfig
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as modeling

from glm5_ascend import ops
from tests.support.compare import assert_same_selection
from tests.support.double import F32Angles, double_precision

TOKENS, TOPK = 213, 64
THETA = 8e6


@pytest.fixture(params=[16, 32])
def config(request: pytest.FixtureRequest) -> Any:
    return make_config(request.param)


@pytest.fixture
def attention(config: Any) -> Any:
    return make_attention(config.index_n_heads)


@cache
def make_config(index_heads: int) -> Any:
    return GlmMoeDsaConfig(
        hidden_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=64,
        kv_lora_rank=128,
        qk_nope_head_dim=48,
        qk_rope_head_dim=64,
        v_head_dim=40,
        index_n_heads=index_heads,
        index_head_dim=128,
        index_topk=TOPK,
        n_routed_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=48,
        indexer_types=["full"],
        mlp_layer_types=["sparse"],
        rope_parameters={"rope_theta": THETA, "rope_type": "default"},
        attn_implementation="eager",
        experts_implementation="eager",
    )


def randomise(module: torch.nn.Module) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
            else:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
    return module.double().eval()


@cache
def make_attention(index_heads: int) -> Any:
    """(module, input [T, hidden], positions, output [T, hidden], chosen positions [T, top-k])."""
    config = make_config(index_heads)
    module = randomise(modeling.GlmMoeDsaAttention(config, 0))
    x = torch.randn(TOKENS, config.hidden_size, dtype=torch.float64)
    positions = torch.arange(TOKENS)
    mask = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    mask.masked_fill_(positions[None] > positions[:, None], -torch.inf)
    with double_precision(), torch.no_grad():
        tables = F32Angles(THETA, 64)(x, positions[None])
        out, _, chosen = module(x[None], tables, mask[None, None], position_ids=positions[None])
    return module, x, positions, out[0], chosen[0]


def linear(module: Any, x: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, module.weight.detach())


def rotate_part(x: Tensor, positions: Tensor, first: int) -> Tensor:
    """Rotate ``x[..., first : first + 64]``."""
    parts = x[..., :first], x[..., first : first + 64], x[..., first + 64 :]
    return torch.cat((parts[0], ops.rotary_interleaved(parts[1], positions, THETA), parts[2]), -1)


def index_inputs(module: Any, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(query [T, H, 128], key [T, 128], weights [T, H]) of the indexer."""
    indexer, norm = module.indexer, module.q_a_layernorm
    latent = ops.rms_norm(linear(module.q_a_proj, x), norm.weight.detach(), 1e-6)
    query = linear(indexer.wq_b, latent).view(TOKENS, -1, 128)
    k_norm = indexer.k_norm
    key = ops.layer_norm(linear(indexer.wk, x), k_norm.weight.detach(), k_norm.bias.detach())
    query, key = rotate_part(query, positions, 0), rotate_part(key, positions, 0)
    return query, key, linear(indexer.weights_proj, x)


def select(query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
    ends = torch.tensor([TOKENS])
    layout = {"layout_query": "TND", "layout_key": "TND", "sparse_count": TOPK}
    return ops.lightning_indexer(
        query,
        key[:, None],
        weights,
        actual_seq_lengths_query=ends,
        actual_seq_lengths_key=ends,
        **layout,
    )[0]


def as_sets(rows: Tensor) -> list[set[int]]:
    """Visible choices of each row."""
    return [{i for i in row if 0 <= i <= t} for t, row in enumerate(rows.tolist())]


def test_indexer_chooses_what_transformers_chooses(attention: Any) -> None:
    module, x, positions, _, wanted = attention
    with torch.no_grad():
        chosen = select(*index_inputs(module, x, positions))
    assert as_sets(chosen[:, 0]) == as_sets(wanted)
    # The last rows really leave keys out.
    assert len(as_sets(chosen[:, 0])[-1]) == TOPK < TOKENS


def test_indexer_in_single_precision_differs_at_near_ties_only(attention: Any) -> None:
    module, x, positions, _, _ = attention
    with torch.no_grad():
        query, key, weights = index_inputs(module, x, positions)
        chosen = select(query.float(), key.float(), weights.float())[:, 0]
    dots = torch.einsum("thd,sd->ths", query, key).relu()
    scores = torch.einsum("ths,th->ts", dots, weights)
    scores.masked_fill_(positions[None] > positions[:, None], -torch.inf)
    limit = 1e-5 * float(scores[scores.isfinite()].abs().max())
    assert_same_selection(chosen, scores, limit)


def test_attention_equals_transformers(config: Any, attention: Any) -> None:
    """Absorbed MLA over the chosen rows = transformers' expanded MLA with a mask."""
    module, x, positions, wanted, _ = attention
    with torch.no_grad():
        chosen = select(*index_inputs(module, x, positions))
        latent_q = ops.rms_norm(
            linear(module.q_a_proj, x), module.q_a_layernorm.weight.detach(), 1e-6
        )
        query = linear(module.q_b_proj, latent_q).view(TOKENS, 4, 112)
        query = rotate_part(query, positions, 48)
        latent, key_rope = linear(module.kv_a_proj_with_mqa, x).split((128, 64), -1)
        latent = ops.rms_norm(latent, module.kv_a_layernorm.weight.detach(), 1e-6)
        key_rope = ops.rotary_interleaved(key_rope, positions, THETA)
        up = module.kv_b_proj.weight.detach().view(4, 88, 128)
        ends = torch.tensor([TOKENS])
        out = ops.sparse_flash_attention(
            torch.einsum("thn,hnr->thr", query[..., :48], up[:, :48]),
            latent[:, None],
            latent[:, None],
            chosen,
            112**-0.5,
            actual_seq_lengths_query=ends,
            actual_seq_lengths_kv=ends,
            query_rope=query[..., 48:],
            key_rope=key_rope[:, None],
            layout_query="TND",
            layout_kv="TND",
        )[0]
        out = torch.einsum("thr,hvr->thv", out, up[:, 48:]).flatten(1)
        out = linear(module.o_proj, out)
    torch.testing.assert_close(out, wanted, rtol=1e-10, atol=1e-11)


def test_router_and_experts_equal_transformers(config: Any) -> None:
    router = randomise(modeling.GlmMoeDsaTopkRouter(config))
    experts = randomise(modeling.GlmMoeDsaExperts(config))
    x = torch.randn(TOKENS, 96, dtype=torch.float64)
    with double_precision(), torch.no_grad():
        router.e_score_correction_bias = torch.randn(16, dtype=torch.float64) * 0.2
        logits, wanted_weights, wanted_ids = router(x)
        wanted = experts(x, wanted_ids, wanted_weights)
    weights, ids = ops.moe_gating(
        logits, router.e_score_correction_bias, 4, config.routed_scaling_factor
    )
    order, wanted_order = ids.argsort(-1), wanted_ids.argsort(-1)
    assert torch.equal(ids.long().gather(1, order), wanted_ids.gather(1, wanted_order))
    torch.testing.assert_close(
        weights.gather(1, order), wanted_weights.gather(1, wanted_order), rtol=1e-13, atol=0
    )
    w13, w2 = experts.gate_up_proj.detach(), experts.down_proj.detach()
    out = ops.moe_experts(x, weights, ids, w13, w2)
    torch.testing.assert_close(out, wanted, rtol=1e-11, atol=1e-12)


def test_norms_equal_transformers(config: Any) -> None:
    norm = modeling.GlmMoeDsaRMSNorm(96, eps=1e-5)
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    x = torch.randn(TOKENS, 96) * torch.logspace(-4, 2, TOKENS)[:, None]
    for dtype in (torch.float32, torch.bfloat16):
        rows, weight = x.to(dtype), norm.weight.detach().to(dtype)
        with torch.no_grad():
            wanted = norm.to(dtype)(rows)
        ours = ops.rms_norm(rows, weight, 1e-5, backend="reference")
        # Ours is the nearest F32; theirs has four roundings.
        torch.testing.assert_close(ours, wanted, rtol=4e-7, atol=0)
