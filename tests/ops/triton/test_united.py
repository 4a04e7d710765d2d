"""Neighbouring query tokens whose positions are read once: the union, and attention over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from glm5_ascend.ops.sparse_flash_attention import triton_heads
from glm5_ascend.ops.sparse_flash_attention.triton_source import unite
from glm5_ascend.ops.triton import tuning
from glm5_ascend.ops.triton.tuning import Attention
from glm5_ascend.ops.verify.attention import AttentionCase
from glm5_ascend.ops.verify.attention_data import AttentionShape
from glm5_ascend.ops.verify.compare import require
from glm5_ascend.ops.verify.requests import Requests
from glm5_ascend.ops.verify.runner import public, run_one

# Groups of four and of one, tokens without a key, a request without tokens.
PROMPTS = Requests("prompts", ((5, 20), (3, 1), (0, 9)), seed=5)
WIDE = Requests("wide", ((6, 60),), seed=6)
SMALL = AttentionShape(4, 64, 16)


def united(sets: list[list[int]], visible: list[int], share: int) -> tuple[int, Tensor, Tensor]:
    """(size, positions, members) of one group of up to four rows."""
    width = max(len(row) for row in sets)
    rows = [row + [-1] * (width - len(row)) for row in sets]
    indices = torch.tensor(rows, dtype=torch.int32)
    entries = torch.full((1, 4 * width), -7, dtype=torch.int32)
    members = torch.zeros(1, 4 * width, dtype=torch.int8)
    size = torch.zeros(1, dtype=torch.int32)
    first, many, seen = torch.tensor([0]), torch.tensor([len(sets)]), torch.tensor(visible)
    unite[(1,)](
        indices, width, width, first, many, seen, entries, members, 4 * width, size, share,
        G=4, BN=16, STEPS=width.bit_length(),
    )  # fmt: skip
    return int(size), entries[0], members[0]


@pytest.mark.parametrize("seed", range(6))
def test_union_names_every_position_once(seed: int) -> None:
    gen = torch.Generator().manual_seed(seed)
    sets = [
        torch.randperm(60, generator=gen)[: 5 + 9 * i].sort().values.tolist() for i in range(4)
    ][: 1 + seed % 4]
    visible = [57, 58, 3, 60][: len(sets)]
    seen = [{p for p in row if p < v} for row, v in zip(sets, visible, strict=True)]
    size, entries, members = united(sets, visible, 256)
    found = dict(zip(entries[:size].tolist(), members[:size].tolist(), strict=True))
    every = set().union(*seen)
    assert len(found) == size == len(every)
    assert found == {p: sum(1 << i for i, row in enumerate(seen) if p in row) for p in every}
    assert (entries[size:] == -7).all()


@pytest.mark.parametrize(
    "row", [[3, 1, 2], [1, 1, 2], [1, -1, 2], [0, 0], [-1, 4]], ids=lambda row: str(row)
)
def test_disorderly_rows_are_left_alone(row: list[int]) -> None:
    assert united([[0, 1, 2], row], [9, 9], 256)[0] == -1
    assert united([row], [9], 256)[0] == -1


def test_sets_with_little_in_common_are_left_alone() -> None:
    assert united([[0, 1, 2, 3], [2, 3, 4, 5]], [9, 9], 192)[0] == 6
    assert united([[0, 1, 2, 3], [2, 3, 4, 5]], [9, 9], 191)[0] == -1
    assert united([[], []], [9, 9], 192)[0] == 0


def cases() -> Iterator[tuple[AttentionCase, int, int]]:
    """A case, tokens united at most, share."""
    yield AttentionCase(requests=PROMPTS, shape=SMALL, count=16, std=4.0), 4, 256
    shape = AttentionShape(20, 64, 16)
    yield (
        AttentionCase(
            requests=PROMPTS, shape=shape, count=16, dtype=torch.float16, with_sums=True, mode=0
        ),
        4,
        256,
    )
    yield AttentionCase(requests=PROMPTS, shape=SMALL, kind="future", count=12), 4, 256
    yield AttentionCase(requests=PROMPTS, shape=SMALL, kind="descending", count=12), 4, 256
    # Sets with little in common: some groups are united and some are not.
    yield AttentionCase(requests=WIDE, shape=SMALL, count=20), 2, 208
    shape = AttentionShape(4, 512, 64)
    yield AttentionCase(requests=PROMPTS, shape=shape, packed=True, fp8=True, count=16), 4, 256


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Sizes of the unions of every call."""
    seen: list[Tensor] = []
    real = triton_heads._united

    def spy(*arguments: object) -> Tensor:
        seen.append(real(*arguments))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(triton_heads, "_united", spy)
    return seen


@pytest.mark.parametrize(("case", "tokens", "share"), list(cases()), ids=str)
def test_conforms(
    case: AttentionCase, tokens: int, share: int,
    monkeypatch: pytest.MonkeyPatch, sizes: list[Tensor],
) -> None:  # fmt: skip
    how = Attention("heads", 16, 8, 2, 1, unite=tokens, share=share)
    monkeypatch.setattr(tuning, "attention", lambda *_: how)
    problem = case.problem()
    require(problem.judge(problem.run(public("triton"))))
    every = torch.cat(sizes)
    assert (every < 0).any() == (case.kind == "descending" or case.requests is WIDE)
    # A token on its own is a group too, and one that sees one key is orderly.
    assert (every >= 0).any()


def test_bits_do_not_depend_on_the_batch(
    monkeypatch: pytest.MonkeyPatch, sizes: list[Tensor]
) -> None:
    how = Attention("heads", 16, 8, 2, 1, unite=4, share=256)
    monkeypatch.setattr(tuning, "attention", lambda *_: how)
    requests = Requests("two", ((2, 9), (1, 5)))
    case = AttentionCase(requests=requests, shape=SMALL, count=8)
    run_one(case, case.problem(), "triton", public("triton")).require()
    assert (torch.cat(sizes) > 0).all()
