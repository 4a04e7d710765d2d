"""Calls of a form that passed before: same results, same refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from glm5_ascend import ops
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.lightning_indexer import cpu as indexer
from glm5_ascend.ops.lightning_indexer.operator import PLANS as INDEXER
from glm5_ascend.ops.lightning_indexer.operator import QUANT_PLANS as INDEXER_QUANT
from glm5_ascend.ops.paged_cache.operator import PLANS as CACHE
from glm5_ascend.ops.plans import Plans, form_of
from glm5_ascend.ops.sparse_flash_attention import cpu as attention
from glm5_ascend.ops.sparse_flash_attention.operator import PLANS as ATTENTION
from tests.ops import contract_calls
from tests.ops.contract_calls import BAD, OPERATORS, Bad
from tests.support.compare import assert_identical

PLANNED = {
    "lightning_indexer": INDEXER,
    "lightning_indexer_quant": INDEXER_QUANT,
    "sparse_flash_attention": ATTENTION,
    "write_paged_rows": CACHE,
}
LENGTHS = {
    "lightning_indexer": "key",
    "lightning_indexer_quant": "key",
    "sparse_flash_attention": "kv",
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    o.name: o.function for o in OPERATORS if o.name in PLANNED
}


@pytest.fixture(autouse=True)
def no_plans() -> Iterator[None]:
    for plans in PLANNED.values():
        plans.forget()
    with torch.inference_mode():
        yield


def valid(name: str) -> dict[str, Any]:
    return next(o for o in OPERATORS if o.name == name).arguments()


def planned(name: str, arguments: dict[str, Any]) -> list[Any]:
    """Plans that a call with ``arguments`` leaves."""
    FUNCTIONS[name](**arguments)
    return [plan for plan in PLANNED[name]._known.values() if plan is not None]


@pytest.mark.parametrize("bad", [b for b in BAD if b.operator in PLANNED], ids=str)
def test_a_known_form_does_not_hide_a_bad_argument(bad: Bad) -> None:
    arguments = valid(bad.operator)
    assert len(planned(bad.operator, arguments)) == 1
    before = arguments["cache"].clone() if "cache" in arguments else None
    with pytest.raises(ArgumentError, match=bad.message):
        FUNCTIONS[bad.operator](**arguments | bad.change(arguments))
    if before is not None:
        assert_identical(arguments["cache"], before)


@pytest.mark.parametrize("name", LENGTHS)
def test_plans_compute_what_the_ordinary_way_does(name: str) -> None:
    """With lengths, tables and indices that change, of both widths and with rows of no request."""
    arguments = valid(name)
    ends, lengths = "actual_seq_lengths_query", f"actual_seq_lengths_{LENGTHS[name]}"
    plan = planned(name, arguments)
    for wide in (torch.int32, torch.int64):
        for sums, keys in (((1, 4), (20, 70)), ((0, 3), (80, 21)), ((4, 4), (33, 0))):
            given = arguments | {
                ends: torch.tensor(sums, dtype=wide),
                lengths: torch.tensor(keys, dtype=wide),
                "block_table": torch.randint(0, contract_calls.BLOCKS, (2, 5), dtype=torch.int32),
            }
            PLANNED[name].forget()
            first = FUNCTIONS[name](**given)
            assert [p is not None for p in PLANNED[name]._known.values()] == [True]
            again = FUNCTIONS[name](**given)
            assert len(first) == len(again)
            for a, b in zip(first, again, strict=True):
                assert_identical(a, b)
    assert plan


@pytest.mark.parametrize("name", LENGTHS)
def test_entries_of_the_table_that_are_not_used_may_be_anything(name: str) -> None:
    arguments = valid(name)
    wanted = FUNCTIONS[name](**arguments)[0]
    arguments["block_table"][0, 2:] = -7
    assert_identical(FUNCTIONS[name](**arguments)[0], wanted)


OPTION = {"lightning_indexer": "return_value", "sparse_flash_attention": "return_softmax_lse"}


@pytest.mark.parametrize("name", OPTION)
def test_what_a_plan_cannot_do_takes_the_ordinary_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = valid(name)
    assert not planned(name, arguments | {"backend": "reference"})
    assert not planned(name, arguments | {OPTION[name]: True})
    assert not planned(name, arguments | {"query": arguments["query"].double()} | doubled(name))
    assert len(planned(name, arguments)) == 1
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "reference")
    module = {"lightning_indexer": indexer, "sparse_flash_attention": attention}[name]
    monkeypatch.setattr(module.KERNELS, "get", None)  # a plan would fail
    FUNCTIONS[name](**arguments)


@pytest.mark.parametrize("wide", [torch.int32, torch.int64])
@pytest.mark.parametrize("columns", [slice(None), slice(3, 8)])
def test_rows_are_written_where_their_slots_say(wide: torch.dtype, columns: slice) -> None:
    cache = torch.zeros(4, 16, 11)[..., columns]
    wanted = torch.zeros(64, cache.shape[2])
    for slots in ([5, -1, 63], [62, 0, 5], [-1, -1, -1]):
        rows = torch.randn(3, cache.shape[2])
        ops.write_paged_rows(cache, rows, torch.tensor(slots, dtype=wide))
        for slot, row in zip(slots, rows, strict=True):
            if slot >= 0:
                wanted[slot] = row
        assert_identical(cache.reshape(64, -1), wanted)


def doubled(name: str) -> dict[str, Tensor]:
    return {k: v.double() for k, v in valid(name).items() if is_float(v)}


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def test_forms_tell_arguments_apart() -> None:
    x = torch.zeros(2, 6)
    same = form_of("cpu", x, 3, None)
    assert form_of("cpu", x + 1, 3, None) == same
    others: list[tuple[Any, ...]] = [
        ("auto", x, 3, None),
        ("reference", x, 3, None),
        ("cpu", x[:, :5], 3, None),
        ("cpu", torch.zeros(6, 2).t(), 3, None),
        ("cpu", x.half(), 3, None),
        ("cpu", x.to("meta"), 3, None),
        ("cpu", x, 4, None),
        ("cpu", x, None, 3),
        ("cpu", x, 3, x),
    ]
    for backend, *arguments in others:
        assert form_of(backend, *arguments) != same


def test_a_backend_is_asked_once_per_form_and_few_are_kept() -> None:
    plans, asked = Plans("plan"), []

    def make(number: int) -> Callable[[], int]:
        asked.append(number)
        return lambda: number

    module = ModuleType("backend")
    plans.ask((0,), module, 0)
    assert plans.get((0,)) is None
    module.__dict__["plan"] = make
    for number in (1, 2, 1):
        plans.ask((number,), module, number)
    assert asked == [1, 2]
    plan = plans.get((2,))
    assert plan is not None
    assert plan() == 2
    for number in range(1000):
        plans.ask((number,), module, number)
    assert len(plans._known) < 500


def test_the_indices_of_large_blocks_are_checked() -> None:
    """Entry i of the indices names ``sparse_block_size`` keys; the last block may be cut."""
    arguments = valid("sparse_flash_attention") | {"sparse_block_size": 16}
    indices = arguments["sparse_indices"].clone()
    indices[:] = torch.tensor([0, 1, -1, -1], dtype=torch.int32)
    arguments |= {"sparse_indices": indices}
    ops.sparse_flash_attention(**arguments)
    indices[0, 0, 1] = 2  # request 0 has 20 keys
    with pytest.raises(ArgumentError, match="not 2 "):
        ops.sparse_flash_attention(**arguments)
