"""Which norm is fused into each weight, and which rotation acts on which of its sides.

One row per matrix: what it reads (columns) and what it writes (rows). A matrix that is missing
here while its neighbours rotate silently changes the model, so unknown names raise.

==================  =======================================  ==========  =====================
matrix              norm fused into columns                  columns     rows
==================  =======================================  ==========  =====================
embed_tokens        (its rows are the vectors)               R1
q_a_proj            input_layernorm                          R1          R2
kv_a_proj_with_mqa  input_layernorm                          R1          R3 on the latent only
indexer.wk          input_layernorm                          R1
indexer.weights_..  input_layernorm                          R1
q_b_proj, wq_b      q_a_layernorm                            R2
kv_b_proj           kv_a_layernorm                           R3          R4 per head, value rows
o_proj              (attention output)                       R4 per head R1
gate, gate/up_proj  post_attention_layernorm                 R1
down_proj           (intermediate stays unrotated)                       R1
eh_proj             enorm ‖ hnorm                            R1 ‖ R1     R1
lm_head             model.norm                               R1
shared_head.head    shared_head.norm                         R1
==================  =======================================  ==========  =====================
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from glm5_ascend.config import Glm5Config

# Of the random signs; msModelSlim uses the same for its R1.
SEED = 1234

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_MLP = re.compile(r"mlp\.(?:shared_experts\.|experts\.\d+\.)?(gate_proj|up_proj|down_proj)")


@dataclass(frozen=True, slots=True)
class Axis:
    """Rotations along one axis: segments of ``(matrix name or None, width)``, repeated.

    The rope part of ``kv_a`` is a ``None`` segment; heads are repeats.
    """

    segments: tuple[tuple[str | None, int], ...]
    repeat: int = 1

    @property
    def size(self) -> int:
        """Length of the axis."""
        return self.repeat * sum(width for _, width in self.segments)


@dataclass(frozen=True, slots=True)
class Fold:
    """What is folded into one matrix: γ of ``norms`` (concatenated), then the rotations."""

    norms: tuple[str, ...] = ()
    columns: Axis | None = None
    rows: Axis | None = None


NO_FOLD = Fold()


def layer_of(name: str) -> int | None:
    """Layer of a tensor's name; None for embedding, head and final norm."""
    match = _LAYER.fullmatch(name)
    return int(match[1]) if match else None


def is_norm(name: str) -> bool:
    """Whether ``name`` is the γ of an RMSNorm that fusion turns into ones.

    The indexer's ``k_norm`` is a LayerNorm before the rope, has a bias and is left alone.
    """
    return name.endswith("norm.weight") and not name.endswith(".k_norm.weight")


def fold_of(config: Glm5Config, name: str) -> Fold:
    """Return what rotation folds into the matrix ``name`` (a name of the output checkpoint).

    Raises:
        KeyError: a matrix this table does not know.
    """
    residual = Axis((("R1", config.hidden_size),))
    if name == "model.embed_tokens.weight":
        return Fold(columns=residual)
    if name == "lm_head.weight":
        return Fold(("model.norm.weight",), residual)
    match = _LAYER.fullmatch(name)
    if match is None:
        raise KeyError(name)
    prefix, module = f"model.layers.{match[1]}.", match[2].removesuffix(".weight")
    if module.startswith("self_attn."):
        return _attention(config, prefix, module.removeprefix("self_attn."), residual)
    if module == "mlp.gate":
        return Fold((f"{prefix}post_attention_layernorm.weight",), residual)
    mlp = _MLP.fullmatch(module)
    if mlp is not None and mlp[1] == "down_proj":
        return Fold(rows=residual)
    if mlp is not None:
        return Fold((f"{prefix}post_attention_layernorm.weight",), residual)
    return _mtp(config, prefix, module, residual)


def _attention(config: Glm5Config, prefix: str, module: str, residual: Axis) -> Fold:
    heads = config.num_attention_heads
    query = Axis((("R2", config.q_lora_rank),))
    latent, rope = config.kv_lora_rank, config.qk_rope_head_dim
    key_up = Axis(((None, config.qk_nope_head_dim), ("R4", config.v_head_dim)), heads)
    block_input = (f"{prefix}input_layernorm.weight",)
    query_input = (f"{prefix}self_attn.q_a_layernorm.weight",)
    table = {
        "q_a_proj": Fold(block_input, residual, query),
        "kv_a_proj_with_mqa": Fold(block_input, residual, Axis((("R3", latent), (None, rope)))),
        "indexer.wk": Fold(block_input, residual),
        "indexer.weights_proj": Fold(block_input, residual),
        "q_b_proj": Fold(query_input, query),
        "indexer.wq_b": Fold(query_input, query),
        "kv_b_proj": Fold(
            (f"{prefix}self_attn.kv_a_layernorm.weight",), Axis((("R3", latent),)), key_up
        ),
        "o_proj": Fold(columns=Axis((("R4", config.v_head_dim),), heads), rows=residual),
    }
    return table[module]


def _mtp(config: Glm5Config, prefix: str, module: str, residual: Axis) -> Fold:
    both = Axis((("R1", config.hidden_size),), 2)
    table = {
        "embed_tokens": Fold(columns=residual),
        "eh_proj": Fold((f"{prefix}enorm.weight", f"{prefix}hnorm.weight"), both, residual),
        "shared_head.head": Fold((f"{prefix}shared_head.norm.weight",), residual),
    }
    return table[module]
