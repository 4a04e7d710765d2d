"""Sparse flash attention against NumPy and against attention with expanded keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import sparse_flash_attention
from glm5_ascend.ops.sparse_flash_attention import reference
from glm5_ascend.ops.verify.formula import attention
from glm5_ascend.ops.verify.requests import REQUESTS, Requests, page
from tests.support.compare import assert_close, assert_identical

COUNT = 64


class Inputs:
    """Peaked attention (scores of several units) over a latent of ``rank`` and ``rope`` dims."""

    def __init__(
        self,
        requests: Requests,
        heads: int = 4,
        rank: int = 256,
        rope: int = 64,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        torch.manual_seed(requests.seed)
        self.requests = requests
        self.query = torch.randn(requests.tokens, heads, rank, dtype=torch.float64).to(dtype)
        self.query_rope = torch.randn(requests.tokens, heads, rope, dtype=torch.float64).to(dtype)
        self.latent = [
            torch.randn(k, rank, dtype=torch.float64).to(dtype) for _, k in requests.lengths
        ]
        self.key_rope = [
            torch.randn(k, rope, dtype=torch.float64).to(dtype) for _, k in requests.lengths
        ]
        self.scale = 0.15
        self.indices = torch.full((requests.tokens, 1, COUNT), -1, dtype=torch.int32)
        for t, (_, visible) in enumerate(requests.rows()):
            chosen = torch.randperm(visible)[:COUNT].sort().values
            self.indices[t, 0, : len(chosen)] = chosen.int()

    def to(self, dtype: torch.dtype) -> Inputs:
        other = Inputs.__new__(Inputs)
        other.__dict__.update(self.__dict__)
        other.query, other.query_rope = self.query.to(dtype), self.query_rope.to(dtype)
        other.latent = [x.to(dtype) for x in self.latent]
        other.key_rope = [x.to(dtype) for x in self.key_rope]
        return other

    def run(self, **change: Any) -> tuple[Tensor, Tensor, Tensor]:
        paged = page(self.requests, {"c": self.latent, "r": self.key_rope})
        arguments = {
            "query": self.query,
            "key": paged.caches["c"],
            "value": paged.caches["c"],
            "sparse_indices": self.indices,
            "scale_value": self.scale,
            "query_rope": self.query_rope,
            "key_rope": paged.caches["r"],
            "actual_seq_lengths_kv": self.requests.key_lengths(),
            "layout_kv": "PA_BSND",
            **paged.layout(self.requests),
        }
        return sparse_flash_attention(**{**arguments, "backend": "reference", **change})

    def oracle(self, dtype: Any = np.float64) -> tuple[Tensor, Tensor, Tensor]:
        """NumPy in ``dtype``, one query token after the other."""
        rows = []
        for t, (b, visible) in enumerate(self.requests.rows()):
            chosen = [i for i in self.indices[t, 0].tolist() if 0 <= i < visible]
            latent = self.latent[b][chosen].double().numpy()
            keys = np.concatenate((latent, self.key_rope[b][chosen].double().numpy()), 1)
            query = torch.cat((self.query[t], self.query_rope[t]), -1).double().numpy()
            rows.append(attention(query, keys, latent, self.scale, dtype))
        out, peak, total = (torch.from_numpy(np.stack(x)) for x in zip(*rows, strict=True))
        return out, peak, total


@pytest.mark.parametrize("rank", [256, 512, 96])
@pytest.mark.parametrize("requests", REQUESTS, ids=str)
def test_double_precision_equals_numpy(requests: Requests, rank: int) -> None:
    inputs = Inputs(requests, rank=rank)
    out, peak, total = inputs.run(return_softmax_lse=True)
    wanted, wanted_peak, wanted_total = inputs.oracle()
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(peak, wanted_peak[None], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(total, wanted_total[None], rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("poison_empty")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("requests", REQUESTS, ids=str)
def test_low_precision(requests: Requests, dtype: torch.dtype) -> None:
    inputs = Inputs(requests).to(dtype)
    low = inputs.oracle(np.float32)[0].to(dtype)
    assert_close(inputs.run()[0], inputs.oracle()[0], low)


def test_absorbed_equals_expanded_keys_and_values() -> None:
    """q W_UK . c = q . W_UK^T c and sum p (W_UV c) = W_UV sum p c, head by head."""
    requests = Requests("mla", ((1, 200), (70, 150)), seed=9)
    heads, rank, rope, nope, v_dim = 4, 256, 64, 192, 256
    inputs = Inputs(requests, heads, rank, rope)
    q_nope = torch.randn(requests.tokens, heads, nope, dtype=torch.float64)
    w_uk = torch.randn(heads, nope, rank, dtype=torch.float64) / rank**0.5
    w_uv = torch.randn(heads, v_dim, rank, dtype=torch.float64) / rank**0.5
    inputs.scale = (nope + rope) ** -0.5
    inputs.query = torch.einsum("thn,hnr->thr", q_nope, w_uk)
    absorbed = torch.einsum("thr,hvr->thv", inputs.run()[0], w_uv)
    for t, (b, _) in enumerate(requests.rows()):
        chosen = [i for i in inputs.indices[t, 0].tolist() if i >= 0]
        latent, key_rope = inputs.latent[b][chosen], inputs.key_rope[b][chosen]
        for h in range(heads):
            keys = torch.cat((latent @ w_uk[h].T, key_rope), -1)
            query = torch.cat((q_nope[t, h], inputs.query_rope[t, h]))
            weight = (inputs.scale * keys @ query).softmax(0)
            wanted = weight @ (latent @ w_uv[h].T)
            torch.testing.assert_close(absorbed[t, h], wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("requests", REQUESTS, ids=str)
def test_contiguous_layouts_equal_pages(requests: Requests) -> None:
    inputs = Inputs(requests).to(torch.float32)
    paged = inputs.run(return_softmax_lse=True)
    latent = torch.cat(inputs.latent)[:, None]
    flat = inputs.run(
        key=latent,
        value=None,
        key_rope=torch.cat(inputs.key_rope)[:, None],
        layout_kv="TND",
        block_table=None,
        actual_seq_lengths_kv=requests.key_lengths().cumsum(0),
        return_softmax_lse=True,
    )
    for a, b in zip(flat, paged, strict=True):
        assert_identical(a, b)


def test_batched_layout_equals_pages() -> None:
    requests = Requests("bsnd", ((3, 80), (5, 100)))
    inputs = Inputs(requests).to(torch.float32)
    paged = inputs.run(return_softmax_lse=True)

    def widen(parts: list[Tensor], length: int) -> Tensor:
        out = parts[0].new_full((2, length, *parts[0].shape[1:]), torch.nan)
        for b, part in enumerate(parts):
            out[b, : len(part)] = part
        return out

    indices = inputs.indices.new_full((2, 5, 1, COUNT), 0)
    indices[0, :3], indices[1] = inputs.indices.split([3, 5])
    out, peak, total = inputs.run(
        query=widen(list(inputs.query.split([3, 5])), 5),
        query_rope=widen(list(inputs.query_rope.split([3, 5])), 5),
        key=widen([x[:, None] for x in inputs.latent], 100),
        value=None,
        key_rope=widen([x[:, None] for x in inputs.key_rope], 100),
        sparse_indices=indices,
        layout_query="BSND",
        layout_kv="BSND",
        block_table=None,
        actual_seq_lengths_query=torch.tensor([3, 5]),
        actual_seq_lengths_kv=requests.key_lengths(),
        return_softmax_lse=True,
    )
    assert out.shape == (2, 5, 4, 256)
    assert peak.shape == total.shape == (2, 1, 5, 4)
    assert_identical(torch.cat((out[0, :3], out[1])), paged[0])
    assert_identical(torch.cat((peak[0, 0, :3], peak[1, 0])), paged[1][0])
    assert_identical(torch.cat((total[0, 0, :3], total[1, 0])), paged[2][0])
    assert not out[0, 3:].any()


def test_unused_entries_and_empty_rows() -> None:
    requests = Requests("holes", ((4, 90),))
    inputs = Inputs(requests)
    inputs.indices[0] = -1
    inputs.indices[1, 0, 5:] = -1
    inputs.indices[2, 0, ::3] = -1  # not only at the end
    inputs.indices[2, 0, 1] = 89  # not visible yet
    out, peak, total = inputs.run(return_softmax_lse=True)
    wanted = inputs.oracle()
    torch.testing.assert_close(out, wanted[0])
    assert not out[0].any()
    assert (peak[0, 0] == -torch.inf).all()
    assert not total[0, 0].any()


def test_causal_mask_hides_later_keys_and_mode_0_does_not() -> None:
    requests = Requests("mask", ((3, 80),))
    inputs = Inputs(requests)
    inputs.indices[:, 0] = torch.arange(16, 80).int()
    torch.testing.assert_close(inputs.run()[0], inputs.oracle()[0])
    unmasked = inputs.run(sparse_mode=0)[0]
    torch.testing.assert_close(unmasked[2], inputs.run()[0][2])
    assert (unmasked[0] - inputs.run()[0][0]).abs().max() > 1e-6


def test_nan_in_unselected_rows_does_not_leak() -> None:
    requests = Requests("poison", ((2, 90), (70, 70)))
    inputs = Inputs(requests)
    clean = inputs.run()[0]
    for b in range(2):
        used = {
            int(i) for t, (r, _) in enumerate(requests.rows()) if r == b
            for i in inputs.indices[t, 0].tolist()
        }  # fmt: skip
        for s in set(range(requests.lengths[b][1])) - used:
            inputs.latent[b][s] = inputs.key_rope[b][s] = torch.nan
    assert_identical(inputs.run()[0], clean)


def test_blocks_of_tokens() -> None:
    requests = Requests("blocks", ((2, 90), (40, 40)))
    inputs = Inputs(requests)
    coarse = torch.full((42, 1, 8), -1, dtype=torch.int32)
    inputs.indices = torch.full((42, 1, 64), -1, dtype=torch.int32)
    for t, (_, visible) in enumerate(requests.rows()):
        chosen = torch.randperm(-(-visible // 8))[:6].sort().values.int()
        coarse[t, 0, : len(chosen)] = chosen
        tokens = (chosen[:, None] * 8 + torch.arange(8)).flatten()
        inputs.indices[t, 0, : len(tokens)] = tokens.int()
    out = inputs.run(sparse_indices=coarse, sparse_block_size=8)[0]
    torch.testing.assert_close(out, inputs.oracle()[0])


def test_without_a_rotated_part_and_with_another_value() -> None:
    requests = Requests("plain", ((1, 80), (9, 9)))
    inputs = Inputs(requests)
    values = [torch.randn(k, 40, dtype=torch.float64) for _, k in requests.lengths]
    cache = page(requests, {"v": values}).caches["v"]
    out = inputs.run(value=cache, query_rope=None, key_rope=None)[0]
    for t, (b, _) in enumerate(requests.rows()):
        chosen = [i for i in inputs.indices[t, 0].tolist() if i >= 0]
        keys, v = inputs.latent[b][chosen].numpy(), values[b][chosen].numpy()
        wanted = attention(inputs.query[t].numpy(), keys, v, inputs.scale)[0]
        torch.testing.assert_close(out[t], torch.from_numpy(wanted))


def test_strided_inputs_and_one_cache_for_both_parts() -> None:
    requests = Requests("strided", ((1, 80), (30, 100)))
    inputs = Inputs(requests).to(torch.float32)
    plain = inputs.run()[0]
    both = [torch.cat(x, -1) for x in zip(inputs.latent, inputs.key_rope, strict=True)]
    cache = page(requests, {"both": both}).caches["both"]
    query = torch.cat((inputs.query, inputs.query_rope), -1)
    indices = torch.cat((inputs.indices, inputs.indices), -1)[..., :COUNT]
    assert not indices.is_contiguous()
    strided = inputs.run(
        query=query[..., :256],
        query_rope=query[..., 256:],
        key=cache[..., :256],
        value=cache[..., :256],
        key_rope=cache[..., 256:],
        sparse_indices=indices,
    )[0]
    assert_identical(strided, plain)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Inputs(REQUESTS[5]).to(torch.float32)
    whole = inputs.run()[0]
    monkeypatch.setattr(reference, "_CHUNK_BYTES", 1)
    assert_identical(inputs.run()[0], whole)
