"""The model written out in NumPy and F64 from model.md 3: a second opinion on transformers.

Nothing here comes from transformers: MLA is absorbed (attention in the latent space, one shared key
per token), rotary pairs are complex numbers, selection is a stable argsort. Meant for tens of
tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.weights import dequantise_fp8, read_config, read_tensors

Array = npt.NDArray[np.float64]
LATENT_EPS, KEY_NORM_EPS = 1e-5, 1e-6


def _rms(x: Array, weight: Array, eps: float) -> Array:
    normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return normed


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def _rotate(x: Array, positions: Array, theta: float) -> Array:
    """Rotate pairs (2j, 2j + 1) of x [T, ..., width] by position · theta^(-2j/width)."""
    width = x.shape[-1]
    frequency = theta ** (-np.arange(0, width, 2) / width)
    angle = (positions[:, None] * frequency).reshape(len(x), *[1] * (x.ndim - 2), -1)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


class Formula:
    """Checkpoint ``directory`` evaluated from the formulas."""

    def __init__(self, directory: Path) -> None:
        self.config: dict[str, Any] = read_config(directory)
        tensors = dequantise_fp8(read_tensors(directory))
        self.weights: dict[str, Array] = {n: t.double().numpy() for n, t in tensors.items()}
        self.theta = float(self.config["rope_parameters"]["rope_theta"])
        self.eps = float(self.config["rms_norm_eps"])
        self.selected: dict[int, npt.NDArray[np.bool_]] = {}

    def forward(self, tokens: list[int]) -> tuple[Array, Array]:
        """Return (logits [T, vocab], state after the final norm [T, hidden])."""
        x = self.weights["model.embed_tokens.weight"][tokens]
        layers = int(self.config["num_hidden_layers"])
        types = self.config.get("indexer_types") or ["full"] * layers
        chosen = None
        for layer in range(layers):
            x, chosen = self._block(layer, x, chosen if types[layer] == "shared" else None)
        hidden = _rms(x, self.weights["model.norm.weight"], self.eps)
        return hidden @ self.weights["lm_head.weight"].T, hidden

    def mtp(self, next_tokens: list[int], hidden: Array) -> Array:
        """Return step-1 logits [T, vocab]; the embedding at position 0 is blanked."""
        layer = int(self.config["num_hidden_layers"])
        p = f"model.layers.{layer}."
        embedded = self.weights["model.embed_tokens.weight"][next_tokens]
        embedded[0] = 0
        e = _rms(embedded, self.weights[p + "enorm.weight"], self.eps)
        h = _rms(hidden, self.weights[p + "hnorm.weight"], self.eps)
        x = np.concatenate([e, h], axis=-1) @ self.weights[p + "eh_proj.weight"].T
        x, _ = self._block(layer, x, None)
        z = _rms(x, self.weights[p + "shared_head.norm.weight"], self.eps)
        return z @ self.weights["lm_head.weight"].T

    def _block(
        self, layer: int, x: Array, shared: npt.NDArray[np.bool_] | None
    ) -> tuple[Array, npt.NDArray[np.bool_]]:
        p = f"model.layers.{layer}."
        normed = _rms(x, self.weights[p + "input_layernorm.weight"], self.eps)
        attended, chosen = self._attention(layer, normed, shared)
        x = x + attended
        normed = _rms(x, self.weights[p + "post_attention_layernorm.weight"], self.eps)
        if layer < self.config["first_k_dense_replace"]:
            return x + self._mlp(p + "mlp.", normed), chosen
        return x + self._moe(p + "mlp.", normed), chosen

    def _attention(
        self, layer: int, x: Array, shared: npt.NDArray[np.bool_] | None
    ) -> tuple[Array, npt.NDArray[np.bool_]]:
        c, p = self.config, f"model.layers.{layer}.self_attn."
        heads, nope, rope = (
            c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim")
        )
        latent, positions = c["kv_lora_rank"], np.arange(len(x), dtype=np.float64)
        low = x @ self.weights[p + "q_a_proj.weight"].T
        low = _rms(low, self.weights[p + "q_a_layernorm.weight"], LATENT_EPS)
        chosen = self._select(layer, x, low) if shared is None else shared
        q = (low @ self.weights[p + "q_b_proj.weight"].T).reshape(len(x), heads, nope + rope)
        q_rope = _rotate(q[..., nope:], positions, self.theta)
        kv = x @ self.weights[p + "kv_a_proj_with_mqa.weight"].T
        key = _rms(kv[:, :latent], self.weights[p + "kv_a_layernorm.weight"], LATENT_EPS)
        k_rope = _rotate(kv[:, latent:], positions, self.theta)
        up = self.weights[p + "kv_b_proj.weight"].reshape(heads, -1, latent)
        absorbed = np.einsum("thn,hnl->htl", q[..., :nope], up[:, :nope])
        scores = absorbed @ key.T + np.einsum("thr,sr->hts", q_rope, k_rope)
        scores = np.where(chosen, scores / np.sqrt(nope + rope), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        values = np.einsum("htl,hvl->thv", weights @ key, up[:, nope:])
        return values.reshape(len(x), -1) @ self.weights[p + "o_proj.weight"].T, chosen

    def index_scores(self, layer: int, x: Array, low: Array) -> Array:
        """Return Σ_h w_h · ReLU(q_h·k) [T, T], -inf above the diagonal."""
        c, p = self.config, f"model.layers.{layer}.self_attn.indexer."
        rope, positions = c["qk_rope_head_dim"], np.arange(len(x), dtype=np.float64)
        q = (low @ self.weights[p + "wq_b.weight"].T).reshape(len(x), c["index_n_heads"], -1)
        k = x @ self.weights[p + "wk.weight"].T
        k = k - k.mean(-1, keepdims=True)
        k = k / np.sqrt((k * k).mean(-1, keepdims=True) + KEY_NORM_EPS)
        k = k * self.weights[p + "k_norm.weight"] + self.weights[p + "k_norm.bias"]
        q[..., :rope] = _rotate(q[..., :rope], positions, self.theta)
        k[..., :rope] = _rotate(k[..., :rope], positions, self.theta)
        dots = np.maximum(np.einsum("thd,sd->ths", q, k), 0) * c["index_head_dim"] ** -0.5
        head_weights = x @ self.weights[p + "weights_proj.weight"].T * c["index_n_heads"] ** -0.5
        scores = np.einsum("th,ths->ts", head_weights, dots)
        scores[np.triu_indices(len(x), 1)] = -np.inf
        return np.asarray(scores)

    def _select(self, layer: int, x: Array, low: Array) -> npt.NDArray[np.bool_]:
        scores = self.index_scores(layer, x, low)
        best = np.argsort(-scores, axis=-1, kind="stable")[:, : self.config["index_topk"]]
        chosen = np.zeros(scores.shape, dtype=bool)
        np.put_along_axis(chosen, best, True, axis=-1)
        self.selected[layer] = chosen & (scores > -np.inf)
        return self.selected[layer]

    def _mlp(self, prefix: str, x: Array) -> Array:
        gate = x @ self.weights[prefix + "gate_proj.weight"].T
        up = x @ self.weights[prefix + "up_proj.weight"].T
        return (_silu(gate) * up) @ self.weights[prefix + "down_proj.weight"].T

    def _moe(self, prefix: str, x: Array) -> Array:
        c = self.config
        scores = 1 / (1 + np.exp(-(x @ self.weights[prefix + "gate.weight"].T)))
        biased = scores + self.weights[prefix + "gate.e_score_correction_bias"]
        result = self._mlp(prefix + "shared_experts.", x)
        for row in range(len(x)):
            ids = np.argsort(-biased[row], kind="stable")[: c["num_experts_per_tok"]]
            weights = scores[row, ids] / scores[row, ids].sum() * c["routed_scaling_factor"]
            for expert, weight in zip(ids, weights, strict=True):
                result[row] += weight * self._mlp(f"{prefix}experts.{expert}.", x[row])
        return result
