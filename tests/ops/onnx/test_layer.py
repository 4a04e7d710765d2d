"""Exported decoder layers against the offline model: prompt, chunk and decode, cache fed back."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.ops.onnx.layers import KINDS, STEPS, TOKENS, Reference, exported, run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpoint", ["float", "w8a8", "w4a8"])
def test_layer(
    checkpoint: str, kind: str, references: dict[str, Reference], tmp_path: Path
) -> None:
    reference, layer = references[checkpoint], KINDS[kind]
    session = exported(reference.directory, layer, tmp_path / "layer.onnx")
    assert ("past_index_key" in session.inputs) == (kind != "shared")
    assert ("topk_indices" in session.inputs) == (kind == "shared")
    # The same model takes any number of new and of cached tokens.
    for steps in ((TOKENS,), STEPS):
        reference.check(layer, *run(session, reference.layers[layer], steps))


@pytest.mark.parametrize("layer", range(5))
def test_static_scales(layer: int, static: Reference, tmp_path: Path) -> None:
    """Another model: W8A8 with one stored input scale for the trunk, whatever is static there."""
    session = exported(static.directory, layer, tmp_path / "layer.onnx")
    called = {function.name for function in onnx.load(tmp_path / "layer.onnx").functions}
    assert {"LinearW8A8Static", "MlapoW8A8W8A8"} <= called
    static.check(layer, *run(session, static.layers[layer], STEPS))


def test_weights_in_a_file_of_their_own(references: dict[str, Reference], tmp_path: Path) -> None:
    reference, layer = references["w4a8"], KINDS["experts"]
    session = exported(reference.directory, layer, tmp_path / "layer.onnx", inline_limit=1000)
    beside = tmp_path / "layer.onnx.safetensors"
    assert beside.stat().st_size > 20 * (tmp_path / "layer.onnx").stat().st_size
    reference.check(layer, *run(session, reference.layers[layer], (TOKENS,)))
