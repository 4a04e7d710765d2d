"""What the stand-in operators compute: per row, from the documented layouts, in F64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def _spans(tensor: Tensor, layout: str, lengths: Tensor) -> Iterator[tuple[int, int]]:
    """(first flat row, number of rows) of every request."""
    assert lengths.dtype == torch.int32
    last = 0
    for b, length in enumerate(lengths.tolist()):
        if layout == "TND":
            assert tensor.ndim == 3
            yield last, length - last
            last = length
        else:
            assert tensor.ndim == 4
            yield b * tensor.shape[1], length


def _key_rows(key: Tensor, layout: str, lengths: Tensor, table: Tensor | None) -> list[Tensor]:
    """Keys of every request, [keys, D]."""
    flat = key.reshape(-1, key.shape[-1]) if key.shape[-2] == 1 else key.reshape(-1)
    if layout != "PA_BSND":
        assert table is None
        return [flat[start : start + count] for start, count in _spans(key, layout, lengths)]
    assert table is not None
    assert table.dtype == lengths.dtype == torch.int32
    pages = key.reshape(key.shape[0], key.shape[1], -1)
    rows = []
    for b, count in enumerate(lengths.tolist()):
        used = table[b, : -(-count // key.shape[1])].long()
        rows.append(pages[used].flatten(0, 1)[:count])
    return rows


def _rows(
    query: Tensor, key: Tensor, given: dict[str, Any], name: str
) -> Iterator[tuple[int, int, int]]:
    """(request, flat query row, keys that it sees)."""
    layout, mode = given["layout_query"], given.get("sparse_mode", 3)
    keys = [len(rows) for rows in _keys(key, given, name)]
    for b, (start, count) in enumerate(_spans(query, layout, given["actual_seq_lengths_query"])):
        for i in range(count):
            seen = keys[b] - count + i + 1 if mode == 3 else keys[b]
            yield b, start + i, max(seen, 0)


def _keys(key: Tensor, given: dict[str, Any], name: str) -> list[Tensor]:
    lengths = given[f"actual_seq_lengths_{name}"]
    return _key_rows(key, given[f"layout_{name}"], lengths, given.get("block_table"))


def _index(
    query: Tensor, key: Tensor, weights: Tensor, given: dict[str, Any], scale: Tensor | None
) -> Tensor:
    """Positions by descending score; rows of no request are left unwritten."""
    count = given.get("sparse_count", 2048)
    q, w = query.flatten(0, -3).double(), weights.flatten(0, -2).double()
    out = torch.full((len(q), count), -7, dtype=torch.int32)
    keys = _keys(key, given, "key")
    scales = None if scale is None else _keys(scale[..., None], given, "key")
    for b, row, seen in _rows(query, key, given, "key"):
        dots = (q[row] @ keys[b][:seen].double().T).relu()
        score = w[row] @ dots
        if scales is not None:
            score = score * scales[b][:seen, 0].double()
        score = score.masked_fill(score.isnan(), -torch.inf)
        order = score.sort(descending=True, stable=True).indices[:count]
        out[row] = -1
        out[row, : len(order)] = order.int()
    return out.view(*query.shape[:-2], 1, count)


def npu_lightning_indexer(
    fake: Any, query: Tensor, key: Tensor, weights: Tensor, **given: Any
) -> tuple[Tensor, Tensor]:
    assert not given.get("return_value", False)
    return _index(query, key, weights, given, None), query.new_empty(0)


def npu_quant_lightning_indexer(
    fake: Any,
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    query_quant_mode: int,
    key_quant_mode: int,
    **given: Any,
) -> Tensor:
    assert (query_quant_mode, key_quant_mode) == (0, 0)
    scaled = weights.double() * query_dequant_scale.double()
    return _index(query, key, scaled, given, key_dequant_scale)


def _attend(
    query: Tensor, key: Tensor, latent: int, indices: Tensor, scale: float, given: dict[str, Any]
) -> Tensor:
    """Slots up to the number of visible keys, until the first -1; rows of no request: NaN."""
    assert given["attention_mode"] == 2
    block = given.get("sparse_block_size", 1)
    q = query.flatten(0, -3).double()
    chosen = indices.flatten(0, -2)
    keys = _keys(key, given, "kv")
    out = torch.full((*q.shape[:2], latent), torch.nan, dtype=torch.float64)
    for b, row, seen in _rows(query, key, given, "kv"):
        tokens = []
        for index in chosen[row].tolist():
            if index < 0:
                break
            tokens += range(index * block, (index + 1) * block)
        used = [t for t in tokens[:seen] if t < seen]
        k = keys[b][torch.tensor(used, dtype=torch.long)].double()
        weight = torch.softmax(q[row] @ k.T * scale, -1)
        out[row] = weight @ k[:, :latent] if used else 0.0
    return out.to(query.dtype).view(*query.shape[:-1], latent)


def npu_sparse_flash_attention(
    fake: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    query_rope: Tensor,
    key_rope: Tensor,
    **given: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    assert value.data_ptr() == key.data_ptr()
    assert not given.get("return_softmax_lse", False)
    q, k = torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1)
    out = _attend(q, k, key.shape[-1], sparse_indices, scale_value, given)
    return out, query.new_empty(0), query.new_empty(0)


def npu_kv_quant_sparse_flash_attention(
    fake: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    **given: Any,
) -> Tensor:
    assert value.data_ptr() == key.data_ptr()
    assert (key_quant_mode, value_quant_mode) == (2, 2)
    codes = key[..., :512].float().unflatten(-1, (4, 128))
    scales = key[..., 640:].contiguous().view(torch.float32)
    latent = (codes * scales[..., None]).flatten(-2).bfloat16()
    rope = key[..., 512:640].contiguous().view(torch.bfloat16)
    rows = torch.cat((latent, rope), -1)
    return _attend(query, rows, 512, sparse_indices, scale_value, given)


def npu_format_cast(fake: Any, self: Tensor, acl_format: int) -> Tensor:
    assert acl_format == 29
    cast = self.clone()
    fake.cast.add(cast.data_ptr())
    return cast


def npu_mla_prolog_v3(
    fake: Any,
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    *,
    cache_index: Tensor,
    dequant_scale_x: Tensor | None = None,
    dequant_scale_w_dq: Tensor | None = None,
    dequant_scale_w_uq_qr: Tensor | None = None,
    dequant_scale_w_dkv_kr: Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-5,
    rmsnorm_epsilon_ckv: float = 1e-5,
    query_norm_flag: bool = False,
    weight_quant_mode: int = 0,
    **rest: Any,
) -> tuple[Tensor, ...]:
    other = {name: value for name, value in rest.items() if value not in (None, 0, 1.0)}
    assert other == {"cache_mode": "PA_BSND", "tile_size": 128}
    for weight in (weight_dq, weight_uq_qr, weight_dkv_kr):
        assert weight.data_ptr() in fake.cast, "a weight is not FRACTAL_NZ"
    assert cache_index.dtype == torch.int64
    heads, nope, _ = weight_uk.shape

    def rotate(x: Tensor) -> Tensor:
        """Neighbouring pairs; the first of all pairs come first."""
        cos, sin = (t.double().view(len(x), *[1] * (x.ndim - 2), -1) for t in (rope_cos, rope_sin))
        first, second = x[..., ::2], x[..., 1::2]
        halves, turned = torch.cat((first, second), -1), torch.cat((-second, first), -1)
        return halves * cos + turned * sin

    def times(x: Tensor, weight: Tensor, scale: Tensor | None, own: Tensor | None) -> Tensor:
        y = x.double() @ weight.double()
        if scale is not None:
            assert scale.shape == (1, weight.shape[1])
            y = y * scale.double() * own.double()
        return y

    def norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * gamma.double()

    assert weight_quant_mode == sum(w.dtype == torch.int8 for w in (weight_dq, weight_uq_qr))
    down = times(token_x, weight_dq, dequant_scale_w_dq, dequant_scale_x)
    latent = norm(down, rmsnorm_gamma_cq, rmsnorm_epsilon_cq)
    codes, scale = latent, None
    if weight_quant_mode:
        scale = latent.abs().amax(-1, keepdim=True) / 127
        codes = (latent / scale).round()
    up = times(codes, weight_uq_qr, dequant_scale_w_uq_qr, scale).unflatten(-1, (heads, -1))
    query = torch.einsum("thd,hdk->thk", up[..., :nope], weight_uk.double())
    kv = times(token_x, weight_dkv_kr, dequant_scale_w_dkv_kr, dequant_scale_x)
    width = kv_cache.shape[-1]
    rows = norm(kv[:, :width], rmsnorm_gamma_ckv, rmsnorm_epsilon_ckv)
    kv_cache.view(-1, width)[cache_index] = rows.to(kv_cache.dtype)
    kr_cache.view(-1, kr_cache.shape[-1])[cache_index] = rotate(kv[:, width:]).to(kr_cache.dtype)
    dtype, none = kv_cache.dtype, token_x.new_zeros(1)
    kept = none
    if query_norm_flag:
        kept = codes.to(torch.int8) if weight_quant_mode else latent.to(dtype)
    return (
        query.to(dtype),
        rotate(up[..., nope:]).to(dtype),
        torch.zeros(1),
        kept,
        torch.zeros(1) if scale is None else scale.float(),
    )
