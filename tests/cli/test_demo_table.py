"""The demo's table, bars and HTTP pieces on hand-made numbers; no torch."""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from glm5_ascend.demo_http import Piece, Speed, measure, pieces, stream
from glm5_ascend.demo_table import LINES, Row, bars, document, show
from glm5_ascend.errors import Unhealthy
from tests.cli.stub_engine import StubEngine

ACCURACY = {
    "bits_per_byte": 1.38124,
    "bits_change": 0.0123,
    "kl_mean": 0.02,
    "kl_p99": 0.3,
    "top1_agreement": 0.975,
    "topk_recall": 0.96,
    "expert_agreement": 0.95,
    "mtp_acceptance": float("nan"),
}
ROW = Row("w8a8", "W8A8", 12_300_000, ACCURACY, Speed(41.26, 300, 200, 150))
BASE = replace(ROW, name="bf16", title="BF16", accuracy=ACCURACY | {"kl_mean": 0.0}, speed=None)
HALF = replace(ROW, name="half", title="W4A8\nhalf", accuracy=ACCURACY | {"kl_mean": 0.01})


def printed(*rows: Row) -> str:
    output = io.StringIO()
    show(Console(file=output, width=80), rows, "text: some")
    return output.getvalue()


def test_every_number_is_shown_once_with_its_source() -> None:
    lines = {line.strip().split("  ")[0]: line.split() for line in printed(ROW).splitlines()}
    assert lines["weights"][-3:] == ["12.3", "MB", "files"]
    assert lines["bits per byte"][-2:] == ["1.3812", "offline"]
    assert lines["bits per byte, change"][-3:] == ["+1.23", "%", "offline"]
    assert lines["top-k index recall"][-3:] == ["96.0", "%", "offline"]
    assert lines["MTP accepted, served"][-3:] == ["75.0", "%", "engine"]
    assert lines["tokens/s"][-2:] == ["41.3", "engine"]


def test_what_was_not_measured_is_a_dash_and_null() -> None:
    lines = {line.strip().split("  ")[0]: line.split() for line in printed(BASE).splitlines()}
    assert lines["tokens/s"] == ["tokens/s", "–", "engine"]
    assert lines["MTP accepted, text"][-2] == "–"
    text = json.dumps(document([BASE], model="m", seconds=1.0), allow_nan=False)
    variant = json.loads(text)["variants"][0]
    assert variant["tokens_per_s"] is None
    assert variant["mtp_acceptance"] is None
    assert variant["kl_mean"] == 0.0


def test_document_names_the_source_of_every_line() -> None:
    result = document([ROW], model="m")
    assert result["source"] == "measured"
    assert list(result["measured_by"]) == [line.key for line in LINES]
    assert "vLLM serving on this CPU" in result["measured_by"]["tokens_per_s"]
    assert "no NPU" in result["hardware"]


def test_bars_are_proportional() -> None:
    _, base, full, half = bars([BASE, ROW, HALF])
    assert base.count("█") == 0
    assert full.count("█") == 40
    assert half.count("█") == 20
    assert "W4A8 half" in half
    assert bars([BASE])[1].endswith("0.00000")  # nothing to divide by


def test_pieces_keep_text_thinking_and_tool_calls_apart() -> None:
    call = {"function": {"name": "add", "arguments": None}}
    events = [
        {"choices": [{"text": "x ="}]},
        {"choices": [{"delta": {"content": "Hello"}}]},
        {"choices": [{"delta": {"reasoning_content": "Hm."}}]},
        {"choices": [{"delta": {"tool_calls": [call]}}]},
        {"choices": [], "usage": {"completion_tokens": 3}},
    ]
    wanted = [("text", "x ="), ("text", "Hello"), ("thinking", "Hm."), ("tool", "add")]
    assert list(pieces(iter(events))) == [Piece(*part) for part in wanted]


def test_speed_leaves_out_the_warm_up_and_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(5.0, 0.5)  # read once per token
    monkeypatch.setattr(
        "glm5_ascend.demo_http.time", SimpleNamespace(monotonic=lambda: next(ticks))
    )
    with StubEngine() as stub:
        speed = measure(stub.base_url, "m", ["warm-up", "one", "two"], 3)
    assert speed.output_tokens == 6
    assert (speed.drafted, speed.accepted) == (8, 6)
    assert speed.acceptance == 0.75
    # Two of three tokens per request, half a second apart.
    assert speed.tokens_per_s == 2.0
    bodies = stub.requests
    assert [body["prompt"] for body in bodies] == ["warm-up", "one", "two"]
    assert all(body["temperature"] == 0 and body["stream"] for body in bodies)


def test_no_speculation_has_no_acceptance() -> None:
    assert Speed(10.0, 5, 0, 0).acceptance is None


def test_an_absent_server_is_unhealthy() -> None:
    with StubEngine() as stub:
        url = stub.base_url
    with pytest.raises(Unhealthy, match="broke off"):
        list(stream(url, "/v1/completions", {}))


def test_too_few_tokens_are_an_error() -> None:
    with StubEngine() as stub, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.cli.stub_engine.COMPLETION", ["x"])
        with pytest.raises(Unhealthy, match="generated 1 tokens where 8"):
            measure(stub.base_url, "m", ["a", "b"], 8)
