"""Cases are drawn on the CPU; backends of another device get copies there."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor

from glm5_ascend.ops.verify.case import Call

# Backend -> type of device of its tensors, where that is not the CPU.
HOMES = {"ascendc": "npu", "torch_npu": "npu", "triton": "cuda"}


def at_home(call: Call, backend: str) -> Call:
    """``call`` with its tensors on the backend's device.

    Results come back to the CPU, and so does what it wrote into its arguments. Arguments that are
    one tensor stay one; those with gaps lose them.
    """
    device = HOMES.get(backend)
    # Triton's interpreter takes the CPU's tensors.
    interpreted = backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if device is None or interpreted:
        return call

    def moved(function: str, /, **arguments: Any) -> Any:
        copies: dict[object, tuple[Tensor, Tensor]] = {}

        def there(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(there(each) for each in value)
            if not isinstance(value, Tensor):
                return value
            place = (value.data_ptr(), value.dtype, value.shape, value.stride())
            if place not in copies:
                copies[place] = value, value.to(device, copy=True)
            return copies[place][1]

        result = call(function, **{name: there(value) for name, value in arguments.items()})
        for original, copy in copies.values():
            original.copy_(copy)
        return _back(result)

    return moved


def _back(result: Any) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(_back(each) for each in result)
    return result.to("cpu") if isinstance(result, Tensor) else result
