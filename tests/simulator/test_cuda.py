"""The plugin on NVIDIA GPUs, as far as a machine without one can tell."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glm5_ascend import simulator
from glm5_ascend.errors import BackendUnavailable, CheckpointError, ConfigError
from glm5_ascend.ops import linear_w8a8_dynamic, linear_w8a8_static, matmul, moe_experts
from glm5_ascend.ops.moe.packing import pack_int4
from glm5_ascend.quant.command import QuantizeOptions, run
from tests.simulator.conftest import tokens
from tests.simulator.engine import _ENVIRONMENT
from tests.support.tiny_model import tiny_config

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("vllm")]  # takes some seconds
CUDA = "glm5_ascend.simulator.platform_cuda.Glm5CudaPlatform"


def machine(
    monkeypatch: pytest.MonkeyPatch, *, cpu_build: bool = False, device: bool = True,
    triton: bool = True, ascend: bool = False,
) -> None:  # fmt: skip
    """A CUDA machine with the plugin switched on, or one that lacks something."""
    monkeypatch.setenv("GLM5_ASCEND_PLUGIN", "cuda")
    installed = {"triton": triton, "vllm_ascend": ascend}
    monkeypatch.setattr(simulator, "_is_cpu_build", lambda: cpu_build)
    monkeypatch.setattr(simulator, "find_spec", lambda name: installed[name] or None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device)


def test_the_cuda_platform_is_named_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert simulator.platform_plugin() == CUDA
    assert simulator.active()
    for value in ("1", "0"):
        monkeypatch.setenv("GLM5_ASCEND_PLUGIN", value)
        assert simulator.platform_plugin() is None


@pytest.mark.parametrize(
    ("lacks", "message", "hint"),
    [
        ({"cpu_build": True}, "this is a CPU build of vLLM", "install vLLM for CUDA"),
        ({"ascend": True}, "vllm-ascend is installed", "environment without it"),
        ({"triton": False}, "triton is not installed", r"glm5-ascend\[nvidia\]"),
        ({"device": False}, "torch finds no CUDA device", "nvidia-smi"),
    ],
)
def test_what_is_missing_is_said_and_not_replaced(
    lacks: dict[str, bool], message: str, hint: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    machine(monkeypatch, **lacks)
    assert simulator.platform_plugin() is None
    with pytest.raises(BackendUnavailable, match=message) as caught:
        simulator.register()
    assert hint.replace("\\", "") in caught.value.hint
    error, told = capsys.readouterr().err.splitlines()
    assert error == f"error: {caught.value.message}"
    assert told == f"hint: {caught.value.hint}"


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The platform module over a stand-in for vLLM's, whose import needs a CUDA build."""
    from vllm.platforms.interface import Platform

    class CudaPlatform(Platform):  # type: ignore[misc]
        seen: list[Any] = []  # noqa: RUF012

        @classmethod
        def check_and_update_config(cls, config: Any) -> None:
            cls.seen.append(config)

        @classmethod
        def get_attn_backend_cls(cls, *arguments: Any, **options: Any) -> str:
            return "stock"

    stock = ModuleType("vllm.platforms.cuda")
    stock.CudaPlatform = CudaPlatform  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.platforms.cuda", stock)
    monkeypatch.delitem(sys.modules, "glm5_ascend.simulator.platform_cuda", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield importlib.import_module("glm5_ascend.simulator.platform_cuda")
    sys.modules.pop("glm5_ascend.simulator.platform_cuda", None)


def settings(folder: Path, **changes: Any) -> Any:
    """A configuration of vLLM for the checkpoint in ``folder``."""
    (folder / "config.json").write_text(json.dumps(tiny_config()))
    (folder / "quant_model_description.json").write_text("{}")
    values = {"dtype": torch.bfloat16, "cache_dtype": "auto", "model_type": "glm_moe_dsa"} | changes
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(folder), quantization=None, dtype=values["dtype"],
            hf_text_config=SimpleNamespace(model_type=values["model_type"]),
            hf_config=SimpleNamespace(architectures=["GlmMoeDsaForCausalLM"]),
        ),
        cache_config=SimpleNamespace(
            cache_dtype=values["cache_dtype"], block_size=64, user_specified_block_size=False
        ),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1, enable_eplb=False),
        compilation_config=SimpleNamespace(mode=3, cudagraph_mode=2),
        speculative_config=None,
        quant_config="read already",
    )  # fmt: skip


