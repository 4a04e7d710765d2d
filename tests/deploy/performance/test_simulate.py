"""The simulation against queues that can be worked out on paper."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from glm5_ascend.deploy.performance.engine import Engine, Limits, Traffic
from glm5_ascend.deploy.performance.simulate import Load, Run, simulate


@dataclass(frozen=True)
class FakeWork:
    dp: int
    drafts: int = 0


@dataclass(frozen=True)
class FakeModel:
    """A step of a hundredth of a second, and a thousandth more per prompt token of any rank."""

    work: FakeWork
    step: float = 0.01
    token: float = 0.001

    def seconds(self, seqs: object, context: object, chunk: np.ndarray, keys: object) -> float:
        return self.step + self.token * float(chunk.max())


def engine(role: str, traffic: Traffic, limits: Limits, ranks: int = 1, **model: float) -> Engine:
    return Engine(FakeModel(FakeWork(ranks), **model), limits, traffic, role)  # type: ignore[arg-type]


PLAIN = Traffic(100, 11, 0, 0, 1.0)
WIDE = Limits(16, 1000, 1e6)


def run(engines: list[Engine], load: Load, second: list[Engine] | None = None) -> Run:
    found = simulate(engines, second or [], load, 0.0)
    assert found is not None
    return found


def test_one_request_alone() -> None:
    found = run([engine("mixed", PLAIN, WIDE)], Load(1, 1))
    assert found.ttft == pytest.approx(0.01 + 0.1)
    assert found.tpot == pytest.approx(0.01)
    assert found.seconds == pytest.approx(0.11 + 10 * 0.01)
    assert found.throughput == pytest.approx(11 / found.seconds)


def test_a_prompt_is_filled_in_chunks() -> None:
    found = run([engine("mixed", PLAIN, Limits(16, 30, 1e6))], Load(1, 1))
    assert found.ttft == pytest.approx(4 * 0.01 + 0.1)


def test_accepted_tokens_shorten_the_run() -> None:
    found = run([engine("mixed", Traffic(100, 11, 0, 0, 2.0), WIDE)], Load(1, 1))
    assert found.seconds == pytest.approx(0.11 + 5 * 0.01)


def test_requests_in_one_batch_decode_together() -> None:
    found = run([engine("mixed", PLAIN, WIDE)], Load(4, 4))
    assert found.seconds == pytest.approx(0.01 + 0.4 + 10 * 0.01)


@pytest.mark.parametrize(
    "limits", [Limits(1, 1000, 1e6), Limits(16, 1000, 111.0), Limits(16, 1000, 221.0)]
)
def test_without_room_requests_wait(limits: Limits) -> None:
    found = run([engine("mixed", PLAIN, limits)], Load(4, 4))
    assert found.seconds == pytest.approx(4 * (0.11 + 10 * 0.01))
    assert found.ttft == pytest.approx(np.mean([0.11 + i * 0.21 for i in range(4)]))


def test_a_shared_prefix_makes_room() -> None:
    shared = Traffic(100, 11, 0, 90, 1.0)
    found = run([engine("mixed", shared, Limits(16, 1000, 90 + 4 * 21.0))], Load(4, 4))
    assert found.seconds == pytest.approx(0.01 + 0.4 + 10 * 0.01)


def test_a_cached_prefix_is_computed_once_per_rank() -> None:
    cached = Traffic(100, 11, 90, 0, 1.0)
    cold = run([engine("mixed", cached, WIDE)], Load(2, 1))
    assert cold.seconds == pytest.approx(0.11 + 0.1 + 0.02 + 0.1)
    warm = Traffic(100, 11, 90, 0, 1.0, warm=True)
    assert run([engine("mixed", warm, WIDE)], Load(2, 1)).seconds == pytest.approx(2 * 0.12)


def test_a_rank_that_fills_holds_up_the_others() -> None:
    found = run([engine("mixed", PLAIN, WIDE, ranks=2)], Load(2, 2, rate=10.0))
    # The second comes at 0.1 s, while the first is filled; both ranks step in 0.11 s then.
    assert found.seconds == pytest.approx(0.11 + 0.11 + 10 * 0.01)


def test_prefill_and_decode_work_side_by_side() -> None:
    first = engine("prefill", PLAIN, WIDE)
    second = engine("decode", PLAIN, Limits(16, 16, 1e6))
    found = run([first], Load(3, 3), [second])
    assert found.ttft == pytest.approx(0.01 + 0.3 + 0.01)
    assert found.seconds == pytest.approx(0.31 + 11 * 0.01)


def test_a_decode_node_holds_what_its_step_takes() -> None:
    limits = Limits(16, 8, 1e6)
    small = Engine(FakeModel(FakeWork(1, drafts=3)), limits, PLAIN, "decode")  # type: ignore[arg-type]
    assert small.most == 2


def test_transfer_delays_the_first_token() -> None:
    engines = [engine("prefill", PLAIN, WIDE)], [engine("decode", PLAIN, WIDE)]
    found = simulate(*engines, Load(1, 1), transfer=0.5)
    assert found is not None
    assert found.ttft == pytest.approx(0.11 + 0.5 + 0.01)


def test_what_holds_no_request_is_none() -> None:
    assert simulate([engine("mixed", PLAIN, Limits(16, 1000, 100.0))], [], Load(1, 1)) is None


def test_tokens_are_conserved_and_runs_repeat() -> None:
    traffic = Traffic(500, 100, 100, 50, 2.5)

    def once() -> Run:
        model = FakeModel(FakeWork(4, drafts=3))
        mixed = Engine(model, Limits(4, 256, 4000.0), traffic, "mixed")  # type: ignore[arg-type]
        return run([mixed], Load(40, 12, 3.0))

    assert once() == once()
    assert once().throughput * once().seconds == pytest.approx(40 * 100)
    assert once().concurrency <= 12.0001


def test_spread_of_acceptance_follows_the_draws() -> None:
    # At 1.5 tokens of one draft the variance of a step is 1/4.
    assert Traffic(1, 1000, 0, 0, 1.0).spread(1) == 0.0
    half = Traffic(1, 1500, 0, 0, 1.5)
    assert half.spread(1) == pytest.approx(math.sqrt(0.25 / 1000) / 1.5, rel=1e-6)
    assert Traffic(100, 1000, 0, 0, 2.0).spread(3) > 0
