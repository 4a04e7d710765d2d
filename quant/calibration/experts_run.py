"""Routed experts one at a time: their tokens, their statistics, their rounding, their output.

The Hessians of an expert's gate and up projections are one matrix over the tokens routed to it,
each weighted with its squared router weight, because the layer's output holds the expert's with
that factor; that of the down projection is over the activations of the solved gate and up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from glm5_ascend.quant.calibration.folded_store import FoldedStore, solved_linear
from glm5_ascend.quant.calibration.parallel import in_order
from glm5_ascend.quant.calibration.smoothing_run import ExpertMethod, expert_vector, fit, spread
from glm5_ascend.quant.calibration.solver import Solver
from glm5_ascend.quant.calibration.statistics import Moments
from glm5_ascend.quant.methods.hessian import Factor
from glm5_ascend.simulator.offline_layers import MoeMlp
from glm5_ascend.simulator.offline_linear import Linear

# Tokens whose activations exist at once.
_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts of all tokens: ``order`` int64 [T · top_k], pairs sorted by expert and then by
    token, ``weights`` F32 in that order, and how many belong to each expert."""

    tokens: Tensor
    weights: Tensor
    counts: list[int]

    def of(self, expert: int) -> tuple[Tensor, Tensor]:
        """Tokens int64 [n], ascending, of one expert and their weights F32 [n]."""
        start = sum(self.counts[:expert])
        rows = slice(start, start + self.counts[expert])
        return self.tokens[rows], self.weights[rows]


def route(mlp: MoeMlp, mlp_input: Tensor) -> Routing:
    """Route all rows of ``mlp_input`` [T, H] as the model does."""
    weights, ids = [], []
    for start in range(0, mlp_input.shape[0], _ROWS):
        some, chosen = mlp.route(mlp_input[start : start + _ROWS])
        weights.append(some.float())
        ids.append(chosen.long())
    flat = torch.cat(ids).flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=mlp.config.n_routed_experts).tolist()
    top_k = mlp.config.num_experts_per_tok
    return Routing(order // top_k, torch.cat(weights).flatten()[order], counts)


@dataclass(frozen=True, slots=True)
class Solved:
    """One expert: its stored tensors, and what it adds to each of its ``tokens``."""

    expert: int
    tensors: dict[str, Tensor]
    tokens: Tensor
    output: Tensor


def solve_experts(
    store: FoldedStore,
    layer: int,
    routing: Routing,
    mlp_input: Tensor,
    solver: Solver,
    method: ExpertMethod | None,
    average: Moments | None,
) -> Iterator[Solved]:
    """Solve the routed experts of a layer in their order.

    Args:
        store: weights.
        layer: index.
        routing: of all tokens.
        mlp_input: F32 [T, H].
        solver: rounding.
        method: finds the smoothing vector between up and down of each expert; None for none.
        average: moments of ``mlp_input`` over all tokens, which stand in for rows that an expert
            lacks.
    """

    def one(expert: int) -> Solved:
        return _Expert(store, layer, expert, solver, method, average).solve(
            *routing.of(expert), mlp_input
        )

    yield from in_order(one, range(len(routing.counts)), solver.setting.threads)


class _Expert:
    def __init__(
        self,
        store: FoldedStore,
        layer: int,
        expert: int,
        solver: Solver,
        method: ExpertMethod | None,
        average: Moments | None,
    ) -> None:
        self._store, self._layer, self._expert = store, layer, expert
        self._solver, self._method, self._average = solver, method, average
        prefix = f"model.layers.{layer}.mlp.experts.{expert}"
        self._names = {part: f"{prefix}.{part}_proj.weight" for part in ("gate", "up", "down")}

    def solve(self, tokens: Tensor, weights: Tensor, mlp_input: Tensor) -> Solved:
        tensors: dict[str, Tensor] = {}

        def inputs(piece: slice) -> Tensor:
            return mlp_input[tokens[piece]]

        def active(gate: Linear, up: Linear) -> Tensor:
            result = torch.empty(len(tokens), self._store.steps[self._names["gate"]].shape[0])
            for piece in _pieces(tokens):
                x = inputs(piece)
                result[piece] = silu(gate(x)) * up(x)
            return result

        if self._method is not None and len(tokens):
            values = active(*(self._store.linear(self._module(part)) for part in ("gate", "up")))
            self._find_vector(values, weights)
            del values
        known = self._factor(("gate", "up"), weights, inputs)
        gate, up = (self._round(part, known, tensors) for part in ("gate", "up"))
        del known
        values = active(gate, up)
        down = self._round("down", self._factor(("down",), weights, values.__getitem__), tensors)
        output = torch.empty(len(tokens), mlp_input.shape[1])
        for piece in _pieces(tokens):
            output[piece] = down(values[piece]) * weights[piece, None]
        return Solved(self._expert, tensors, tokens, output)

    def _find_vector(self, values: Tensor, weights: Tensor) -> None:
        if self._method == "fit":
            fit(self._store, self._layer, f"mlp.experts.{self._expert}", values)
            return
        known = self._factor(("down",), weights, values.__getitem__)
        sample = spread(values, self._solver.setting.sample)
        expert_vector(self._store, self._layer, self._expert, sample, known)

    def _module(self, part: str) -> str:
        return self._names[part].removesuffix(".weight")

    def _factor(
        self, parts: tuple[str, ...], weights: Tensor, rows: Callable[[slice], Tensor]
    ) -> Factor | None:
        """Of the input of some projections, if it is wanted and there are enough tokens."""
        steps = [self._store.steps[self._names[part]] for part in parts]
        setting = self._solver.setting
        if len(weights) < setting.min_tokens or not any(map(self._solver.wants, steps)):
            return None
        moments = Moments(steps[0].shape[1])
        for piece in _pieces(weights):
            moments.add(rows(piece), weights[piece].square())
        if self._average is not None and parts[0] == "gate":
            moments.add_average(self._average, setting.prior * steps[0].shape[1])
        return moments.factor(setting.damp, setting.shrink)

    def _round(self, part: str, factor: Factor | None, tensors: dict[str, Tensor]) -> Linear:
        step = self._store.steps[self._names[part]]
        made = self._solver.round(self._store, step, factor)
        tensors.update(made)
        if made and self._solver.setting.propagate == "quantised":
            return solved_linear(step, made)
        return self._store.linear(self._module(part))


def _pieces(rows: Tensor) -> list[slice]:
    return [slice(start, start + _ROWS) for start in range(0, len(rows), _ROWS)]
