"""Small source checkpoints and what the quantiser makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from glm5_ascend.quant.command import QuantizeOptions, run
from tests.support.tiny_model import write_tiny


def quantize(source: Path, destination: Path, scheme: str = "w4a8", **options: Any) -> Path:
    """Run the quantiser and return ``destination``."""
    run(QuantizeOptions(source, destination, scheme, **options))  # type: ignore[arg-type]
    return destination


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    """Every tensor of every safetensors file, read by the safetensors library."""
    result: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        result |= load_file(file)
    return result


def json_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def contents(directory: Path) -> dict[str, bytes]:
    """Name and bytes of every file."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def nearly_equal(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether bfloat16 ``found`` is ``wanted`` to nearest, or one step from a rounded ``wanted``.

    Beside that a rotation in float32 may be off by 2e-6 of the largest value.
    """
    steps = 0.5 if wanted.dtype == torch.float64 else 1.0
    exact = wanted.double()
    step = 2.0 ** (torch.floor(torch.log2(exact.abs().clamp_min(1e-30))) - 7)
    return bool(((found.double() - exact).abs() <= steps * step + 2e-6 * exact.abs().max()).all())


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 5.2-style BF16 checkpoint: shared indexer, MoE, MTP, tokenizer, three shards."""
    directory = tmp_path_factory.mktemp("tiny") / "source"
    # As in GLM-5.2, whose head_dim is that of the nope part.
    return write_tiny(directory, shards=3, tokenizer=True, head_dim=16)


@pytest.fixture(scope="session")
def w4a8(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantize(source, tmp_path_factory.mktemp("tiny") / "w4a8", "w4a8")


@pytest.fixture(scope="session")
def w8a8(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantize(source, tmp_path_factory.mktemp("tiny") / "w8a8", "w8a8")


@pytest.fixture(scope="session")
def rotated(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rotation alone, float32."""
    return quantize(source, tmp_path_factory.mktemp("tiny") / "rot", "none", dtype="float32")
