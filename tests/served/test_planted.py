"""Faults planted into an F32 run, which following ties must not hide.

transformers in F32 stands for the engine here, so that each fault takes a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.served.client import texts
from tests.served.test_quantised import EXACT, MOST_TIES
from tests.support.ascend import AscendOracle
from tests.support.choices import Choices, Forward
from tests.support.teacher_forced import step_errors
from tests.support.ties import Ties

pytestmark = pytest.mark.slow
TOKENS = 200


class Pair:
    """The run under test in F32, the reference in F64, one text."""

    def __init__(self, checkpoint: Path) -> None:
        self.single = AscendOracle(checkpoint, record_codes=True)
        self.double = AscendOracle(checkpoint, dtype=torch.float64)
        self.tokens = torch.tensor(texts(1, TOKENS)[0])
        self.healthy = self.single.forward(self.tokens)

    def run(self, inject: Choices | None = None) -> Forward:
        """Return the run under test, which follows the wrong choices in ``inject``."""
        return self.single.forward(self.tokens, inject)

    def verdict(self, run: Forward) -> tuple[float, Ties]:
        """Return the worst error after ties, in deviations of the logits, and the ties."""
        ties = Ties()
        followed = self.double.forward(self.tokens, run.choices, ties)
        return float(step_errors(run.logits, followed.logits).max()), ties


@pytest.fixture(scope="module")
def pair(w4a8: Path) -> Pair:
    return Pair(w4a8)


def test_nothing_planted(pair: Pair) -> None:
    worst, ties = pair.verdict(pair.healthy)
    assert not ties.refused
    assert worst <= EXACT
    assert 0 < len(ties.adopted) <= MOST_TIES * TOKENS


@pytest.mark.parametrize("layer", [0, 1, 2, 6])
def test_next_key_at_one_row_in_200(pair: Pair, layer: int) -> None:
    """The 65th best key instead of the 64th."""
    kept: dict[int, torch.Tensor] = {}

    class Keep(Ties):
        def choice(self, kind: str, layer: int, scores: torch.Tensor, *rows: torch.Tensor) -> Any:
            kept.setdefault(layer, scores) if kind == "key" else None
            return super().choice(kind, layer, scores, *rows)

    pair.double.forward(pair.tokens, pair.healthy.choices, Keep())
    keys = pair.healthy.choices.topk_indices[layer].clone()
    order = kept[layer][150].argsort(descending=True)
    keys[150] = order[[*range(63), 64]].sort().values
    worst, ties = pair.verdict(pair.run(Choices(topk_indices={layer: keys})))
    assert (ties.refused[0].kind, ties.refused[0].row) == ("key", 150)
    assert worst > EXACT


def test_wrong_expert_at_one_token_in_100(pair: Pair) -> None:
    generator = torch.Generator().manual_seed(0)
    ids = pair.healthy.choices.expert_ids[3].clone()
    rows = torch.randperm(TOKENS, generator=generator)[: TOKENS // 100]
    for row in rows.tolist():
        others = [expert for expert in range(16) if expert not in ids[row].tolist()]
        slot, other = torch.randint(4, (2,), generator=generator).tolist()
        ids[row, slot] = others[other]
    worst, ties = pair.verdict(pair.run(Choices(expert_ids={3: ids.sort(dim=-1).values})))
    assert (ties.refused[0].kind, ties.refused[0].row) == ("expert", int(rows.min()))
    assert worst > EXACT


@pytest.fixture
def coarse(pair: Pair) -> Iterator[None]:
    """The experts' scales of layer 3 as BF16 (those of linears are BF16 values already)."""
    experts = [w for n, w in pair.single.quantised.items() if n.startswith("model.layers.3.mlp.e")]
    scales = [weight.scale for weight in experts]
    kept = [scale.clone() for scale in scales]
    for scale in scales:
        scale.copy_(scale.bfloat16())
    yield
    for scale, before in zip(scales, kept, strict=True):
        scale.copy_(before)


@pytest.mark.usefixtures("coarse")
def test_scales_of_one_layer_in_bf16(pair: Pair) -> None:
    worst, ties = pair.verdict(pair.run())
    assert ties.refused
    assert worst > EXACT


@pytest.fixture
def noisy(pair: Pair) -> Iterator[None]:
    """Every norm of the run under test is off by 1e-6, ten times the noise of F32."""
    generator = torch.Generator().manual_seed(0)

    def blur(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        return output * (1 + 1e-6 * torch.randn(output.shape, generator=generator))

    modules = pair.single.model.named_modules()
    handles = [m.register_forward_hook(blur) for name, m in modules if name.endswith("norm")]
    yield
    for handle in handles:
        handle.remove()


@pytest.mark.usefixtures("noisy")
def test_noise_shows_in_the_number_of_ties(pair: Pair) -> None:
    _, ties = pair.verdict(pair.run())
    assert len(ties.adopted) > MOST_TIES * TOKENS
