"""Attention over packed int8 rows against NumPy on values unpacked byte by byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import (
    kv_quant_sparse_flash_attention,
    sparse_flash_attention,
    write_kv_rows,
)
from glm5_ascend.ops.verify.formula import attention
from glm5_ascend.ops.verify.requests import REQUESTS, Requests, page
from tests.ops.test_paged_cache import unpacked
from tests.support.compare import assert_close, assert_identical

COUNT = 64


def bfloat16(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).float().bfloat16().double().numpy()


class Inputs:
    """Queries [T, H, 576] and packed rows [k_len, 656] of every request."""

    def __init__(self, requests: Requests, heads: int = 4, count: int = COUNT) -> None:
        torch.manual_seed(requests.seed)
        self.requests, self.scale = requests, 0.06
        self.query = torch.randn(requests.tokens, heads, 576, dtype=torch.float64)
        self.rows = []
        for _, k in requests.lengths:
            cache = torch.zeros(1, k, 656, dtype=torch.int8)
            slots = torch.arange(k)
            latent, key_rope = torch.randn(k, 512) * 1.3, torch.randn(k, 64)
            write_kv_rows(cache, latent, key_rope, slots, backend="reference")
            self.rows.append(cache[0])
        self.indices = torch.full((requests.tokens, 1, count), -1, dtype=torch.int32)
        for t, (_, visible) in enumerate(requests.rows()):
            chosen = torch.randperm(visible)[:count].sort().values
            self.indices[t, 0, : len(chosen)] = chosen.int()

    def run(self, dtype: torch.dtype, **change: Any) -> Tensor:
        # The poison of unused rows is 77, whose scale bytes are the number 2e8.
        paged = page(self.requests, {"c": [r.float() for r in self.rows]})
        cache = paged.caches["c"].nan_to_num(77).to(torch.int8)
        arguments = {
            "query": self.query.to(dtype),
            "key": cache,
            "value": cache,
            "sparse_indices": self.indices,
            "scale_value": self.scale,
            "actual_seq_lengths_kv": self.requests.key_lengths(),
            "layout_kv": "PA_BSND",
            **paged.layout(self.requests),
        }
        arguments["backend"] = "reference"
        return kv_quant_sparse_flash_attention(**{**arguments, **change})

    def unpacked(self, b: int, chosen: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """(latent [n, 512], rotated [n, 64]): codes times scales in F32, rounded to BF16."""
        latent, rotated = np.zeros((len(chosen), 512)), np.zeros((len(chosen), 64))
        for i, s in enumerate(chosen):
            codes, rope, scales = unpacked(self.rows[b][s].numpy().tobytes())
            product = codes.reshape(4, 128).astype(np.float32) * scales.astype(np.float32)[:, None]
            latent[i], rotated[i] = bfloat16(product.reshape(-1)), rope
        return latent, rotated

    def oracle(self, dtype: torch.dtype, precision: Any = np.float64) -> Tensor:
        out = []
        query = self.query.to(dtype).double().numpy()
        for t, (b, visible) in enumerate(self.requests.rows()):
            chosen = [i for i in self.indices[t, 0].tolist() if 0 <= i < visible]
            latent, rotated = self.unpacked(b, chosen)
            keys = np.concatenate((latent, rotated), 1)
            out.append(attention(query[t], keys, latent, self.scale, precision)[0])
        return torch.from_numpy(np.stack(out))


@pytest.mark.parametrize("requests", REQUESTS, ids=str)
def test_double_precision_queries_equal_numpy(requests: Requests) -> None:
    inputs = Inputs(requests)
    out = inputs.run(torch.float64)
    torch.testing.assert_close(out, inputs.oracle(torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("poison_empty")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [64, 128, 4], ids=["GLM-5", "DeepSeek-V3.2", "small"])
def test_heads_of_the_models(heads: int, dtype: torch.dtype) -> None:
    inputs = Inputs(Requests("models", ((3, 300), (1, 40))), heads, 128)
    low = inputs.oracle(dtype, np.float32).to(dtype)
    assert_close(inputs.run(dtype), inputs.oracle(dtype), low)


def test_equals_attention_over_the_unpacked_cache() -> None:
    """Same bits as sparse_flash_attention on rows that were unpacked beforehand."""
    inputs = Inputs(REQUESTS[5])
    parts = [inputs.unpacked(b, list(range(len(r)))) for b, r in enumerate(inputs.rows)]
    latent, rotated = (
        page(inputs.requests, {"x": [torch.from_numpy(p[i]).bfloat16() for p in parts]})
        for i in range(2)
    )
    query = inputs.query.bfloat16()
    wanted = sparse_flash_attention(
        query[..., :512],
        latent.caches["x"],
        None,
        inputs.indices,
        inputs.scale,
        query_rope=query[..., 512:],
        key_rope=rotated.caches["x"],
        actual_seq_lengths_kv=inputs.requests.key_lengths(),
        layout_kv="PA_BSND",
        backend="reference",
        **latent.layout(inputs.requests),
    )[0]
    assert_identical(inputs.run(torch.bfloat16), wanted)


def test_unsigned_bytes_contiguous_keys_and_blocks_of_tokens() -> None:
    inputs = Inputs(Requests("blocks", ((2, 90), (40, 40))))
    plain = inputs.run(torch.bfloat16)
    rows = torch.cat(inputs.rows)[:, None].view(torch.uint8)
    options = {
        "key": rows,
        "value": rows,
        "layout_kv": "TND",
        "block_table": None,
        "actual_seq_lengths_kv": inputs.requests.key_lengths().cumsum(0),
    }
    assert_identical(inputs.run(torch.bfloat16, **options), plain)
    coarse = torch.full((42, 1, 5), -1, dtype=torch.int32)
    for t, (_, visible) in enumerate(inputs.requests.rows()):
        chosen = torch.randperm(-(-visible // 8))[:5].sort().values.int()
        coarse[t, 0, : len(chosen)] = chosen
        tokens = (chosen[:, None] * 8 + torch.arange(8)).flatten()
        inputs.indices[t, 0] = -1
        inputs.indices[t, 0, : len(tokens)] = tokens.int()
    inputs.indices[inputs.indices >= inputs.requests.key_lengths()[:, None].max()] = -1
    out = inputs.run(torch.float64, sparse_indices=coarse, sparse_block_size=8)
    torch.testing.assert_close(out, inputs.oracle(torch.float64), rtol=1e-12, atol=1e-12)


def test_rows_ignore_the_batch() -> None:
    inputs = Inputs(REQUESTS[3])
    whole, start = inputs.run(torch.bfloat16), 0
    for b, lengths in enumerate(inputs.requests.lengths):
        alone = Inputs(Requests("alone", (lengths,)))
        part = slice(start, start + lengths[0])
        alone.query, alone.indices = inputs.query[part], inputs.indices[part]
        alone.rows = [inputs.rows[b]]
        assert_identical(alone.run(torch.bfloat16), whole[part].contiguous())
        start += lengths[0]
