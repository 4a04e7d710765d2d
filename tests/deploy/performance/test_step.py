"""The step model against sums written out by hand, and its directions."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from glm5_ascend.deploy.catalogue import model, skus
from glm5_ascend.deploy.layout import Group
from glm5_ascend.deploy.memory import Settings
from glm5_ascend.deploy.performance.parameters import BOUNDS, Parameters, fitted, names
from glm5_ascend.deploy.performance.scenario import pool_seconds
from glm5_ascend.deploy.performance.step import KINDS, StepModel
from glm5_ascend.deploy.performance.work import stack, work_of

SIMPLE = Parameters(0.5, 0.5, 0.25, 0.5, 0.5, 10.0, 50.0, 20.0, 1000.0, 5.0, 0.5)
GLM, A3 = model("glm-5"), skus()["a3-752t"]


def settings(**changes: object) -> Settings:
    base = Settings(GLM, A3, Group(8, 4), draft_tokens=0, role="decode")
    return replace(base, **changes)  # type: ignore[arg-type]


def seconds(chosen: Settings, n: float, length: float, chunk: float = 0, keys: float = 0) -> float:
    step = StepModel(work_of(chosen), SIMPLE)
    ranks = chosen.group.dp
    return step.seconds(*(np.full(ranks, float(x)) for x in (n, length, chunk, keys)))


def test_a_decode_step_by_hand() -> None:
    parts = StepModel(work_of(settings()), SIMPLE).parts(
        *(np.full(8, x) for x in (4.0, 8192.0, 0.0, 0.0))
    )
    assert set(parts) == set(KINDS)
    bandwidth, bf16, int8 = 1600e9 * 0.5, 353.9e12, 752e12
    gathered = 4 * 2048 * 1152 / (1600e9 * 0.25)
    computed = 4 * 2048 * 2 * 16 * (2 * 512 + 64) / (bf16 * 0.5)
    assert parts["attention"] == pytest.approx(78 * max(gathered, computed))
    read, scored = 4 * 8192 * 256 / bandwidth, 4 * 8192 * 2 * 32 * 128 / (bf16 * 0.5)
    made = 4 * 2 * (2048 * 32 * 128 + 6144 * (128 + 32)) / (bf16 * 0.5)
    assert read > scored
    assert parts["indexer"] == pytest.approx(78 * (read + made))
    touched = 1 - (1 - 8 / 256) ** 32
    weights = 8 * 37_748_736 * touched / bandwidth
    flops = 32 * 8 * 2 * 37_748_736 / 32 * (6688 / 5655) / (int8 * 0.5)
    assert parts["experts"] == pytest.approx(75 * max(weights, flops))
    moved = 4 * 4 * (3 / 4) * 6144 * 2 + 4 * 8 * 6144 * 3 * (31 / 32) / 4 * (6688 / 5655)
    assert parts["communication"] == pytest.approx(78 * moved / (196e9 * 0.5))
    latency = 78 * (50 + 20 + 20) + 75 * 106
    assert parts["latency"] == pytest.approx(latency * 1e-6)
    assert (parts["host"], parts["drafts"]) == (5e-3 + 4 * 0.5e-3, 0.0)


def test_the_first_draft_pass_is_a_layer_over_the_prompt() -> None:
    """By the parts of the decoder's own layers; the projection of the vocabulary comes on top."""
    idle = np.zeros(8)

    def parts(drafts: int, chunk: float) -> dict[str, float]:
        step = StepModel(work_of(settings(draft_tokens=drafts)), SIMPLE)
        found = step.parts(idle, idle, np.full(8, chunk), np.full(8, chunk / 2))
        return {name: float(seconds) for name, seconds in found.items()}

    for chunk in (4096.0, 16_384.0):
        layers, found = parts(0, chunk), parts(1, chunk)["drafts"]
        head = 6144 * 154_880 * 2 / 4 / (1600e9 * 0.5)
        linear = (layers["linear"] - head) / 78
        layer = layers["attention"] / 78 + layers["indexer"] / 78 + layers["experts"] / 75
        layer += linear + layers["communication"] / 78 + layers["latency"] / 78
        # The latency of dispatch is spread over all layers, three of which have none.
        assert found == pytest.approx(layer + head, rel=0.01)
        assert parts(0, chunk)["drafts"] == 0
        assert parts(3, chunk)["drafts"] > found
    assert parts(1, 16_384)["drafts"] > 2 * parts(1, 4096)["drafts"]


