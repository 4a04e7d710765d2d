"""Public functions skip torch's dispatcher only where nobody could notice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from glm5_ascend import ops
from glm5_ascend.ops import registry
from tests.ops.contract_calls import OPERATORS, Operator
from tests.support.compare import assert_identical

X = torch.linspace(-3, 3, 256).view(2, 128)
SHORTCUT = registry._Shortcut(torch.ops.glm5_ascend.hadamard_quant.default)


def takes(*args: Any, **kwargs: Any) -> bool:
    return SHORTCUT.takes(args, kwargs)


def results(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found or ())


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_results_are_those_of_the_overload(operator: Operator, guard: Any) -> None:
    arguments = operator.arguments()
    again = {k: v.clone() if k == "cache" else v for k, v in arguments.items()}
    with guard():
        ours = results(operator.function(**arguments))
        names = [a.name for a in operator.overload._schema.arguments if not a.kwarg_only]
        first = [again.pop(name) for name in names]
        theirs = results(operator.overload(*first, **again))
    for a, b in zip(ours, theirs, strict=True):
        assert_identical(a, b)
    if "cache" in arguments:
        assert_identical(arguments["cache"], first[0])


def test_plain_calls_take_it() -> None:
    with torch.no_grad():
        assert takes(X)
        assert takes(X, backend="cpu")
        assert takes(torch.nn.Parameter(X))
    with torch.inference_mode():
        assert takes(X)
        assert takes(X + 1)


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class _SeenFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_who_watches_torch_sees_the_operator() -> None:
    with _Seen() as seen:
        ops.hadamard_quant(X)
    assert seen.names == ["glm5_ascend::hadamard_quant"]
    with _SeenFunctions() as functions:
        ops.hadamard_quant(X)
    assert torch.ops.glm5_ascend.hadamard_quant.default in functions.functions
    with torch.autograd.profiler.profile() as profile:
        ops.hadamard_quant(X)
    assert "glm5_ascend::hadamard_quant" in [event.name for event in profile.function_events]


@torch.no_grad()
def test_what_only_the_dispatcher_understands_goes_there() -> None:
    assert not takes(X.to("meta"))
    assert not takes(torch._neg_view(X))
    assert not takes(X, backend=3)
    assert not takes(X, other=3)
    assert not takes()
    assert not takes([1.0])
    with torch.enable_grad():
        assert not takes(X)
    inside = []

    def mapped(x: Tensor) -> Tensor:
        inside.append(takes(x))
        return x

    torch.vmap(mapped)(X)
    torch.func.functionalize(mapped)(X)
    with pytest.warns(DeprecationWarning, match="jit.trace"):
        torch.jit.trace(mapped, X, check_trace=False)
    assert len(inside) >= 3
    assert not any(inside)


@torch.no_grad()
def test_negative_views_are_resolved() -> None:
    for a, b in zip(ops.hadamard_quant(torch._neg_view(X)), ops.hadamard_quant(-X), strict=True):
        assert_identical(a, b)


def test_every_type_of_the_schemas_is_known() -> None:
    for operator in OPERATORS:
        for argument in operator.overload._schema.arguments:
            assert str(argument.type) in registry._TYPES, argument
