"""What the problems draw and judge alike."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.verify.compare import Figures, difference

PAGE = 64  # rows; the only page that DeepGEMM's paged kernel takes
# |a - o|^2 / (|a|^2 + |o|^2) that a peer may have; rounding every intermediate result to BF16 costs
# about 1e-5, a scale rounded to BF16 less, a forgotten one more than 1e-2.
PEER_LIMIT = 1e-4
_JUDGED = 32
SETS, SHORT_US = 4, 100.0


def input_sets(floor_us: float) -> int:
    """How many input sets a problem has: several where one call is short."""
    return SETS if floor_us < SHORT_US else 1


def generator(device: str, seed: int) -> torch.Generator:
    """Of the device's own random numbers."""
    return torch.Generator(device).manual_seed(seed)


def normal(gen: torch.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Normal numbers on the generator's device."""
    return torch.randn(*shape, generator=gen, device=gen.device, dtype=dtype)


def pages(gen: torch.Generator, requests: int, context: int) -> Tensor:
    """int32 [requests, context / 64]: a random page for every run of 64 positions, begun or not."""
    count = requests * -(-context // PAGE)
    return torch.randperm(count, generator=gen, device=gen.device).int().view(requests, -1)


def judged(tokens: int) -> Tensor:
    """Which of ``tokens`` rows are compared with F64: all, or 32 from the first to the last."""
    return torch.linspace(0, tokens - 1, min(tokens, _JUDGED)).round().long()


def codes(rows: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """(codes of ``rows`` [.., K], F32 scale [..]); scales are no powers of two.

    int8: max|x| / 127; e4m3: max|x| / 448.
    """
    wide = rows.float()
    if dtype == "int8":
        scale = wide.abs().amax(-1) / 127
        return (wide / scale[..., None]).round().to(torch.int8), scale
    scale = wide.abs().amax(-1) / 448
    return (wide / scale[..., None]).to(torch.float8_e4m3fn), scale


def near(actual: Tensor, expected: Tensor, name: str) -> Figures:
    """The limit for other projects' kernels and for chains of rounded steps."""
    if actual.shape != expected.shape:
        return Figures(problem=f"{name}: shape {list(actual.shape)}, not {list(expected.shape)}")
    found = difference(actual, expected)
    # A difference that is NaN is beyond the limit too.
    wrong = not found <= PEER_LIMIT
    problem = f"{name}: differs from F64 by {found:.1e}, limit {PEER_LIMIT:.0e}" if wrong else ""
    return Figures(cosine=found, problem=problem)
