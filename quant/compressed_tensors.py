"""The same weights for vLLM on NVIDIA GPUs: compressed-tensors.

int8 modules are the format's ``int-quantized`` with int8 activations per token. int4 modules are
its ``pack-quantized`` without a word about activations: vLLM has experts for int4 weights and int8
activations on Arm CPUs only and refuses to build them on a GPU, whereas Marlin takes these and
quantises their inputs per token where ``VLLM_MARLIN_INPUT_DTYPE=int8`` is set. Scales are F32
[out, 1]; vLLM rounds those of int4 to its own dtype.

That engine has no ``rot.weight``, so the residual stream stays unrotated where an MTP layer reads
it; the rotations inside of attention are undone by the weights next to them and remain.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from glm5_ascend.checkpoint import TensorSpec
from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError
from glm5_ascend.quant.folding import Fold
from glm5_ascend.quant.recipe_rules import Recipe
from glm5_ascend.quant.scheme import Scheme

NAME = "compressed-tensors"
_BYTES, _PACKED = "int-quantized", "pack-quantized"
_CODES_PER_WORD = 8
_NUMBERS = re.compile(r"\.(\d+)(?=\.)")
_INNER_NORMS = (".q_a_layernorm.weight", ".kv_a_layernorm.weight")


def require_expressible(recipe: Recipe) -> None:
    """Refuse what this format has no words for.

    Raises:
        ConfigError: a static scheme, or marks of an int8 cache.
    """
    if Scheme.W8A8 in recipe.schemes:
        raise ConfigError(
            f"recipe {recipe.name}: W8A8 is written for vllm-ascend only",
            "use W8A8_DYNAMIC for --format compressed-tensors",
        )
    if recipe.kv != "none":
        raise ConfigError(
            f"recipe {recipe.name}: kv {recipe.kv} is a mark for vllm-ascend only",
            "use a recipe with kv: none for --format compressed-tensors",
        )


def turns_residual(config: Glm5Config, recipe: Recipe) -> bool:
    """Whether the residual stream is rotated."""
    keeps = recipe.format == NAME and config.num_nextn_predict_layers > 0
    return recipe.rotate and not keeps


def without_residual(fold: Fold) -> Fold:
    """A fold without what belongs to the residual stream: R1, and the norms in front of blocks."""
    norms = tuple(name for name in fold.norms if name.endswith(_INNER_NORMS))
    columns, rows = (
        None if axis is None or any(name == "R1" for name, _ in axis.segments) else axis
        for axis in (fold.columns, fold.rows)
    )
    return Fold(norms, columns, rows)


def is_inner_norm(name: str) -> bool:
    """Whether γ is folded although the residual stream stays as it is."""
    return name.endswith(_INNER_NORMS)


def stored(weight: str, shape: tuple[int, int], scheme: Scheme) -> dict[str, TensorSpec]:
    """What is stored for a quantised ``<module>.weight`` [out, in], in file order.

    Raises:
        ConfigError: int4 whose input size is no multiple of 8.
    """
    module = weight.removesuffix(".weight")
    scale = {f"{module}.weight_scale": TensorSpec((shape[0], 1), "F32")}
    if scheme is not Scheme.W4A8_DYNAMIC:
        return {**scale, weight: TensorSpec(shape, "I8")}
    if shape[1] % _CODES_PER_WORD:
        raise ConfigError(
            f"{weight} cannot be int4 in this format: its input size {shape[1]} is no multiple of"
            f" {_CODES_PER_WORD}",
            "use --scheme w8a8",
        )
    return {
        f"{module}.weight_shape": TensorSpec((2,), "I64"),
        **scale,
        f"{module}.weight_packed": TensorSpec((shape[0], shape[1] // _CODES_PER_WORD), "I32"),
    }


def quantization_config(schemes: Mapping[str, Scheme]) -> dict[str, object]:
    """The block of ``config.json``.

    Args:
        schemes: of the weight of every matrix, by name; the vocabulary matrices as well.

    Returns:
        One group per number of bits, whose targets are anchored patterns, and what is ignored.
    """
    groups = {
        f"group_{number}": {
            "targets": _patterns(schemes, scheme),
            **_ARGUMENTS[scheme],
            "output_activations": None,
        }
        for number, scheme in enumerate(
            scheme for scheme in _ARGUMENTS if scheme in schemes.values()
        )
    }
    formats = {str(group["format"]) for group in groups.values()}
    return {
        "quant_method": NAME,
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": _patterns(schemes, Scheme.FLOAT),
        "kv_cache_scheme": None,
    }


def _numbers(bits: int, *, dynamic: bool, strategy: str) -> dict[str, object]:
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": strategy,
        "dynamic": dynamic,
    }


_ARGUMENTS: dict[Scheme, dict[str, object]] = {
    Scheme.W8A8_DYNAMIC: {
        "weights": _numbers(8, dynamic=False, strategy="channel"),
        "input_activations": _numbers(8, dynamic=True, strategy="token"),
        "format": _BYTES,
    },
    Scheme.W4A8_DYNAMIC: {
        # vLLM 0.23 takes -1 for a whole channel and fails where the key is left out.
        "weights": _numbers(4, dynamic=False, strategy="channel") | {"group_size": -1},
        "input_activations": None,
        "format": _PACKED,
    },
}


def _patterns(schemes: Mapping[str, Scheme], wanted: Scheme) -> list[str]:
    """Patterns of exactly the modules of one scheme; experts and equal layers share theirs."""
    layers: defaultdict[str, defaultdict[Scheme, set[int]]] = defaultdict(lambda: defaultdict(set))
    for name, scheme in schemes.items():
        kind, numbers = _kind(name.removesuffix(".weight"))
        layers[kind][scheme].add(numbers[0] if numbers else -1)
    return [
        f"re:^{_pattern(kind, None if len(by_scheme) == 1 else by_scheme[wanted])}$"
        for kind, by_scheme in layers.items()
        if wanted in by_scheme
    ]


def _kind(module: str) -> tuple[str, list[int]]:
    return _NUMBERS.sub(".#", module), [int(number) for number in _NUMBERS.findall(module)]


def _pattern(kind: str, some: Iterable[int] | None) -> str:
    """``#`` is the layer first, then the expert."""
    layer = r"\d+" if some is None else f"(?:{'|'.join(map(str, sorted(some)))})"
    head, *rest = re.escape(kind).split(r"\#")
    if not rest:
        return head
    return head + layer + r"\d+".join(rest)