def test_the_cuda_platform_adopts_the_model(platform: Any, tmp_path: Path) -> None:
    from vllm.config import CompilationMode, CUDAGraphMode

    config = settings(tmp_path)
    platform.Glm5CudaPlatform.check_and_update_config(config)
    assert platform.CudaPlatform.seen == [config]
    assert config.model_config.quantization == "ascend"
    assert config.model_config.hf_config.architectures[0] == "Glm5AscendForCausalLM"
    assert config.compilation_config.mode == CompilationMode.NONE
    assert config.compilation_config.cudagraph_mode == CUDAGraphMode.NONE
    assert config.cache_config.block_size == 128


def test_the_cuda_platform_leaves_other_models_alone(platform: Any, tmp_path: Path) -> None:
    config = settings(tmp_path, model_type="qwen3")
    platform.Glm5CudaPlatform.check_and_update_config(config)
    assert config.compilation_config.mode == 3
    assert config.model_config.hf_config.architectures == ["GlmMoeDsaForCausalLM"]
    for sparse, expected in ((True, "glm5_ascend.simulator.metadata.SparseMlaBackend"),
                             (False, "stock")):  # fmt: skip
        asked = SimpleNamespace(use_mla=True, use_sparse=sparse)
        assert platform.Glm5CudaPlatform.get_attn_backend_cls(None, asked) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"cache_dtype": "fp8"}, "--kv-cache-dtype fp8"), ({"dtype": torch.float16}, "--dtype")],
)
def test_the_cuda_platform_refuses(
    changes: dict[str, Any], message: str, platform: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        platform.Glm5CudaPlatform.check_and_update_config(settings(tmp_path, **changes))


def test_triton_serves_the_sparse_operators_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from glm5_ascend.simulator import attention, indexer
    from glm5_ascend.simulator.kernels import sparse_backend

    on_gpu: Any = SimpleNamespace(device=torch.device("cuda:1"))
    monkeypatch.delenv("GLM5_ASCEND_OP_BACKEND", raising=False)
    assert sparse_backend(on_gpu) == "triton"
    assert sparse_backend(torch.empty(0)) == "auto"
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "reference")
    assert sparse_backend(on_gpu) == "auto"

    asked: list[str] = []
    for module, name in ((attention, "sparse_flash_attention"), (indexer, "lightning_indexer")):
        monkeypatch.setattr(module, "sparse_backend", lambda tensor: "triton")
        monkeypatch.setattr(
            module, name, lambda *a, **options: asked.append(options["backend"]) or (a[0],) * 3
        )
    impl = attention.SparseMlaImpl(
        2, 6, 1.0, 1, kv_lora_rank=4, topk_indices_buffer=torch.zeros(3, 2).int()
    )
    batch = SimpleNamespace(query_ends=None, key_lengths=None, block_table=None, slots=None)
    layer = SimpleNamespace(topk_indices_buffer=torch.zeros(3, 2).int())
    impl.forward_mqa((torch.zeros(3, 2, 4), torch.zeros(3, 2, 2)), torch.zeros(1, 16, 6), batch,
                     layer)  # fmt: skip
    assert asked == ["triton"]


def test_rows_go_in_tiles_on_a_cpu_only() -> None:
    from glm5_ascend.simulator.dense import in_tiles

    for device, sizes in (("cpu", [16, 16, 16]), ("meta", [40])):
        seen: list[int] = []

        def rows(x: Tensor, seen: list[int] = seen) -> Tensor:
            seen.append(len(x))
            return x

        assert in_tiles(rows, torch.zeros(40, 3, device=device)).shape == (40, 3)
        assert seen == sizes


