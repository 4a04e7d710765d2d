"""Functional forward pass of the small model over a flat dict of parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from small_glm5.attention import attend
from small_glm5.config import SmallConfig
from small_glm5.experts import mix_experts
from small_glm5.indexing import index_score, kl_divergence, select
from small_glm5.ops import causal_bias, fused, rms_norm, rope_tables, rotate, silu_mul
from small_glm5.params import Params


def _qkv(
    q: Tensor, kv: Tensor, kpe: Tensor, cos: Tensor, sin: Tensor, dims: tuple[int, int, int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """q [B,T,H*qk], kv [B,T,H*(nope+v)], kpe [B,T,rope] -> q, k, v as [B*H,T,·]."""
    heads, nope, rope, vdim = dims
    b, t, _ = q.shape
    q = q.view(b, t, heads, nope + rope)
    kv = kv.view(b, t, heads, nope + vdim)
    qr = rotate(q[..., nope:], cos[:, None], sin[:, None])
    kr = rotate(kpe, cos, sin)[:, :, None].expand(b, t, heads, rope)
    qq = torch.cat((q[..., :nope], qr), -1).transpose(1, 2).reshape(b * heads, t, -1)
    kk = torch.cat((kv[..., :nope], kr), -1).transpose(1, 2).reshape(b * heads, t, -1)
    vv = kv[..., nope:].transpose(1, 2).reshape(b * heads, t, -1)
    return qq.contiguous(), kk.contiguous(), vv.contiguous()


norm_fast, qkv_fast = fused(rms_norm), fused(_qkv)


@dataclass
class State:
    """What one forward pass carries between layers and hands to the losses."""

    sparse: bool = False
    collect: bool = False  # head-averaged attention wanted (indexer loss)
    joint: bool = False  # the indexer loss reaches the trunk below the indexer
    unmasked: bool = False  # sparse, but collect what the attention would be without the mask
    scores: dict[int, Tensor] = field(default_factory=dict)  # owner -> [B,T,T]
    chosen: dict[int, Tensor] = field(default_factory=dict)  # owner -> bool [B,T,T]
    bias: dict[int, Tensor] = field(default_factory=dict)  # owner -> additive [B,1,T,T]
    attn: dict[int, list[Tensor]] = field(default_factory=dict)  # owner -> [B,T,T] each
    load: dict[int, Tensor] = field(default_factory=dict)  # layer -> counts [E]
    inputs: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class SmallGlm:
    """Forward passes over a parameter dict; the parameters' dtype is the compute dtype."""

    def __init__(self, cfg: SmallConfig, params: Params, bias: Tensor) -> None:
        """``bias`` is the F32 e_score_correction_bias [layers + 1, E] (row 0 unused)."""
        self.cfg, self.p, self.bias = cfg, params, bias
        self.cos, self.sin = rope_tables(4096, cfg.rope, cfg.theta)

    def index_scores(self, i: int, h: Tensor, q_lat: Tensor) -> Tensor:
        """Indexer of layer ``i``: h [B,T,hidden], q_lat [B,T,q_lora] -> F32 scores [B,T,T]."""
        cfg, a = self.cfg, f"model.layers.{i}.self_attn.indexer."
        b, t, _ = h.shape
        cos, sin = self.cos[:t], self.sin[:t]
        q = F.linear(q_lat, self.p[a + "wq_b.weight"]).view(b, t, cfg.index_heads, cfg.index_dim)
        k = F.linear(h, self.p[a + "wk.weight"]).float()
        k = F.layer_norm(
            k,
            (cfg.index_dim,),
            self.p[a + "k_norm.weight"].float(),
            self.p[a + "k_norm.bias"].float(),
            cfg.k_norm_eps,
        ).to(h.dtype)
        r = cfg.rope
        q = torch.cat((rotate(q[..., :r], cos[:, None], sin[:, None]), q[..., r:]), -1)
        k = torch.cat((rotate(k[..., :r], cos, sin), k[..., r:]), -1)
        w = F.linear(h, self.p[a + "weights_proj.weight"]).float() * cfg.index_heads**-0.5
        q = q.transpose(1, 2).contiguous() * cfg.index_dim**-0.5
        out: Tensor = index_score(q, k, w.transpose(1, 2).contiguous())
        return out

    def attention(self, i: int, h: Tensor, st: State) -> Tensor:
        """MLA of layer ``i`` on normalised input h [B,T,hidden] -> [B,T,hidden]."""
        cfg, a, p = self.cfg, f"model.layers.{i}.self_attn.", self.p
        b, t, _ = h.shape
        q_lat = F.linear(h, p[a + "q_a_proj.weight"])
        q_lat = norm_fast(q_lat, p[a + "q_a_layernorm.weight"], cfg.eps)
        q = F.linear(q_lat, p[a + "q_b_proj.weight"])
        kv_a = F.linear(h, p[a + "kv_a_proj_with_mqa.weight"])
        c = norm_fast(kv_a[..., : cfg.kv_lora], p[a + "kv_a_layernorm.weight"], cfg.eps)
        kv = F.linear(c, p[a + "kv_b_proj.weight"])
        dims = (cfg.heads, cfg.nope, cfg.rope, cfg.v_dim)
        qq, kk, vv = qkv_fast(q, kv, kv_a[..., cfg.kv_lora :], self.cos[:t], self.sin[:t], dims)
        owner = cfg.owner(i)
        if st.collect and owner == i:
            st.inputs[i] = (h, q_lat) if st.joint else (h.detach(), q_lat.detach())
        if st.sparse:
            if owner == i:
                grad = st.collect and torch.is_grad_enabled()
                inputs = (h, q_lat) if st.joint else (h.detach(), q_lat.detach())
                with torch.set_grad_enabled(grad):
                    st.scores[i] = self.index_scores(i, *inputs)
                st.chosen[i] = select(st.scores[i].detach(), cfg.topk)
                bias = torch.zeros(b, 1, t, t, dtype=h.dtype)
                st.bias[i] = bias.masked_fill_(~st.chosen[i][:, None], -torch.inf)
            bias = st.bias[owner]
        else:
            bias = causal_bias(t, h.dtype)
        masked = st.collect and not st.unmasked
        out, mean = attend(qq, kk, vv, bias, cfg.qk**-0.5, cfg.heads, masked)
        if st.unmasked:
            whole = causal_bias(t, h.dtype)
            with torch.no_grad():
                _, mean = attend(qq, kk, vv, whole, cfg.qk**-0.5, cfg.heads, True)
        if mean is not None:
            st.attn.setdefault(owner, []).append(mean)
        out = out.view(b, cfg.heads, t, cfg.v_dim).transpose(1, 2).reshape(b, t, -1)
        return F.linear(out, p[a + "o_proj.weight"])

    def mlp(self, i: int, h: Tensor, st: State) -> Tensor:
        """Dense MLP or mixture of experts on h [B,T,hidden] -> [B,T,hidden]."""
        cfg, m, p = self.cfg, f"model.layers.{i}.mlp.", self.p
        s = m if i < cfg.dense_layers else m + "shared_experts."
        gu = torch.cat((p[s + "gate_proj.weight"], p[s + "up_proj.weight"]))
        out = F.linear(silu_mul(F.linear(h, gu)), p[s + "down_proj.weight"])
        if i < cfg.dense_layers:
            return out
        x = h.reshape(-1, cfg.hidden)
        score = torch.sigmoid(F.linear(x.float(), p[m + "gate.weight"].float()))
        index = (score.detach() + self.bias[i]).topk(cfg.experts_per_token, -1).indices
        st.load[i] = torch.bincount(index.reshape(-1), minlength=cfg.experts).float()
        weight = score.gather(1, index)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * cfg.route_scale
        routed: Tensor = mix_experts(
            x, weight, index, p[m + "experts.gate_up_proj"], p[m + "experts.down_proj"]
        )
        return out + routed.view_as(out)

    def layer(self, i: int, x: Tensor, st: State) -> Tensor:
        """Decoder layer on the F32 residual x [B,T,hidden]."""
        pre, eps = f"model.layers.{i}.", self.cfg.eps
        h = norm_fast(x, self.p[pre + "input_layernorm.weight"], eps)
        x = x + self.attention(i, h, st)
        h = norm_fast(x, self.p[pre + "post_attention_layernorm.weight"], eps)
        return x + self.mlp(i, h, st)

    def trunk(self, ids: Tensor, st: State, layers: int | None = None) -> Tensor:
        """ids [B,T] -> hidden after ``model.norm`` [B,T,hidden]; ``layers`` stops early."""
        x = F.embedding(ids, self.p["model.embed_tokens.weight"]).float()
        for i in range(self.cfg.layers if layers is None else layers):
            x = self.layer(i, x, st)
        return norm_fast(x, self.p["model.norm.weight"], self.cfg.eps)

    def mtp(self, hidden: Tensor, next_ids: Tensor, st: State) -> Tensor:
        """Draft state after ``shared_head.norm``: hidden [B,T,hidden], next_ids [B,T]."""
        pre, eps = f"model.layers.{self.cfg.layers}.", self.cfg.eps
        e = F.embedding(next_ids, self.p["model.embed_tokens.weight"]).float()
        e = norm_fast(e, self.p[pre + "enorm.weight"], eps)
        h = norm_fast(hidden.float(), self.p[pre + "hnorm.weight"], eps)
        x = F.linear(torch.cat((e, h), -1), self.p[pre + "eh_proj.weight"]).float()
        x = self.layer(self.cfg.layers, x, st)
        return norm_fast(x, self.p[pre + "shared_head.norm.weight"], eps)


def indexer_loss(st: State, owner: int, last_weight: float = 1.0) -> Tensor:
    """Mean KL(attention averaged over heads and sharing layers || softmax of index scores)."""
    scores = st.scores[owner]
    attn = st.attn[owner]
    weights = [1.0] * (len(attn) - 1) + [last_weight if len(attn) > 1 else 1.0]
    target = torch.stack([a * (w / sum(weights)) for a, w in zip(attn, weights, strict=True)]).sum(
        0
    )
    allowed = None if st.unmasked else st.chosen.get(owner)
    if allowed is None:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    loss: Tensor = kl_divergence(scores, target, allowed)
    return loss
