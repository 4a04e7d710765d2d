"""The engine on float checkpoints against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.conftest import StartEngine, tokens
from tests.simulator.engine import Engine
from tests.support.oracle import HF_LATENT_EPS, HfOracle
from tests.support.teacher_forced import teacher_forced_error

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def expected(tiny: Path, prompts: list[list[int]]) -> list[list[int]]:
    """transformers' greedy tokens with the engine's latent epsilon."""
    oracle = HfOracle(tiny)
    return [oracle.greedy(prompt, 16) for prompt in prompts]


def test_greedy_equals_transformers_alone_batched_and_cached(
    engine: Engine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    alone = engine.generate(prompts)
    batched = engine.generate(prompts, together=True)

    assert [output.tokens for output in alone] == expected
    assert [output.tokens for output in batched] == expected
    # Prompts 6 and 7 share 64 tokens, and the second round finds everything.
    assert (alone[0].cached, alone[7].cached) == (0, 64)
    assert all(output.cached and output.cached >= 32 for output in batched)


def test_bits_do_not_depend_on_the_batch(engine: Engine, prompts: list[list[int]]) -> None:
    fresh = [[token, *prompt[1:]] for token, prompt in enumerate(prompts)]
    batched = engine.generate(fresh, together=True)
    alone = engine.generate(fresh)
    other = engine.generate([tokens(70, 90), *fresh[3:5]], together=True)

    assert batched[0].cached == 0
    assert [o.logprobs for o in alone] == [o.logprobs for o in batched]
    assert [o.logprobs for o in other[1:]] == [o.logprobs for o in batched[3:5]]


def test_log_probabilities_equal_transformers(engine: Engine, tiny: Path, tmp_path: Path) -> None:
    sequence = tokens(120, seed=20)
    reached = engine.score(sequence, tmp_path / "rows")
    oracle = HfOracle(tiny).forward(sequence[:-1])

    assert teacher_forced_error(reached, oracle.logits) < 1e-4


def test_injected_choices_are_followed(engine: Engine, tiny: Path, tmp_path: Path) -> None:
    """Choices of another sequence: the engine must agree with transformers under the same."""
    sequence, oracle = tokens(100, seed=21), HfOracle(tiny)
    choices = oracle.forward(tokens(99, seed=22)).choices
    choices.save(tmp_path / "choices")
    engine.ask("inject", path=str(tmp_path / "choices"))
    try:
        reached = engine.score(sequence, tmp_path / "rows")
    finally:
        engine.ask("inject", path="")

    injected = oracle.forward(sequence[:-1], choices)
    assert teacher_forced_error(reached, injected.logits) < 1e-4
    assert teacher_forced_error(reached, oracle.forward(sequence[:-1]).logits) > 0.05


def test_platform_and_defaults(engine: Engine) -> None:
    facts = engine.ask("facts")

    assert facts == {
        "platform": "Glm5CpuPlatform",
        "block_size": 16,
        "kv_bytes": 64 << 20,
        "quantization": None,
    }


@pytest.fixture(scope="module")
def hf_engine(start: StartEngine, tiny_51: Path) -> Engine:
    """GLM-5.1 style in transformers' epsilon mode, with the block size of vllm-ascend."""
    return start(tiny_51, env={"GLM5_ASCEND_LATENT_EPS": "hf"}, compilation_config={"mode": 3})


def test_hf_mode_equals_transformers_as_it_is(
    hf_engine: Engine, tiny_51: Path, prompts: list[list[int]], tmp_path: Path
) -> None:
    oracle = HfOracle(tiny_51, latent_eps=HF_LATENT_EPS)
    outputs = hf_engine.generate(prompts)
    sequence = tokens(120, seed=23)
    reached = hf_engine.score(sequence, tmp_path / "rows")
    engine_mode = HfOracle(tiny_51).forward(sequence[:-1])

    assert [output.tokens for output in outputs] == [oracle.greedy(p, 16) for p in prompts]
    assert teacher_forced_error(reached, oracle.forward(sequence[:-1]).logits) < 1e-4
    assert teacher_forced_error(reached, engine_mode.logits) > 1e-3
    assert hf_engine.ask("facts")["block_size"] == 128


@pytest.mark.slow
def test_bfloat16_does_not_depend_on_the_batch(
    start: StartEngine, tiny: Path, prompts: list[list[int]]
) -> None:
    engine = start(tiny, dtype="bfloat16", block_size=16)
    batched = engine.generate(prompts, together=True)
    engine.generate([tokens(200, 91)], 1, together=True)
    alone = engine.generate([[*prompt[:40], *prompt[40:]] for prompt in prompts])

    assert [o.tokens for o in alone] == [o.tokens for o in batched]
    assert [o.logprobs for o in alone] == [o.logprobs for o in batched]
