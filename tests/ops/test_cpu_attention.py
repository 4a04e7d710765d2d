"""Sparse flash attention in C++: every instruction set, hostile requests, equal bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from glm5_ascend.ops import kv_quant_sparse_flash_attention, sparse_flash_attention, write_kv_rows
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.sparse_flash_attention import cpu
from glm5_ascend.ops.verify.requests import Requests
from tests.ops.attention_calls import Call, Shape
from tests.support.compare import assert_identical

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SMALL = Requests("small", ((3, 70), (0, 9), (1, 33), (5, 2), (2, 500)), seed=1)
LONG = Requests("long", ((1, 2300), (2, 2048)), seed=2)
# On both sides of every tile: lanes of heads, pairs of columns, keys of a tile, columns of values.
SHAPES = [
    Shape(4, 256, 64, 64),
    Shape(17, 20, 4, 30, block_size=128),
    Shape(1, 16, 0, 5),
    Shape(5, 33, 7, 193, block_size=1024),
    Shape(40, 96, 32, 60, block=4),
    Shape(3, 65, 1, 9, block=128, block_size=256),
]
REAL = [Shape(64, 512, 64, 2048), Shape(128, 512, 64, 300), Shape(8, 512, 64, 385, block=5)]


@pytest.mark.usefixtures("poison_empty", "instructions")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_instruction_set(shape: Shape, dtype: torch.dtype) -> None:
    call = Call(SMALL, shape, dtype)
    call.check(call.run())


@pytest.mark.usefixtures("poison_empty")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", REAL, ids=str)
def test_sizes_of_the_models(shape: Shape, dtype: torch.dtype) -> None:
    call = Call(LONG, shape, dtype)
    call.check(call.run())


@pytest.mark.usefixtures("poison_empty", "instructions")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_rows(dtype: torch.dtype) -> None:
    """Packed rows are attended to as the BF16 rows that they stand for."""
    call = Call(SMALL, Shape(6, 512, 64, 210), torch.float32)
    caches = []
    for i, rows in enumerate(call.rows):
        cache = torch.zeros(1, max(len(rows), 1), 656, dtype=torch.int8)
        write_kv_rows(cache, rows[:, :512], rows[:, 512:], torch.arange(len(rows)), backend="cpu")
        caches.append(cache[0, : len(rows)])
        codes = caches[i][:, :512].float()
        scales = caches[i][:, 640:].contiguous().view(torch.float32)
        latent = (codes.view(-1, 4, 128) * scales[..., None]).view(-1, 512).bfloat16()
        call.rows[i] = torch.cat((latent, rows[:, 512:].bfloat16()), 1)
    call.query = call.query.to(dtype)
    given = call.arguments()
    order = given["block_table"].long()
    paged = torch.full((int(order.max()) + 1, 16, 1, 656), 77, dtype=torch.int8)
    for b, rows in enumerate(caches):
        position = torch.arange(len(rows))
        paged[order[b, position // 16], position % 16, 0] = rows
    for name in ("query_rope", "key_rope", "return_softmax_lse"):
        del given[name]
    given |= {"query": call.query, "key": paged, "value": paged, "backend": "cpu"}
    out = kv_quant_sparse_flash_attention(**given, key_quant_mode=2, value_quant_mode=2)
    call.check((out,))


@pytest.mark.usefixtures("instructions")
def test_exponential_within_an_f32_rounding_error() -> None:
    """Two keys with scores 0 and x and values 0 and 1: out is e^x / (1 + e^x), sum is 1 + e^x."""
    x = -torch.linspace(0, 87, 4096).square().div(87)
    query, key = x[None, :, None], torch.tensor([[0.0], [1.0]])
    indices, where = torch.tensor([[0, 1]], dtype=torch.int32), Queries([0], [1], 1)
    keys = Keys([2], [0], torch.device("cpu"))
    out, _, total = cpu.forward([query], [key], key, indices, 1.0, 1, where, keys, causal=True)
    power = x.double().exp()
    error = (out[0, :, 0].double() / (power / (1 + power)) - 1).abs()
    # 1 unit of 2^-23 from the exponential, and half a one each from sum, quotient and product.
    assert error.max() < 2.5 * 2**-23
    assert ((total[0].double() - 1 - power).abs() < 2**-23 + power * 2**-23).all()


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[4], Shape(64, 256, 16, 250)], ids=str)
def test_bits_do_not_depend_on_threads(
    shape: Shape, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Call(SMALL, shape, dtype)
    wanted = None
    for threads in ("1", "2", "3", "7"):
        monkeypatch.setenv("GLM5_ASCEND_THREADS", threads)
        results = call.run()
        wanted = wanted or results
        for found, first in zip(results, wanted, strict=True):
            assert_identical(found, first, name=f"{threads} threads")


@pytest.mark.usefixtures("poison_empty", "instructions")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [Shape(20, 34, 16, 2500), Shape(3, 32, 0, 400, block=4)], ids=str)
def test_threads_share_the_keys_of_a_row(
    shape: Shape, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One to three parts; with one thread they follow each other, with more they do not."""
    for lengths in (((1, 2600),), ((1, 700), (0, 5), (2, 1300))):
        call = Call(Requests("parts", lengths, seed=3), shape, dtype)
        wanted = None
        for threads in ("1", "2", "3", "7"):
            monkeypatch.setenv("GLM5_ASCEND_THREADS", threads)
            results = call.run()
            wanted = wanted or results
            for found, first in zip(results, wanted, strict=True):
                assert_identical(found, first, name=f"{threads} threads")
        call.check(results)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_depend_on_the_own_request_only(dtype: torch.dtype) -> None:
    """Alone in contiguous memory with separate tensors, as in the batch in shuffled pages."""
    call = Call(SMALL, Shape(20, 64, 16, 230), dtype)
    batch = call.run()
    first = 0
    for b, (queries, _) in enumerate(SMALL.lengths):
        rows = slice(first, first + queries)
        first += queries
        latent, rope = call.rows[b][None, :, None].split((64, 16), -1)
        out, peak, total = sparse_flash_attention(
            call.query[None, rows, :, :64].contiguous(),
            latent.contiguous(),
            latent.clone(),
            call.indices[None, rows],
            call.scale,
            query_rope=call.query[None, rows, :, 64:].contiguous(),
            key_rope=rope.contiguous(),
            return_softmax_lse=True,
            backend="cpu",
        )
        for found, whole in zip((out[0], peak[0, 0], total[0, 0]), batch, strict=True):
            assert_identical(found, whole[rows], name=f"request {b}")


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_value_may_be_another_tensor(dtype: torch.dtype) -> None:
    call = Call(SMALL, Shape(4, 32, 8, 40), dtype)
    given = call.arguments()
    value = (given["key"].float() * 2).to(dtype)
    out, _, _ = call.run(value=torch.cat((value, value), -1))
    plain, _, _ = call.run()
    assert_identical(out, torch.cat((plain, plain), -1) * 2)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("place", "number"), [("key", "nan"), ("key", "inf"), ("key", "-inf"), ("value", "nan")]
)
def test_special_numbers_are_those_of_the_formula(
    place: str, number: str, dtype: torch.dtype
) -> None:
    """One key of one request; rows that do not read it keep their bits."""
    call = Call(SMALL, Shape(4, 32, 8, 40), dtype)
    before = call.run()
    read = [t for t in range(SMALL.tokens) if call.chosen(t)[0] == 0 and 5 in call.chosen(t)[1]]
    assert 0 < len(read) < SMALL.tokens
    call.rows[0][5, 35 if place == "key" else 3] = float(number)
    results = call.run()
    reference = call.run(backend="reference")
    for found, wanted, old in zip(results, reference, before, strict=True):
        for special in (torch.isnan, torch.isposinf, torch.isneginf):
            assert_identical(special(found), special(wanted), name=special.__name__)
        others = [t for t in range(SMALL.tokens) if t not in read]
        assert_identical(found[others], old[others])


