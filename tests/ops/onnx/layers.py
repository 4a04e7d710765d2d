"""Decoder layers of the small model: what the offline model makes of them, and their exports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glm5_ascend.assets import __file__ as assets
from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.ops.onnx.functions import with_functions
from glm5_ascend.ops.onnx.layer import build_layer
from glm5_ascend.ops.onnx.save import save
from glm5_ascend.ops.onnx.weights import LayerWeights
from glm5_ascend.simulator.model import OfflineModel
from tests.ops.onnx.session import Session
from tests.support.compare import assert_close, assert_identical

SMALL = Path(assets).parent / "small-glm5"
# Beyond index_topk (64), with a prompt, a chunk and single tokens.
STEPS = (70, 5, *[1] * 10)
TOKENS = sum(STEPS)
# Dense with an indexer, MoE with one, MoE that takes another's choice, and the MTP layer.
KINDS = {"dense": 0, "experts": 2, "shared": 3, "mtp": 7}


@dataclass(frozen=True)
class Expected:
    """One layer of the offline model over a whole sequence."""

    hidden: Tensor  # [T, H] that goes in
    shared: Tensor | None  # int32 [T, index_topk] of an earlier layer
    out: Tensor  # [T, H]
    chosen: Tensor  # int32 [T, index_topk]


@dataclass(frozen=True)
class Reference:
    """The offline model on one checkpoint, in F32, and for a float one in F64 too."""

    directory: Path
    layers: dict[int, Expected]
    oracle: dict[int, Expected] | None

    @classmethod
    def of(cls, directory: Path, *, quantised: bool) -> Reference:
        """Compute it."""
        layers = offline(directory, torch.float32)
        oracle = None if quantised else offline(directory, torch.float64, layers)
        return cls(directory, layers, oracle)

    def check(self, layer: int, out: Tensor, chosen: Tensor) -> None:
        """Fail unless ``out`` and ``chosen`` are those of the offline layer.

        Quantised, an activation that lies within an F32 rounding of a tie gets the neighbouring
        code. Codes are about 32 in the mean square, so one step among 192 terms or more moves a
        product by 1 / (32 · 192 ** 0.5) = 0.2 %. Few rows have such an activation, but through the
        cache it reaches all that attend its token, whose codes may then differ as well. The rows
        that it does not reach are exact, the others near; a mistake leaves none exact.
        """
        expected = self.layers[layer]
        if self.oracle is not None:
            assert_identical(chosen, expected.chosen, name="positions")
            assert_close(out, self.oracle[layer].out, expected.out, name="hidden_out")
            return
        same = (chosen == expected.chosen).all(1).float().mean()
        assert same >= 0.95, f"only {same:.0%} of the rows choose the same positions"
        error = (out - expected.out).norm(dim=1) / expected.out.norm(dim=1)
        assert not error.isnan().any()
        assert error.max() < 0.02, f"a row is off by {error.max():.2%}"
        exact = (error <= 1e-5).float().mean()
        assert exact >= 0.2, f"only {exact:.0%} of the rows are exact"
        assert error.median() < 0.005, f"half of the rows are off by {error.median():.1e}"


def offline(
    directory: Path, dtype: torch.dtype, inputs: dict[int, Expected] | None = None
) -> dict[int, Expected]:
    """Every layer on the activations that reach it; the MTP layer on those of the last one.

    Args:
        directory: a checkpoint.
        dtype: of the computation.
        inputs: take the activations from here instead.
    """
    model = OfflineModel.load(directory, dtype)
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, model.config.vocab_size, (TOKENS,), generator=generator)
    positions = torch.arange(TOKENS)
    hidden = model.embedding[tokens]
    shared: Tensor | None = None
    expected = {}
    layers = [*model.layers, *([model.mtp_layer] if model.mtp_layer else [])]
    with torch.inference_mode():
        for index, layer in enumerate(layers):
            owns = model.config.has_indexer(index)
            if inputs is not None:
                hidden, shared = inputs[index].hidden.to(dtype), inputs[index].shared
            out, chosen, _ = layer(hidden, positions, None if owns else shared)
            expected[index] = Expected(hidden, None if owns else shared, out, chosen)
            hidden, shared = out, chosen
    return expected


def exported(directory: Path, layer: int, path: Path, inline_limit: int = 1 << 30) -> Session:
    """The layer in ONNX Runtime, through a file."""
    with CheckpointReader(directory) as reader:
        weights = LayerWeights(reader, layer)
        graph, constants = build_layer(weights, layer, reader.config.rms_norm_eps)
        save(with_functions(graph), constants, path, inline_limit)
    return Session(str(path))


def run(session: Session, expected: Expected, steps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(hidden [T, H], chosen [T, index_topk]) of the exported layer, its caches fed back."""
    widths = {"latent": 256, "key_rope": 64, "index_key": 128}
    caches = {
        name: torch.zeros(0, width)
        for name, width in widths.items()
        if f"past_{name}" in session.inputs
    }
    outs, choices, start = [], [], 0
    for count in steps:
        now = slice(start, start + count)
        inputs = {"hidden": expected.hidden[now].float(), "positions": torch.arange(TOKENS)[now]}
        if expected.shared is not None:
            inputs["topk_indices"] = expected.shared[now]
        result = session(**inputs, **{f"past_{name}": x for name, x in caches.items()})
        caches = {name: result[name] for name in caches}
        start += count
        assert all(len(cache) == start for cache in caches.values())
        outs.append(result["hidden_out"])
        choices.append(result.get("topk_indices", inputs.get("topk_indices")))
    return torch.cat(outs), torch.cat(choices)
