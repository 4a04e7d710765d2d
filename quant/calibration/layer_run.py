"""One layer over all tokens: solve its modules, and write the input of the next layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import silu

from glm5_ascend.quant.calibration import spill
from glm5_ascend.quant.calibration.attention_run import READERS, Sequence, attend, gather
from glm5_ascend.quant.calibration.experts_run import Routing, route, solve_experts
from glm5_ascend.quant.calibration.folded_store import FoldedStore
from glm5_ascend.quant.calibration.parallel import in_order
from glm5_ascend.quant.calibration.smoothing_run import (
    ATTENTION,
    FIT_ROWS,
    expert_method,
    fit,
    is_quantised,
    smooth,
    spread,
)
from glm5_ascend.quant.calibration.solver import Solver, wanted_of
from glm5_ascend.quant.calibration.statistics import InputStatistics, Moments, Wanted
from glm5_ascend.quant.methods.smooth_groups import group_of
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.simulator.offline_layers import DecoderLayer, GatedMlp, MoeMlp
from glm5_ascend.simulator.offline_load import load_layer

# Tokens of one product.
_ROWS = 4096

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Files:
    """Where one layer's activations lie; every matrix has a row per token."""

    hidden: Path  # F32 [T, H], the input, which must exist
    following: Path  # F32 [T, H], the next layer's input
    choice: Path | None  # int32 [T, index_topk], the positions attended to, if they are reused
    shared: Path | None  # the same of the last layer with an indexer
    mlp_input: Path  # F32 [T, H], scratch


