"""The engine on ``ascend`` checkpoints against an independent dequantise-and-run reference."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from glm5_ascend.quant.command import QuantizeOptions, run
from tests.simulator.conftest import StartEngine, tokens
from tests.simulator.engine import Engine
from tests.support.oracle import AscendOracle, Choices
from tests.support.teacher_forced import step_errors, teacher_forced_error

pytestmark = pytest.mark.engine

SEQUENCE = tokens(120, seed=30)
STEPS = 3
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def w4a8(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rotated W4A8 checkpoint with rot.weight, as the project's quantiser writes it."""
    directory = tmp_path_factory.mktemp("w4a8") / "out"
    run(QuantizeOptions(tiny, directory, scheme="w4a8"))
    return directory


@pytest.fixture(scope="module")
def w4a8_engine(start: StartEngine, w4a8: Path) -> Engine:
    """Drafts three tokens per step; the description file alone selects the quantisation.

    A prompt of the tests is one chunk: where a chunk ends, vLLM's proposer takes the last token of
    the prompt for the next one, which costs a little acceptance and no correctness.
    """
    speculative = {"method": "deepseek_mtp", "num_speculative_tokens": STEPS}
    return start(w4a8, block_size=16, max_num_batched_tokens=128, speculative_config=speculative)


@pytest.fixture(scope="module")
def static_engine(start: StartEngine, tiny_static: Path) -> Engine:
    return start(tiny_static, block_size=16, quantization="ascend")


ENGINES = {"w4a8": "w4a8_engine", "tiny_static": "static_engine"}


@pytest.mark.parametrize("name", ENGINES)
def test_teacher_forced_against_the_reference(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    checkpoint: Path = request.getfixturevalue(name)
    engine: Engine = request.getfixturevalue(ENGINES[name])
    oracle = AscendOracle(checkpoint)
    free = oracle.forward(SEQUENCE[:-1])
    own = engine.score(SEQUENCE, tmp_path / "own")
    seen = engine.score(SEQUENCE, tmp_path / "seen", tmp_path / "own_codes")
    followed = oracle.forward(SEQUENCE[:-1], Choices.load(tmp_path / "own_codes"))
    free.choices.save(tmp_path / "choices")
    engine.ask("inject", path=str(tmp_path / "choices"))
    try:
        led = engine.score(SEQUENCE, tmp_path / "led", tmp_path / "codes")
    finally:
        engine.ask("inject", path="")
    settled = oracle.forward(SEQUENCE[:-1], free.choices.merged(Choices.load(tmp_path / "codes")))

    assert engine.ask("facts")["quantization"] == "ascend"
    assert teacher_forced_error(led, settled.logits) < 1e-3
    # Own choices of keys and experts on both sides, with ties of rounding settled or not: each of
    # those moves its step and, through the cache, some of the later ones.
    assert float((step_errors(seen, followed.logits) < 1e-3).double().mean()) >= 0.99
    assert float((step_errors(own, free.logits) < 0.05).double().mean()) >= 0.95
    # The reference without activation quantisation is another function.
    plain = AscendOracle(checkpoint, activations=False).forward(SEQUENCE[:-1])
    assert float(step_errors(own, plain.logits).median()) > 0.02


def test_draft_steps_against_the_reference(w4a8_engine: Engine, w4a8: Path, tmp_path: Path) -> None:
    """With the rounding ties of both models settled, every step of every prompt is the reference's.

    Unsettled, a tie somewhere moves most prompts. test_engine_mtp.py has the same without rounding.
    """
    oracle = AscendOracle(w4a8)
    errors, unrotated, rotation = [], [], oracle.mtp.rotation
    step = oracle.mtp.step
    for seed in range(8):
        prompt = tokens(75, seed=31 + seed)
        files = {"path": str(tmp_path / "logits"), "codes": str(tmp_path / "codes")}
        sampled = w4a8_engine.ask("drafts", tokens=prompt, **files)
        reached = torch.load(files["path"]).float()
        assert len(reached) == STEPS
        codes = Choices.load(tmp_path / "codes")
        main = oracle.forward(prompt, codes)
        drafted = reached.argmax(-1).tolist()
        for found, turn in ((errors, rotation), (unrotated, None)):
            oracle.mtp.rotation = turn
            oracle.mtp.step = partial(step, inject=codes)  # type: ignore[method-assign]
            expected = oracle.mtp.draft(prompt, main.hidden, sampled[0], STEPS, forced=drafted)
            found.append(step_errors(reached, expected.logits))

    assert float(torch.cat(errors).max()) < 1e-4
    assert float(torch.cat(unrotated).min()) > 0.1


def _drop(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def _set(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = make(tensors[name])

    return change


def _add(tensors: Tensors) -> None:
    tensors["model.layers.3.self_attn.indexer.wk.weight"] = tensors["model.norm.weight"] + 0


_EXPERT = "model.layers.2.mlp.experts.5"
_INDEXER = "model.layers.1.self_attn.indexer"
_KV_B, _DOWN = "model.layers.0.self_attn.kv_b_proj.weight", "model.layers.0.mlp.down_proj.weight"
_BIAS = f"{_EXPERT}.down_proj.scale_bias"
BROKEN = {
    "missing scale": (_drop(f"{_EXPERT}.up_proj.weight_scale"), "missing", False),
    "missing scale_bias": (_drop(_BIAS), "missing", False),
    "narrow scale_bias": (_set(_BIAS, lambda t: t[:, :1]), "shape", False),
    "missing indexer weight": (_drop(f"{_INDEXER}.wk.weight"), "missing", False),
    "missing indexer scale": (_drop(f"{_INDEXER}.wq_b.weight_scale"), "missing", False),
    "NaN": (_set("model.norm.weight", lambda t: t * torch.nan), "NaN", False),
    "float codes": (_set(_DOWN, torch.Tensor.float), "float32", False),
    "integers for float": (_set(_KV_B, lambda t: t.to(torch.int8)), "int8", False),
    "wrong shape": (_set("model.embed_tokens.weight", lambda t: t[:, :-1]), "does not fit", False),
    "indexer of a shared layer": (_add, "no place", False),
    "missing MTP tensor": (_drop("model.layers.4.eh_proj.weight"), "missing", True),
    "missing rotation": (_drop("rot.weight"), "missing", True),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_checkpoint_is_refused_by_name(
    fault: str, w4a8_engine: Engine, w4a8: Path, tmp_path: Path
) -> None:
    change, reason, draft = BROKEN[fault]
    tensors = _all_tensors(w4a8)
    before = {name: id(tensor) for name, tensor in tensors.items()}
    change(tensors)
    changed = {n for n in before | dict.fromkeys(tensors) if id(tensors.get(n)) != before.get(n)}
    save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / "all.safetensors")

    message = w4a8_engine.ask("reload", directory=str(tmp_path), draft=draft)

    assert reason in message
    assert any(name in message for name in changed)


def test_reloading_the_whole_checkpoint_is_no_error(
    w4a8_engine: Engine, w4a8: Path, tmp_path: Path
) -> None:
    shutil.copytree(w4a8, tmp_path, dirs_exist_ok=True)
    for draft in (False, True):
        assert w4a8_engine.ask("reload", directory=str(tmp_path), draft=draft) == ""


def _all_tensors(directory: Path) -> Tensors:
    return {n: t for f in sorted(directory.glob("*.safetensors")) for n, t in load_file(f).items()}
