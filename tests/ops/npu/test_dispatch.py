"""Which backend runs on an NPU: by name without falling back, by arguments for ``auto``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glm5_ascend import ops
from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops import dispatch
from glm5_ascend.ops.ascendc import vendor as package
from glm5_ascend.ops.errors import ArgumentError, Declined
from tests.ops.npu.vendor import FakeVendor, forget

STOCK = [
    "kv_quant_sparse_flash_attention",
    "lightning_indexer",
    "lightning_indexer_quant",
    "mlapo",
    "sparse_flash_attention",
]


def on(device: str) -> Any:
    """As much of a tensor as the choice looks at."""
    return SimpleNamespace(
        device=SimpleNamespace(type=device), dtype=torch.bfloat16, is_cpu=device == "cpu"
    )


@pytest.fixture
def npu(vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch) -> FakeVendor:
    """CPU tensors are treated as an NPU's."""
    monkeypatch.setattr(dispatch, "_PREFERRED", {"cpu": ("torch_npu",)})
    monkeypatch.setitem(dispatch._DEVICE_DEFAULT, "cpu", "reference")
    return vendor


def index(dtype: torch.dtype = torch.bfloat16, **options: Any) -> torch.Tensor:
    q, k = torch.randn(1, 2, 4, 128).to(dtype), torch.randn(1, 9, 1, 128).to(dtype)
    indices, _ = ops.lightning_indexer(q, k, torch.rand(1, 2, 4), sparse_count=3, **options)
    return indices


def test_auto_takes_the_vendors_operator_where_it_takes_the_arguments(npu: FakeVendor) -> None:
    index()
    assert [name for name, _ in npu.calls] == ["npu_lightning_indexer"]


def test_auto_takes_the_reference_for_everything_else(npu: FakeVendor) -> None:
    index(torch.float32)
    index(return_value=True)
    ops.rms_norm(torch.randn(3, 8), torch.ones(8), 1e-5)
    assert npu.calls == []


def test_maxima_and_sums_of_the_softmax_come_from_the_reference(npu: FakeVendor) -> None:
    q, k = (torch.randn(1, n, h, 512).bfloat16() for n, h in ((2, 4), (9, 1)))
    rope = [torch.randn(1, n, h, 64).bfloat16() for n, h in ((2, 4), (9, 1))]
    chosen = torch.tensor([[0, 1], [3, 2]], dtype=torch.int32).view(1, 2, 1, 2)
    call = {"query_rope": rope[0], "key_rope": rope[1], "attention_mode": 2}
    out, _, _ = ops.sparse_flash_attention(q, k, k, chosen, 0.1, **call)
    assert len(npu.calls) == 1
    same, peak, total = ops.sparse_flash_attention(
        q, k, k, chosen, 0.1, **call, return_softmax_lse=True
    )
    assert len(npu.calls) == 1
    assert peak.shape == total.shape == (1, 1, 2, 4)
    assert torch.allclose(out.float(), same.float(), rtol=0.02, atol=0.02)


def test_a_name_never_falls_back(npu: FakeVendor, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Declined, match="npu_lightning_indexer takes query and key in"):
        index(torch.float32, backend="torch_npu")
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "torch_npu")
    with pytest.raises(Declined, match="npu_lightning_indexer takes query and key in"):
        index(torch.float32)
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "reference")
    index()
    assert npu.calls == []


def test_auto_on_an_npu_asks_the_vendor_first(vendor: FakeVendor) -> None:
    tensor = on("npu")
    choice = dispatch.load("lightning_indexer", "auto", tensor)
    assert [m.__name__.rpartition(".")[2] for m in choice._modules] == ["torch_npu_op", "reference"]
    plain = dispatch.load("norm_rope", "auto", tensor)
    assert plain.__name__.endswith("norm_rope.reference")


def test_auto_without_the_vendors_package_is_the_reference() -> None:
    found = dispatch.load("lightning_indexer", "auto", on("npu"))
    assert found.__name__.endswith("lightning_indexer.reference")


@pytest.mark.parametrize("name", ["ascendc", "torch_npu"])
def test_npu_backends_take_npu_tensors(
    name: str, vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = dispatch._BACKENDS[name]
    monkeypatch.setitem(dispatch._BACKENDS, name, backend._replace(device="npu", probe=None))
    forget()
    with pytest.raises(ArgumentError, match=f"'{name}' takes NPU tensors, not one on cpu"):
        index(backend=name)


def test_the_table_tells_what_is_missing(vendor: FakeVendor) -> None:
    rows = {(r.operator, r.backend): r for r in ops.availability()}
    assert [name for name in sorted(dispatch.OPERATORS) if not rows[name, "torch_npu"].reason] == (
        STOCK
    )
    assert "does not implement it" in rows["moe", "torch_npu"].reason
    assert "are not built" in rows["mlapo", "ascendc"].reason
    assert "glm5-ascend ops build" in rows["mlapo", "ascendc"].hint
    assert "does not implement it" in rows["norm_rope", "ascendc"].reason


def test_a_package_without_cann_is_named_with_its_remedy(
    vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise ImportError("libhccl.so: cannot open shared object file\nsecond line")

    monkeypatch.setattr(package, "import_module", broken)
    package._import.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"imported: libhccl.so: [^\n]*$") as caught:
        index(backend="torch_npu")
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in caught.value.hint
