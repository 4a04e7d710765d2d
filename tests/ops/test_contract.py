"""Operators as torch sees them: schemas, fake kernels, compilation, refused arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from glm5_ascend.ops.errors import ArgumentError
from tests.ops.contract_calls import BAD, OPERATORS, Bad, Operator
from tests.support.compare import assert_identical

NO_WINDOW = "int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807"
# Signatures that stock torch_npu 2.13 and 2.14 declare for the operators of the same purpose.
TORCH_NPU = {
    "lightning_indexer": "Tensor query, Tensor key, Tensor weights, *, "
    "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None, "
    'Tensor? block_table=None, str layout_query="BSND", str layout_key="BSND", '
    f"int sparse_count=2048, int sparse_mode=3, {NO_WINDOW}, bool return_value=False"
    " -> (Tensor, Tensor)",
    "lightning_indexer_quant": "Tensor query, Tensor key, Tensor weights, "
    "Tensor query_dequant_scale, Tensor key_dequant_scale, int query_quant_mode, "
    "int key_quant_mode, *, Tensor? actual_seq_lengths_query=None, "
    "Tensor? actual_seq_lengths_key=None, Tensor? block_table=None, "
    'str layout_query="BSND", str layout_key="BSND", int sparse_count=2048, int sparse_mode=3, '
    f"{NO_WINDOW}, int? query_dtype=None, int? key_dtype=None -> Tensor",
    "sparse_flash_attention": "Tensor query, Tensor key, Tensor? value, Tensor sparse_indices, "
    "float scale_value, *, Tensor? block_table=None, Tensor? actual_seq_lengths_query=None, "
    "Tensor? actual_seq_lengths_kv=None, Tensor? query_rope=None, Tensor? key_rope=None, "
    'int sparse_block_size=1, str layout_query="BSND", str layout_kv="BSND", int sparse_mode=3, '
    f"{NO_WINDOW}, int attention_mode=0, bool return_softmax_lse=False, Tensor? sinks=None"
    " -> (Tensor, Tensor, Tensor)",
    "kv_quant_sparse_flash_attention": "Tensor query, Tensor key, Tensor value, "
    "Tensor sparse_indices, float scale_value, int key_quant_mode, int value_quant_mode, *, "
    "Tensor? key_dequant_scale=None, Tensor? value_dequant_scale=None, "
    "Tensor? block_table=None, Tensor? actual_seq_lengths_query=None, "
    "Tensor? actual_seq_lengths_kv=None, int sparse_block_size=1, "
    'str layout_query="BSND", str layout_kv="BSND", int sparse_mode=3, '
    f"{NO_WINDOW}, int attention_mode=0, int quant_scale_repo_mode=1, int tile_size=128, "
    "int rope_head_dim=64, int? key_dtype=None, int? value_dtype=None -> Tensor",
}


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [] if result is None else list(result)


def compiled(function: Callable[..., Any], backend: str = "eager") -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


@pytest.mark.parametrize("name", TORCH_NPU)
def test_schemas_extend_those_of_torch_npu(name: str) -> None:
    theirs = torch._C.parse_schema(f"{name}({TORCH_NPU[name].replace(' ->', ') ->')}")
    ours = getattr(torch.ops.glm5_ascend, name).default._schema
    assert [str(r.type) for r in ours.returns] == [str(r.type) for r in theirs.returns]

    def facts(argument: Any) -> tuple[Any, ...]:
        return argument.name, str(argument.type), argument.default_value, argument.kwarg_only

    count = len(theirs.arguments)
    assert [*map(facts, ours.arguments[:count])] == [*map(facts, theirs.arguments)]
    extra = [a.name for a in ours.arguments[count:]]
    assert extra == (["sorted"] if name.startswith("lightning") else []) + ["backend"]


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_every_device_has_a_kernel(operator: Operator) -> None:
    """PrivateUse1 is the NPU; no vendor's package is imported for it."""
    has = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    for device in ("CPU", "CUDA", "PrivateUse1", "Meta"):
        assert has(f"glm5_ascend::{operator.name}", device)


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_opcheck(operator: Operator) -> None:
    arguments = operator.arguments()
    names = [a.name for a in operator.overload._schema.arguments if not a.kwarg_only]
    args = tuple(arguments.pop(name) for name in names)
    torch.library.opcheck(operator.overload, args, arguments)


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_fake_results_look_like_real_ones(operator: Operator) -> None:
    """Also with the optional results, which opcheck's default arguments leave out."""
    arguments = operator.arguments()
    for option in ("return_value", "return_softmax_lse"):
        if any(a.name == option for a in operator.overload._schema.arguments):
            arguments[option] = True
    real = tensors(operator.function(**arguments))
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        fake = tensors(operator.function(**arguments))
    assert [(x.shape, x.dtype) for x in fake] == [(x.shape, x.dtype) for x in real]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_compiled_equals_eager(operator: Operator, backend: str) -> None:
    arguments, again = operator.arguments(), operator.arguments()
    again = {k: arguments[k].clone() if k == "cache" else v for k, v in arguments.items()}
    wanted = tensors(operator.function(**arguments))
    got = tensors(compiled(operator.function, backend)(**again))
    for a, b in zip(got, wanted, strict=True):
        assert_identical(a, b)
    if "cache" in arguments:
        assert_identical(again["cache"], arguments["cache"])