class Library:
    """Stands in for cuBLASLt's int8 product: its limits, and exact sums."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, rows: Tensor, columns: Tensor) -> Tensor:
        assert rows.dtype == columns.dtype == torch.int8
        assert rows.shape[0] > 16
        assert not rows.shape[1] % 8
        assert not columns.shape[1] % 8
        assert rows.is_contiguous()
        assert columns.T.is_contiguous()
        self.calls.append((*rows.shape, columns.shape[1]))
        return (rows.long() @ columns.long()).int()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Products take the way that they take on a GPU."""
    made = Library()
    monkeypatch.setattr(matmul, "_on_cuda", lambda x: True)
    monkeypatch.setattr(matmul, "library_is_exact", lambda device, weight: False)
    monkeypatch.setattr(torch, "_int_mm", made)
    return made


def int8(*shape: int, seed: int = 0) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, generator=gen, dtype=torch.int8)


@pytest.mark.parametrize(("rows", "padded"), [(1, 32), (16, 32), (31, 32), (33, 33)])
def test_int8_products_are_exact_within_the_librarys_limits(
    rows: int, padded: int, library: Library
) -> None:
    x, weight = int8(rows, 2048), int8(24, 2048, seed=1)
    x[0] = weight[0] = -128
    assert torch.equal(matmul.int_matmul(x, weight), (x.long() @ weight.long().T).int())
    assert library.calls == [(padded, 2048, 24)]


@pytest.mark.parametrize("shape", [(20, 24), (24, 20)])
def test_widths_that_the_library_does_not_take_are_multiplied_otherwise(
    shape: tuple[int, int], library: Library
) -> None:
    weight = int8(*shape, seed=1)
    x = int8(3, shape[1])
    assert torch.equal(matmul.int_matmul(x, weight), (x.long() @ weight.long().T).int())
    assert library.calls == []


def test_int8_linears_over_the_library_equal_the_formula(library: Library) -> None:
    gen = torch.Generator().manual_seed(2)
    x, weight = torch.randn(5, 64, generator=gen), int8(16, 64, seed=3)
    scale = torch.rand(16, 1, generator=gen) * 1e-2
    y = linear_w8a8_dynamic(x, weight, scale, backend="reference")
    step = x.abs().amax(-1, keepdim=True) / 127
    wide = (x / step).round().double() @ weight.double().T
    assert torch.allclose(y.double(), wide * scale.double().T * step.double(), rtol=1e-6)
    bias = torch.randint(-900, 900, (16,), generator=gen, dtype=torch.int32)
    y = linear_w8a8_static(
        x, weight, torch.tensor([0.03]), torch.tensor([5]), bias, scale.flatten(),
        backend="reference",
    )  # fmt: skip
    codes = (x / 0.03 + 5).round().clamp(-128, 127).double()
    wide = (codes @ weight.double().T + bias.double()) * scale.flatten().double()
    assert torch.allclose(y.double(), wide, rtol=1e-5, atol=1e-5)
    assert library.calls == [(32, 64, 16)] * 2