class LayerRun:
    """Solves layer ``layer`` of the model in ``store``.

    Args:
        store: weights; the layer's solved tensors are put into it while the run lasts.
        layer: index.
        spans: rows of each sequence.
        files: activations.
        solver: rounding.
        smoothing: methods of the recipe.
        advance: called with the number of tokens that have passed half of the layer.
    """

    def __init__(
        self,
        store: FoldedStore,
        layer: int,
        spans: list[slice],
        files: Files,
        solver: Solver,
        smoothing: tuple[str, ...],
        advance: Advance,
    ) -> None:
        self._store, self._layer, self._spans = store, layer, spans
        self._files, self._solver, self._advance = files, solver, advance
        self._smoothing = smoothing
        self._config, self._tokens = store.config, spans[-1].stop
        self._prefix = f"model.layers.{layer}"
        self.routing: Routing | None = None

    def steps(self) -> list[Step]:
        """Steps of the layer's quantised modules, in the order in which they are solved."""
        return [
            step
            for step in self._store.steps.values()
            if step.name.startswith(f"{self._prefix}.") and step.scheme is not Scheme.FLOAT
        ]

    def solve(self) -> Iterator[tuple[Step, dict[str, Tensor]]]:
        """Yield every step of :meth:`steps` with its stored tensors.

        At the end the layer's output and its choice are kept under their names; the input can go.
        """
        try:
            yield from self._attention()
            yield from self._mlp()
            spill.keep(self._files.following)
            if self._files.choice is not None:
                spill.keep(self._files.choice)
        finally:
            spill.discard(self._files.mlp_input)
            self._store.solved.clear()

    def _load(self) -> DecoderLayer:
        config = self._config
        return load_layer(self._store, self._layer, config.rms_norm_eps)

    def _sequences(self) -> Iterator[Sequence]:
        hidden = spill.open_rows(self._files.hidden, self._tokens, self._config.hidden_size)
        shared = None
        if self._files.shared is not None:
            shared = self._open_choice(self._files.shared)
        for rows in self._spans:
            yield Sequence(rows, hidden[rows], None if shared is None else shared[rows])

    def _open_choice(self, path: Path) -> Tensor:
        return spill.open_rows(path, self._tokens, self._config.index_topk, torch.int32)

    # --- attention

    def _attention(self) -> Iterator[tuple[Step, dict[str, Tensor]]]:
        self._smooth_attention()
        groups = {name: self._readers("self_attn", modules) for name, modules in READERS.items()}
        statistics = {
            name: known
            for name, steps in groups.items()
            if (known := self._statistics(steps)) is not None
        }
        if statistics:
            gather(self._load(), self._sequences(), statistics, self._solver.setting.threads)
        made: dict[str, dict[str, Tensor]] = {}
        for name, steps in groups.items():
            for step in steps:
                made[step.name] = self._round(step, statistics.get(name))
        for step in self.steps():
            if step.name in made:
                yield step, made.pop(step.name)
        self._write_attended()

    def _smooth_attention(self) -> None:
        if "flex" not in self._smoothing:
            return
        wanted, most = Wanted(sample=True), self._solver.setting.sample
        groups = {n: group_of(self._config, self._layer, a) for n, a in ATTENTION.items()}
        samples = {
            name: InputStatistics(wanted, group.width, self._tokens, most)
            for name, group in groups.items()
            if is_quantised(self._store, group)
        }
        gather(self._load(), self._sequences(), samples, self._solver.setting.threads)
        rows = {ATTENTION[name]: known.rows() for name, known in samples.items()}
        smooth(self._store, self._layer, rows)

    def _write_attended(self) -> None:
        layer, hidden = self._load(), self._config.hidden_size
        following = spill.create(self._files.following, self._tokens, hidden)
        choice = None
        if self._files.choice is not None:
            width = self._config.index_topk
            choice = spill.create(self._files.choice, self._tokens, width, torch.int32)
        mlp_input = spill.create(self._files.mlp_input, self._tokens, hidden)
        spill.keep(self._files.mlp_input)
        threads = self._solver.setting.threads
        for done in in_order(lambda s: attend(layer, s), self._sequences(), threads):
            following[done.rows], mlp_input[done.rows] = done.hidden, done.mlp_input
            if choice is not None:
                choice[done.rows] = done.chosen
            self._advance(len(done.hidden))
        self._following, self._mlp_input = following, mlp_input

    # --- feed-forward

    def _mlp(self) -> Iterator[tuple[Step, dict[str, Tensor]]]:
        if not self._config.is_moe(self._layer):
            yield from self._gated("mlp")
            return
        mlp = self._load().mlp
        if not isinstance(mlp, MoeMlp):
            raise TypeError(f"layer {self._layer} has no experts")
        self.routing = route(mlp, self._mlp_input)
        del mlp
        pairs = sum(self.routing.counts)
        done = 0
        solved = solve_experts(
            self._store,
            self._layer,
            self.routing,
            self._mlp_input,
            self._solver,
            expert_method(self._smoothing),
            self._average_input(),
        )
        for one in solved:
            self._following.index_add_(0, one.tokens, one.output)
            for step in self._readers("mlp", [f"experts.{one.expert}.{p}" for p in _PARTS]):
                yield step, one.tensors
            before, done = done, done + len(one.tokens)
            self._advance(done * self._tokens // pairs - before * self._tokens // pairs)
        yield from self._gated("mlp.shared_experts", report=False)

    def _average_input(self) -> Moments | None:
        """Moments of the block's input over all tokens, if experts are rounded with moments."""
        experts = self._readers("mlp", [f"experts.0.{part}" for part in _PARTS[:2]])
        if not any(map(self._solver.wants, experts)):
            return None
        moments = Moments(self._config.hidden_size)
        for x in self._rows():
            moments.add(x)
        return moments

    def _gated(
        self, block: str, *, report: bool = True
    ) -> Iterator[tuple[Step, dict[str, Tensor]]]:
        """A dense block or the shared expert; adds its output to the following hidden states."""
        if "fit" in self._smoothing:
            gated, x = self._load_gated(block), spread(self._mlp_input, FIT_ROWS)
            fit(self._store, self._layer, block, silu(gated.gate(x)) * gated.up(x))
        first = self._readers(block, _PARTS[:2])
        statistics = self._statistics(first)
        if statistics is not None:
            for x in self._rows():
                statistics.add(x)
        for step in first:
            yield step, self._round(step, statistics)
        second = self._readers(block, _PARTS[2:])
        statistics = self._statistics(second)
        gated = self._load_gated(block)
        if statistics is not None:
            for x in self._rows():
                statistics.add(silu(gated.gate(x)) * gated.up(x))
        for step in second:
            yield step, self._round(step, statistics)
        self._add_gated(block, report=report)

    def _add_gated(self, block: str, *, report: bool) -> None:
        gated, start = self._load_gated(block), 0
        for x in self._rows():
            self._following[start : start + len(x)] += gated(x, None)[0]
            start += len(x)
            if report:
                self._advance(len(x))

    def _load_gated(self, block: str) -> GatedMlp:
        prefix = f"{self._prefix}.{block}"
        return GatedMlp(*(self._store.linear(f"{prefix}.{part}") for part in _PARTS))

    def _rows(self) -> Iterator[Tensor]:
        for start in range(0, self._tokens, _ROWS):
            yield self._mlp_input[start : start + _ROWS]

    # --- shared by both

    def _readers(self, block: str, modules: tuple[str, ...] | list[str]) -> list[Step]:
        """Steps of the quantised ones among ``modules`` of a block."""
        names = [f"{self._prefix}.{block}.{module}.weight" for module in modules]
        found = [self._store.steps[name] for name in names if name in self._store.steps]
        return [step for step in found if step.scheme is not Scheme.FLOAT]

    def _statistics(self, steps: list[Step]) -> InputStatistics | None:
        wanted = wanted_of(steps)
        if not wanted.anything:
            return None
        sample = self._solver.setting.sample
        return InputStatistics(wanted, steps[0].shape[1], self._tokens, sample)

    def _round(self, step: Step, known: InputStatistics | None) -> dict[str, Tensor]:
        setting = self._solver.setting
        factor = None if known is None else known.factor(setting.damp, setting.shrink)
        ranges = None if known is None else known.ranges
        made = self._solver.round(self._store, step, factor, ranges)
        if self._solver.setting.propagate == "quantised":
            self._store.solved.update(made)
        return made


_PARTS = ("gate_proj", "up_proj", "down_proj")
