"""Which layers own an indexer, and which quantisation a ``config.json`` declares."""

from __future__ import annotations

from dataclasses import dataclass

from glm5_ascend.config_fields import Fields
from glm5_ascend.errors import brief

FULL, SHARED = "full", "shared"
_LETTERS = {"F": FULL, "S": SHARED, FULL: FULL, SHARED: SHARED}
# vLLM and transformers both assume 2 where the key is absent; GLM-5.2 and 5.3 store 3.
_DEFAULT_OFFSET = 2

# The published FP8 lists name a module that exists nowhere; the BF16 one they mean is this.
_ALIAS, _ALIASED = ".self_attn.indexers_proj", ".self_attn.indexer.weights_proj"
_FP8_KEYS = (
    "quant_method",
    "fmt",
    "activation_scheme",
    "weight_block_size",
    "modules_to_not_convert",
    "scale_fmt",
)


@dataclass(frozen=True, slots=True)
class Fp8Blocks:
    """Block-wise FP8 (E4M3) weights: ``w = fp8 * weight_scale_inv`` of its block.

    Attributes:
        block: rows and columns that share one scale; the last block of an axis may be partial.
        keep: modules that stay unconverted, a name also covering every module below it.
    """

    block: tuple[int, int]
    keep: frozenset[str]

    def keeps(self, module: str) -> bool:
        """Whether ``module`` (without ``.weight``) stays in the model's own dtype."""
        parts = module.split(".")
        return any(".".join(parts[:end]) in self.keep for end in range(1, len(parts) + 1))

    def grid(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Shape of ``weight_scale_inv`` for a weight [out, in]."""
        return -(-shape[0] // self.block[0]), -(-shape[1] // self.block[1])


def read_indexer_types(fields: Fields, layers: int) -> tuple[str, ...]:
    """``"full"`` or ``"shared"`` per decoder layer.

    vLLM derives the schedule from ``index_topk_pattern`` or freq/offset, transformers prefers
    ``indexer_types``; an engine would run the wrong indexers silently where the two differ, so
    both are read and must agree. Layer i is full iff ``max(i - offset + 1, 0) % freq == 0``.
    """
    pattern = fields.get("index_topk_pattern")
    if pattern is None:
        freq = fields.integer("index_topk_freq", default=1)
        offset = fields.integer("index_skip_topk_offset", low=0, default=_DEFAULT_OFFSET)
        rule = f"index_topk_freq {freq} and index_skip_topk_offset {offset}"
        derived = tuple(
            FULL if max(i - offset + 1, 0) % freq == 0 else SHARED for i in range(layers)
        )
    else:
        rule = "index_topk_pattern"
        derived = _expand(fields, "index_topk_pattern", pattern, layers)
    stored = fields.get("indexer_types")
    if stored is not None:
        types = _expand(fields, "indexer_types", stored, layers)
        _refuse_contradiction(fields, types, derived, rule)
    if derived[0] != FULL:
        fields.fail("layer 0 has a shared indexer, but there is no earlier layer to share with")
    return derived


def _expand(fields: Fields, key: str, value: object, layers: int) -> tuple[str, ...]:
    if not isinstance(value, str | list | tuple):
        fields.fail(f"`{key}` must be a string or a list, got {brief(value)}")
    if len(value) != layers:
        fields.fail(f"`{key}` has {len(value)} entries for {layers} layers")
    for layer, item in enumerate(value):
        if not isinstance(item, str) or item not in _LETTERS:
            fields.fail(
                f"`{key}` has {brief(item)} at layer {layer}; known are full (F) and shared (S)"
            )
    return tuple(_LETTERS[item] for item in value)


def _refuse_contradiction(
    fields: Fields, types: tuple[str, ...], derived: tuple[str, ...], rule: str
) -> None:
    for layer, (stored, computed) in enumerate(zip(types, derived, strict=True)):
        if stored != computed:
            fields.fail(
                f"`indexer_types` says {stored} for layer {layer}, but {rule} say {computed}",
                "GLM-5.2 and 5.3 have index_topk_freq 4 and index_skip_topk_offset 3 (absent means"
                f" {_DEFAULT_OFFSET}); restore the keys of the release",
            )


def read_fp8(fields: Fields) -> Fp8Blocks | None:
    """The FP8 metadata of ``quantization_config``; None for unquantised and ``ascend`` files."""
    if "quantization_config" not in fields:
        return None
    quant = fields.nested("quantization_config")
    method = quant.get("quant_method")
    if method == "ascend":
        return None
    if method != "fp8":
        quant.fail(
            f"quantisation method {brief(method)} is not read here",
            "start from the BF16 release or from the FP8 release of zai-org",
        )
    quant.refuse_unknown(_FP8_KEYS)
    quant.constant("fmt", "e4m3")
    quant.constant("activation_scheme", "dynamic")
    block = quant.get("weight_block_size")
    if (
        not isinstance(block, list | tuple)
        or len(block) != 2
        or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in block)
    ):
        quant.fail(f"`weight_block_size` must be two positive integers, got {brief(block)}")
    keep = quant.strings("modules_to_not_convert") or ()
    return Fp8Blocks((block[0], block[1]), frozenset(n.replace(_ALIAS, _ALIASED) for n in keep))
