"""One range for all tokens of an input: static W8A8, ``x_q = clip(round(x / s + z), -128, 127)``.

``s`` is exact in bfloat16, the engine's type for it, before anything is judged by it; ``z`` is a
whole number. Modules that read the same input (q_a and kv_a) share one range.

==========  =====================================================================================
minmax      all that was seen, zero included; the scale is rounded up, so that nothing is clipped
percentile  the same without the share of values beyond a percentile on either side
mse         the least Σ (x - s (x_q - z))² over a grid of both ends
==========  =====================================================================================

Migacz, "8-bit inference with TensorRT" (2017) for percentiles; Nagel et al., "A White Paper on
Neural Network Quantization" (2021), section 3.1, for the squared error.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from glm5_ascend.quant.solutions import StaticRange

Method = Literal["minmax", "percentile", "mse"]

# Bins on either side of zero; a step of a full range holds 16 of them.
_BINS = 2048
_ENDS = 25
_SMALLEST_END = 0.25
_SMALLEST_SCALE = 2.0**-100


class InputHistogram:
    """Counts of an input's values in bins of equal width, a power of two, with both extremes.

    When a value lies outside, neighbouring bins are joined and the width doubles, so the counts
    depend on the values alone, neither on their order nor on how they were cut into calls.

    Attributes:
        low, high: smallest and largest value seen, zero included.
    """

    def __init__(self) -> None:
        self.low, self.high = 0.0, 0.0
        self._exponent: int | None = None
        self._counts = torch.zeros(2 * _BINS, dtype=torch.int64)

    def add(self, values: Tensor) -> None:
        """Count all elements of ``values`` (any shape and float dtype).

        Raises:
            ValueError: NaN or infinity.
        """
        flat = values.detach().reshape(-1).double()
        if not flat.numel():
            return
        low, high = float(flat.min()), float(flat.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError("an input holds NaN or infinity")
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(-low, high)
        if largest > 0.0:
            self._reach(largest)
        if self._exponent is None:
            return
        index = torch.floor(flat * 2.0**-self._exponent).long() + _BINS
        self._counts += torch.bincount(index, minlength=2 * _BINS)

    def _reach(self, largest: float) -> None:
        """Widen the bins until ``largest`` lies below the last edge."""
        need = math.frexp(largest)[1] - _BINS.bit_length() + 1
        if self._exponent is None:
            self._exponent = need
        while self._exponent < need:
            half = self._counts.view(-1, 2).sum(1)
            self._counts = torch.zeros_like(self._counts)
            self._counts[_BINS // 2 : _BINS // 2 + _BINS] = half
            self._exponent += 1

    def bins(self) -> tuple[Tensor, Tensor]:
        """Centres float64 and counts int64 of the bins that are not empty."""
        used = self._counts.nonzero().squeeze(1)
        width = 0.0 if self._exponent is None else 2.0**self._exponent
        return (used - _BINS + 0.5).double() * width, self._counts[used]

    def percentile(self, share: float) -> tuple[float, float]:
        """Ends that leave ``1 - share`` of all values outside on each side, zero inside."""
        centres, counts = self.bins()
        if not len(counts):
            return 0.0, 0.0
        below = counts.cumsum(0)
        outside = (1.0 - share) * int(below[-1])
        first = int((below > outside).nonzero()[0])
        last = int((counts.flip(0).cumsum(0) > outside).nonzero()[0])
        low, high = float(centres[first]), float(centres.flip(0)[last])
        return min(0.0, max(low, self.low)), max(0.0, min(high, self.high))


def static_range(
    histogram: InputHistogram, method: Method = "mse", *, percentile: float = 0.9999
) -> StaticRange:
    """Return scale and offset for an input.

    Args:
        histogram: of the values before quantisation.
        method: see above.
        percentile: share of the values on one side of the largest one kept, for "percentile".

    Returns:
        Scale 1 and offset 0 for an input of zeros.
    """
    if histogram.high == histogram.low:
        return StaticRange(1.0, 0)
    if method == "minmax":
        return _covering(histogram.low, histogram.high)
    if method == "percentile":
        return _covering(*histogram.percentile(percentile))
    centres, counts = histogram.bins()
    weights = counts.double()
    steps = [_SMALLEST_END + (1 - _SMALLEST_END) * i / (_ENDS - 1) for i in range(_ENDS)]
    lows = [histogram.low * step for step in steps] if histogram.low < 0 else [0.0]
    highs = [histogram.high * step for step in steps] if histogram.high > 0 else [0.0]
    candidates = [_nearest(low, high) for low in lows for high in highs]
    errors = [_error(centres, weights, candidate) for candidate in candidates]
    return candidates[errors.index(min(errors))]


def quantised(values: Tensor, given: StaticRange) -> Tensor:
    """What the engine sees of ``values``: ``s (clip(round(x / s + z)) - z)``, in their dtype."""
    codes = torch.round(values / given.scale + given.offset).clamp_(-128, 127)
    return (codes - given.offset) * given.scale


def _error(centres: Tensor, weights: Tensor, given: StaticRange) -> float:
    return float(((centres - quantised(centres, given)).square() * weights).sum())


def _nearest(low: float, high: float) -> StaticRange:
    step = torch.tensor(max((high - low) / 255, _SMALLEST_SCALE), dtype=torch.float64)
    return _with_offset(low, float(step.bfloat16()))


def _covering(low: float, high: float) -> StaticRange:
    """The range with the smallest bfloat16 scale that clips nothing of ``low`` … ``high``."""
    exact = max((high - low) / 255, _SMALLEST_SCALE)
    step = torch.tensor(exact, dtype=torch.float64).bfloat16()
    if float(step) < exact:
        step = torch.nextafter(step, torch.tensor(math.inf, dtype=torch.bfloat16))
    return _with_offset(low, float(step))


def _with_offset(low: float, step: float) -> StaticRange:
    return StaticRange(step, max(-128, min(127, round(-low / step) - 128)))