def int4_layer(rank: int = 0, size: int = 1) -> tuple[Any, Any]:
    """(method, layer) of 3 int4 experts, hidden 32, inner 64, cut over ``size`` ranks."""
    from glm5_ascend.simulator.quant_moe import QuantisedExperts

    gen = torch.Generator().manual_seed(7)

    def codes(*shape: int) -> Tensor:
        return torch.randint(-8, 8, shape, generator=gen, dtype=torch.int8)

    up, down = codes(3, 128, 32), codes(3, 32, 64)
    up_scale, down_scale = (torch.rand(3, n, 1, generator=gen) * 1e-2 for n in (128, 32))
    slices = down.view(3, 32, 16, 4).sum(-1).float() * 8 * down_scale
    tensors = {
        "w13_weight": pack_int4(up), "w13_weight_scale": up_scale,
        "w13_scale_bias": 8 * up_scale * up.sum(-1, keepdim=True), "w2_weight": pack_int4(down),
        "w2_weight_scale": down_scale, "w2_scale_bias": slices,
    }  # fmt: skip
    parallel = SimpleNamespace(tp_rank=rank, tp_size=size)
    method: Any = QuantisedExperts(SimpleNamespace(moe_parallel_config=parallel), "w4a8")
    layer: Any = nn.Module()
    layer.layer_name, layer.expert_map = "experts", None
    layer._map_global_expert_id_to_local_expert_id = lambda expert: expert
    method.create_weights(layer, 3, 32, 64 // size, torch.bfloat16)
    for name, tensor in tensors.items():
        parameter = getattr(layer, name)
        for expert, whole in enumerate(tensor):
            parts = dict(zip(("w1", "w3"), whole.chunk(2), strict=True))
            for shard, part in parts.items() if name.startswith("w13") else [("w2", whole)]:
                parameter.weight_loader(parameter, part, name, shard_id=shard, expert_id=expert)
    return method, layer


@pytest.mark.parametrize("rank", [0, 1])
def test_int4_experts_become_int8_experts(rank: int, library: Library) -> None:
    method, layer = int4_layer(rank, 2)
    gen = torch.Generator().manual_seed(8)
    x, weights = torch.randn(6, 32, generator=gen), torch.rand(6, 2, generator=gen)
    ids = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2], [1, 0], [2, 1]])
    expected = moe_experts(
        x, weights, ids, layer.w13_weight, layer.w2_weight, scheme="w4a8",
        w13_scale=layer.w13_weight_scale, w2_scale=layer.w2_weight_scale,
        w13_scale_bias=layer.w13_scale_bias, w2_scale_bias=layer.w2_scale_bias,
        backend="reference",
    )  # fmt: skip
    method.process_weights_after_loading(layer)
    assert layer.w13_weight.shape == (3, 32, 32)  # a CPU keeps the pairs
    method.unpack(layer)
    assert layer.w13_weight.shape == (3, 64, 32)
    assert layer.w2_weight.shape == (3, 32, 32)
    assert "w13_scale_bias" not in dict(layer.named_parameters())
    out = method.apply(layer, x, weights, ids)
    assert torch.allclose(out, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_a_scale_bias_that_int8_products_do_not_give_is_refused() -> None:
    for name in ("w13_scale_bias", "w2_scale_bias"):
        method, layer = int4_layer()
        # What one code of one weight makes.
        scale = getattr(layer, name.replace("scale_bias", "weight_scale"))
        getattr(layer, name).data[1, 3, 0] += 8 * scale.data[1, 3, 0]
        with pytest.raises(CheckpointError, match=f"experts.{name} is not 8 times"):
            method.unpack(layer)


@pytest.mark.slow
def test_an_engine_that_takes_the_way_of_a_gpu(tiny: Path, tmp_path: Path) -> None:
    """vLLM's own layers around W8A8 linears and unpacked int4 experts: the same model.

    A code that another order of additions rounds the other way moves its step and later ones.
    """
    checkpoint, prompts, out = (tmp_path / name for name in ("w4a8", "prompts.json", "rows"))
    run(QuantizeOptions(tiny, checkpoint, scheme="w4a8"))
    prompts.write_text(json.dumps([tokens(24, seed=40 + i) for i in range(4)]))
    command = [sys.executable, "-m", "tests.simulator.gpu_way", checkpoint, prompts, out]
    done = subprocess.run(
        list(map(str, command)), env=os.environ | _ENVIRONMENT, cwd=Path(__file__).parents[2],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    cpu, gpu = torch.load(out)
    quantised = {"DynamicLinear", "QuantisedExperts"}
    assert set(cpu["kinds"]) - quantised == {"FloatEmbedding", "FloatLinear"}
    assert set(gpu["kinds"]) - quantised == {
        "UnquantizedEmbeddingMethod", "UnquantizedLinearMethod",
    }  # fmt: skip
    assert quantised == set(cpu["kinds"]) & set(gpu["kinds"])
    pairs = zip(cpu["rows"], gpu["rows"], strict=True)
    errors = torch.cat([(a - b).abs().amax(1) for a, b in pairs])
    assert float((errors < 1e-4).double().mean()) > 0.7
