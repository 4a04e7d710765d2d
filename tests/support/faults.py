"""Planted faults of the model's semantics, each once a real defect of some implementation.

A fault is a context manager that breaks one :class:`HfOracle` while it is open.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers.cache_utils import DynamicIndexedLayer
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa

from tests.support.choices import Forward
from tests.support.hf import HfOracle, set_latent_eps

modeling: Any = modeling_glm_moe_dsa
Break = Callable[[HfOracle], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Fault:
    """``where`` says which run shows it: "main", "cached" (chunks), "mtp1" or "mtp2" (step).

    ``sparse_only`` faults leave every sequence of at most ``index_topk`` tokens untouched.
    """

    name: str
    apply: Break
    where: str = "main"
    sparse_only: bool = False


class _Proxy:
    """A module with some names replaced."""

    def __init__(self, wrapped: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def _rotate_half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def half_split_rope(*, indexer: bool) -> Break:
    """Pairs (j, j + d/2) instead of (2j, 2j + 1), in the indexer or in MLA."""
    original = modeling.apply_rotary_pos_emb_interleave

    def rotate(q: Any, k: Any, cos: Any, sin: Any, *, unsqueeze_dim: int = 1) -> Any:
        # transformers rotates [B, S, heads, dim] in the indexer and [B, heads, S, dim] in MLA.
        if (unsqueeze_dim == 2) is not indexer:
            return original(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
        cos, sin = (t.chunk(2, dim=-1)[0].unsqueeze(unsqueeze_dim) for t in (cos, sin))
        return _rotate_half(q, cos, sin), _rotate_half(k, cos, sin)

    return lambda _: mock.patch.object(modeling, "apply_rotary_pos_emb_interleave", rotate)


def relu_missing(_: HfOracle) -> AbstractContextManager[Any]:
    """Index scores without the ReLU."""
    without: Any = _Proxy(modeling.F, relu=lambda x: x)
    return mock.patch.object(modeling, "F", without)


def _layers(oracle: HfOracle) -> list[Any]:
    return list(oracle.model.model.layers)


def _indexers(oracle: HfOracle) -> list[Any]:
    found = (layer.self_attn.indexer for layer in _layers(oracle))
    return [indexer for indexer in found if indexer is not None]


def _gates(oracle: HfOracle) -> list[Any]:
    return [layer.mlp.gate for layer in _layers(oracle) if hasattr(layer.mlp, "gate")]


@contextmanager
def _attributes(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for target, name, value in changes:
            stack.enter_context(mock.patch.object(target, name, value))
        yield


@contextmanager
def _hooks(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _KeyNorm(nn.Module):
    """The indexer's k_norm with a defect."""

    def __init__(self, norm: Any, *, centred: bool, bias: bool, eps: float) -> None:
        super().__init__()
        self.norm, self.centred, self.bias, self.eps = norm, centred, bias, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise [..., D]."""
        mean = x.mean(dim=-1, keepdim=True) if self.centred else torch.zeros(())
        moment = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
        y: torch.Tensor = (x - mean) * torch.rsqrt(moment + self.eps) * self.norm.weight
        return y + self.norm.bias if self.bias else y


def key_norm(*, centred: bool = True, bias: bool = True, eps: float = 1e-6) -> Break:
    """k_norm as RMSNorm, without bias, or with another epsilon."""

    def apply(oracle: HfOracle) -> AbstractContextManager[None]:
        return _attributes(
            [
                (i, "k_norm", _KeyNorm(i.k_norm, centred=centred, bias=bias, eps=eps))
                for i in _indexers(oracle)
            ]
        )

    return apply


@contextmanager
def unnormalised_query_latent(oracle: HfOracle) -> Iterator[None]:
    """The indexer reads q_a's output before q_a_layernorm."""
    handles = []
    for layer in _layers(oracle):
        attention = layer.self_attn
        seen: dict[str, Any] = {}
        if attention.indexer is None:
            continue

        def note(_m: Any, inputs: Any, seen: dict[str, Any] = seen) -> None:
            seen["latent"] = inputs[0]

        def swap(_m: Any, args: Any, seen: dict[str, Any] = seen) -> Any:
            return (args[0], seen["latent"], *args[2:])

        handles.append(attention.q_a_layernorm.register_forward_pre_hook(note))
        handles.append(attention.indexer.register_forward_pre_hook(swap))
    with _hooks(handles):
        yield


