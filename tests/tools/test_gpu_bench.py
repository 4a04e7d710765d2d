"""Inputs, judges, race, worker and peers of the GPU benchmark, on the CPU."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import dispatch
from glm5_ascend.ops.verify.compare import Figures
from tests.tools.gpu_problems import ATTENTION, HADAMARD, INDEXER, MLAPO, run, small
from tools.gpu_bench import attention, draw, indexer, peers_indexer, runner, worker
from tools.gpu_bench.device import Prepared
from tools.gpu_bench.entry import Absent, Constants, Contestant, Ready, backend_call
from tools.gpu_bench.peers import Peers
from tools.gpu_bench.runner import measure
from tools.gpu_bench.shapes import Shape

EVERY = [*ATTENTION, *INDEXER, *MLAPO, *HADAMARD]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)


@pytest.mark.parametrize("shape", EVERY, ids=lambda shape: shape.name)
def test_the_reference_is_right_for_every_judge(shape: Shape) -> None:
    rows = run(shape, "reference")
    own = [row for row in rows.values() if row["kind"] in ("project", "call", "torch")]
    assert [row["status"] for row in own] == ["timed"] * len(own), own
    assert {"project", "call"} <= {row["kind"] for row in own}
    assert all(row["n"] == 1 for row in own)
    peers = [row for row in rows.values() if row["kind"] == "peer"]
    assert all(row["status"] == "absent" and row["reason"] for row in peers)


def spoil(monkeypatch: pytest.MonkeyPatch, function: str, change: Callable[[Any], Any]) -> None:
    """Change what every backend's ``function`` returns."""
    load = dispatch.load

    class Spoiled:
        def __init__(self, module: Any) -> None:
            self.module = module

        def __getattr__(self, name: str) -> Any:
            inner = getattr(self.module, name)
            if name != function:
                return inner
            return lambda *arguments, **options: change(inner(*arguments, **options))

    monkeypatch.setattr(dispatch, "load", lambda *a, **o: Spoiled(load(*a, **o)))


