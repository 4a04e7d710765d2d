"""Registration of the operators as ``torch.ops.glm5_ascend.*``.

An operator consists of a schema, a kernel for real tensors of any device and a fake kernel for
tensors without data (``torch.compile``, ``torch.export``, ``FakeTensorMode``)::

    _OP = define(
        "scale_rows(Tensor x, Tensor scale, *, str backend='auto') -> Tensor", _kernel, _fake
    )

    def _kernel(x, scale, *, backend="auto"):
        _check(x, scale)  # shapes, dtypes, strides, devices: what fake tensors have too
        return dispatch.load("scale_rows", backend, x).forward(x, scale)

    def _fake(x, scale, *, backend="auto"):
        _check(x, scale)
        return torch.empty_like(x)

    def scale_rows(x: Tensor, scale: Tensor, *, backend: str = "auto") -> Tensor:
        '''What a caller reads: maths, shapes, errors.'''
        return _OP(x, scale, backend=backend)

Rules:

- Names, order and defaults of the schema are torch_npu's where it has the operator; our own
  arguments come last. The dispatcher leaves out arguments that have their default, so both kernels
  repeat the defaults.
- A tensor written in place is annotated, ``Tensor(a!) cache``; the fake kernel returns nothing for
  it. No result may be a view of an argument, and two arguments must not be views of each other
  where one is written.
- Checks of values (lengths, table entries, indices) belong to the kernel only.
- The kernel must not be differentiated; operators serve inference.

Per call ``Library.define`` with ``CompositeExplicitAutograd`` costs about half of a
``torch.library.custom_op`` here, which also refuses keyword-only tensors, as torch_npu has them.
``CompositeExplicitAutograd`` is one kernel for CPU, CUDA and every other device, PrivateUse1 (the
NPU) included, without importing a vendor's package; a vendor's library may still register a kernel
of its own for its device, which then comes first.

Torch's dispatcher costs 20 to 40 microseconds for twenty arguments, more than the small kernels. So
the callable that ``define`` returns skips it where it would do nothing but call the kernel
(``_Shortcut``): plain tensors in main memory, no gradients, nothing that traces, transforms,
profiles or watches operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "glm5_ascend"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Register one operator and return a callable that does what its overload does.

    The overload is ``torch.ops.glm5_ascend.<name>.default``.

    Args:
        schema: name and signature in torch's schema language, without the namespace.
        kernel: computes; called with real tensors.
        fake: returns empty tensors of the right shapes, dtypes and devices.
    """
    name = schema.partition("(")[0]
    tags = (torch.Tag.pt2_compliant_tag,)
    _LIBRARY.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    overload = getattr(torch.ops.glm5_ascend, name).default
    takes = _Shortcut(overload).takes

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not takes(args, kwargs):
            return overload(*args, **kwargs)
        return kernel(*args, **kwargs)

    return call


_TENSORS = (Tensor, torch.nn.Parameter)
# Types that the dispatcher passes on as they are; it converts or refuses others.
_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": _TENSORS,
    "Optional[Tensor]": (*_TENSORS, type(None)),
    "int": (int,),
    "Optional[int]": (int, type(None)),
    "float": (float,),
    "bool": (bool,),
    "str": (str,),
}
# What the dispatcher heeds beside the arguments where nothing is to be heeded: with version
# counters, and without them (inference mode).
_INFERENCE = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
_NOTHING = {
    _INFERENCE.raw_repr(),
    _INFERENCE.add(torch._C.DispatchKey.ADInplaceOrView).raw_repr(),
}


class _Shortcut:
    """Which calls of an operator reach its kernel unchanged, whatever torch's dispatcher does."""

    def __init__(self, overload: Any) -> None:
        arguments = overload._schema.arguments
        self._positional = [_TYPES[str(a.type)] for a in arguments if not a.kwarg_only]
        self._named = {a.name: _TYPES[str(a.type)] for a in arguments if a.kwarg_only}
        # Callers repeat few forms a thousand times: one look-up instead of twenty. The value says
        # where tensors stand among the arguments; it is empty for a form that does not fit.
        self._known: dict[tuple[object, ...], tuple[int, ...]] = {}

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the kernel may be called at once with these arguments."""
        if (
            torch.is_grad_enabled()
            or torch._C._len_torch_function_stack()
            or torch._C._autograd._profiler_enabled()
            or torch._C._dispatch_tls_local_include_set().raw_repr() not in _NOTHING
        ):
            return False
        values = (*args, *kwargs.values())
        form = (*map(type, values), *kwargs)
        tensors = self._known.get(form)
        if tensors is None:
            tensors = self._tensors(values) if self._fits(args, kwargs) else ()
            self._known[form] = tensors
        if not tensors or not args[0].is_cpu:
            return False
        # A negative view holds numbers whose sign is still to be changed.
        return all(not values[i].is_neg() for i in tensors)

    @staticmethod
    def _tensors(values: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple(i for i, value in enumerate(values) if type(value) in _TENSORS)

    def _fits(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        named = self._named
        return (
            len(args) == len(self._positional)
            and all(
                type(value) in types for value, types in zip(args, self._positional, strict=True)
            )
            and all(name in named and type(v) in named[name] for name, v in kwargs.items())
        )