def test_attention_is_bound_by_what_takes_longer() -> None:
    slow = replace(SIMPLE, gather=0.6, attention=0.05)
    parts = StepModel(work_of(settings(group=Group(32, 1))), slow).parts(
        *(np.full(32, x) for x in (4.0, 8192.0, 0.0, 0.0))
    )
    computed = 4 * 2048 * 2 * 64 * (2 * 512 + 64) / (353.9e12 * 0.05)
    assert computed > 4 * 2048 * 1152 / (1600e9 * 0.6)
    assert parts["attention"] == pytest.approx(78 * computed)


def test_sums_of_products_by_hand() -> None:
    parts = StepModel(work_of(settings()), SIMPLE).parts(
        *(np.full(8, x) for x in (0.0, 0.0, 4096.0, 100.0))
    )
    attention = 78 * (16_121_856 + (33_554_432 + 14_680_064 + 100_663_296) / 4)
    dense = (3 * 226_492_416 + 75 * 37_748_736) / 4
    head = 2 * 154_880 * 6144 / 4 / (1600e9 * 0.5)
    expected = 4096 * 2 * (attention + dense) / (752e12 * 0.5) + head
    assert parts["linear"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "slower"),
    [
        ({"quant": "bf16"}, True),
        ({"draft_tokens": 3}, True),
        ({"kv": "both"}, False),
        ({"group": Group(32, 1)}, None),
    ],
)
def test_directions_of_formats(change: dict[str, object], slower: bool | None) -> None:
    before, after = seconds(settings(), 8, 65_536), seconds(settings(**change), 8, 65_536)
    assert after > 0
    if slower is not None:
        assert (after > before) == slower


def test_more_work_takes_longer() -> None:
    for chosen in (settings(), settings(model=model("deepseek-r1"), draft_tokens=1)):
        by_count = [seconds(chosen, n, 4096) for n in (1, 2, 8, 32)]
        assert by_count == sorted(set(by_count))
        by_length = [seconds(chosen, 4, length) for length in (256, 4096, 65_536, 131_072)]
        assert by_length == sorted(set(by_length))
        by_chunk = [seconds(chosen, 4, 4096, chunk, 2048) for chunk in (0, 512, 4096, 8192)]
        assert by_chunk == sorted(set(by_chunk))


def test_dsa_cp_helps_a_prefill_and_index_cache_helps_both() -> None:
    plain = settings(role="prefill", graph=False)
    assert seconds(replace(plain, dsa_cp=True), 0, 0, 8192, 60_000) < seconds(
        plain, 0, 0, 8192, 60_000
    )
    every, fourth = work_of(settings()), work_of(settings(), 4)
    assert fourth.index_layers == every.index_layers / 4


def test_the_busiest_rank_sets_the_pace() -> None:
    step = StepModel(work_of(settings()), SIMPLE)
    none, length = np.zeros(8), np.full(8, 65_536.0)
    one = np.array([8.0, *[1.0] * 7])
    even = np.full(8, 15 / 8)
    assert step.seconds(one, length, none, none) > step.seconds(even, length, none, none)


def test_uniform_is_the_same_as_equal_ranks_and_works_on_many_layouts() -> None:
    layouts = [Group(8, 4), Group(32, 1), Group(2, 16, dcp=16)]
    works = [work_of(settings(group=group, draft_tokens=3)) for group in layouts]
    together = StepModel(stack(works), SIMPLE)
    count = np.full(3, 6.0)
    found = sum(together.uniform(count, count * 5000, count * 0, count * 0).values())
    for number, work in enumerate(works):
        ranks = int(work.dp)
        alone = StepModel(work, SIMPLE).seconds(
            np.full(ranks, 6.0), np.full(ranks, 30_000.0), np.zeros(ranks), np.zeros(ranks)
        )
        assert found[number] == pytest.approx(alone)


