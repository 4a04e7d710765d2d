"""Strict loading: every parameter comes from the checkpoint, and every tensor has a place.

vLLM switches its own check off for quantised models, and a parameter that nobody loads keeps
whatever the memory held. Here the names that a model needs are derived from its parameters and
compared with the names that arrive; a sentinel in the float parameters shows that each arrived.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.errors import CheckpointError
from glm5_ascend.simulator.quant_param import missing_parts, start_over

ROTATION = "rot.weight"
_HINT = "download the checkpoint again, or make it again with `glm5-ascend quantize`"
_FUSED = {
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "wk_weights_proj": ("wk", "weights_proj"),
}
_EXPERTS = re.compile(r"(.*\.experts)\.routed_experts\.(w13|w2)_(.*)")
_EXPERT_PARTS = {"w13": ("gate_proj", "up_proj"), "w2": ("down_proj",)}
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
# What vLLM makes of kv_b_proj after loading; there when a model is loaded again.
_DERIVED = (".W_UK_T", ".W_UV")
# vLLM's loaders report a tensor that does not fit by these.
_LOADER_ERRORS = (AssertionError, IndexError, KeyError, RuntimeError, ValueError)


class Checkpoint:
    """One pass of a model over the tensors of its checkpoint.

    Args:
        model: vLLM module whose parameters are to be filled.
        config: its Hugging Face configuration.
        quant_config: ``AscendConfig``, or None for a float checkpoint.
        draft: the model is the MTP draft; otherwise MTP tensors are not for it.
        optional: parameters that the checkpoint may omit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        config: Any,
        quant_config: Any,
        *,
        draft: bool = False,
        optional: Iterable[str] = (),
    ) -> None:
        self.model = model
        self.draft = draft
        self.first_draft_layer = int(config.num_hidden_layers)
        self.experts = int(config.n_routed_experts)
        self.quant_config = quant_config
        self.optional = frozenset(optional)
        self.needed: dict[str, str] = {}  # checkpoint name -> parameter
        self.known: set[str] = set()
        self.seen: set[str] = set()
        self.current = ""
        self._derive_names()

    def load(
        self,
        weights: Iterable[tuple[str, Tensor]],
        loader: Callable[[Iterable[tuple[str, Tensor]]], set[str]],
    ) -> set[str]:
        """Run vLLM's ``loader`` over ``weights`` and check the outcome.

        Raises:
            CheckpointError: a tensor is missing, has no place, does not fit, or holds NaN or
                infinity.
        """
        for _, parameter in self._parameters():
            start_over(parameter)
            if parameter.is_floating_point() and not getattr(parameter, "optional", False):
                parameter.data.fill_(torch.nan)
        try:
            loaded = loader(self._watched(weights))
        except _LOADER_ERRORS as error:
            if not self.current:
                raise
            reason = f": {error}" if str(error) else ""
            raise CheckpointError(
                f"tensor {self.current} does not fit the model{reason}", _HINT
            ) from error
        self._check_complete()
        return loaded

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name, parameter in self.model.named_parameters():
            if not name.endswith(_DERIVED):
                yield name, parameter

    def _derive_names(self) -> None:
        for name, parameter in self._parameters():
            local = self._local_experts(name)
            for source, expert in self._sources(name):
                self.known.add(source)
                optional = name in self.optional or getattr(parameter, "optional", False)
                if not optional and (expert is None or expert in local):
                    self.needed[source] = name

    def _sources(self, name: str) -> Iterator[tuple[str, int | None]]:
        """Checkpoint names of a parameter, with the expert they belong to."""
        name = name.replace(".mtp_block.", ".")
        if self.draft:
            if name.endswith(".rot.weight"):
                yield ROTATION, None
                return
            if name == "model.embed_tokens.weight":
                name = f"model.layers.{self.first_draft_layer}.embed_tokens.weight"
        if match := _EXPERTS.fullmatch(name):
            base, stem, attribute = match.groups()
            for expert in range(self.experts):
                for part in _EXPERT_PARTS[stem]:
                    yield f"{base}.{expert}.{part}.{attribute}", expert
            return
        for fused, parts in _FUSED.items():
            if f".{fused}." in name:
                for part in parts:
                    yield name.replace(f".{fused}.", f".{part}."), None
                return
        yield name, None

    def _local_experts(self, name: str) -> frozenset[int]:
        if not _EXPERTS.fullmatch(name):
            return frozenset()
        module: Any = self.model.get_submodule(name.rpartition(".")[0])
        expert_map = module.expert_map
        if expert_map is None:
            return frozenset(range(self.experts))
        return frozenset(torch.nonzero(expert_map >= 0).flatten().tolist())

    def _is_ours(self, name: str) -> bool:
        layer = _LAYER.match(name)
        of_draft = name == ROTATION or (layer and int(layer[1]) >= self.first_draft_layer)
        return bool(of_draft) == self.draft

    def _watched(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            if not self._is_ours(name):
                continue
            if name not in self.known:
                raise CheckpointError(f"tensor {name} has no place in this model", _HINT)
            self.current = name
            self.seen.add(name)
            self._check_values(name, tensor)
            yield name, tensor
        self.current = ""

    def _check_values(self, name: str, tensor: Tensor) -> None:
        quantised = self.quant_config is not None and self.quant_config.stores_codes(name)
        if tensor.is_floating_point() == quantised:
            raise CheckpointError(
                f"tensor {name} is {str(tensor.dtype).removeprefix('torch.')}, which its "
                "quantisation scheme does not allow",
                _HINT,
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"tensor {name} holds NaN or infinity", _HINT)

    def _check_complete(self) -> None:
        missing = sorted(self.needed.keys() - self.seen)
        if missing:
            others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            raise CheckpointError(f"tensor {missing[0]}{others} missing from the checkpoint", _HINT)
        for name, parameter in self._parameters():
            if name in self.optional or not (set(self._names(name)) & self.seen):
                continue
            has_holes = bool(missing_parts(parameter))
            if parameter.is_floating_point():
                has_holes |= bool(torch.isnan(parameter.data).any())
            if has_holes:
                raise CheckpointError(f"parameter {name} was not filled by the checkpoint", _HINT)

    def _names(self, name: str) -> list[str]:
        return [source for source, _ in self._sources(name)]
