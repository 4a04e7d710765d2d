"""MLA pre-processing in Triton: the weights' columns on the rows of each product.

Not run on a GPU yet: Triton's interpreter runs the kernels, its compiler builds them for sm_90a.

quantise | W_DQ and W_DKV_KR | norms, cache rows, codes of the latent | W_UQ_QR | W_UK, rotation.
The first step is part of the second for few tokens, an int8 query is a sixth. With few tokens the
terms of the first product are split into parts for more programs, and every kernel starts while the
one before it runs, to fetch its weights (TILES). Parts are as long for every number of tokens and
are added in one order, so float sums ask nothing of the batch but that the tensor cores' do not.
Nothing is read back to the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.mlapo.arguments import Inputs, Linear, Outputs, Static
from glm5_ascend.ops.mlapo.triton_products import heads, project
from glm5_ascend.ops.mlapo.triton_source import latents, quantise
from glm5_ascend.ops.mlapo.triton_tiles import PART, QUANTISED, Tiles, choose
from glm5_ascend.ops.paged_cache.rows import TILE
from glm5_ascend.ops.triton.runtime import INTERPRETED, check_device, padded

_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
WARPS = 8  # of the kernels that take one row


def forward(inputs: Inputs) -> Outputs:
    """Queries, and the rows of the caches, of ``inputs.x``; see README.md.

    Raises:
        Declined: F64.
        ArgumentError: tensors that are not on a CUDA device.
    """
    check_device(inputs.x)
    if inputs.dtype not in _DTYPES:
        raise Declined(
            "backend 'triton' computes mlapo in bfloat16, float16 or float32, not in "
            f"{str(inputs.dtype).removeprefix('torch.')}",
            "choose backend 'reference'",
        )
    return _Work(inputs).run()


class _Work:
    """One call."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.sizes = inputs, inputs.sizes
        self.down = choose(self.sizes.tokens, self._bytes(inputs.down_q))
        self.up = choose(self.sizes.tokens, self._bytes(inputs.up_q))
        self.after = choose(self.sizes.tokens, inputs.gamma_q.element_size())
        # Processors before Hopper start a kernel when the one before it has ended.
        cuda = inputs.x.is_cuda and torch.cuda.get_device_capability(inputs.x.device) >= (9, 0)
        self.pdl = self.down.overlap and cuda

    def run(self) -> Outputs:
        inputs, sizes = self.inputs, self.sizes
        down, parts, x_scale = self._down()
        latent, codes, scale = self._latents(down, parts, x_scale)
        up = self._empty(sizes.tokens, inputs.up_q.weight.shape[0])
        source = latent if codes is None else codes
        self._project(source, None, scale, 0, [inputs.up_q], up, self.up, sizes.q_lora)
        query, query_rope = self._heads(up)
        query_scale = None
        if inputs.quantise_query:
            flat, each = self._quantise(query.view(-1, sizes.kv_lora), None)
            query, query_scale = flat.view(query.shape), each.view(*query.shape[:2], 1)
        returned = {"none": None, "float": latent, "int8": codes}[inputs.latent]
        scales = scale if inputs.latent == "int8" and inputs.latent_static is None else None
        return Outputs(query, query_rope, query_scale, returned, scales)

    def _bytes(self, linear: Linear) -> int:
        return 1 if linear.is_int8 else self.inputs.gamma_q.element_size()

    def _empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        wanted = dtype or self.inputs.dtype
        return torch.empty(shape, dtype=wanted, device=self.inputs.x.device)

    def _quantise(self, x: Tensor, static: Static | None) -> tuple[Tensor, Tensor]:
        """(codes [rows, K], scales F32 [rows, 1], which nobody fills if ``static``)."""
        rows, width = x.shape
        codes = self._empty(rows, width, dtype=torch.int8)
        scales = self._empty(rows, 1, dtype=torch.float32)
        quantise[(rows,)](
            x, x.stride(0), *_point(static, x), codes, scales, width,
            STATIC=static is not None, BN=min(QUANTISED, padded(width)), PDL=self.pdl,
            num_warps=WARPS, launch_pdl=self.pdl,
        )  # fmt: skip
        return codes, scales

    def _down(self) -> tuple[Tensor, int, Tensor | None]:
        """(sums of parts [parts, T, N] or with 0 parts results [T, N], parts, token scales)."""
        inputs, sizes = self.inputs, self.sizes
        x, x_scale, mode = inputs.x, inputs.x_scale, 0
        if inputs.down_q.is_int8 and x.dtype != torch.int8:
            most = self.down.fuse_dynamic if inputs.x_static is None else self.down.fuse_static
            if sizes.tokens <= most:
                mode = 1 if inputs.x_static is None else 2
                x_scale = self._empty(sizes.tokens, 1, dtype=torch.float32)
            else:
                x, x_scale = self._quantise(x, inputs.x_static)
        if inputs.x_static is not None:
            x_scale = None
        columns = sizes.q_lora + sizes.kv_lora + sizes.rope
        parts = triton.cdiv(sizes.hidden, PART) if self.down.split else 0
        if parts:
            kind = torch.int32 if inputs.down_q.is_int8 else torch.float32
            out = self._empty(parts, sizes.tokens, columns, dtype=kind)
        else:
            out = self._empty(sizes.tokens, columns)
        linears = [inputs.down_q, inputs.down_kv]
        self._project(
            x, inputs.x_static, x_scale, mode, linears, out, self.down, sizes.hidden, parts
        )  # fmt: skip
        return out, parts, x_scale

    def _project(
        self,
        x: Tensor,
        static: Static | None,
        x_scale: Tensor | None,
        mode: int,
        linears: list[Linear],
        out: Tensor,
        tiles: Tiles,
        terms: int,
        parts: int = 0,
    ) -> None:
        """``out`` = x times one or two weights side by side."""
        first, last = linears[0], linears[-1]
        weight, weight2 = first.weight, last.weight
        if weight.stride(1) != weight2.stride(1):
            weight, weight2 = weight.contiguous(), weight2.contiguous()
        # Float sums of the first product are made of parts where they are not split as well.
        part = PART if parts or (len(linears) > 1 and not first.is_int8) else terms
        columns, more = first.weight.shape[0], last.weight.shape[0] if len(linears) > 1 else 0
        blocks = triton.cdiv(columns, tiles.columns) + triton.cdiv(more, tiles.columns)
        scale, scale2, bias, bias2 = (
            x if each is None else each for each in (first.scale, last.scale, first.bias, last.bias)
        )
        project[(blocks, triton.cdiv(self.sizes.tokens, tiles.tokens), max(1, parts))](
            x, x.stride(0), *_point(static, x), x if x_scale is None else x_scale,
            weight, weight.stride(0), weight2, weight2.stride(0), weight.stride(1), columns,
            more, scale, scale2, bias, bias2, out, self.sizes.tokens, terms, part,
            QUANTISE=mode, INT8=first.is_int8, BIAS=first.bias is not None,
            SCALED=x_scale is not None, SPLIT=parts > 0, BM=tiles.columns, BT=tiles.tokens,
            BK=tiles.terms, BX=min(QUANTISED, padded(terms)), PDL=self.pdl, INTERPRET=INTERPRETED,
            num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=self.pdl,
        )  # fmt: skip

    def _latents(
        self, down: Tensor, parts: int, x_scale: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(latent [T, Q], its codes, their scales F32 [T, 1]); writes the caches.

        The latent is left unfilled where only its codes are wanted.
        """
        inputs, sizes, static = self.inputs, self.sizes, self.inputs.latent_static
        tokens, width = sizes.tokens, down.shape[-1]
        codes, scale = None, None
        latent = self._empty(tokens, sizes.q_lora)
        if inputs.up_q.is_int8:
            codes = self._empty(tokens, sizes.q_lora, dtype=torch.int8)
            if static is None:
                scale = self._empty(tokens, 1, dtype=torch.float32)
        q, kv = inputs.down_q, inputs.down_kv
        bias, scales = (q.bias, kv.bias), (q.scale, kv.scale)
        kr = inputs.kv_cache if inputs.kr_cache is None else inputs.kr_cache
        latents[(tokens, 2)](
            down, width, *(down if each is None else each for each in (*scales, *bias)),
            down if x_scale is None else x_scale, inputs.gamma_q, inputs.gamma_kv, inputs.eps_q,
            inputs.eps_kv, inputs.cos, inputs.cos.stride(0), inputs.sin, inputs.sin.stride(0),
            inputs.slots.contiguous(), inputs.kv_cache, _row_stride(inputs.kv_cache), kr,
            _row_stride(kr), latent, latent if codes is None else codes,
            latent if scale is None else scale, *_point(static, latent), tokens,
            PARTS=parts, Q=sizes.q_lora, QP=padded(sizes.q_lora), L=sizes.kv_lora,
            LP=padded(sizes.kv_lora), R=sizes.rope, RP=padded(sizes.rope), INT8=q.is_int8,
            BIAS=q.bias is not None, SCALED=x_scale is not None,
            QUANTISE=0 if codes is None else 1 if static is None else 2,
            KEEP=codes is None or inputs.latent == "float",
            TILE=TILE if inputs.kr_cache is None else 0, DTYPE=_DTYPES[inputs.dtype],
            PDL=self.pdl, INTERPRET=INTERPRETED, num_warps=WARPS, launch_pdl=self.pdl,
        )  # fmt: skip
        return latent, codes, scale

    def _heads(self, up: Tensor) -> tuple[Tensor, Tensor]:
        """(query [T, heads, kv_lora], rotated [T, heads, rope])."""
        inputs, sizes, tiles = self.inputs, self.sizes, self.after
        query = self._empty(sizes.tokens, sizes.heads, sizes.kv_lora)
        rope = self._empty(sizes.tokens, sizes.heads, sizes.rope)
        blocks = triton.cdiv(sizes.kv_lora, tiles.latents) + 1
        heads[(sizes.heads, blocks, triton.cdiv(sizes.tokens, tiles.tokens))](
            up, up.stride(0), inputs.absorb, *inputs.absorb.stride(), inputs.cos,
            inputs.cos.stride(0), inputs.sin, inputs.sin.stride(0), query, rope, sizes.tokens,
            sizes.heads,
            D=sizes.nope, L=sizes.kv_lora, R=sizes.rope, RP=padded(sizes.rope), BM=tiles.latents,
            BT=tiles.tokens, BK=tiles.nope, PDL=self.pdl, INTERPRET=INTERPRETED,
            num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=self.pdl,
        )  # fmt: skip
        return query, rope


def _point(static: Static | None, nothing: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and offset as the kernels take them."""
    return (nothing, nothing) if static is None else (static.scale, static.offset)


def _row_stride(cache: Tensor) -> int:
    """Elements from slot to slot; an axis of one row may have any stride."""
    return cache.stride(-2) if cache.shape[-2] > 1 else cache.stride(0)