def test_writes_survive_functionalisation() -> None:
    """A cache written twice and read between, in one graph: the order of the writes holds."""
    rows, slots = torch.randn(3, 8), torch.tensor([0, 5, 17])

    def step(cache: Tensor) -> Tensor:
        torch.ops.glm5_ascend.write_paged_rows(cache, rows, slots)
        between = cache.sum()
        torch.ops.glm5_ascend.write_paged_rows(cache, 2 * rows, slots)
        return between

    ours, theirs = torch.zeros(2, 16, 8), torch.zeros(2, 16, 8)
    torch.testing.assert_close(compiled(step, "aot_eager")(ours), step(theirs))
    assert_identical(ours, theirs)


def function_of(name: str) -> Operator:
    return next(operator for operator in OPERATORS if operator.name == name)


def refused(bad: Bad) -> tuple[Operator, dict[str, Any]]:
    operator = function_of(bad.operator)
    arguments = operator.arguments()
    return operator, arguments | bad.change(arguments)


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_bad_arguments_are_refused_by_name(bad: Bad) -> None:
    operator, arguments = refused(bad)
    with pytest.raises(ArgumentError, match=bad.message) as direct:
        operator.function(**arguments)
    assert isinstance(direct.value, ValueError)
    assert direct.value.hint
    if bad.values:
        return
    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(ArgumentError) as fake,
    ):
        operator.function(**arguments)
    assert str(fake.value) == str(direct.value)


# The fake kernels raise what the test above compares; of the shared checks a few are enough here.
_COMPILED = [
    bad
    for bad in BAD
    if bad.operator == "lightning_indexer"
    or bad.label in ("query_layout", "falling", "key_blocks_apart", "key_other_device")
    or bad.label.startswith(("sparse_indices", "slot_mapping", "query_rope", "x_", "cache_apart"))
]


@pytest.mark.parametrize("bad", _COMPILED, ids=str)
def test_bad_arguments_are_refused_inside_a_compiled_function(bad: Bad) -> None:
    operator, arguments = refused(bad)
    with pytest.raises(ArgumentError) as direct:
        operator.function(**arguments)
    with pytest.raises(ArgumentError) as traced:
        compiled(operator.function)(**arguments)
    assert traced.value.message == direct.value.message
    # Values are refused when the graph runs; of what tracing sees, the text names the user's line.
    assert str(traced.value).startswith(direct.value.message)
    assert ("from user code:" in str(traced.value)) != bad.values


def test_bad_arguments_are_refused_where_graphs_may_break() -> None:
    """The operator runs outside of the graph then, and the caller sees the plain error."""
    operator, arguments = refused(next(b for b in BAD if b.label == "query_layout"))
    torch._dynamo.reset()

    def step(**arguments: Any) -> Any:
        return operator.function(**arguments)[0] + 1

    with pytest.raises(ArgumentError) as traced:
        torch.compile(step, backend="eager")(**arguments)
    assert type(traced.value) is ArgumentError


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_every_operator_has_refusals(operator: Operator) -> None:
    assert sum(bad.operator == operator.name for bad in BAD) >= 4


def test_nothing_is_written_when_a_slot_is_refused() -> None:
    for operator in OPERATORS:
        arguments = operator.arguments()
        if not re.match("write", operator.name):
            continue
        arguments["slot_mapping"] = torch.tensor([0, 1, 10**6])
        with pytest.raises(ArgumentError, match="slot 1000000"):
            operator.function(**arguments)
        assert not arguments["cache"].any()
