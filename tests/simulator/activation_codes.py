"""Records the int8 activation codes of a running engine, in the names of tests/support/choices.py.

Where F32 sums differ in the last bit, a value half-way between two codes may round either way, and
one code moves a logit by some thousandths of the logits' spread. The oracle takes the engine's code
in such ties (``Probe.settle``), so that what is left is arithmetic.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops import dynamic_quant
from glm5_ascend.ops.moe import reference
from glm5_ascend.simulator.quant_linear import DynamicLinear, StaticLinear
from glm5_ascend.simulator.quant_moe import QuantisedExperts

_BACKEND = "GLM5_ASCEND_OP_BACKEND"
_FUSED = {
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


_LAYER = re.compile(r"layers\.(\d+)\.(?:mtp_block\.)?")


class Recorder:
    """Codes by module name, int8 [T, K], or [T, top_k, K] by ascending expert; row = position.

    ``draft`` runs the layers behind those of ``model``, which are left out without it. Nothing is
    kept once ``done`` is set.
    """

    def __init__(self, model: Any, length: int, draft: Any = None) -> None:
        self.model, self.length, self.draft = model, length, draft
        self.codes: dict[str, Tensor] = {}
        self.done = False

    def note(self, name: str, rows: Tensor) -> None:
        """Store ``rows`` of the tokens in the running forward pass."""
        if self.done:
            return
        found = _LAYER.search(name)
        assert found is not None
        drafts = int(found[1]) >= self.model.config.num_hidden_layers
        model = self.draft if drafts else self.model
        if model is None:
            return
        base, _, last = _LAYER.sub(r"layers.\1.", name).rpartition(".")
        for part in _FUSED.get(last, (last,)):
            whole = self.codes.setdefault(
                f"{base}.{part}", torch.zeros(self.length, *rows.shape[1:], dtype=torch.int8)
            )
            whole[model.positions.current[: len(rows)]] = rows

    def linear(self, method: Any, layer: Any, x: Tensor) -> None:
        """Codes of the input of a quantised linear layer."""
        if isinstance(method, DynamicLinear):
            self.note(method.prefix, dynamic_quant(x)[0])
            return
        shifted = x.float() / layer.input_scale[:1].float() + layer.input_offset[:1].float()
        self.note(method.prefix, shifted.round().clamp(-128, 127).to(torch.int8))

    def experts(self, name: str, ids: Tensor, up: Tensor, down: Tensor) -> None:
        """Codes of both layers of the experts, given sorted by expert as the operator has them."""
        tokens, top_k = ids.shape
        order = ids.flatten().long().argsort(stable=True)
        by_slot = []
        for rows in (up, down):
            slots = torch.zeros(tokens * top_k, rows.shape[1], dtype=torch.int8)
            slots[order] = rows
            by_slot.append(slots.view(tokens, top_k, -1))
        self.note(f"{name}.gate_up", by_slot[0][:, 0])
        ascending = ids.argsort(dim=1)
        self.note(f"{name}.down", by_slot[1][torch.arange(tokens)[:, None], ascending])


@contextmanager
def recording(model: Any, length: int, draft: Any = None) -> Iterator[Recorder]:
    """Record while the block runs sequences of up to ``length`` tokens, one at a time.

    Meanwhile the operators are those of backend 'reference', whose steps can be seen.
    """
    chosen = os.environ.get(_BACKEND)
    recorder = Recorder(model, length, draft)
    of_layers: list[Tensor] = []
    stock = {kind: kind.apply for kind in (DynamicLinear, StaticLinear, QuantisedExperts)}
    stock_layer = reference.Layer.apply

    def linear(method: Any, layer: Any, x: Tensor, bias: Any = None) -> Tensor:
        recorder.linear(method, layer, x)
        y: Tensor = stock[type(method)](method, layer, x, bias)
        return y

    def experts(method: Any, layer: Any, **named: Any) -> Tensor:
        of_layers.clear()
        y: Tensor = stock[QuantisedExperts](method, layer, **named)
        recorder.experts(layer.layer_name, named["topk_ids"], *of_layers)
        return y

    def layer_apply(layer: Any, x: Tensor, groups: Any) -> Tensor:
        of_layers.append(dynamic_quant(x)[0])
        return stock_layer(layer, x, groups)

    try:
        os.environ[_BACKEND] = "reference"
        DynamicLinear.apply = StaticLinear.apply = linear
        QuantisedExperts.apply = experts
        reference.Layer.apply = layer_apply
        yield recorder
    finally:
        del os.environ[_BACKEND]
        if chosen is not None:
            os.environ[_BACKEND] = chosen
        for kind, apply in stock.items():
            kind.apply = apply
        reference.Layer.apply = stock_layer
