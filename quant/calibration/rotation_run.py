"""Learn how to refine the rotations: a float pass over some of the text, and the weights.

The residual stream has one refinement for all layers, the query latent and the value heads have
one per layer. What is quantised on an axis decides: activations that linears read, and, where the
axis has so few weights that all can be looked at, rows of the weights that read them and of those
that write them. Weights of which a sample is seen are left out: a rotation that suits some rows of
a weight does nothing for the others.

Half of the rows of every activation are from the first half of the text and half from the second,
which judges; every layer shows other tokens, since those of one token hardly differ.

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
from glm5_ascend.quant.calibration.progress import Advance, LayerProgress
from glm5_ascend.quant.folding import Axis, layer_of
from glm5_ascend.quant.methods.learned_rotation import (
    Columns,
    Learned,
    Rows,
    Samples,
    learn_rotation,
)
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.simulator.offline_layers import GatedMlp
from glm5_ascend.simulator.offline_load import load_layer

# Rows of the activations of one axis, at most.
_ROWS = 16_384
_FEWEST = 32
# Of the golden ratio: its multiples fall evenly between whole numbers.
_PHASE = 0.6180339887498949
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
        most = max((share * len(one) for (_, share, _), one in kinds.items()), default=0.0)
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
        threads: side by side; they change no bit.
        with_weights: look at weights too, where all of an axis can be looked at.
    """

    def __init__(
        self, store: FoldedStore, corpus: Corpus, threads: int, *, with_weights: bool
    ) -> None:
        self._store, self._corpus, self._threads = store, corpus, threads
        self._layers = store.config.num_hidden_layers
        self._groups = _groups(store)
        self._seen = self._whole() if with_weights else frozenset()

    def tokens(self) -> int:
        """How many tokens pass every layer."""
        return int(self._spans()[-1].stop)

    def learn(self, progress: LayerProgress) -> dict[str, Learned]:
        """Refinements by name, ``R1`` and those of layers such as ``R2.17``."""
        done = in_order(_learned, self._axes(progress), self._threads)
        return {name: learned for name, learned in done if learned is not None}

    def _axes(self, progress: LayerProgress) -> Iterator[tuple[str, _Found]]:
        """Samples of every axis, as soon as they are complete; R1, that of all layers, is last."""
        residual: _Found | None = None
        for layer, inputs in self._forward(progress):
            for name in ("R2", "R4"):
                known = self._gathered(layer, name, inputs)
                if known is not None:
                    yield f"{name}.{layer}", known
            residual = self._gathered(layer, "R1", inputs, residual)
        if residual is not None:
            yield "R1", residual

    def _spans(self) -> list[slice]:
        spans = self._corpus.spans()
        most = refining.TOKENS
        return [slice(one.start, min(one.stop, most)) for one in spans if one.start < most]

    def _forward(self, progress: LayerProgress) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Each layer with the inputs of its linears, float32 [T, width] by their names."""
        store, spans = self._store, self._spans()
        tokens = self._corpus.tokens[: spans[-1].stop]
        hidden = store.embed("model.embed_tokens.weight", tokens)
        shared: Tensor | None = None
        for layer in range(self._layers):
            progress.layer(layer)
            if store.config.has_indexer(layer):
                shared = None
            hidden, shared, inputs = self._pass(
                layer, _sequences(spans, hidden, shared), progress.advance
            )
            yield layer, inputs

    def _pass(
        self, layer: int, sequences: Iterator[attention_run.Sequence], advance: Advance
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Output of a layer, the positions attended to, and the inputs of its linears."""
        eps = self._store.config.rms_norm_eps
        loaded = load_layer(self._store, layer, eps, self._experts)
        parts: dict[str, list[Tensor]] = defaultdict(list)
        after, chosen = [], []
        for done in in_order(
            lambda one: attend(loaded, one, attention_run.READERS), sequences, self._threads
        ):
            for name, x in (*done.inputs.items(), ("mlp", done.mlp_input)):
                parts[name].append(x)
            after.append(done.hidden)
            chosen.append(done.chosen)
            advance(len(done.hidden))
        # One by one, so that a second copy of all never exists.
        inputs = {name: torch.cat(parts.pop(name)) for name in list(parts)}
        hidden = torch.cat(after)
        hidden += loaded.mlp(inputs["mlp"], None)[0]
        advance(len(hidden))
        return hidden, torch.cat(chosen), inputs

    def _experts(self, prefix: str) -> _Experts:
        return _Experts(self._store, prefix, self._threads)

    def _gathered(
        self,
        layer: int,
        name: str,
        inputs: Mapping[str, Tensor],
        known: _Found | None = None,
    ) -> _Found | None:
        """Samples of the axis ``name`` in one layer, added to what is ``known`` of others."""
        layers = self._layers if name == "R1" else 1
        readers: Counter[str] = Counter()
        for module, steps in self._groups[layer].items():
            share = _WEIGHT_SHARE.get(steps[0].scheme, _INT8_SHARE)
            for axis, reads in ((steps[0].fold.columns, True), (steps[0].fold.rows, False)):
                if axis is None or not _is_of(axis, name):
                    continue
                known = known or _Found(axis.size // axis.repeat, axis.repeat)
                if _axis_of(name, layer) in self._seen:
                    weights = [self._store.weight(step.name) for step in steps]
                    entry = (
                        _Entry("reader", share, torch.cat(weights))
                        if reads
                        else _Entry("writer", share, torch.stack(weights))
                    )
                    known.entries.append(entry)
                if reads:
                    readers[_input_of(module)] += 1
        for read, count in readers.items():
            if known is not None:
                x = inputs[read]
                rows = sample(x, _most(x.shape[1], layers * len(readers)), layer)
                known.entries.append(_Entry("activation", count * _INPUT_SHARE, rows))
        return known

    def _whole(self) -> frozenset[str]:
        """Axes of which all quantised weights are few enough; R1 is that of all layers."""
        total: Counter[str] = Counter()
        for layer, groups in self._groups.items():
            for steps in groups.values():
                first = steps[0]
                for axis in (first.fold.columns, first.fold.rows):
                    for name in ("R1", "R2", "R4"):
                        if axis is not None and _is_of(axis, name):
                            count = len(steps) * first.shape[0] * first.shape[1]
                            total[_axis_of(name, layer)] += count
        return frozenset(name for name, count in total.items() if count <= refining.ELEMENTS)


class _Experts:
    """Routed experts side by side; what they give is added in their order."""

    def __init__(self, store: FoldedStore, prefix: str, threads: int) -> None:
        self._store, self._prefix, self._threads = store, prefix, threads

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        def applied(expert: int) -> tuple[Tensor, Tensor] | None:
            rows, slots = (ids == expert).nonzero(as_tuple=True)
            if not len(rows):
                return None
            parts = (f"{self._prefix}.{expert}.{name}_proj" for name in ("gate", "up", "down"))
            out, _ = GatedMlp(*map(self._store.linear, parts))(x[rows], None)
            return rows, out * weights[rows, slots, None]

        result = torch.zeros_like(x)
        for one in in_order(applied, range(self._store.config.n_routed_experts), self._threads):
            if one is not None:
                result.index_add_(0, *one)
        return result


def sample(x: Tensor, most: int, layer: int) -> Tensor:
    """At most ``most`` rows of ``x`` [T, n], two at least and an even number of them.

    Rows with an even index are from the first half of the text, the others from the second. Where
    not all are taken, layers take different ones.
    """
    half = len(x) // 2
    count = max(1, min(half, most // 2))
    steps = torch.arange(count, dtype=torch.float64) + layer * _PHASE % 1
    first = (steps * (half / count)).long().clamp_max(half - 1)
    return x[torch.stack((first, first + half), 1).flatten()]


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


def _learned(axis: tuple[str, _Found]) -> tuple[str, Learned | None]:
    name, known = axis
    return name, learn_rotation(known.samples(), known.size)


def _groups(store: FoldedStore) -> dict[int, dict[str, list[Step]]]:
    """Quantised matrices of each decoder layer by their module; experts are one group."""
    layers = range(store.config.num_hidden_layers)
    found: dict[int, dict[str, list[Step]]] = {layer: defaultdict(list) for layer in layers}
    for step in store.steps.values():
        layer = layer_of(step.name)
        if layer in found and step.scheme is not Scheme.FLOAT:
            module = step.name.removeprefix(f"model.layers.{layer}.").removesuffix(".weight")
            found[layer][_EXPERT.sub(".experts.", module)].append(step)
    return found


def _axis_of(name: str, layer: int) -> str:
    """What is learned about the matrix ``name`` of a layer: R1 is that of all."""
    return name if name == "R1" else f"{name}.{layer}"


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