def test_rows_without_a_key() -> None:
    call = Call(SMALL, Shape(4, 32, 8, 40), torch.bfloat16)
    call.indices[2:] = -1
    out, peak, total = call.run()
    assert not out[2:].any()
    assert (peak[2:] == -torch.inf).all()
    assert not total[2:].any()
    call.indices = call.indices[..., :0].contiguous()
    out, peak, total = call.run()
    assert not out.any()
    assert (peak == -torch.inf).all()
    assert not total.any()


def test_no_rows() -> None:
    call = Call(Requests("none", ((0, 7), (0, 0))), Shape(4, 32, 8, 40), torch.bfloat16)
    assert [tuple(x.shape) for x in call.run()] == [(0, 4, 32), (0, 4), (0, 4)]


def test_double_precision_is_refused_by_name() -> None:
    call = Call(SMALL, Shape(4, 32, 8, 40), torch.float64)
    with pytest.raises(ArgumentError, match=r"'cpu'.* not in float64") as refusal:
        call.run()
    assert "reference" in refusal.value.hint


def test_rows_outside_the_cache_are_never_read() -> None:
    """The public functions check the block table; whoever calls the backend gets an error too."""
    key, query = torch.randn(32, 8), torch.randn(1, 2, 8)
    indices, where = torch.tensor([[0, 17]], dtype=torch.int32), Queries([0], [1], 1)

    def run(*blocks: int) -> Any:
        table = torch.tensor([blocks], dtype=torch.int32)
        keys = Keys([20], [], torch.device("cpu"), table, 16)
        return cpu.forward([query], [key], key, indices, 1.0, 1, where, keys, causal=True)

    run(1, 0)
    for blocks in ((0, 2), (-1, 0)):
        with pytest.raises(ArgumentError, match="one of the cache's 32 rows"):
            run(*blocks)
