"""QuaRot's orthogonal matrices for GLM-5 and how they are applied without ever being formed.

Row vectors: ``y = x Wᵀ`` with ``W`` [out, in]. A rotated activation is ``x R``; a weight that reads
it becomes ``W R`` (``on_columns``), a weight that writes it becomes ``Rᵀ W`` (``on_rows``).
Everything here keeps the dtype it is given; the quantiser works in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError
from glm5_ascend.quant.folding import SEED, Axis

R2_BLOCK = 32
# Primes q = 3 mod 4: Paley's first construction gives a Hadamard matrix of order q + 1.
_PALEY = {12: 11, 20: 19}
_FACTOR = 64
# Elements turned at once (32 MiB in float64).
_PIECE = 1 << 22

Apply = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Form:
    """What a matrix is made of: blocks ``diag(signs) · (H_orderᵀ ⊗ Sylvester) / √block``.

    Attributes:
        signs: ±1, float64 [block].
        order: of Paley's matrix: 1, 12 or 20.
        block: order of one block.
        shift: 0, or how far the blocks' result is shifted before the blocks are applied again.
    """

    signs: Tensor
    order: int
    block: int
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Orthogonal:
    """An orthonormal matrix ``R`` of order ``size``, known by its action ``x ↦ x R`` on rows.

    ``form`` says how it is made, for kernels; None where it is no Hadamard matrix. With a
    ``refinement`` it is the product of that form and the refinement.
    """

    name: str
    size: int
    rows: Apply
    form: Form | None = None
    refinement: Orthogonal | None = None

    def dense(self) -> Tensor:
        """Return ``R`` itself, float64 [size, size]; for tests and small sizes."""
        return self.rows(torch.eye(self.size, dtype=torch.float64))


def sylvester(order: int) -> Tensor:
    """Sylvester's Hadamard matrix of ±1, float64 [order, order]; ``order`` is a power of two."""
    core = torch.ones(1, 1, dtype=torch.float64)
    while core.shape[0] < order:
        core = torch.cat([torch.cat([core, core], 1), torch.cat([core, -core], 1)])
    return core


def paley(order: int) -> Tensor:
    """Paley's (type I) Hadamard matrix of ±1, float64 [order, order], ``order - 1`` prime.

    With the quadratic character ``χ`` modulo ``q``: first row ``(1, -1 …)``, first column ones,
    otherwise 1 on the diagonal and ``-χ(j - i)`` off it.
    """
    prime = _PALEY[order]
    squares = {value * value % prime for value in range(1, prime)}
    matrix = torch.ones(order, order, dtype=torch.float64)
    matrix[0, 1:] = -1
    for row in range(prime):
        for column in range(prime):
            if row != column and (column - row) % prime in squares:
                matrix[row + 1, column + 1] = -1
    return matrix


def hadamard(name: str, size: int, seed: int | None) -> Orthogonal:
    """``diag(±1) · (H_Kᵀ ⊗ Sylvester) / √size``; without a seed the diagonal is the identity.

    ``size`` is a power of two (K = 1) or 12 or 20 times one. The Kronecker product is applied as
    two factors ``A ⊗ B`` of about 64 rows, so a row costs ``size · (a + b)`` products rather than
    ``size²``.

    Raises:
        ConfigError: no construction for this size.
    """
    turned, order = _kronecker(name, size)
    signs = _signs(size, seed)

    def rows(x: Tensor) -> Tensor:
        return turned(x * signs.to(x)) / sqrt(size)

    return Orthogonal(name, size, rows, Form(signs, order, size))


