"""What a calibration takes: its products counted, from a plan and a number of tokens; no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from glm5_ascend.config import Glm5Config
from glm5_ascend.quant import refining
from glm5_ascend.quant.plan import Plan
from glm5_ascend.quant.recipe import Action, Step
from glm5_ascend.quant.recipe_rules import CALIBRATED
from glm5_ascend.quant.scheme import Scheme

# Processor time of a calibration over that of its products alone, each at the rate of a large
# product in its arithmetic, measured at the release's shapes (tools/results/calibration_cpu.jsonl):
# products of fewer rows are slower, and norms, softmax, folding and packing come on top.
OVER_PRODUCTS = 1.6
ARITHMETIC = ("f32", "f64", "int8")


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations and disk.

    Attributes:
        operations: floating-point or integer operations (two per multiply-add) by piece and by
            arithmetic, a key of :data:`ARITHMETIC`.
        disk_bytes: activations of one layer in the work directory, at most.
    """

    operations: dict[tuple[str, str], float]
    disk_bytes: int

    def seconds(self, rates: Mapping[str, float]) -> float:
        """Of one core, modelled.

        Args:
            rates: operations per second of large products by arithmetic.
        """
        alone = sum(count / rates[kind] for (_, kind), count in self.operations.items())
        return OVER_PRODUCTS * alone

    def piece_seconds(self, piece: str, rates: Mapping[str, float]) -> float:
        """Of the products of one piece alone."""
        found = self.operations.items()
        return sum(count / rates[kind] for (name, kind), count in found if name == piece)


def cost_of(config: Glm5Config, plan: Plan, tokens: int, sequence: int) -> Cost:
    """Count the products of a calibration.

    The model runs once, layer by layer. Modules that GPTQ rounds also take the second moments of
    their input (r k^2 for r rows of width k, shared by modules that read the same input), their
    Cholesky factor (k^3 / 3, in float64) and the sequential rounding (n k^2 for n outputs);
    ``descent`` takes three products with the moments more, one in float64 for the loss.

    Args:
        config: of the model.
        plan: of the run.
        tokens: of the text.
        sequence: tokens per sequence.
    """
    steps = [
        step
        for shard in plan.shards
        for step in shard.steps
        if step.action is Action.MATRIX and step.name.startswith("model.layers.")
    ]
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    inputs: dict[tuple[str, int], float] = {}
    for step in steps:
        rows = _rows(config, step, tokens)
        outputs, width = step.shape
        piece = "expert forward" if _is_expert(step) else "layers"
        kind = "f32" if step.scheme is Scheme.FLOAT else "int8"
        found[piece, kind] += 2 * rows * outputs * width
        if step.scheme is not Scheme.FLOAT and step.rounding in CALIBRATED:
            found["gptq", "f32"] += float(outputs) * width * width
            if step.rounding == "descent":
                found["descent", "f32"] += 4.0 * outputs * width * width
                found["descent", "f64"] += 2.0 * outputs * width * width
            parent = step.name.rsplit(".", 2)[0]
            inputs[parent, width] = rows
    for (_, width), rows in inputs.items():
        found["second moments", "int8"] += rows * width * width
        found["factor", "f64"] += width**3 / 3
    found["layers", "f32"] += tokens * _attention(config, sequence)
    if plan.recipe.refines:
        seen = min(tokens, refining.TOKENS)
        found["refining", "f32"] += _refining_pass(config, steps, seen, sequence)
        found["refining", "f64"] += _learning(config)
    width = 4 * (3 * config.hidden_size + config.index_topk)
    return Cost(dict(found), tokens * width)


def _refining_pass(config: Glm5Config, steps: list[Step], tokens: int, sequence: int) -> float:
    """The float pass, and every weight turned behind the Hadamard matrices in it and at the end."""
    found = tokens * _attention(config, sequence)
    for step in steps:
        outputs, width = step.shape
        found += 2 * _rows(config, step, tokens) * outputs * width
        found += 2 * 2 * refining.BLOCK * outputs * width
    return found


def _learning(config: Glm5Config) -> float:
    """Value and slope of the objective at every step: R2 and R4 of each layer, R1 of all."""
    pairs = (2 * config.num_hidden_layers + 1) * refining.ELEMENTS
    return 4.0 * refining.STEPS * refining.BLOCK * pairs


def _attention(config: Glm5Config, sequence: int) -> float:
    """Operations per token of scores and sums, all layers: absorbed MLA and the indexer."""
    before = sequence / 2
    over = max(0.0, sequence - config.index_topk)
    # Positions seen on average: all before the token until index_topk, that many afterwards.
    attended = (config.index_topk * over + min(sequence, config.index_topk) ** 2 / 2) / sequence
    row = 2 * config.kv_lora_rank + config.qk_rope_head_dim
    layers = range(config.layer_count)
    indexers = sum(config.has_indexer(layer) for layer in layers)
    heads = 2 * config.num_attention_heads * row * attended * len(layers)
    return heads + 2 * config.index_n_heads * config.index_head_dim * before * indexers


def _rows(config: Glm5Config, step: Step, tokens: int) -> float:
    """Tokens that a matrix sees; experts are taken as evenly loaded."""
    share = config.num_experts_per_tok / config.n_routed_experts
    return tokens * share if _is_expert(step) else float(tokens)


def _is_expert(step: Step) -> bool:
    return ".mlp.experts." in step.name
