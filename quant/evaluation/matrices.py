"""Error of the stored matrices themselves, by layer and module."""

from __future__ import annotations

import re
from pathlib import Path

from glm5_ascend.ascend_schemes import FLOAT
from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.console import progress
from glm5_ascend.quant.verify_source import Comparison
from glm5_ascend.quant.verify_values import Values
from glm5_ascend.verify.check import examine

# Routed experts looked at per layer; they are alike, and there are up to 19 200.
_EXPERTS = 4
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.")
_WEIGHT = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")
_MODULES = (
    "self_attn.q_a_proj",
    "self_attn.q_b_proj",
    "self_attn.kv_a_proj_with_mqa",
    "self_attn.kv_b_proj",
    "self_attn.o_proj",
    "self_attn.indexer.wq_b",
    "self_attn.indexer.wk",
    "self_attn.indexer.weights_proj",
    "mlp.gate",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "mlp.shared_experts.gate_proj",
    "mlp.shared_experts.up_proj",
    "mlp.shared_experts.down_proj",
    "mlp.experts.gate_proj",
    "mlp.experts.up_proj",
    "mlp.experts.down_proj",
    "eh_proj",
)

Errors = dict[str, dict[int, float]]


def matrix_errors(directory: Path, source: Path) -> Errors | None:
    """Σ(W - W_source)² / Σ W_source² by module and layer, after un-rotation.

    Of the routed experts four per layer are read, evenly spaced, and averaged.

    Returns:
        modules in the order of the forward pass, those that the model has; None where the
        checkpoint is rotated by a matrix that this project does not make.
    """
    folder, config, schemes = examine(directory)
    if config is None:
        return None
    with CheckpointReader(source) as reader:
        # A plain checkpoint has no description.
        known = schemes or dict.fromkeys(folder.tensors, FLOAT)
        comparison = Comparison.start(reader, config, Values(folder), known)
        if comparison is None:
            return None
        chosen = {i * config.n_routed_experts // _EXPERTS for i in range(_EXPERTS)}
        places = {name: _place(name, chosen) for name in folder.tensors}
        total = sum(folder.tensors[name].nbytes for name, place in places.items() if place)
        found: dict[str, dict[int, list[float]]] = {module: {} for module in _MODULES}
        with progress("comparing matrices", total) as advance:
            for name, place in places.items():
                if place is None:
                    continue
                error = comparison.relative_error(name)
                if error is not None:
                    found[place[0]].setdefault(place[1], []).append(error)
                advance(folder.tensors[name].nbytes)
    return {
        module: {layer: sum(errors) / len(errors) for layer, errors in sorted(layers.items())}
        for module, layers in found.items()
        if layers
    }


def _place(name: str, experts: set[int]) -> tuple[str, int] | None:
    """Module and layer of a weight that is looked at."""
    match = _WEIGHT.fullmatch(name)
    if match is None:
        return None
    module = match[2]
    expert = _EXPERT.match(module)
    if expert is not None:
        if int(expert[1]) not in experts:
            return None
        module = _EXPERT.sub("mlp.experts.", module)
    return (module, int(match[1])) if module in _MODULES else None