def index_share_ignored(oracle: HfOracle) -> AbstractContextManager[None]:
    """Shared layers select by themselves, with the preceding indexer's weights."""
    changes, latest = [], None
    for layer in _layers(oracle):
        attention = layer.self_attn
        if attention.indexer is None:
            changes.append((attention, "indexer", copy.deepcopy(latest)))
        else:
            latest = attention.indexer
    return _attributes(changes)


def default_offset(oracle: HfOracle) -> AbstractContextManager[None]:
    """Schedule with the default offset 2 although the configuration says 3."""
    freq = oracle.raw_config["index_topk_freq"]
    shared = [i for i in range(oracle.layers) if max(i - 1, 0) % freq]
    return _attributes([(_layers(oracle)[i].self_attn, "indexer", None) for i in shared])


def rotary_frequencies(theta: float, width: int) -> Break:
    """Frequencies of another theta, or of another width than qk_rope_head_dim."""

    def apply(oracle: HfOracle) -> AbstractContextManager[None]:
        rotary = oracle.model.model.rotary_emb
        count = len(rotary.inv_freq)
        values = theta ** (-torch.arange(0, 2 * count, 2).float() / width)
        return _attributes([(rotary, "inv_freq", values)])

    return apply


@contextmanager
def latent_eps(oracle: HfOracle) -> Iterator[None]:
    """Latent norms with transformers' class default 1e-6 instead of the configuration's 1e-5."""
    set_latent_eps(oracle.model, 1e-6)
    try:
        yield
    finally:
        set_latent_eps(oracle.model, oracle.latent_eps)


def router(change: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]) -> Break:
    """Expert weights [T, k] recomputed by ``change(gate, logits, ids)``."""

    def apply(oracle: HfOracle) -> AbstractContextManager[None]:
        def hook(gate: Any, _args: Any, output: Any) -> Any:
            logits, _, ids = output
            return logits, change(gate, logits, ids), ids

        return _hooks([gate.register_forward_hook(hook) for gate in _gates(oracle)])

    return apply


