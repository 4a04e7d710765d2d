"""Mistakes planted in the exported functions: the comparison with the offline model sees each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from onnx import parser

from glm5_ascend.ops.onnx import functions
from tests.ops.onnx.layers import KINDS, TOKENS, Reference, exported, run


class Fault(NamedTuple):
    """Replacements in the text of ``function``, and a layer that runs it."""

    function: str
    changes: dict[str, str]
    kind: str = "experts"
    checkpoint: str = "float"


FAULTS = {
    "rope in halves": Fault(
        "RotaryInterleaved",
        {
            "heads, half, two)": "heads, two, half)",
            "even, odd = Split <axis = -1": "even, odd = Split <axis = 2",
            "[1, 3]": "[1, 2]",
            "Concat <axis = -1> (first, second)": "Concat <axis = 2> (first, second)",
        },
    ),
    "rope turned backwards": Fault(
        "RotaryTable", {"sin = Sin (angle)": "s = Sin (angle)\nsin = Neg (s)"}
    ),
    "rope of the indexer on the last dims": Fault(
        "RotaryFirst",
        {
            "Concat <axis = 0> (rope, rest)": "Concat <axis = 0> (rest, rope)",
            "front, back = Split": "back, front = Split",
            "(turned, back)": "(back, turned)",
        },
    ),
    "no ReLU": Fault("IndexerScores", {"Relu": "Identity"}),
    "k_norm without its mean": Fault(
        "LayerNorm",
        {
            "normed = LayerNormalization <axis = -1, epsilon: float = @eps> (wide, gain, shift)": (
                "plain = glm5.ascend.RmsNorm <eps: float = @eps> (wide, gain)\n"
                "normed = Add (plain, shift)"
            )
        },
    ),
    "k_norm without bias": Fault("LayerNorm", {"Cast <to = 1> (bias)": "Sub (bias, bias)"}),
    "q latent not normalised": Fault(
        "Mlapo",
        {"q_flat = glm5.ascend.Linear (query_norm": "q_flat = glm5.ascend.Linear (q_latent"},
    ),
    "a future key": Fault(
        "VisibleKeys",
        {"count = Add (i, one)": "seen_here = Add (i, one)\ncount = Add (seen_here, one)"},
        "dense",
    ),
    "newest key hidden": Fault("VisibleKeys", {"Add (hidden, count)": "Add (hidden, i)"}, "dense"),
    "no softmax scale": Fault("AttendRows", {"Mul (product, scale)": "Identity (product)"}),
    "unused entries count": Fault(
        "AttendRows", {"Where (row, scaled, worst)": "Identity (scaled)"}
    ),
    "latent norm without eps": Fault(
        "RmsNorm", {"Add (mean, epsilon)": "Identity (mean)"}, "dense"
    ),
    "router bias in the weights": Fault(
        "MoeGating", {"GatherElements <axis = -1> (score": "GatherElements <axis = -1> (biased"}
    ),
    "expert weights not normalised": Fault(
        "MoeGating", {"Where (normalise, shares, raw)": "Identity (raw)"}
    ),
    "gate and up exchanged": Fault("MoeExperts", {"SiluMul (gate, up)": "SiluMul (up, gate)"}),
    "codes rounded down": Fault("DynamicQuant", {"Round (real)": "Floor (real)"}, "dense", "w8a8"),
    "weights without scale": Fault(
        "LinearW8A8Dynamic", {"Mul (real, w_scale)": "Identity (real)"}, "shared", "w8a8"
    ),
    "nibbles exchanged": Fault(
        "UnpackInt4", {"(even_rows, odd_rows)": "(odd_rows, even_rows)"}, "shared", "w4a8"
    ),
    "scale_bias forgotten": Fault(
        "ExpertLinearW4A8", {"Add (scaled, bias)": "Identity (scaled)"}, "shared", "w4a8"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_mistake_is_seen(
    name: str,
    references: dict[str, Reference],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = FAULTS[name]
    monkeypatch.setattr(functions, "library", lambda: planted(fault))
    reference, layer = references[fault.checkpoint], KINDS[fault.kind]
    session = exported(reference.directory, layer, tmp_path / "layer.onnx")
    out, chosen = run(session, reference.layers[layer], (TOKENS,))
    with pytest.raises(AssertionError):
        reference.check(layer, out, chosen)


LIBRARY = functions.library()


def planted(fault: Fault) -> dict[str, functions.onnx.FunctionProto]:
    """All functions, one with the mistake."""
    texts = (text for module in functions.MODULES for text in module.FUNCTIONS)
    (text,) = (t for t in texts if parser.parse_function(t).name == fault.function)
    for old, new in fault.changes.items():
        assert old in text
        text = text.replace(old, new)
    return LIBRARY | {fault.function: parser.parse_function(text)}
