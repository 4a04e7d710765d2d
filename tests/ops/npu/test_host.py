"""The host side of the AscendC kernels, compiled against torch_npu's headers and called.

Its launches are kept instead of run, and must equal those of backend ``emulated``, whose kernels
the emulator has checked: kernel, blocks, sizes, and the bytes at every address.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glm5_ascend import ops
from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops import dispatch
from glm5_ascend.ops.ascendc import library
from glm5_ascend.ops.emulator.abi import Role
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.lightning_indexer import emulated as indexer
from glm5_ascend.ops.mlapo import emulated as mlapo_emulated
from glm5_ascend.ops.mlapo import mlapo
from glm5_ascend.ops.sparse_flash_attention import emulated as attention
from tests.ops.mlapo_cases import Case, Shape
from tests.ops.npu import host
from tests.ops.npu.vendor import FakeVendor, forget

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CORES = 24
TND = {"layout_query": "TND", "actual_seq_lengths_query": torch.tensor([1, 3])}
TABLE = torch.tensor([[2, 0, 1], [3, 1, 9]], dtype=torch.int32)
LENGTHS = torch.tensor([40, 20])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("host")
    try:
        host.objects()
    except host.Unobtainable as reason:
        pytest.skip(str(reason))
    return made


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return host.linked(folder, list(host.objects().values()), "recorded.so", [])


@pytest.fixture
def native(
    path: Path, vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ctypes.CDLL]:
    """The library behind backend ``ascendc``, for CPU tensors."""
    monkeypatch.setenv(library.VARIABLE, str(path))
    monkeypatch.setattr(library, "digest", lambda: host.SOURCES)
    row = dispatch._BACKENDS["ascendc"]
    monkeypatch.setitem(dispatch._BACKENDS, "ascendc", row._replace(device="cpu"))
    forget()
    handle = ctypes.CDLL(str(path))
    handle.test_device(b"Ascend910_9392", ctypes.c_int64(CORES))
    handle.test_last.restype = ctypes.POINTER(host.Launch)
    yield handle
    library.load.cache_clear()


def test_symbols_are_those_of_torch_npu(folder: Path) -> None:
    """Against the real libtorch_npu.so; what that one needs of CANN stays open."""
    parts = [o for name, o in host.objects().items() if name != "torch_npu_stub"]
    flags = [f"-L{host.vendor_files() / 'lib'}", "-ltorch_npu", "-Wl,--allow-shlib-undefined"]
    made = host.linked(folder, parts, "linked.so", flags)
    assert "libtorch_npu.so" in host.needed(made)
    with pytest.raises(AssertionError, match="c10_npu::getCurrentNPUStream"):
        host.linked(folder, parts, "without.so", [])


class Taken(Exception):
    """Instead of a run on the emulator."""


def emulated(
    monkeypatch: pytest.MonkeyPatch, module: Any, native: ctypes.CDLL, call: Any
) -> tuple[str, int, list[Any]]:
    """(kernel, blocks, arguments) of the launch on the emulator."""
    seen: list[Any] = []

    def launch(_: Any, name: str, arguments: list[Any], *, blocks: int, options: Any) -> None:
        seen.extend((name, blocks, arguments))
        raise Taken

    compiled = SimpleNamespace(handle=native)
    with monkeypatch.context() as patch:
        patch.setattr(module, "launch", launch)
        for name in ("library", "built", "_library"):
            if hasattr(module, name):
                patch.setattr(module, name, lambda *_, **__: compiled)
        if module is indexer:
            # On an NPU the host does not know the lengths.
            patch.setattr(indexer, "_blocks", lambda *_: CORES)
        if module is attention:
            how = attention.How(cores=CORES, least=attention.LEAST)
            patch.setattr(attention, "_usual", lambda: how)
        with suppress(Taken):
            call("emulated")
    name, blocks, arguments = seen
    return name, blocks, arguments


def compare(monkeypatch: pytest.MonkeyPatch, module: Any, native: ctypes.CDLL, call: Any) -> None:
    """The launch of backend ``ascendc`` is that of backend ``emulated``."""
    name, blocks, arguments = emulated(monkeypatch, module, native, call)
    call("ascendc")
    last: host.Launch = native.test_last().contents
    assert last.name.decode() == name
    assert last.blocks == blocks
    assert last.stream == 0x57
    *buffers, tiling = arguments
    assert last.count == len(buffers)
    for at, buffer in enumerate(buffers):
        if last.addresses[at] is None:
            # What the kernel does not look at: a stand-in for the emulator, nothing on an NPU.
            assert buffer.role != Role.WORKSPACE, buffer.name
            assert buffer.data.numel() == 0 or (
                buffer.role != Role.OUTPUT and not buffer.data.any() and buffer.bytes <= 64
            ), buffer.name
        elif buffer.role in (Role.INPUT, Role.INOUT):
            wanted = buffer.data.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            assert ctypes.string_at(last.addresses[at], len(wanted)) == wanted, buffer.name
    size = ctypes.sizeof(tiling)
    found = type(tiling).from_buffer_copy(last.tiling)
    different = {
        name: (getattr(found, name), getattr(tiling, name))
        for name, _ in tiling._fields_
        if getattr(found, name) != getattr(tiling, name)
    }
    assert different == {}
    assert not any(bytes(last.tiling)[size:])


def test_indexer_over_pages(native: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = torch.randn(3, 32, 128).bfloat16(), torch.randn(4, 16, 1, 128).bfloat16()
    w = torch.rand(3, 32)

    def call(backend: str) -> None:
        ops.lightning_indexer(
            q, k, w, **TND, actual_seq_lengths_key=LENGTHS, block_table=TABLE,
            layout_key="PA_BSND", backend=backend,
        )  # fmt: skip

    compare(monkeypatch, indexer, native, call)


def test_indexer_int8_with_batch_axes(native: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = (torch.randint(-9, 9, s).to(torch.int8) for s in ((2, 3, 16, 128), (2, 50, 1, 128)))
    w, qs = torch.rand(2, 3, 16).bfloat16(), torch.rand(2, 3, 16)
    ks = torch.rand(2, 50, 1).half()

    def call(backend: str) -> None:
        ops.lightning_indexer_quant(
            q, k, w, qs, ks, actual_seq_lengths_key=torch.tensor([50, 7]), sparse_mode=0,
            sparse_count=60, sorted=True, backend=backend,
        )  # fmt: skip

    compare(monkeypatch, indexer, native, call)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_over_pages(
    dtype: torch.dtype, native: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, qr = torch.randn(3, 65, 512).to(dtype), torch.randn(3, 65, 64).to(dtype)
    k, kr = torch.randn(4, 16, 1, 512).to(dtype), torch.randn(4, 16, 1, 64).to(dtype)
    chosen = torch.arange(3).repeat(3, 1, 50).int()

    def call(backend: str) -> None:
        ops.sparse_flash_attention(
            q, k, k, chosen, 0.25, query_rope=qr, key_rope=kr, **TND, block_table=TABLE,
            actual_seq_lengths_kv=LENGTHS, layout_kv="PA_BSND", attention_mode=2,
            backend=backend,
        )  # fmt: skip

    compare(monkeypatch, attention, native, call)


def test_attention_without_rotated_part(
    native: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = torch.randn(1, 2, 8, 512).bfloat16(), torch.randn(1, 90, 1, 512).bfloat16()
    chosen = torch.zeros(1, 2, 1, 16, dtype=torch.int32)

    def call(backend: str) -> None:
        ops.sparse_flash_attention(
            q, k, k, chosen, 0.5, sparse_block_size=8, sparse_mode=0, attention_mode=2,
            backend=backend,
        )  # fmt: skip

    compare(monkeypatch, attention, native, call)


def test_attention_over_packed_rows(native: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(3, 64, 576).bfloat16()
    rows = torch.randint(-9, 9, (4, 16, 1, 656)).to(torch.int8)
    chosen = torch.arange(3).repeat(3, 1, 100).int()

    def call(backend: str) -> None:
        ops.kv_quant_sparse_flash_attention(
            q, rows, rows, chosen, 0.5, 2, 2, **TND, actual_seq_lengths_kv=LENGTHS,
            block_table=TABLE, layout_kv="PA_BSND", attention_mode=2, backend=backend,
        )  # fmt: skip

    compare(monkeypatch, attention, native, call)


def test_attention_s_tiles_are_the_emulator_s() -> None:
    text = (host.OPS / "ascendc/sparse_flash_attention.h").read_text()
    sizes = (host.OPS / "sparse_flash_attention/ascendc/tiling.h").read_text()
    kinds = [*attention.KERNELS.values(), attention.PACKED_KERNEL]
    (tile,) = {kind.tile for kind in kinds if kind.latent == 512}
    assert re.findall(r"\bPRODUCTION_TILE = (\d+)", sizes) == [str(tile)]
    assert re.findall(r"\bTILE = (\w+), LATENT = (\d+)", text) == [("PRODUCTION_TILE", "512")]
    assert re.findall(r"\bLEAST = (\d+)", text) == [str(attention.LEAST)]


WIDE = Shape("wide", 1024, 256, 4, 192, 64, 512)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", ["float", "up", "dynamic", "static"])
def test_mlapo(
    scheme: str, dtype: torch.dtype, native: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Case(WIDE, 5, scheme, dtype).fresh()
    for name in ("kv_cache", "kr_cache"):
        given[name].zero_()

    def call(backend: str) -> None:
        mlapo(**given, query_norm_quantised=scheme != "up", backend=backend)

    compare(monkeypatch, mlapo_emulated, native, call)


def test_mlapo_with_packed_rows_and_int8_queries(
    native: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Case(WIDE, 5, "dynamic", torch.bfloat16).fresh()
    given |= {
        "kv_cache": torch.zeros(*given["kv_cache"].shape[:3], 656, dtype=torch.int8),
        "kr_cache": torch.empty(0),
        "kv_cache_quant_mode": 3,
        "ckvkr_repo_mode": 1,
        "quant_scale_repo_mode": 1,
        "query_quant_mode": 1,
    }

    def call(backend: str) -> None:
        mlapo(**given, backend=backend)

    compare(monkeypatch, mlapo_emulated, native, call)


def test_results_have_the_contract_s_shapes(native: ctypes.CDLL) -> None:
    given = Case(WIDE, 5, "dynamic", torch.bfloat16).fresh()
    found = mlapo(**given, backend="ascendc")
    wanted = mlapo(**given, backend="reference")
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in wanted]


def test_sizes_that_the_tiles_do_not_take_are_declined(native: ctypes.CDLL) -> None:
    given = Case(Shape("long", 7696, 32, 1, 16, 16, 16), 2, "float", torch.bfloat16).fresh()
    with pytest.raises(Declined, match="does not take its hidden size"):
        mlapo(**given, backend="ascendc")


@pytest.mark.parametrize("name", [b"Ascend950PR_957b", b"Ascend310P3", b""])
def test_other_chips_are_refused(name: bytes, native: ctypes.CDLL) -> None:
    native.test_device(name, ctypes.c_int64(CORES))
    q, k = torch.randn(1, 2, 16, 128).half(), torch.randn(1, 9, 1, 128).half()
    with pytest.raises(RuntimeError, match=r"Atlas A2 and A3.*not for"):
        ops.lightning_indexer(q, k, torch.rand(1, 2, 16), sparse_count=3, backend="ascendc")


def test_a_library_of_other_sources_is_refused(
    native: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "digest", lambda: "0123456789abcdef")
    library.load.cache_clear()
    with pytest.raises(BackendUnavailable, match="built from other sources") as caught:
        library.load()
    assert "ops build" in caught.value.hint
