"""The demo command around a stub of the engine: order of steps, table, JSON, failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from glm5_ascend import demo, demo_accuracy, heldout
from glm5_ascend.deploy import engine, serve
from glm5_ascend.errors import CheckpointError, ExitCode, Glm5Error, PreflightError, Unhealthy
from tests.cli.stub_engine import StubEngine

NAMES = ["bf16", "w8a8", "w4a8", "w4a8-no-rotation"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny_model import write_tiny  # torch

    return write_tiny(tmp_path_factory.mktemp("demo") / "tiny", tokenizer=True)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, list[str]]]]:
    """Replace the engine by a stub; yields the (model, flags) of every start."""
    started: list[tuple[str, list[str]]] = []

    with StubEngine() as stub:

        @contextmanager
        def running_server(
            model: Path, flags: Sequence[str], *, log_path: Path, say: object
        ) -> Iterator[serve.ServerHandle]:
            started.append((model.name, list(flags)))
            yield serve.ServerHandle(stub.base_url, "small-glm5", 0, log_path)

        monkeypatch.setattr(serve, "running_server", running_server)
        monkeypatch.setattr(engine, "check", lambda *_: None)
        monkeypatch.setattr(demo, "MIN_BYTES", 700)
        text = heldout.heldout_text(0)[:20_000]  # tokenising all of it takes seconds
        monkeypatch.setattr(heldout, "heldout_text", lambda _: text)
        yield started


@pytest.mark.torch
def test_json_document(
    served: list[tuple[str, list[str]]],
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert demo.run(keep=tmp_path / "kept", json=True, model=model) == 0
    streams = capsys.readouterr()
    document = json.loads(streams.out)  # one document and nothing else
    assert document["schema"] == 1
    assert document["hardware"] == "CPU emulation, no NPU"
    assert document["text_bytes"] >= 700
    assert document["window_tokens"] == 8 * document["index_topk"]
    variants = {variant["name"]: variant for variant in document["variants"]}
    assert list(variants) == NAMES
    assert variants["bf16"]["kl_mean"] == 0
    assert variants["bf16"]["topk_recall"] == 1
    assert min(variants[name]["kl_mean"] for name in NAMES[1:]) > 0
    assert variants["w4a8"]["checkpoint_bytes"] < variants["bf16"]["checkpoint_bytes"]
    for variant in variants.values():
        assert variant["tokens_per_s"] > 0
        assert variant["engine_mtp_acceptance"] == pytest.approx(0.75)
        # Every number of the table says how it was measured.
        assert set(document["measured_by"]) <= set(variant)
    # The quantised model answers first; plain weights go without --quantization.
    assert [name for name, _ in served] == ["w4a8", "tiny", "w8a8", "w4a8-no-rotation"]
    for name, flags in served:
        assert ("--quantization" in flags) == (name != "tiny")
        assert "--speculative-config" in flags
    answers = document["answers"]
    assert answers[0]["text"] == "return 1\n"
    assert answers[1]["thinking"] == "I should call get_weather."
    assert answers[1]["tool"] == 'get_weather{"city": "Hangzhou"}'
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == sorted(NAMES[1:])


@pytest.mark.torch
def test_table_and_talk(
    served: list[tuple[str, list[str]]],
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert demo.run(keep=None, json=False, model=model) == 0
    streams = capsys.readouterr()
    for text in ("BF16", "W8A8", "W4A8", "unrotated", "bits per byte", "KL", "tokens/s", "█"):
        assert text in streams.out
    assert "Nothing ran on an NPU" in " ".join(streams.out.split())
    assert max(map(len, streams.out.splitlines())) <= 80
    steps = [line[:3] for line in streams.err.splitlines() if line[1:3] == "/4"]
    assert steps == ["1/4", "2/4", "3/4", "3/4", "3/4", "4/4"]
    assert "return 1" in streams.err
    assert "[tool] get_weather" in streams.err
    assert list(tmp_path.iterdir()) == []  # the temporary directory is gone


@pytest.mark.torch
def test_engines_are_left_out_when_time_is_short(
    served: list[tuple[str, list[str]]],
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "BUDGET_S", 0.0)
    demo.run(keep=tmp_path, json=True, model=model)
    streams = capsys.readouterr()
    speeds = {v["name"]: v["tokens_per_s"] for v in json.loads(streams.out)["variants"]}
    assert speeds["w4a8"] > 0
    assert {speeds[name] for name in NAMES if name != "w4a8"} == {None}
    assert streams.err.count("engine not started") == 3


@pytest.mark.torch
def test_failing_evaluation_ends_the_demo(
    served: list[tuple[str, list[str]]],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "MIN_BYTES", 1 << 40)
    with pytest.raises(Glm5Error, match="held-out text gives"):
        demo.run(keep=tmp_path, json=True, model=model)


@pytest.mark.torch
def test_interrupt_stops_the_evaluation(model: Path) -> None:
    begun = time.monotonic()

    def interrupted() -> None:
        with demo_accuracy.Accuracy({"bf16": model}, "bf16", 200_000) as accuracy:
            while not accuracy.context and time.monotonic() - begun < 60:
                time.sleep(0.01)
            with accuracy.paused():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - begun < 60  # all windows would take minutes


def test_missing_model_and_missing_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="does not hold the small model"):
        demo.run(keep=tmp_path, json=False, model=tmp_path)
    facts = engine.Facts(False, (), None, None, None, None, None, None, True)
    monkeypatch.setattr(engine, "detect", lambda: facts)
    (tmp_path / "config.json").write_text("{}")
    kept = tmp_path / "kept"
    with pytest.raises(PreflightError, match="not installed"):
        demo.run(keep=kept, json=False, model=tmp_path)
    monkeypatch.setattr(engine, "detect", lambda: replace(facts, vllm_ascend=True, npus=("0",)))
    with pytest.raises(PreflightError, match="NPU"):
        demo.run(keep=kept, json=False, model=tmp_path)
    assert not kept.exists()  # nothing was done before


@pytest.mark.torch
def test_a_server_that_refuses_is_named(
    served: list[tuple[str, list[str]]],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StubEngine, "status", 400)
    with pytest.raises(Unhealthy, match="answered 400: the stub refuses"):
        demo.run(keep=tmp_path, json=True, model=model)


def marked_processes(mark: str) -> list[int]:
    """Processes that inherited the environment variable of this test."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in environment:
                found.append(int(entry.name))
    return found