def _kronecker(name: str, size: int) -> tuple[Apply, int]:
    """The action of ``H_Kᵀ ⊗ Sylvester`` on rows, and K."""
    odd, power = _split(name, size)
    right = min(power, _FACTOR)
    left = torch.kron(odd.T.contiguous(), sylvester(power // right))
    left_t, factor = left.T.contiguous(), sylvester(right)
    count = left.shape[0]

    def rows(x: Tensor) -> Tensor:
        work = x.reshape(-1, count, right)
        return (left_t.to(x) @ (work @ factor.to(x))).reshape(x.shape)

    return rows, size // power


def shifted_blocks(name: str, size: int, seed: int, block: int = R2_BLOCK) -> Orthogonal:
    """``B P B``: ``B`` block-diagonal with one random Hadamard, ``P`` a cyclic shift of block/2.

    The shift lets every block reach its neighbours at a cost of ``2 · block`` per element.

    Raises:
        ConfigError: ``size`` is no multiple of ``block``.
    """
    if size % block:
        raise ConfigError(
            f"{name} needs a multiple of {block}, got q_lora_rank {size}",
            "quantise with --no-rotate",
        )
    inner = hadamard(name, block, seed)
    form = Form(_signs(block, seed), 1, block, block // 2)

    def blocks(x: Tensor) -> Tensor:
        return inner.rows(x.reshape(-1, block)).reshape(x.shape)

    return Orthogonal(name, size, lambda x: blocks(blocks(x).roll(block // 2, -1)), form)


def rotations(config: Glm5Config, seed: int = SEED) -> dict[str, Orthogonal]:
    """Return the four rotations of a model by name.

    R1 residual stream, R2 query latent, R3 key/value latent (never its rope part), R4 value head
    (the same for all heads).
    """
    matrices = (
        hadamard("R1", config.hidden_size, seed),
        shifted_blocks("R2", config.q_lora_rank, seed),
        hadamard("R3", config.kv_lora_rank, seed),
        hadamard("R4", config.v_head_dim, seed),
    )
    return {matrix.name: matrix for matrix in matrices}


def in_layer(matrices: Mapping[str, Orthogonal], layer: int | None) -> dict[str, Orthogonal]:
    """The rotations of a layer: its own, such as ``R2.17``, in the place of those for all."""
    plain = {name: matrix for name, matrix in matrices.items() if "." not in name}
    return {name: matrices.get(f"{name}.{layer}", matrix) for name, matrix in plain.items()}


def on_columns(weight: Tensor, axis: Axis, matrices: Mapping[str, Orthogonal]) -> Tensor:
    """Return ``W · blockdiag(axis)``: ``weight`` [out, in] reads a rotated activation."""
    result = torch.empty_like(weight)
    for part in _pieces(weight.shape[0], weight.shape[1]):
        result[part] = _turned(weight[part], axis, matrices)
    return result


def on_rows(weight: Tensor, axis: Axis, matrices: Mapping[str, Orthogonal]) -> Tensor:
    """Return ``blockdiag(axis)ᵀ · W``: ``weight`` [out, in] writes a rotated activation."""
    result = torch.empty_like(weight)
    for part in _pieces(weight.shape[1], weight.shape[0]):
        result[:, part] = _turned(weight[:, part].T.contiguous(), axis, matrices).T
    return result


def recycled_state(gamma: Tensor, r1: Orthogonal) -> Tensor:
    """``rot.weight`` = R1ᵀ diag(γ) R1, float64 [hidden, hidden], symmetric.

    The main model's final norm has γ = 1 after fusion; as an ``nn.Linear`` this restores γ in the
    rotated basis before the MTP layer's ``hnorm``.

    Of a Hadamard matrix the signs cancel and the rest is ``Hᵀ diag(γ) H / n``. Sums of a norm's
    bfloat16 numbers are exact in float64, so that every machine finds the same bits.
    """
    if (
        r1.form is not None
        and r1.refinement is None
        and r1.form.block == r1.size
        and not r1.form.shift
    ):
        turned, _ = _kronecker(r1.name, r1.size)
        return turned(turned(torch.diag(gamma.double())).T.contiguous()) / r1.size
    axis = Axis(((r1.name, r1.size),))
    scaled = on_columns(torch.diag(gamma.double()), axis, {r1.name: r1})
    product = on_rows(scaled, axis, {r1.name: r1})
    return (product + product.T) / 2


def _pieces(count: int, width: int) -> Iterator[slice]:
    """Rows at a time: temporary results stay small beside the matrix itself."""
    step = max(1, _PIECE // width)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _turned(weight: Tensor, axis: Axis, matrices: Mapping[str, Orthogonal]) -> Tensor:
    if len(axis.segments) == 1:
        return _segment(weight, axis.segments[0], axis.repeat, matrices)
    work = weight.reshape(weight.shape[0], axis.repeat, -1)
    parts = torch.split(work, [width for _, width in axis.segments], dim=-1)
    turned = [
        _segment(part, segment, 1, matrices)
        for part, segment in zip(parts, axis.segments, strict=True)
    ]
    return torch.cat(turned, dim=-1).reshape(weight.shape)


def _segment(
    part: Tensor, segment: tuple[str | None, int], repeat: int, matrices: Mapping[str, Orthogonal]
) -> Tensor:
    name, width = segment
    if name is None:
        return part
    if repeat == 1:
        return matrices[name].rows(part)
    return matrices[name].rows(part.reshape(-1, width)).reshape(part.shape)


def _split(name: str, size: int) -> tuple[Tensor, int]:
    for order in (1, *_PALEY):
        power = size // order
        if size % order == 0 and power & (power - 1) == 0:
            core = paley(order) if order > 1 else torch.ones(1, 1, dtype=torch.float64)
            return core, power
    raise ConfigError(
        f"{name} needs a size of 2^k, 12·2^k or 20·2^k, got {size}", "quantise with --no-rotate"
    )


def _signs(size: int, seed: int | None) -> Tensor:
    if seed is None:
        return torch.ones(size, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (size,), generator=generator).double() * 2 - 1
