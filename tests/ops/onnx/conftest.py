"""The small model as it is and quantised, each with what the offline model makes of it."""

from __future__ import annotations

import pytest

from glm5_ascend.quant.command import QuantizeOptions
from glm5_ascend.quant.command import run as quantise
from tests.ops.onnx.layers import SMALL, Reference
from tests.support.tiny_ascend import write_tiny_ascend
from tests.support.tiny_model import write_tiny


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    """By "float", "w8a8" (without rotation) and "w4a8" (with it; its MTP layer is W8A8)."""
    made = {"float": Reference.of(SMALL, quantised=False)}
    for scheme in ("w8a8", "w4a8"):
        directory = tmp_path_factory.mktemp("onnx") / scheme
        quantise(QuantizeOptions(SMALL, directory, scheme, rotate=scheme == "w4a8"))
        made[scheme] = Reference.of(directory, quantised=True)
    return made


@pytest.fixture(scope="session")
def static(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A tiny random model with static W8A8 linears, which the quantiser does not write."""
    source = write_tiny(tmp_path_factory.mktemp("onnx") / "source")
    written = write_tiny_ascend(source, source.with_name("static"), scheme="w8a8", static=True)
    return Reference.of(written, quantised=True)