def test_what_slows_the_host_or_leaves_the_graph() -> None:
    work = work_of(settings(draft_tokens=3))
    arrays = [np.full(8, x) for x in (13.0, 4096.0, 0.0, 0.0)]
    plain = StepModel(work, SIMPLE).parts(*arrays)
    assert plain["host"] == pytest.approx(5e-3 + 13 * 0.5e-3)
    wide = StepModel(work, SIMPLE, captured=52).parts(*arrays)
    assert wide == plain
    narrow = StepModel(work, SIMPLE, captured=48).parts(*arrays)
    assert narrow["latency"] == pytest.approx(plain["latency"] + 78 * 1e-3)


def test_an_indexer_writes_scores_or_sorts_and_a_split_one_takes_a_share() -> None:
    plain = settings(role="prefill", graph=False)
    arrays = [np.full(8, x) for x in (0.0, 0.0, 4096.0, 30_000.0)]

    def indexer(**changes: object) -> float:
        work = work_of(replace(plain, **changes))  # type: ignore[arg-type]
        return float(StepModel(work, SIMPLE).parts(*arrays)["indexer"])

    bf16, made = 353.9e12, 4096 * 2 * (2048 * 32 * 128 + 6144 * 160) / (353.9e12 * 0.5)
    pairs = 4096 * 30_000.0
    slow = replace(SIMPLE, attention=0.66)
    narrow = StepModel(work_of(replace(plain, kv="li-c8")), slow).parts(*arrays)["indexer"]
    # A core writes 40.6 bytes in each of 43.2 G cycles a second, a score of every head in F32.
    out = 32 * 4 * 8192 / bf16 / (70 * 2**30 / 1.85e9)
    assert indexer() == pytest.approx(78 * (pairs * out + made))
    # 2.18 cycles of a vector core for each key: 4.36 steps of a merge sort, two elements a cycle.
    sort, product = 4.36 / 2 * 8192 / 2 / bf16, 2 * 32 * 128 / 2 / (bf16 * 0.66)
    assert sort > product
    assert narrow == pytest.approx(78 * (pairs * sort + made))
    assert indexer(dsa_cp=True) == pytest.approx(indexer() / 4)


def test_what_is_not_on_the_die_comes_over_the_hosts_link() -> None:
    work = work_of(settings(group=Group(32, 1), draft_tokens=3))
    arrays = [np.full(32, x) for x in (4.0, 65_536.0, 0.0, 0.0)]
    here = StepModel(work, SIMPLE).parts(*arrays)
    away = StepModel(work, SIMPLE, hits=0.9).parts(*arrays)
    missed = 4 * 4 * 2048 * 0.1 * 1152 / (4 * 160e9 / 16 * 0.5)
    assert away["attention"] == pytest.approx(here["attention"] + 78 * missed)
    assert all(away[k] == here[k] for k in KINDS if k not in ("attention", "drafts"))


def test_every_die_reads_the_latents_of_a_pooled_prefix() -> None:
    chosen = settings(model=model("deepseek-r1"))
    assert pool_seconds(chosen, 1e6, SIMPLE) == pytest.approx(1e6 * 61 * 1152 / (40e9 * 0.5))


def test_overlap_hides_communication_only() -> None:
    work = work_of(settings(role="prefill", draft_tokens=0))
    arrays = [np.full(8, x) for x in (0.0, 0.0, 8192.0, 4096.0)]
    plain = StepModel(work, SIMPLE, kernels=True).parts(*arrays)
    hidden = StepModel(work, SIMPLE, kernels=True, overlap=True).parts(*arrays)
    assert hidden["communication"] < plain["communication"]
    assert all(hidden[kind] == plain[kind] for kind in KINDS if kind != "communication")


def test_at_most_twelve_numbers_each_within_its_bounds() -> None:
    assert names() == tuple(BOUNDS) == tuple(item.name for item in fields(Parameters))
    assert len(names()) <= 12
    for name, (low, high) in BOUNDS.items():
        assert low <= getattr(fitted(), name) <= high
