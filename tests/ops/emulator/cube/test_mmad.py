"""Mmad in every type against NumPy in float64 and int64, GEMV, bias, accumulation, edges."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.emulator.cube.calls import NOTHING, At, finding, result
from tests.ops.emulator.cube.models import (
    from_l0c,
    pack_int4,
    pad_to,
    plain,
    random_values,
    to_l0c,
    zn,
    zz,
)

C0 = {"int4": 64, "int8": 32, "half": 16, "bf16": 16, "float": 8}
RESULT = {"int4": "int32", "int8": "int32"}
SIZES = [
    (16, 16, 16),
    (32, 48, 64),
    (5, 20, 24),
    (1, 16, 64),
    (1, 37, 50),
    (128, 16, 33),
    (17, 128, 7),
]


def _operands(
    rng: np.random.Generator, dtype: str, m: int, n: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    if dtype == "int4":
        return rng.integers(-8, 8, (m, k), dtype=np.int8), rng.integers(
            -8, 8, (k, n), dtype=np.int8
        )
    return random_values(rng, dtype, (m, k)), random_values(rng, dtype, (k, n))


def _images(
    a: np.ndarray, b: np.ndarray, dtype: str, *, align_k: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """L0A and L0B; what pads the operands is large, so that reading it shows."""
    c0 = C0[dtype]
    garbage = 7 if dtype == "int4" else np.array(77, a.dtype)
    across = 16 if align_k else c0

    def full(matrix: np.ndarray, rows: int, columns: int) -> np.ndarray:
        mask = pad_to(np.ones(matrix.shape, bool), rows, columns)
        return np.where(mask, pad_to(matrix, rows, columns), garbage).astype(matrix.dtype)

    # GEMV takes plain elements.
    left = full(a, 1, 64) if a.shape[0] == 1 else zz(full(a, 16, across), c0)
    right = zn(full(b, across, 16), c0)
    if dtype == "int4":
        return pack_int4(left), pack_int4(right)
    return left, right


def _product(a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    exact = a.astype(np.int64) if dtype == "int4" else plain(a, dtype)
    return exact @ (b.astype(np.int64) if dtype == "int4" else plain(b, dtype))


def _limit(a: np.ndarray, b: np.ndarray, dtype: str, start: np.ndarray) -> np.ndarray:
    """A sum of k + 1 floats with a rounding at each step, and the product's own for float."""
    terms = a.shape[1] + 2
    return terms * 2.0**-24 * (np.abs(plain(a, dtype)) @ np.abs(plain(b, dtype)) + np.abs(start))


def _check(got: np.ndarray, want: np.ndarray, limit: np.ndarray | None) -> None:
    if limit is None:
        assert np.array_equal(got, want.astype(np.int32))
    else:
        assert (np.abs(got.astype(np.float64) - want) <= limit).all()