DEMO = [sys.executable, "-m", "glm5_ascend", "demo"]


@pytest.mark.engine
@pytest.mark.parametrize("moment", ["quantising", "serving W4A8", "asking POST /v1/completions"])
def test_ctrl_c_leaves_no_process(moment: str, tmp_path: Path) -> None:
    name, value = "GLM5_TEST_MARK", f"{tmp_path.name}-{os.getpid()}"
    process = subprocess.Popen(
        [*DEMO, "--keep", str(tmp_path / "kept")],
        env={**os.environ, name: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if moment in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        seen.append(process.stderr.read())
        assert process.wait(60) == ExitCode.INTERRUPTED, "".join(seen)
    assert marked_processes(f"{name}={value}") == []


@pytest.mark.engine
def test_the_whole_demo(tmp_path: Path) -> None:
    """What ``make demo`` shows: the trained model, three quantised variants, four engines."""
    done = subprocess.run([*DEMO, "--json"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["seconds"] < 360
    assert document["text_bytes"] >= 32 << 10
    assert document["window_tokens"] >= 8 * document["index_topk"]
    variants = {variant["name"]: variant for variant in document["variants"]}
    assert list(variants) == NAMES
    for variant in variants.values():
        assert 0.5 < variant["bits_per_byte"] < 2
        assert variant["topk_recall"] > 0.5
        assert variant["tokens_per_s"] > 0
        assert variant["engine_mtp_acceptance"] > 0.2
    assert variants["w4a8"]["kl_mean"] < 0.5
    assert document["answers"][0]["text"].strip()
    assert "get_weather" in document["answers"][1]["tool"]
