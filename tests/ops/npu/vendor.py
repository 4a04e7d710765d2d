"""A stand-in for torch_npu on the CPU: its operators' schemas, checked arguments, recorded calls.

The schemas are those of torch_npu 2.13.0. What a fake operator returns comes from the formulas of
the conformance suite's reference in F32, in the vendor's conventions: positions by descending
score, -1 behind; a row of indices ends at its first -1; rows of key by layout.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops import dispatch
from glm5_ascend.ops.ascendc import vendor
from glm5_ascend.ops.verify import device

_WHERE = (
    "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_{key}=None, "
    "Tensor? block_table=None"
)
_WINDOW = "int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807"
_INDEXER = (
    f"*, {_WHERE.format(key='key')}, str layout_query='BSND', str layout_key='BSND', "
    f"int sparse_count=2048, int sparse_mode=3, {_WINDOW}"
)
_ATTENTION = (
    "int sparse_block_size=1, str layout_query='BSND', str layout_kv='BSND', int sparse_mode=3, "
    f"{_WINDOW}, int attention_mode=0"
)
SCHEMAS = (
    f"npu_lightning_indexer(Tensor query, Tensor key, Tensor weights, {_INDEXER}, "
    "bool return_value=False) -> (Tensor, Tensor)",
    "npu_quant_lightning_indexer(Tensor query, Tensor key, Tensor weights, Tensor "
    "query_dequant_scale, Tensor key_dequant_scale, int query_quant_mode, int key_quant_mode, "
    f"{_INDEXER}, int? query_dtype=None, int? key_dtype=None) -> Tensor",
    "npu_sparse_flash_attention(Tensor query, Tensor key, Tensor? value, Tensor sparse_indices, "
    "float scale_value, *, Tensor? block_table=None, Tensor? actual_seq_lengths_query=None, "
    "Tensor? actual_seq_lengths_kv=None, Tensor? query_rope=None, Tensor? key_rope=None, "
    f"{_ATTENTION}, bool return_softmax_lse=False, Tensor? sinks=None) "
    "-> (Tensor, Tensor, Tensor)",
    "npu_kv_quant_sparse_flash_attention(Tensor query, Tensor key, Tensor value, Tensor "
    "sparse_indices, float scale_value, int key_quant_mode, int value_quant_mode, *, "
    "Tensor? key_dequant_scale=None, Tensor? value_dequant_scale=None, "
    "Tensor? block_table=None, Tensor? actual_seq_lengths_query=None, "
    f"Tensor? actual_seq_lengths_kv=None, {_ATTENTION}, int quant_scale_repo_mode=1, "
    "int tile_size=128, int rope_head_dim=64, int? key_dtype=None, int? value_dtype=None) "
    "-> Tensor",
    "npu_mla_prolog_v3(Tensor token_x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk, "
    "Tensor weight_dkv_kr, Tensor rmsnorm_gamma_cq, Tensor rmsnorm_gamma_ckv, Tensor rope_sin, "
    "Tensor rope_cos, Tensor(a!) kv_cache, Tensor(b!) kr_cache, *, Tensor? cache_index=None, "
    "Tensor? dequant_scale_x=None, Tensor? dequant_scale_w_dq=None, "
    "Tensor? dequant_scale_w_uq_qr=None, Tensor? dequant_scale_w_dkv_kr=None, "
    "Tensor? quant_scale_ckv=None, Tensor? quant_scale_ckr=None, Tensor? smooth_scales_cq=None, "
    "Tensor? actual_seq_len=None, Tensor? k_nope_clip_alpha=None, "
    "float rmsnorm_epsilon_cq=1e-05, float rmsnorm_epsilon_ckv=1e-05, "
    "str cache_mode='PA_BSND', bool query_norm_flag=False, int weight_quant_mode=0, "
    "int kv_cache_quant_mode=0, int query_quant_mode=0, int ckvkr_repo_mode=0, "
    "int quant_scale_repo_mode=0, int tile_size=128, float qc_qr_scale=1.0, float kc_scale=1.0, "
    "int? token_x_dtype=None, int? weight_dq_dtype=None, int? weight_uq_qr_dtype=None, "
    "int? weight_dkv_kr_dtype=None, int? kv_cache_dtype=None) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "npu_format_cast(Tensor self, int acl_format) -> Tensor",
)
NAMES = [schema.partition("(")[0] for schema in SCHEMAS]
# What lies in an NZ weight here: an ordinary tensor, told apart by its address.
FRACTAL_NZ = 29


class FakeVendor:
    """``calls`` holds (operator, {argument: value}) in order, with defaults."""

    def __init__(self, name: str) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.device_name = name
        self.cast: set[int] = set()

    def record(self, schema: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Check one call, keep it and compute it."""
        name = schema.partition("(")[0]
        known = torch._C.parse_schema(f"npu::{schema}").arguments
        # The dispatcher leaves out what equals its default.
        bound = {each.name: each.default_value for each in known if each.has_default_value()}
        bound |= dict(zip([each.name for each in known], arguments, strict=False)) | options
        for each, value in bound.items():
            if isinstance(value, Tensor):
                assert value.is_contiguous(), f"{each} of {name} has gaps"
        self.calls.append((name, bound))
        from tests.ops.npu import formulas

        return getattr(formulas, name)(self, **bound)

    @property
    def only(self) -> dict[str, Any]:
        """Arguments of the only call since the last look."""
        ((_, arguments),) = self.calls
        self.calls.clear()
        return arguments


@contextmanager
def installed(name: str = "Ascend910_9392") -> Iterator[FakeVendor]:
    """torch_npu as far as the backends see it, for CPU tensors; ``name`` of the device."""
    fake = FakeVendor(name)
    library = torch.library.Library("npu", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)

        def kernel(*arguments: Any, _schema: str = schema, **options: Any) -> Any:
            return fake.record(_schema, arguments, options)

        library.impl(schema.partition("(")[0], kernel, "CPU")
    module = ModuleType("torch_npu")
    module.__spec__ = ModuleSpec("torch_npu", None)
    module.npu = SimpleNamespace(get_device_name=lambda: fake.device_name)
    backend = dispatch._BACKENDS["torch_npu"]
    sys.modules["torch_npu"] = module
    dispatch._BACKENDS["torch_npu"] = backend._replace(device="cpu")
    home = device.HOMES["torch_npu"]
    device.HOMES["torch_npu"] = "cpu"
    forget()
    try:
        yield fake
    finally:
        del sys.modules["torch_npu"]
        dispatch._BACKENDS["torch_npu"] = backend
        device.HOMES["torch_npu"] = home
        forget()
        library._destroy()


def forget() -> None:
    """Drop what was found out about the machine."""
    vendor._import.cache_clear()
    dispatch._look_up.cache_clear()
