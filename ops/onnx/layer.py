"""One decoder layer as a graph: the operators of this package around the weights of a checkpoint.

It lives here, not in the simulator: it needs only the configuration and the files, which ops may
import, and it shares no arithmetic with the offline model that its tests compare it with.

One sequence; T new tokens, C cached ones. Caches go in without the new tokens and come out with
them, so that a step's outputs are the next step's inputs. Prompts may come in chunks of any size.
"""

from __future__ import annotations

import numpy as np
import onnx

from glm5_ascend.ascend_schemes import FLOAT, W4A8_DYNAMIC, W8A8_DYNAMIC
from glm5_ascend.ops.mlapo.onnx_graph import LINEARS
from glm5_ascend.ops.mlapo.onnx_graph import name as mlapo_name
from glm5_ascend.ops.norm_rope.onnx_graph import inverse_frequencies
from glm5_ascend.ops.onnx.graph import GraphBuilder
from glm5_ascend.ops.onnx.sizes import Sizes
from glm5_ascend.ops.onnx.weights import LayerWeights, Weight

_INDEXER_NORM_EPS = 1e-6
# Suffix of the experts' function, and the tensors beside each matrix.
_EXPERTS: dict[str, tuple[str, tuple[str, ...]]] = {
    FLOAT: ("", ()),
    W8A8_DYNAMIC: ("W8A8", ("weight_scale",)),
    W4A8_DYNAMIC: ("W4A8", ("weight_scale", "scale_bias")),
}


def build_layer(
    weights: LayerWeights, layer: int, latent_eps: float
) -> tuple[onnx.GraphProto, list[Weight]]:
    """Graph of decoder layer ``layer``, and the weights still to be added to it.

    Args:
        weights: of this layer.
        layer: its index; an MTP layer takes what ``eh_proj`` returns.
        latent_eps: epsilon of the norms of the q and kv latents.
    """
    builder = _Layer(weights, layer, latent_eps)
    builder.attention()
    builder.mlp()
    return builder.graph.build(), builder.graph.weights


