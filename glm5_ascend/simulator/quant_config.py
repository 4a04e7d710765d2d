"""The ``ascend`` quantisation: which scheme a module of vLLM gets from the description file."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from glm5_ascend.errors import ConfigError
from glm5_ascend.files import DESCRIPTION_FILE
from glm5_ascend.ops.moe.api import Scheme
from glm5_ascend.simulator import QUANTIZATION
from glm5_ascend.simulator.quant_linear import DynamicLinear, StaticLinear
from glm5_ascend.simulator.quant_moe import QuantisedExperts

FLOAT = "FLOAT"
LINEAR_SCHEMES = {"W8A8": StaticLinear, "W8A8_DYNAMIC": DynamicLinear}
EXPERT_SCHEMES: dict[str, Scheme] = {"W8A8_DYNAMIC": "w8a8", "W4A8_DYNAMIC": "w4a8"}
_FUSED = {
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
# Absorbed, fused with a float layer, or read in F32 by the engine.
_ALWAYS_FLOAT = (
    ".kv_b_proj.weight",
    ".indexer.wk.weight",
    ".indexer.weights_proj.weight",
    ".mlp.gate.weight",
    ".eh_proj.weight",
    ".embed_tokens.weight",
    ".shared_head.head.weight",
)
_VOCABULARY = ("model.embed_tokens", "lm_head")
_CODES = (".weight", ".input_offset", ".quant_bias")
_HINT = "make the checkpoint again with `glm5-ascend quantize`"


class AscendConfig(QuantizationConfig):  # type: ignore[misc]
    """Reads ``quant_model_description.json``: checkpoint tensor name -> scheme.

    Raises:
        ConfigError: an unknown scheme, a scheme where the engine needs float, a module without an
            entry, or parts of one fused module that disagree.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__()
        self.schemes = {
            key: str(value) for key, value in description.items() if key.endswith(".weight")
        }
        self.is_rotated = bool(description.get("is_rot_used", False))
        known = {FLOAT, *LINEAR_SCHEMES, *EXPERT_SCHEMES}
        for key, scheme in self.schemes.items():
            if scheme not in known:
                raise ConfigError(
                    f"{DESCRIPTION_FILE} gives {key} the scheme {scheme}, which the simulator "
                    f"does not have (it has {', '.join(sorted(known))})",
                    "quantise with one of these schemes",
                )
            if scheme != FLOAT and (key.endswith(_ALWAYS_FLOAT) or key == "lm_head.weight"):
                raise ConfigError(
                    f"{DESCRIPTION_FILE} gives {key} the scheme {scheme}; the engine needs it "
                    "as FLOAT",
                    _HINT,
                )
        group_size = description.get("group_size", 0)
        if group_size:
            raise ConfigError(
                f"{DESCRIPTION_FILE} has group_size {group_size}; int4 is per channel (0)", _HINT
            )

    def get_name(self) -> str:
        return QUANTIZATION

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return -1

    @staticmethod
    def get_config_filenames() -> list[str]:
        return [DESCRIPTION_FILE]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AscendConfig:
        return cls(config)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if isinstance(layer, LinearBase):
            scheme = self.linear_scheme(prefix)
            if scheme == FLOAT:
                return UnquantizedLinearMethod()
            if scheme not in LINEAR_SCHEMES:
                raise ConfigError(
                    f"{DESCRIPTION_FILE} gives {prefix} the scheme {scheme}, which exists for "
                    "experts only",
                    _HINT,
                )
            return LINEAR_SCHEMES[scheme](prefix)
        if isinstance(layer, RoutedExperts):
            scheme = self.expert_scheme(prefix, layer.global_num_experts)
            if scheme == FLOAT:
                return UnquantizedFusedMoEMethod(layer.moe_config)
            return QuantisedExperts(layer.moe_config, EXPERT_SCHEMES[scheme])
        if isinstance(layer, VocabParallelEmbedding) and prefix in _VOCABULARY:
            self._agreed([prefix])  # float, as checked above; the draft's copies may be absent
        return None

    def linear_scheme(self, prefix: str) -> str:
        """Scheme of the linear module ``prefix``, which may be several fused ones."""
        base, _, last = prefix.rpartition(".")
        return self._agreed(f"{base}.{part}" for part in _FUSED.get(last, (last,)))

    def expert_scheme(self, prefix: str, experts: int) -> str:
        """Scheme of all experts of one layer; ``prefix`` is the module of vLLM's experts."""
        base = prefix.removesuffix(".routed_experts")
        names = (f"{base}.{i}.{part}" for i in range(experts) for part in _PROJECTIONS)
        scheme = self._agreed(names)
        if scheme not in (FLOAT, *EXPERT_SCHEMES):
            raise ConfigError(
                f"{DESCRIPTION_FILE} gives the experts {base} the scheme {scheme}, which exists "
                "for linear layers only",
                _HINT,
            )
        return scheme

    def stores_codes(self, name: str) -> bool:
        """Whether the checkpoint tensor ``name`` holds integers."""
        base, dot, attribute = name.rpartition(".")
        if dot + attribute not in _CODES:
            return False
        return self.schemes.get(f"{base}.weight", FLOAT) != FLOAT

    def _agreed(self, modules: Any) -> str:
        found: dict[str, str] = {}
        for module in modules:
            key = f"{module}.weight"
            if key not in self.schemes:
                raise ConfigError(f"{DESCRIPTION_FILE} has no entry {key}", _HINT)
            found.setdefault(self.schemes[key], key)
        if len(found) > 1:
            (one, key), (other, second) = list(found.items())[:2]
            raise ConfigError(
                f"{key} is {one} and {second} is {other}, but the engine computes them together",
                _HINT,
            )
        return next(iter(found))