@pytest.mark.parametrize("dtype", C0)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("start", ["zero", "accumulate", "bias"])
def test_products(dtype: str, m: int, n: int, k: int, start: str) -> None:
    rng = np.random.default_rng(m * 1000 + n * 10 + k)
    a, b = _operands(rng, dtype, m, n, k)
    left, right = _images(a, b, dtype)
    whole = dtype in RESULT
    kind = RESULT.get(dtype, "float")
    old = random_values(rng, kind, (m, n))
    bias = random_values(rng, kind, (n,))
    first = {"zero": 0 * old, "accumulate": old, "bias": np.broadcast_to(bias, (m, n))}[start]
    image = np.zeros(131072, np.uint8)
    c = to_l0c(old, -(-m // 16) * 16)
    image[: c.nbytes] = c.view(np.uint8).ravel()
    got = result(
        "mmad_bias" if start == "bias" else "mmad", At("L0C", image), At("L0A", left),
        [m, n, k, 0, start == "bias", start == "zero"], dtype=kind, other=dtype,
        second=At("L0B", right), third=At("BT", bias) if start == "bias" else NOTHING,
    )  # fmt: skip
    values = from_l0c(got.view(np.int32 if whole else np.float32), m, n)
    want = _product(a, b, dtype) + first.astype(np.int64 if whole else np.float64)
    if whole:  # sums wrap
        want = want.astype(np.int64).astype(np.uint32).view(np.int32).reshape(m, n)
    _check(values, want, None if whole else _limit(a, b, dtype, first))
    assert not got[c.nbytes :].any()


@pytest.mark.parametrize("m", [1, 5])
def test_undefined_rest_is_poisoned(m: int) -> None:
    a = np.ones((m, 16), np.float16)
    left, right = _images(a, np.ones((16, 20), np.float16), "half")
    got = result(
        "mmad", At("L0C", np.zeros(131072, np.uint8)), At("L0A", left), [m, 20, 16, 0, 0, 1],
        dtype="float", other="half", second=At("L0B", right),
    )  # fmt: skip
    matrix = from_l0c(got.view(np.float32), 16, 32)
    assert (matrix[:m, :20] == 16).all()
    assert np.isnan(matrix[m:]).all()
    assert np.isnan(matrix[:, 20:]).all()


def test_sums_are_in_the_order_of_k() -> None:
    a = np.full((16, 32), 1, np.float16)
    b = np.zeros((32, 16), np.float16)
    b[0], b[1], b[2:] = 32768, -32768, 2.0**-10
    a[:, 0] = a[:, 1] = 32768
    left, right = _images(a, b, "half")
    got = result(
        "mmad", At("L0C", np.zeros(131072, np.uint8)), At("L0A", left), [16, 16, 32, 0, 0, 1],
        dtype="float", other="half", second=At("L0B", right),
    )  # fmt: skip
    assert (from_l0c(got.view(np.float32), 16, 16) == 30 * 2.0**-10).all()


def test_subnormal_and_infinite_halves() -> None:
    a = np.zeros((16, 16), np.float16)
    a[0, 0], a[1, 0], a[2, 0], a[3, 0] = 2.0**-24, np.inf, -np.inf, np.nan
    b = np.zeros((16, 16), np.float16)
    b[0] = 1
    left, right = _images(a, b, "half")
    got = result(
        "mmad", At("L0C", np.zeros(131072, np.uint8)), At("L0A", left), [16, 16, 16, 0, 0, 1],
        dtype="float", other="half", second=At("L0B", right),
    )  # fmt: skip
    matrix = from_l0c(got.view(np.float32), 4, 1).ravel()
    assert np.array_equal(matrix, [2.0**-24, np.inf, -np.inf, np.nan], equal_nan=True)


@pytest.mark.parametrize("align_k", [False, True])
def test_float_rows_of_fractals(align_k: bool) -> None:
    rng = np.random.default_rng(5)
    a, b = _operands(rng, "float", 32, 16, 36)
    left, right = _images(a, b, "float", align_k=align_k)
    got = result(
        "mmad", At("L0C", np.zeros(131072, np.uint8)), At("L0A", left),
        [32, 16, 36, 0, 0, 1, align_k], dtype="float", other="float", second=At("L0B", right),
    )  # fmt: skip
    values = from_l0c(got.view(np.float32), 32, 16)
    _check(values, _product(a, b, "float"), _limit(a, b, "float", np.zeros((32, 16))))


@pytest.mark.parametrize("sizes", [[0, 16, 16], [16, 0, 16], [16, 16, 0]])
def test_nothing_to_do(sizes: list[int]) -> None:
    old = np.arange(1024, dtype=np.uint8)
    got = result(
        "mmad", At("L0C", old), At("L0A", old), [*sizes, 0, 0, 1], dtype="float", other="half",
        second=At("L0B", old),
    )  # fmt: skip
    assert np.array_equal(got, old)


ROOM = np.zeros(65536, np.uint8)
WRONG = {
    "m": ("PARAM", [4096, 16, 16, 0, 0, 1], {}),
    "n": ("PARAM", [16, 4096, 16, 0, 0, 1], {}),
    "k": ("PARAM", [16, 16, 4096, 0, 0, 1], {}),
    "unitFlag": ("PARAM", [16, 16, 16, 1, 0, 1], {}),
    "source without bias": ("PARAM", [16, 16, 16, 0, 1, 0], {}),
    "types": ("DTYPE", [16, 16, 16, 0, 0, 1], {"dtype": "float", "other": "int8"}),
    "L0A too small": ("OOB", [512, 16, 128, 0, 0, 1], {}),
    "L0B too small": ("OOB", [16, 512, 128, 0, 0, 1], {}),
    "L0C too small": ("OOB", [512, 512, 16, 0, 0, 1], {}),
    "A elsewhere": ("UNSUPPORTED", [16, 16, 16, 0, 0, 1], {"src": At("L1", ROOM)}),
    "A not aligned": ("ALIGN", [16, 16, 16, 0, 0, 1], {"src": At("L0A", ROOM, 256)}),
    "B not aligned": ("ALIGN", [16, 16, 16, 0, 0, 1], {"second": At("L0B", ROOM, 32)}),
    "C not aligned": ("ALIGN", [16, 16, 16, 0, 0, 1], {"dst": At("L0C", ROOM, 512)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters(name: str) -> None:
    kind, params, changes = WRONG[name]
    call = {"dst": At("L0C", ROOM), "src": At("L0A", ROOM), "second": At("L0B", ROOM)}
    call |= {"dtype": "float", "other": "half"} | changes
    assert finding("mmad", params=params, **call) == kind


def test_wrong_bias() -> None:
    call = {"dtype": "float", "other": "half", "second": At("L0B", ROOM)}
    ends = (At("L0C", ROOM), At("L0A", ROOM))
    table = At("BT", ROOM[:1024])
    assert finding("mmad_bias", *ends, [16, 16, 16, 0, 0, 1], third=table, **call) == "PARAM"
    assert finding("mmad_bias", *ends, [16, 272, 16, 0, 1, 0], third=table, **call) == "OOB"
    assert (
        finding("mmad_bias", *ends, [16, 16, 16, 0, 1, 0], third=At("BT", ROOM[:1024], 32), **call)
        == "ALIGN"
    )
    assert (
        finding("mmad_bias", *ends, [16, 16, 16, 0, 1, 0], third=At("L1", ROOM), **call)
        == "UNSUPPORTED"
    )
