"""The platform's decisions, without an engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError
from tests.support.tiny_model import tiny_config

pytestmark = pytest.mark.engine  # imports vLLM, which takes some seconds


@pytest.fixture
def platform(vllm: None) -> Any:
    """The platform module."""
    from glm5_ascend.simulator import platform as module

    return module


def settings(**changes: Any) -> Any:
    """What ``_refuse_unsupported`` reads of a vLLM configuration."""
    values = {"dtype": torch.bfloat16, "pipeline_parallel_size": 1, "enable_eplb": False} | changes
    return SimpleNamespace(
        model_config=SimpleNamespace(dtype=values["dtype"]),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=values["pipeline_parallel_size"],
            enable_eplb=values["enable_eplb"],
        ),
        speculative_config=values.get("speculative_config"),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.float16}, "--dtype float16"),
        ({"pipeline_parallel_size": 2}, "pipeline parallel"),
        ({"enable_eplb": True}, "expert load balancing"),
    ],
)
def test_unsupported_options_are_named(
    changes: dict[str, Any], message: str, platform: Any
) -> None:
    platform._refuse_unsupported(settings())
    with pytest.raises(ConfigError) as caught:
        platform._refuse_unsupported(settings(**changes))
    assert message in caught.value.message


def test_drafting_needs_an_engine_that_can(platform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drafting = settings(speculative_config=SimpleNamespace(method="mtp"))
    platform._refuse_unsupported(drafting)
    monkeypatch.delattr(platform.CpuPlatform, "register_triton_kernel_overrides")
    with pytest.raises(ConfigError, match="speculative decoding"):
        platform._refuse_unsupported(drafting)


def test_other_models_keep_the_stock_configuration(
    platform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        platform.CpuPlatform, "check_and_update_config", classmethod(lambda cls, c: seen.append(c))
    )
    text = SimpleNamespace(model_type="qwen3")
    config = SimpleNamespace(model_config=SimpleNamespace(hf_text_config=text))

    platform.Glm5CpuPlatform.check_and_update_config(config)

    assert seen == [config]
    assert vars(text) == {"model_type": "qwen3"}


def test_architectures_are_put_first_once(platform: Any) -> None:
    hf_config = SimpleNamespace(architectures=["GlmMoeDsaForCausalLM"])
    for _ in range(2):
        platform._put_first(hf_config, "Ours")

    assert hf_config.architectures == ["Ours", "GlmMoeDsaForCausalLM"]


def test_default_cache_holds_two_full_sequences(platform: Any) -> None:
    config = Glm5Config.from_dict(tiny_config(), source="tiny")
    model = SimpleNamespace(max_model_len=100_000, dtype=torch.bfloat16)
    # 5 layers of latent 256 + 64, and 4 indexers of 128; 782 blocks of 128 and 2 to spare, twice.
    expected = 2 * 784 * 128 * (5 * 320 + 4 * 128) * 2

    assert platform.default_kv_bytes(config, model, 128) == expected
    model.max_model_len = 256
    assert platform.default_kv_bytes(config, model, 128) == 64 << 20


@pytest.mark.parametrize(
    ("model", "quantization", "message"),
    [("/nowhere/glm", None, "not a directory"), (".", "fp8", "quantised as fp8")],
)
def test_models_that_cannot_be_served(
    model: str, quantization: str | None, message: str, platform: Any
) -> None:
    with pytest.raises(ConfigError) as caught:
        platform.model_config(SimpleNamespace(model=model, quantization=quantization))
    assert message in caught.value.message


def test_ascend_flag_without_a_description(platform: Any, tmp_path: Path) -> None:
    config = SimpleNamespace(
        model_config=SimpleNamespace(model=str(tmp_path), quantization="ascend")
    )
    with pytest.raises(ConfigError, match="quant_model_description"):
        platform._detect_quantization(config)
