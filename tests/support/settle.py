"""Reference activation codes as the judge of rounding ties in an implementation under test.

Two exact implementations of the same int8 scheme drift apart: of the thousands of activations per
token a few lie within F32 noise of a rounding tie, one flipped code changes a layer's output by
about 1e-2, and from there on everything rounds anew. With the ties settled by the reference, the
same two agree to F32 accuracy, so a comparison can be tight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.support.probe import TIE_WINDOW

Quantiser = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class TieBreaker:
    """Finds the reference's codes for a row of activations by content, whatever module it enters.

    A reference row replaces the row's own codes only if it is a rounding of every value of the row
    up to :data:`TIE_WINDOW` steps. An error larger than that therefore stays visible. ``settled``
    counts rows whose codes were replaced, ``unknown`` rows that no reference row matches.
    """

    def __init__(self, codes: Mapping[str, torch.Tensor]) -> None:
        by_width: dict[int, list[torch.Tensor]] = {}
        for rows in codes.values():
            by_width.setdefault(rows.shape[-1], []).append(rows.reshape(-1, rows.shape[-1]))
        self.rows = {k: torch.cat(parts) for k, parts in by_width.items()}
        self.exact = {k: {bytes(row.numpy()) for row in rows} for k, rows in self.rows.items()}
        self.settled = self.unknown = 0

    @classmethod
    def load(cls, path: Path) -> TieBreaker:
        """Read the codes of a file that :meth:`Choices.save` wrote."""
        return cls({n: t for n, t in load_file(path).items() if n.endswith(".codes")})

    def settle(self, scaled: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return int8 ``codes`` [T, K] of ``scaled`` [T, K] (activation / scale), ties settled."""
        width = scaled.shape[-1]
        result = codes.clone()
        if width not in self.rows:
            self.unknown += len(codes)
            return result
        for index, row in enumerate(codes.contiguous()):
            if bytes(row.numpy()) in self.exact[width]:
                continue
            distance = (self.rows[width] - scaled[index]).abs().amax(dim=1)
            best = int(distance.argmin())
            if distance[best] <= 0.5 + TIE_WINDOW:
                result[index] = self.rows[width][best]
                self.settled += 1
            else:
                self.unknown += 1
        return result

    def wrap(self, quantiser: Quantiser) -> Quantiser:
        """Return a per-token quantiser x [T, K] -> (int8 codes, scale [T, 1]) with settled ties."""

        def settled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            codes, scale = quantiser(x)
            scaled = x.to(torch.float32) / scale.masked_fill(scale == 0, 1)
            rows = self.settle(scaled.reshape(-1, x.shape[-1]), codes.reshape(-1, x.shape[-1]))
            return rows.view(codes.shape), scale

        return settled