def _last_key_lost(found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    chosen = found[0].clone()
    chosen[:, -1] = -1
    return chosen, found[1]


def _twice(found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    chosen = found[0].clone()
    chosen[:, 1] = chosen[:, 0]
    return chosen, found[1]


def _another(found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The first position that was left out in place of one that was chosen."""
    chosen = found[0].clone()
    for row in chosen:
        row[0] = next(i for i in range(256) if i not in set(row.tolist()))
    return chosen, found[1]


@pytest.mark.parametrize(
    ("shape", "function", "change"),
    [
        # One part in 256 too large, as a scale that BF16 rounds may be.
        (ATTENTION[0], "forward", lambda out: (out[0] * 1.004, *out[1:])),
        (ATTENTION[3], "forward", lambda out: (out[0].roll(1, 0), *out[1:])),
        (ATTENTION[1], "forward_kv_quant", lambda out: out * 1.01),
        (ATTENTION[2], "forward_kv_quant", lambda out: out * float("nan")),
        (INDEXER[0], "forward", _last_key_lost),
        (INDEXER[0], "forward", _twice),
        (INDEXER[0], "forward", _another),
        (INDEXER[1], "forward_quant", lambda found: _another((found, found))[0]),
        (HADAMARD[0], "forward", lambda found: (found[0] + 1, found[1])),
        (HADAMARD[0], "forward", lambda found: (found[0], found[1] * 1.0001)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_wrong_kernel_is_reported_and_not_timed(
    shape: Shape, function: str, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, function, change)
    rows = run(shape, "reference")
    own = [row for row in rows.values() if row["kind"] in ("project", "call")]
    assert [row["status"] for row in own] == ["wrong", "wrong"], own
    assert all(row["reason"] and "median" not in row for row in own)


def test_pre_processing_that_does_not_write_its_rows_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from glm5_ascend.ops.mlapo import reference

    monkeypatch.setattr(reference, "_write_caches", lambda *arguments: None)
    rows = run(MLAPO[1], "reference")
    assert rows["glm5-ascend bf16"]["status"] == "wrong"
    assert "latent rows" in rows["glm5-ascend bf16"]["reason"]
    assert rows["cuBLAS chain, bf16"]["status"] == "timed"


def test_a_backend_that_refuses_or_raises_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run(HADAMARD[0], "torch_npu")
    assert rows["glm5-ascend int8"]["status"] == "failed"
    assert rows["glm5-ascend int8"]["reason"].startswith("refused: backend 'torch_npu'")
    spoil(monkeypatch, "forward", lambda found: 1 / 0)
    rows = run(HADAMARD[0], "reference")
    assert "ZeroDivisionError at test_gpu_bench.py" in rows["glm5-ascend int8"]["reason"]
    assert rows["torch product and quantisation"]["status"] == "timed"


def test_the_backends_own_call_gives_the_public_result() -> None:
    problem = attention.Problem(ATTENTION[0], "cpu", 5, "reference")
    ready = next(problem.contestants()).make()
    public = list(problem.contestants())[1].make()
    assert torch.equal(ready.calls[0]()[0], public.calls[0]()[0])
    with pytest.raises(RuntimeError, match="0 functions"):
        backend_call(lambda: None)
    assert dispatch.load.__name__ == "load"


def test_what_a_call_moves_to_the_device_is_moved_once() -> None:
    values, runs = [1, 2], [0]

    def call(moves: int = 3) -> list[Tensor]:
        runs[0] += 1
        found = [torch.tensor(values, device="meta"), torch.arange(3).to("meta")]
        found.append(torch.ones(2).to(device=torch.device("meta")))
        # These stay: on the host, or on the device already.
        torch.tensor([1]).to(torch.int32).to("cpu")
        found[0].to("meta")
        return found[:moves]

    constants = Constants("meta")
    run = constants.around(call)
    first, second, third = run(), run(), run()
    assert runs == [3]
    assert len(constants.kept) == 3
    for again in (second, third):
        assert all(a is b for a, b in zip(first, again, strict=True))


def test_a_run_that_failed_half_way_does_not_count() -> None:
    fails = iter((True, False, True, False))

    def call() -> list[Tensor]:
        found = [torch.ones(1).to("meta")]
        if next(fails):
            raise RuntimeError("no room")
        return [*found, torch.ones(2).to("meta")]

    run = Constants("meta").around(call)
    seen = []
    for expected in (True, False, True, False):
        if expected:
            with pytest.raises(RuntimeError, match="no room"):
                run()
        else:
            seen.append(run())
    assert all(a is b for a, b in zip(*seen, strict=True))


def test_a_call_that_moves_less_than_at_first_is_an_error() -> None:
    counts = iter((2, 1))
    run = Constants("meta").around(lambda: [torch.ones(1).to("meta") for _ in range(next(counts))])
    run()
    with pytest.raises(RuntimeError, match="1 tensors were moved, 2 at first"):
        run()


def test_packed_rows() -> None:
    rows = torch.randn(3, 576, generator=torch.Generator().manual_seed(0)).bfloat16()
    for dtype, steps in (("int8", 127 * 2), ("fp8", 28)):
        made = attention.packed(rows, dtype)
        back = attention.unpacked(made, dtype)
        assert torch.equal(back[:, 512:], rows[:, 512:].double())
        tiles = rows[:, :512].double().view(3, 4, 128)
        error = (back[:, :512].view(3, 4, 128) - tiles).abs()
        # Half a step of int8; half a unit of the last bit of e4m3, which is 32 at 448.
        assert bool((error <= tiles.abs().amax(-1, keepdim=True) / steps * 1.001).all())
        flat = made.numpy()
        # FlashMLA's order, which e4m3 rows have here too: codes, scales, rotated part.
        place = slice(640, 656) if dtype == "int8" else slice(512, 528)
        scales = np.ascontiguousarray(flat[:, place]).view(np.float32)
        wanted = tiles.abs().amax(-1) / (127 if dtype == "int8" else 448)
        assert np.allclose(scales, wanted.numpy(), rtol=1e-6)


def test_positions_of_a_whole_prompt() -> None:
    problem = attention.Problem(ATTENTION[4], "cpu", 1, "reference")
    each = problem.sets[0]
    for token in range(70):
        chosen = each.positions[token]
        count = min(token + 1, 64)
        assert bool((chosen[count:] == -1).all())
        assert bool((each.slots[token, count:] == -1).all())
        assert len(set(chosen[:count].tolist())) == count
        assert bool((chosen[1:count] > chosen[: count - 1]).all())
        assert int(chosen[count - 1]) <= token
    assert problem.cache.shape == (128, 576)


def test_deep_gemms_pages_hold_codes_before_scales() -> None:
    each = indexer.Problem(INDEXER[2], "cpu", 5, "reference").sets[0]
    pages = peers_indexer.peer_pages(each)
    assert pages.shape == (4, 64, 1, 132)
    assert pages.dtype == torch.uint8
    assert each.key_scale is not None
    for place in (0, 63, 64, 255):
        flat = pages[int(each.table[0, place // 64])].flatten()
        row = flat[place % 64 * 128 :][:128].view(torch.float8_e4m3fn)
        scale = flat[64 * 128 + place % 64 * 4 :][:4].view(torch.float32)
        assert torch.equal(row.float(), each.keys[place].float())
        assert float(scale) == float(each.key_scale[place])


def test_sets_of_positions() -> None:
    shape = Shape("x", "attention", "bf16", 1, 200, 4096, 8, "overlapping", chosen=64)
    problem = attention.Problem(shape, "cpu", 1, "reference")
    chosen = problem.sets[0].positions
    assert bool((chosen[:, 1:] > chosen[:, :-1]).all())
    seen = torch.arange(200)[:, None] + 4096 - 200
    assert bool((chosen >= 0).all())
    assert bool((chosen <= seen).all())
    kept = float((chosen[1:] == chosen[:-1]).double().mean())
    assert 1 - attention.RENEWED - 0.02 < kept < 1 - attention.RENEWED + 0.02
    random = attention.Problem(
        Shape("x", "attention", "bf16", 1, 200, 4096, 8, chosen=64), "cpu", 1
    )
    again = random.sets[0].positions
    assert float((again[1:] == again[:-1]).double().mean()) < 0.05
    # Slots are the rows that the pages name.
    page = problem.table[0, chosen[5, 7] // draw.PAGE]
    assert int(problem.sets[0].slots[5, 7]) == int(page) * 64 + int(chosen[5, 7]) % 64


class FakeDevice:
    """Calls take as long as ``times`` says; the clock moves with them."""

    name = "cpu"

    def __init__(self, times: dict[str, float]) -> None:
        self.times, self.now, self.log = times, 0.0, []  # type: ignore[var-annotated]

    def clock(self) -> float:
        return self.now

    def prepare(self, calls: Sequence[Callable[[], Any]], *, graph: bool) -> Prepared:
        results = [call() for call in calls]
        mode = "graph" if graph else "stream"
        return Prepared(lambda: None, len(calls), mode, results)

    def healthy(self) -> bool:
        return True

    def sample(self, prepared: Prepared) -> float:
        name = prepared.results[0]
        self.log.append(name)
        self.now += self.times[name]
        return 1e6 * self.times[name]

    def kernels_us(self, prepared: Prepared) -> float | None:
        return 5.0


SHAPE = Shape("tiny", "hadamard", "bf16", 8)


def named(name: str, kind: str = "peer", passed: bool = True) -> Contestant:
    figures = Figures(problem="" if passed else "off by one")
    return Contestant(name, kind, "bf16", 0, lambda: Ready([lambda: name], lambda i, r: figures))


def test_contestants_take_turns_until_time_is_up() -> None:
    device = FakeDevice({"a": 0.01, "b": 0.02})
    everyone = [named("a"), named("wrong", passed=False), named("b")]
    rows = list(measure(SHAPE, everyone, device, 0.59))
    assert [(r["contestant"], r["status"]) for r in rows] == [
        ("wrong", "wrong"), ("a", "timed"), ("b", "timed"),
    ]  # fmt: skip
    assert "wrong" not in device.log
    rounds = [tuple(device.log[i : i + 2]) for i in range(0, len(device.log), 2)]
    assert set(rounds) == {("a", "b"), ("b", "a")}
    assert len(rounds) == 20
    assert rows[1]["median"] == pytest.approx(10_000)
    assert rows[1]["over_floor"] == pytest.approx(10_000 / SHAPE.cost.floor_us)
    assert rows[0]["reason"] == "off by one"


def test_a_race_has_a_least_and_a_greatest_number_of_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "LEAST", 7)
    slow, fast = FakeDevice({"a": 10.0}), FakeDevice({"a": 1e-6})
    (few,) = measure(SHAPE, [named("a")], slow, 0.5)
    (many,) = measure(SHAPE, [named("a")], fast, 0.5)
    assert (few["n"], many["n"]) == (runner.LEAST, runner.MOST)


def test_who_is_omitted_or_not_captured() -> None:
    device = FakeDevice({"a": 0.1, "b": 0.1})
    found = measure(SHAPE, [named("a"), named("b")], device, 0.1, omit=["a"], streams=["b"])
    (row,) = found
    assert (row["contestant"], row["mode"], row["kernels_us"]) == ("b", "stream", 5.0)


def test_the_worker_reports_in_lines() -> None:
    out = io.StringIO()
    options = {
        "shapes": [asdict(HADAMARD[0]), asdict(ATTENTION[0])], "budget": 60.0, "seed": 4,
        "omit": {"hadamard": ["torch product and quantisation"]}, "streams": {}, "seconds": 0.0,
        "peers": "none", "jit": False, "device": "cpu", "backend": "reference",
    }  # fmt: skip
    assert worker.run(json.loads(json.dumps(options)), out) == 0
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert events[0]["event"] == "device"
    assert events[0]["versions"]["torch"] == torch.__version__
    assert [e["case"] for e in events if e["event"] == "done"] == ["hadamard", "decode-bf16"]
    rows = [e["row"] for e in events if e["event"] == "row"]
    assert [(r["case"], r["contestant"], r["status"]) for r in rows] == [
        ("hadamard", "glm5-ascend int8", "timed"),
        ("hadamard", "glm5-ascend int8, public call", "timed"),
        ("decode-bf16", "FlashMLA", "absent"),
        ("decode-bf16", "glm5-ascend bf16", "timed"),
        ("decode-bf16", "glm5-ascend bf16, public call", "timed"),
        ("decode-bf16", "torch chain, bf16", "timed"),
    ]
    assert {r["seed"] for r in rows} == {4}
    # The stages name who is at work, in rows that the supervisor can fill.
    stages = [e for e in events if e["event"] == "stage" and e["row"]["case"] == "decode-bf16"]
    assert [e["row"]["contestant"] for e in stages[:2]] == ["inputs", "FlashMLA"]
    assert {e["stage"] for e in stages} == {"set up", "capture", "time"}


def test_a_worker_without_time_begins_nothing() -> None:
    out = io.StringIO()
    options = {"shapes": [asdict(HADAMARD[0])], "budget": 1.0, "peers": "none", "device": "cpu"}
    assert worker.run(options, out) == 0
    assert len(out.getvalue().splitlines()) == 1


def test_wheels_are_unpacked_and_the_second_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    with zipfile.ZipFile(tmp_path / "sgl_flash_mla-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("flash_mla/__init__.py", "raise OSError('needs a newer torch')")
    peers = Peers(tmp_path)
    with pytest.raises(Absent, match="sgl_flash_mla: OSError: needs a newer torch; no wheel token"):
        peers.load("flash_mla")
    with zipfile.ZipFile(tmp_path / "tokenspeed_flashmla-2.0-py3-none-any.whl", "w") as archive:
        archive.writestr("flash_mla/__init__.py", "who = 'second'")
        archive.writestr("tokenspeed_flashmla-2.0.dist-info/METADATA", "")
    module, version = Peers(tmp_path).load("flash_mla")
    assert (module.who, version) == ("second", "tokenspeed_flashmla 2.0")
    with pytest.raises(Absent, match="no wheel tokenspeed_deepgemm"):
        peers.load("deep_gemm")
