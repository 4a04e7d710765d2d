"""One decision per output tensor, with its reason, from configuration and choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from glm5_ascend.checkpoint import TensorSpec, expected_tensors
from glm5_ascend.config import Glm5Config
from glm5_ascend.quant.folding import NO_FOLD, Fold, fold_of, is_norm
from glm5_ascend.quant.scheme import Scheme, stored_tensors

SchemeName = Literal["w4a8", "w8a8", "none"]
MtpName = Literal["w8", "float"]
DtypeName = Literal["bfloat16", "float32"]

STORED_DTYPE: dict[DtypeName, str] = {"bfloat16": "BF16", "float32": "F32"}

# vllm-ascend accepts these as float only; first match wins.
_ALWAYS_FLOAT: tuple[tuple[str, str], ...] = (
    ("embed_tokens.weight", "vocabulary matrix: a look-up, not a product"),
    ("lm_head.weight", "vocabulary matrix: decides the logits"),
    (".shared_head.head.weight", "vocabulary matrix of the MTP layer"),
    (".mlp.gate.weight", "router: the engine refuses another shape or dtype"),
    (".e_score_correction_bias", "router bias: F32 in every release"),
    (".kv_b_proj.weight", "absorbed into attention, which asserts that it is dense"),
    (".indexer.wk.weight", "the engine fuses wk and weights_proj without quantisation"),
    (".indexer.weights_proj.weight", "the engine fuses wk and weights_proj without quantisation"),
    (".k_norm.weight", "LayerNorm of the indexer key"),
    (".k_norm.bias", "LayerNorm of the indexer key"),
    (".eh_proj.weight", "the engine has no quantised form of the MTP input projection"),
    ("norm.weight", "RMSNorm"),
)


class Action(StrEnum):
    """What happens to a tensor's values."""

    MATRIX = "matrix"  # fold, rotate, quantise
    ONES = "ones"  # a norm whose γ went into the next matrices
    COPY = "copy"  # converted to the float dtype at most
    RECYCLED = "recycled"  # rot.weight, made from the γ of model.norm


@dataclass(frozen=True, slots=True)
class Choices:
    """The user's choices that decide values (workers and paths do not)."""

    scheme: SchemeName
    rotate: bool
    dtype: DtypeName
    mtp: MtpName


@dataclass(frozen=True, slots=True)
class Step:
    """One source tensor and everything that becomes of it.

    ``name`` is the tensor's name in the output, ``source`` in the input; they differ only for the
    MTP layer's copies of embedding and head. ``stored`` are the tensors written, in file order.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    action: Action
    scheme: Scheme
    float_dtype: str
    fold: Fold
    reason: str
    stored: dict[str, TensorSpec]


def recycled_step(config: Glm5Config, choices: Choices) -> Step:
    """The step that makes ``rot.weight``, what the MTP layer multiplies its input state with."""
    shape = (config.hidden_size, config.hidden_size)
    dtype = STORED_DTYPE[choices.dtype]
    return Step(
        name="rot.weight",
        source="model.norm.weight",
        shape=shape,
        action=Action.RECYCLED,
        scheme=Scheme.FLOAT,
        float_dtype=dtype,
        fold=NO_FOLD,
        reason="restores the γ of model.norm in the rotated basis",
        stored={"rot.weight": TensorSpec(shape, dtype)},
    )


def steps(config: Glm5Config, choices: Choices) -> Iterator[Step]:
    """Yield every step in model order, experts one by one.

    Raises:
        ConfigError: a dimension that the chosen scheme or rotation cannot handle.
    """
    for name, spec in expected_tensors(config).items():
        if name.endswith("_scale_inv"):
            continue
        yield _step(config, choices, name, name, spec.shape)
        if name.endswith(".shared_head.norm.weight") and has_mtp_copies(choices):
            prefix = name.removesuffix("shared_head.norm.weight")
            vocabulary = (config.vocab_size, config.hidden_size)
            yield _step(
                config,
                choices,
                f"{prefix}shared_head.head.weight",
                "lm_head.weight",
                vocabulary,
            )
            yield _step(
                config,
                choices,
                f"{prefix}embed_tokens.weight",
                "model.embed_tokens.weight",
                vocabulary,
            )


def has_mtp_copies(choices: Choices) -> bool:
    """Whether the MTP layer gets its own embedding and head.

    With rotation it needs them: the head's copy carries ``shared_head.norm``'s γ instead of
    ``model.norm``'s. Quantised engines up to 0.26 leave absent ones uninitialised without an
    error. Only a plain, unrotated output looks like the source and shares them.
    """
    return choices.rotate or choices.scheme != "none"


def scheme_of(config: Glm5Config, choices: Choices, name: str) -> tuple[Scheme, str]:
    """Return the scheme of an output tensor and why."""
    for suffix, reason in _ALWAYS_FLOAT:
        if name.endswith(suffix):
            return Scheme.FLOAT, reason
    if choices.scheme == "none":
        return Scheme.FLOAT, "--scheme none"
    layer = int(name.split(".")[2])
    if config.is_mtp(layer) and choices.mtp == "float":
        return Scheme.FLOAT, "--mtp float"
    if ".mlp.experts." in name and choices.scheme == "w4a8" and not config.is_mtp(layer):
        return Scheme.W4A8_DYNAMIC, "routed expert: 96 % of all weights"
    return Scheme.W8A8_DYNAMIC, "linear layer, int8 with per-token activations"


def _step(
    config: Glm5Config, choices: Choices, name: str, source: str, shape: tuple[int, ...]
) -> Step:
    scheme, reason = scheme_of(config, choices, name)
    dtype = _float_dtype(choices, name)
    action, fold = Action.COPY, NO_FOLD
    stored = {name: TensorSpec(shape, dtype)}
    if len(shape) == 2:
        action = Action.MATRIX
        fold = fold_of(config, name) if choices.rotate else NO_FOLD
        stored = stored_tensors(name, (shape[0], shape[1]), scheme, dtype)
    elif choices.rotate and is_norm(name):
        action, reason = Action.ONES, "RMSNorm, γ fused into the matrices that read it"
    return Step(name, source, shape, action, scheme, dtype, fold, reason, stored)


def _float_dtype(choices: Choices, name: str) -> str:
    """Router values stay F32: engines compute routing in F32, and a rotated router is no BF16."""
    is_rotated_router = choices.rotate and name.endswith(".mlp.gate.weight")
    if name.endswith(".e_score_correction_bias") or is_rotated_router:
        return "F32"
    return STORED_DTYPE[choices.dtype]
