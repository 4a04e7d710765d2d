"""Weights in the layout that the cube reads: NZ, made once per weight.

[K / C0][N][C0] of a weight [N, K], where C0 elements are 32 bytes: what an NPU calls FRACTAL_NZ
(format 29) of [N, K], whose sizes the kernel requires to be whole fractals.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable

import torch
from torch import Tensor

# id of the first weight's storage -> places and versions of all of them -> NZ.
_made: dict[int, dict[Hashable, Tensor]] = {}


def fractal_nz(*weights: Tensor) -> Tensor:
    """NZ of weights [N, K] or [matrices, N, K], one below the other where there are several.

    Kept until the storage of the first weight goes, made anew when a weight was written in place.
    """
    storage = weights[0].untyped_storage()
    views = _made.get(id(storage))
    if views is None:
        views = _made[id(storage)] = {}
        weakref.finalize(storage, _made.pop, id(storage), None).atexit = False
    places = tuple((w.data_ptr(), w.dtype, w.shape, w.stride()) for w in weights)
    versions = tuple(-1 if w.is_inference() else w._version for w in weights)
    found = views.get((places, versions))
    if found is None:
        for key in [key for key in views if isinstance(key, tuple) and key[0] == places]:
            del views[key]
        found = views[places, versions] = torch.cat([_blocks(w) for w in weights], -2).contiguous()
    return found


def _blocks(weight: Tensor) -> Tensor:
    """[.., K / C0, N, C0]."""
    c0 = 32 // weight.element_size()
    return weight.reshape(*weight.shape[:-1], -1, c0).transpose(-2, -3)
