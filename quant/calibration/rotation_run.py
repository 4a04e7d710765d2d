"""Learn how to refine the rotations: a float pass over some of the text, and the weights.

The residual stream has one refinement for all layers, the query latent and the value heads have
one per layer. What is quantised on an axis decides: activations that linears read, and, where the
axis has so few weights that all can be looked at, rows of the weights that read them and of those
that write them. Weights of which a sample is seen are left out: a rotation that suits some rows of
a weight does nothing for the others.

The share of each in the objective is what rounding leaves of it, its row's step being 1/127 or
1/7.5 of the largest entry; scale search and GPTQ leave about half of that for weights.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from glm5_ascend.console import note
from glm5_ascend.quant import refining
from glm5_ascend.quant.calibration import attention_run
from glm5_ascend.quant.calibration.attention_run import attend
from glm5_ascend.quant.calibration.corpus import Corpus
from glm5_ascend.quant.calibration.folded_store import FoldedStore
from glm5_ascend.quant.calibration.parallel import in_order
from glm5_ascend.quant.calibration.progress import LayerProgress
from glm5_ascend.quant.calibration.smoothing_run import spread
from glm5_ascend.quant.folding import Axis
from glm5_ascend.quant.methods.learned_rotation import (
    Columns,
    Learned,
    Rows,
    Samples,
    learn_rotation,
)
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.simulator.offline_load import load_layer

# Rows of the activations of one axis, at most.
_ROWS = 16_384
_FEWEST = 32
_INPUT_SHARE = 1 / 127**2
_WEIGHT_SHARE = {Scheme.W4A8_DYNAMIC: 0.5 / 7.5**2}
_INT8_SHARE = 0.5 / 127**2
# Shares below this part of the largest change nothing.
_NEGLIGIBLE = 0.01
_EXPERT = re.compile(r"\.experts\.\d+\.")
_INPUTS = {"self_attn.q_b_proj": "query", "self_attn.indexer.wq_b": "query"}


@dataclass(frozen=True, slots=True)
class _Entry:
    """What one group of matrices, or one activation, has on an axis.

    ``values`` is float32 [T, parts · size], or [n, size, C] for weights that write.
    """

    kind: Literal["activation", "reader", "writer"]
    share: float
    values: Tensor


@dataclass(frozen=True, slots=True)
class _Found:
    """Samples of one axis of ``parts`` times ``size``."""

    size: int
    parts: int
    entries: list[_Entry] = field(default_factory=list)

    def samples(self) -> list[Samples]:
        """Entries of one kind, share and shape together, without those that change nothing."""
        kinds: dict[tuple[str, float, torch.Size], list[Tensor]] = defaultdict(list)
        for one in self.entries:
            kinds[one.kind, one.share, one.values.shape[1:]].append(one.values)
        most = max(share * len(values) for (_, share, _), values in kinds.items())
        found: list[Samples] = []
        for (kind, share, _), values in kinds.items():
            weight, whole = share * len(values), torch.cat(values)
            if weight < _NEGLIGIBLE * most:
                continue
            if kind == "writer":
                found.append(Columns(whole, weight))
            else:
                rows = whole.view(len(whole), self.parts, self.size)
                found.append(Rows(rows, weight, is_whole=kind == "reader"))
        return found


class RotationRun:
    """Learns the refinements of one plan.

    Args:
        store: every module float, in the basis of the plain rotations.
        corpus: text, of which the first sequences are used.
        threads: of the attention.
        with_weights: look at weights too, where all of an axis can be looked at.
    """

    def __init__(
        self, store: FoldedStore, corpus: Corpus, threads: int, *, with_weights: bool
    ) -> None:
        self._with_weights = with_weights
        self._store, self._corpus, self._threads = store, corpus, threads
        self._layers = store.config.num_hidden_layers
        self._residual: _Found | None = None

    def tokens(self) -> int:
        """How many tokens pass every layer."""
        return int(self._spans()[-1].stop)

    def learn(self, progress: LayerProgress) -> dict[str, Learned]:
        """Refinements by name, ``R1`` and those of layers such as ``R2.17``."""
        found: dict[str, Learned] = {}
        for layer, inputs in self._forward(progress):
            for name in ("R2", "R4"):
                self._keep(found, f"{name}.{layer}", self._gathered(layer, name, inputs))
            self._residual = self._gathered(layer, "R1", inputs, self._residual)
        self._keep(found, "R1", self._residual)
        return found

    def _keep(self, found: dict[str, Learned], name: str, known: _Found | None) -> None:
        if known is None:
            return
        learned = learn_rotation(known.samples(), known.size)
        if learned is not None:
            found[name] = learned

    def _spans(self) -> list[slice]:
        spans = self._corpus.spans()
        return [rows for rows in spans if rows.stop <= refining.TOKENS] or spans[:1]

    def _forward(self, progress: LayerProgress) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Each layer with the inputs of its linears, float32 [T, width] by their names."""
        store, spans = self._store, self._spans()
        tokens = self._corpus.tokens[: spans[-1].stop]
        hidden = store.embed("model.embed_tokens.weight", tokens)
        shared: Tensor | None = None
        for layer in range(self._layers):
            progress.layer(layer)
            loaded = load_layer(store, layer, store.config.rms_norm_eps)
            if store.config.has_indexer(layer):
                shared = None
            inputs: dict[str, list[Tensor]] = defaultdict(list)
            after, chosen = [], []
            for done in in_order(
                lambda one: attend(loaded, one, attention_run.READERS),  # noqa: B023
                _sequences(spans, hidden, shared),
                self._threads,
            ):
                for name, x in done.inputs.items():
                    inputs[name].append(x)
                inputs["mlp"].append(done.mlp_input)
                after.append(done.hidden)
                chosen.append(done.chosen)
                progress.advance(len(done.hidden))
            hidden, shared = torch.cat(after), torch.cat(chosen)
            hidden += loaded.mlp(torch.cat(inputs["mlp"]), None)[0]
            progress.advance(len(hidden))
            yield layer, {name: torch.cat(parts) for name, parts in inputs.items()}

    def _gathered(
        self,
        layer: int,
        name: str,
        inputs: Mapping[str, Tensor],
        known: _Found | None = None,
    ) -> _Found | None:
        """Samples of the axis ``name`` in one layer, added to what is ``known`` of others."""
        layers = self._layers if name == "R1" else 1
        groups = _groups(self._store, layer)
        readers: Counter[str] = Counter()
        for module, steps in groups.items():
            share = _WEIGHT_SHARE.get(steps[0].scheme, _INT8_SHARE)
            for axis, reads in ((steps[0].fold.columns, True), (steps[0].fold.rows, False)):
                if axis is None or not _is_of(axis, name):
                    continue
                known = known or _Found(axis.size // axis.repeat, axis.repeat)
                if self._sees_weights(name, layer):
                    weights = [self._store.weight(step.name) for step in steps]
                    entry = (
                        _Entry("reader", share, torch.cat(weights))
                        if reads
                        else _Entry("writer", share, torch.stack(weights))
                    )
                    known.entries.append(entry)
                readers[_input_of(module)] += reads
        for read, count in readers.items():
            if known is not None and count:
                x = inputs[read]
                most = _most(x.shape[1], layers * len(readers))
                known.entries.append(_Entry("activation", count * _INPUT_SHARE, spread(x, most)))
        return known

    def _sees_weights(self, name: str, layer: int) -> bool:
        """Whether all quantised weights of an axis are few enough; R1 is that of all layers."""
        if not self._with_weights:
            return False
        layers = range(self._layers) if name == "R1" else [layer]
        total = 0
        for number in layers:
            for steps in _groups(self._store, number).values():
                axes = (steps[0].fold.columns, steps[0].fold.rows)
                count = sum(axis is not None and _is_of(axis, name) for axis in axes)
                total += count * len(steps) * steps[0].shape[0] * steps[0].shape[1]
        return total <= refining.ELEMENTS


def say(found: Mapping[str, Learned]) -> None:
    """Tell how far the largest entries fell, on what was kept back."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for name, learned in found.items():
        kinds[name.split(".")[0]].append(learned.after / learned.before)
    for kind, ratios in sorted(kinds.items()):
        note(
            f"rotation {kind}: refined {len(ratios)} times, squared largest entries to"
            f" {sum(ratios) / len(ratios):.2f} on what was kept back"
        )
    if not found:
        note("no rotation gained from being refined")


def _sequences(
    spans: Sequence[slice], hidden: Tensor, shared: Tensor | None
) -> Iterator[attention_run.Sequence]:
    for rows in spans:
        yield attention_run.Sequence(rows, hidden[rows], None if shared is None else shared[rows])


def _groups(store: FoldedStore, layer: int) -> dict[str, list[Step]]:
    """Quantised matrices of a layer by their module; experts are one group."""
    prefix = f"model.layers.{layer}."
    found: dict[str, list[Step]] = defaultdict(list)
    for step in store.steps.values():
        if step.name.startswith(prefix) and step.scheme is not Scheme.FLOAT:
            module = step.name.removeprefix(prefix).removesuffix(".weight")
            found[_EXPERT.sub(".experts.", module)].append(step)
    return found


def _input_of(module: str) -> str:
    if module in _INPUTS:
        return _INPUTS[module]
    if module == "self_attn.o_proj":
        return "values"
    return "block" if module.startswith("self_attn.") else "mlp"


def _most(width: int, groups: int) -> int:
    """Rows of ``width`` elements that one of ``groups`` samples may have."""
    return max(_FEWEST, min(_ROWS, refining.ELEMENTS // width) // groups)


def _is_of(axis: Axis, name: str) -> bool:
    """Whether the whole axis is turned by the matrix ``name``."""
    return [part for part, _ in axis.segments] == [name]
