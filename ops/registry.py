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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "glm5_ascend"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Register one operator and return its callable, ``torch.ops.glm5_ascend.<name>.default``.

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
    overload: Callable[..., Any] = getattr(torch.ops.glm5_ascend, name).default
    return overload