def _normalised(gate: Any, scores: torch.Tensor) -> torch.Tensor:
    weights = scores / (scores.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * float(gate.routed_scaling_factor)


def bias_in_weights(gate: Any, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The correction bias counts in the weights, not only in the choice."""
    return _normalised(gate, (logits.sigmoid() + gate.e_score_correction_bias).gather(1, ids))


def softmax_scores(gate: Any, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Softmax instead of sigmoid scores."""
    return _normalised(gate, logits.softmax(dim=-1).gather(1, ids))


def not_normalised(gate: Any, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """``norm_topk_prob`` ignored."""
    return logits.sigmoid().gather(1, ids) * float(gate.routed_scaling_factor)


def scaling_missing(oracle: HfOracle) -> AbstractContextManager[None]:
    """``routed_scaling_factor`` ignored."""
    return _attributes([(gate, "routed_scaling_factor", 1.0) for gate in _gates(oracle)])


def bias_dropped(oracle: HfOracle) -> AbstractContextManager[None]:
    """Experts chosen without the correction bias."""
    return _attributes(
        [
            (gate, "e_score_correction_bias", torch.zeros_like(gate.e_score_correction_bias))
            for gate in _gates(oracle)
        ]
    )


def bf16_router(oracle: HfOracle) -> AbstractContextManager[None]:
    """Router logits rounded to BF16 before the sigmoid."""
    rounded: Any = _Proxy(
        modeling.F, linear=lambda x, w: nn.functional.linear(x, w).bfloat16().float()
    )
    return mock.patch.object(modeling, "F", rounded)


def softmax_scale(oracle: HfOracle) -> AbstractContextManager[None]:
    """Attention scaled by the nope width instead of nope + rope."""
    wrong = float(oracle.config.qk_nope_head_dim) ** -0.5
    return _attributes([(layer.self_attn, "scaling", wrong) for layer in _layers(oracle)])


@contextmanager
def swapped_gate_up(oracle: HfOracle) -> Iterator[None]:
    """Gate and up rows of the experts exchanged."""
    weights = [layer.mlp.experts.gate_up_proj for layer in _layers(oracle) if _is_moe(layer)]

    def swap() -> None:
        for weight in weights:
            weight.data = torch.cat(weight.data.chunk(2, dim=1)[::-1], dim=1)

    swap()
    try:
        yield
    finally:
        swap()


def _is_moe(layer: Any) -> bool:
    return hasattr(layer.mlp, "experts")


class _Zero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


def shared_expert_missing(oracle: HfOracle) -> AbstractContextManager[None]:
    """No shared expert."""
    moe = [layer.mlp for layer in _layers(oracle) if _is_moe(layer)]
    return _attributes([(mlp, "shared_experts", _Zero()) for mlp in moe])


def index_cache_reset(_: HfOracle) -> AbstractContextManager[Any]:
    """The index-key cache restarts with every chunk of more than one token."""
    original = DynamicIndexedLayer.update_indexer

    def update(self: Any, keys: torch.Tensor) -> torch.Tensor:
        if keys.shape[1] > 1:
            past = 0 if self.indexer_keys is None else self.indexer_keys.shape[1]
            keys = nn.functional.pad(keys, (0, 0, past, 0))
            self.indexer_keys = None
            self.is_indexer_initialized = False
        return original(self, keys)

    return mock.patch.object(DynamicIndexedLayer, "update_indexer", update)


def mtp_concat_swapped(oracle: HfOracle) -> AbstractContextManager[None]:
    """Hidden state first, embedding second."""
    mtp = oracle.mtp
    combine = mtp.combine
    return _attributes([(mtp, "combine", lambda embedded, hidden: combine(hidden, embedded))])


def mtp_embedding_kept(oracle: HfOracle) -> AbstractContextManager[None]:
    """The embedding at position 0 is not blanked."""
    mtp = oracle.mtp
    step = mtp.step
    return _attributes([(mtp, "step", lambda *a, **k: step(*a, **(k | {"zero_first": False})))])


@contextmanager
def mtp_pre_norm_recycled(oracle: HfOracle) -> Iterator[None]:
    """Steps after the first take the state before ``shared_head.norm``."""
    mtp = oracle.mtp
    seen: dict[str, Any] = {}

    def note(_m: Any, inputs: Any) -> None:
        seen["state"] = inputs[0]

    def recycled(_: Forward) -> torch.Tensor:
        state: torch.Tensor = seen["state"][-1:]
        return state

    handles = [mtp.norm.register_forward_pre_hook(note)]
    with _hooks(handles), _attributes([(mtp, "recycled", recycled)]):
        yield


def mtp_indices_not_shared(oracle: HfOracle) -> AbstractContextManager[None]:
    """Steps after the first run their own indexer."""
    return _attributes([(oracle.mtp, "shares_indices", False)])


def mtp_final_norm_skipped(oracle: HfOracle) -> AbstractContextManager[None]:
    """Logits and recycled state without ``shared_head.norm``."""
    return _attributes([(oracle.mtp, "norm", nn.Identity())])


FAULTS = [
    Fault("indexer-rope-half-split", half_split_rope(indexer=True), sparse_only=True),
    Fault("mla-rope-half-split", half_split_rope(indexer=False)),
    Fault("indexer-relu-missing", relu_missing, sparse_only=True),
    Fault("k-norm-as-rms", key_norm(centred=False), sparse_only=True),
    Fault("k-norm-bias-dropped", key_norm(bias=False), sparse_only=True),
    Fault("k-norm-eps-1e-5", key_norm(eps=1e-5), sparse_only=True),
    Fault("indexer-query-unnormalised", unnormalised_query_latent, sparse_only=True),
    Fault("index-share-ignored", index_share_ignored, sparse_only=True),
    Fault("index-offset-2", default_offset, sparse_only=True),
    Fault("rope-theta-1e6", rotary_frequencies(1e6, 64)),
    Fault("rope-width-head-dim", rotary_frequencies(8e6, 80)),
    Fault("latent-eps-1e-6", latent_eps),
    Fault("softmax-scale", softmax_scale),
    Fault("router-bias-in-weights", router(bias_in_weights)),
    Fault("router-softmax", router(softmax_scores)),
    Fault("router-not-normalised", router(not_normalised)),
    Fault("router-scaling-missing", scaling_missing),
    Fault("router-bias-dropped", bias_dropped),
    Fault("router-bf16", bf16_router),
    Fault("expert-gate-up-swapped", swapped_gate_up),
    Fault("shared-expert-missing", shared_expert_missing),
    Fault("index-cache-reset", index_cache_reset, where="cached", sparse_only=True),
    Fault("mtp-concat-swapped", mtp_concat_swapped, where="mtp1"),
    Fault("mtp-first-embedding-kept", mtp_embedding_kept, where="mtp1"),
    Fault("mtp-final-norm-skipped", mtp_final_norm_skipped, where="mtp1"),
    Fault("mtp-pre-norm-recycled", mtp_pre_norm_recycled, where="mtp2"),
    Fault("mtp-indices-not-shared", mtp_indices_not_shared, where="mtp2"),
]