class _Layer:
    def __init__(self, weights: LayerWeights, layer: int, latent_eps: float) -> None:
        self.weights = weights
        self.config = weights.config
        self.sizes = Sizes.of(weights.config)
        self.layer = layer
        self.latent_eps = latent_eps
        self.graph = GraphBuilder(f"layer_{layer}")
        self.graph.input("hidden", "F32", ("tokens", self.sizes.hidden))
        self.graph.input("positions", "I64", ("tokens",))
        self.graph.output("hidden_out", "F32", ("tokens", self.sizes.hidden))
        self._batch_axis = self.graph.constant("batch_axis", np.array([0]))
        self._heads_axis = self.graph.constant("batch_and_head_axes", np.array([0, 2]))
        self._batched: set[str] = set()

    def attention(self) -> None:
        """From ``hidden`` to ``after_attention``, caches and choice included."""
        graph, sizes = self.graph, self.sizes
        x = self.rms_norm("hidden", "input_layernorm", self.config.rms_norm_eps, out="attention_in")
        inverse = graph.constant(
            "inverse_frequencies", inverse_frequencies(sizes.rope, self.config.rope_theta)
        )
        graph.call_many("RotaryTable", "positions", inverse, outs=("cos", "sin"))
        self.mlapo(x)
        latent = self.cache("latent", sizes.kv_lora)
        key_rope = self.cache("key_rope", sizes.rope)
        graph.node("Shape", "hidden", out="query_length", start=0, end=1)
        graph.node("Shape", latent, out="key_length", start=0, end=1)
        if self.config.has_indexer(self.layer):
            chosen = self.indexer(x)
        else:
            chosen = graph.input("topk_indices", "I32", ("tokens", sizes.index_topk))
        graph.call_many(
            "SparseFlashAttention",
            self.batched("query"),
            self.batched(latent, one_head=True),
            self.batched(latent, one_head=True),
            self.batched(chosen, one_head=True),
            self.batched("query_rope"),
            self.batched(key_rope, one_head=True),
            "query_length",
            "key_length",
            outs=("attended", "softmax_max", "softmax_sum"),
            scale_value=sizes.scale,
            sparse_block_size=1,
            sparse_mode=3,
        )
        self.project_values("attended")
        graph.node("Add", "hidden", "attention_out", out="after_attention")

    def mlapo(self, x: str) -> None:
        """Queries and the new rows of both caches."""
        down, up = (
            self.weights.scheme("self_attn.q_a_proj"),
            self.weights.scheme("self_attn.q_b_proj"),
        )
        kv_b = "self_attn.kv_b_proj.weight"
        self.graph.call_many(
            mlapo_name(down, up),
            x,
            *self.matrix("self_attn.q_a_proj"),
            *self.matrix("self_attn.q_b_proj"),
            *self.matrix("self_attn.kv_a_proj_with_mqa"),
            self.graph.weight(self.weights.rows(kv_b, "self_attn.w_uk", slice(0, self.sizes.nope))),
            self.tensor("self_attn.q_a_layernorm.weight"),
            self.tensor("self_attn.kv_a_layernorm.weight"),
            "cos",
            "sin",
            outs=("query", "query_rope", "q_latent", "new_latent", "new_key_rope"),
            eps_cq=self.latent_eps,
            eps_ckv=self.latent_eps,
        )

    def indexer(self, x: str) -> str:
        """Choose positions; returns int32 [T, index_topk]."""
        graph, sizes = self.graph, self.sizes
        flat = self.linear("q_latent", "self_attn.indexer.wq_b", out="index_query_flat")
        heads = np.array([-1, sizes.index_heads, sizes.index_dim])
        graph.node("Reshape", flat, graph.constant("index_heads", heads), out="index_query_plain")
        graph.call("RotaryFirst", "index_query_plain", "cos", "sin", out="index_query")
        self.linear(x, "self_attn.indexer.wk", out="index_key_raw")
        graph.call(
            "LayerNorm",
            "index_key_raw",
            self.tensor("self_attn.indexer.k_norm.weight"),
            self.tensor("self_attn.indexer.k_norm.bias"),
            out="index_key_plain",
            eps=_INDEXER_NORM_EPS,
        )
        graph.call("RotaryFirst", "index_key_plain", "cos", "sin", out="new_index_key")
        keys = self.cache("index_key", sizes.index_dim)
        self.linear(x, "self_attn.indexer.weights_proj", out="index_weights")
        graph.call(
            "LightningIndexer",
            self.batched("index_query"),
            self.batched(keys, one_head=True),
            self.batched("index_weights"),
            "query_length",
            "key_length",
            out="topk_batched",
            sparse_count=sizes.index_topk,
            sparse_mode=3,
        )
        graph.node("Squeeze", "topk_batched", self._heads_axis, out="topk_indices")
        graph.output("topk_indices", "I32", ("tokens", sizes.index_topk))
        return "topk_indices"

    def project_values(self, attended: str) -> None:
        """From the attended latents to ``attention_out``: W_UV of every head, then o_proj."""
        graph, sizes = self.graph, self.sizes
        kv_b = "self_attn.kv_b_proj.weight"
        w_uv = self.weights.rows(kv_b, "self_attn.w_uv", slice(sizes.nope, None))
        graph.weight(w_uv)
        graph.node("Squeeze", attended, self._batch_axis, out="latent_by_token")
        graph.node("Transpose", "latent_by_token", out="latent_by_head", perm=(1, 0, 2))
        graph.node("Transpose", w_uv.name, out="w_uv_columns", perm=(0, 2, 1))
        graph.node("MatMul", "latent_by_head", "w_uv_columns", out="value_by_head")
        graph.node("Transpose", "value_by_head", out="value_by_token", perm=(1, 0, 2))
        graph.node("Flatten", "value_by_token", out="values", axis=1)
        self.linear("values", "self_attn.o_proj", out="attention_out")

    def mlp(self) -> None:
        """From ``after_attention`` to ``hidden_out``."""
        graph = self.graph
        x = self.rms_norm(
            "after_attention", "post_attention_layernorm", self.config.rms_norm_eps, out="mlp_in"
        )
        if self.config.is_moe(self.layer):
            routed = self.experts(x)
            shared = self.gated(x, "mlp.shared_experts")
            graph.node("Add", routed, shared, out="mlp_out")
        else:
            graph.node("Identity", self.gated(x, "mlp"), out="mlp_out")
        graph.node("Add", "after_attention", "mlp_out", out="hidden_out")

    def experts(self, x: str) -> str:
        """The routed experts' part."""
        graph, config = self.graph, self.config
        graph.call("Linear", x, self.tensor("mlp.gate.weight"), out="router_logits")
        graph.call_many(
            "MoeGating",
            "router_logits",
            self.tensor("mlp.gate.e_score_correction_bias"),
            outs=("expert_weights", "expert_ids"),
            top_k=config.num_experts_per_tok,
            norm_topk_prob=int(config.norm_topk_prob),
            routed_scaling_factor=config.routed_scaling_factor,
        )
        suffix, leaves = _EXPERTS[self.weights.scheme("mlp.experts.0.gate_proj")]
        matrices = [
            graph.weight(self.weights.experts(projections, leaf, f"mlp.experts.{name}_{leaf}"))
            for leaf in ("weight", *leaves)
            for name, projections in (("w13", ("gate", "up")), ("w2", ("down",)))
        ]
        return graph.call(
            f"MoeExperts{suffix}",
            x,
            "expert_weights",
            "expert_ids",
            *matrices,
            out="routed_out",
        )

    def gated(self, x: str, prefix: str) -> str:
        """down(silu(gate x) · up x)."""
        gate = self.linear(x, f"{prefix}.gate_proj", out=f"{prefix}.gate")
        up = self.linear(x, f"{prefix}.up_proj", out=f"{prefix}.up")
        inner = self.graph.call("SiluMul", gate, up, out=f"{prefix}.inner")
        return self.linear(inner, f"{prefix}.down_proj", out=f"{prefix}.out")

    def cache(self, name: str, width: int) -> str:
        """Append ``new_<name>`` to the input ``past_<name>``; the result is the output ``name``."""
        graph = self.graph
        past = graph.input(f"past_{name}", "F32", ("cached", width))
        graph.node("Concat", past, f"new_{name}", out=name, axis=0)
        graph.output(name, "F32", ("total", width))
        return name

    def linear(self, x: str, module: str, *, out: str) -> str:
        """A linear layer in the scheme of its weight."""
        function = LINEARS[self.weights.scheme(module)][0]
        return self.graph.call(function, x, *self.matrix(module), out=out)

    def matrix(self, module: str) -> list[str]:
        """The weight of a linear layer and the tensors that its scheme needs beside it."""
        leaves = LINEARS[self.weights.scheme(module)][2]
        return [self.tensor(f"{module}.{leaf}") for leaf in ("weight", *leaves)]

    def tensor(self, name: str) -> str:
        """A tensor of the checkpoint."""
        return self.graph.weight(self.weights.tensor(name))

    def rms_norm(self, x: str, module: str, eps: float, *, out: str) -> str:
        """RMS norm with the weight of ``module``."""
        return self.graph.call("RmsNorm", x, self.tensor(f"{module}.weight"), out=out, eps=eps)

    def batched(self, name: str, *, one_head: bool = False) -> str:
        """[T, ..] as [1, T, ..], or as [1, T, 1, ..]."""
        out = f"{name}_batch"
        if out not in self._batched:
            axes = self._heads_axis if one_head else self._batch_axis
            self.graph.node("Unsqueeze", name, axes, out=out)
            self._batched.add(out)
        return out
