"""Numbers in JSON flags: BAD and GOOD are what the strict oracle of 0.30.0rc2 refused and took."""

from __future__ import annotations

import json
from typing import Any

import pytest

from glm5_ascend.deploy.check.checks_numbers import breach, is_switch, read_number
from glm5_ascend.deploy.check.examine import examine
from tests.deploy.check.cases import contexts, filled

pydantic = pytest.importorskip("pydantic")

VALUES: list[Any] = [
    -1,
    0,
    1,
    2,
    3.0,
    3.5,
    1e400,
    "3",
    "3.0",
    " 7 ",
    "1_000",
    "0x10",
    "x",
    "",
    True,
]
VALUES += [False, "true", "YES", "maybe", [3], {"a": 1}, 10**30, "-2", "1e3", ".5", "nan", "inf"]


@pytest.mark.parametrize(("kind", "annotation"), [("whole", int), ("number", float)])
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_numbers_are_read_as_pydantic_reads_them(kind: str, annotation: type, value: Any) -> None:
    try:
        wanted = pydantic.TypeAdapter(annotation).validate_python(value)
    except pydantic.ValidationError:
        wanted = None
    if wanted is not None and wanted != wanted:
        wanted = None  # nan, which no bound keeps
    assert read_number(value, kind) == (None if wanted is None else float(wanted))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_switches_are_read_as_pydantic_reads_them(value: Any) -> None:
    try:
        pydantic.TypeAdapter(bool).validate_python(value)
        wanted = True
    except pydantic.ValidationError:
        wanted = False
    assert is_switch(value) == wanted


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("whole > 0", {"gt": 0}),
        ("whole >= 1 <= 3", {"ge": 1, "le": 3}),
        ("number > 0.5 < 1", {"gt": 0.5, "lt": 1}),
    ],
)
def test_bounds_are_pydantics(words: str, field: dict[str, float]) -> None:
    kind: Any = pydantic.Field(**field)
    adapter = pydantic.TypeAdapter(pydantic.fields.Annotated[float, kind])
    for value in (-1.0, 0.0, 0.5, 0.75, 1.0, 2.0, 3.0, 3.5):
        try:
            adapter.validate_python(value)
            kept = True
        except pydantic.ValidationError:
            kept = False
        assert (breach(value, words) == "") == kept, (words, value)


def rules_of(flag: str, value: object, release: str = "0.30", base: str = "a3") -> set[str]:
    line = filled(f"{flag} '{json.dumps(value)}'", base)
    return {f.rule for f in examine(contexts(line, release)) if f.severity == "error"}


NUMBER_RULES = {"number-range", "json-value", "capture-none", "kv-port-range", "pd-sizes-number"}
P = {"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_producer", "engine_id": "0"}
SIDES = {"prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 4, "tp_size": 4}}
MTP = {"method": "mtp", "enforce_eager": True}
SPECULATIVE = "--speculative-config"
ADDITIONAL = "--additional-config"
TRANSFER = "--kv-transfer-config"
GRAPHS = "--compilation-config"
BAD: list[tuple[str, object]] = [
    *((SPECULATIVE, MTP | {"num_speculative_tokens": v}) for v in (-1, 0, 3.5, "x", [3])),
    (SPECULATIVE, {"num_speculative_tokens": 1, "method": "mtp", "enforce_eager": 2}),
    (SPECULATIVE, MTP | {"num_speculative_tokens": 1, "max_model_len": 0}),
    (SPECULATIVE, MTP | {"num_speculative_tokens": 1, "max_model_len": "64k"}),
    *((GRAPHS, {"cudagraph_capture_sizes": v}) for v in ([-8], [0], [8.5], [], 8, ["x"])),
    *((GRAPHS, {"max_cudagraph_capture_size": v}) for v in (-8, 0, 64.5)),
    *(
        (TRANSFER, P | {"kv_connector_extra_config": SIDES, "kv_port": v})
        for v in (-1, 0, "x", 1.5)
    ),
    (TRANSFER, P | {"kv_connector_extra_config": SIDES, "kv_port": 70000}),
    (TRANSFER, P | {"kv_connector_extra_config": SIDES, "kv_port": 36000, "kv_buffer_size": "x"}),
    (ADDITIONAL, {"eplb_config": {"num_redundant_experts": -1}}),
    (ADDITIONAL, {"eplb_config": {"num_redundant_experts": 4.5}}),
    (ADDITIONAL, {"eplb_config": {"eplb_policy_type": 9}}),
    (ADDITIONAL, {"weight_nz_mode": 5}),
    (ADDITIONAL, {"enable_dsa_cp": 2}),
    (ADDITIONAL, {"enable_fused_mc2": 1.5}),
    (ADDITIONAL, {"finegrained_tp_config": {"lmhead_tensor_parallel_size": -1}}),
    (ADDITIONAL, {"mega_moe_max_tokens": 0}),
    (ADDITIONAL, {"scheduler_config": {"profiling_chunk_config": {"min_chunk": 0}}}),
    (ADDITIONAL, {"scheduler_config": {"enable_balance_scheduling": "nope"}}),
    (ADDITIONAL, {"sparse_kv_offload_config": {"topk_buffer_size": -1}}),
]
GOOD: list[tuple[str, object]] = [
    *((SPECULATIVE, MTP | {"num_speculative_tokens": v}) for v in ("3", 3.0, True)),
    *((SPECULATIVE, {"num_speculative_tokens": 1, "enforce_eager": v}) for v in ("yes", 1, None)),
    *((GRAPHS, {"cudagraph_capture_sizes": v}) for v in (["8"], [True], [24, 0])),
    (GRAPHS, {"max_cudagraph_capture_size": "64"}),
    (TRANSFER, P | {"kv_connector_extra_config": SIDES, "kv_port": "36000"}),
    (ADDITIONAL, {"eplb_config": {"num_redundant_experts": "4"}}),
    (ADDITIONAL, {"weight_nz_mode": "1"}),
    (ADDITIONAL, {"enable_dsa_cp": "true"}),
    (ADDITIONAL, {"draft_window_size": -1}),
]


@pytest.mark.parametrize(("flag", "value"), BAD, ids=str)
def test_what_0_30_refuses_is_an_error(flag: str, value: object) -> None:
    base = "prefill" if flag == TRANSFER else "a3"
    assert rules_of(flag, value, base=base) & (NUMBER_RULES | {"fused-mc2-value"})


@pytest.mark.parametrize(("flag", "value"), GOOD, ids=str)
def test_what_0_30_takes_is_none(flag: str, value: object) -> None:
    base = "prefill" if flag == TRANSFER else "a3"
    assert not rules_of(flag, value, base=base) & NUMBER_RULES


def test_releases_before_the_typed_classes_ask_for_integers() -> None:
    text = {"eplb_config": {"num_redundant_experts": "4"}}
    assert "json-value" in rules_of(ADDITIONAL, text, "0.23")
    assert "json-value" not in rules_of(ADDITIONAL, text, "0.30")


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("--max-num-seqs -1", "size-zero"),
        ("--tensor-parallel-size -2", "size-zero"),
        ("--max-model-len -2", "size-zero"),
        ("--gpu-memory-utilization 0", "number-range"),
        ("--gpu-memory-utilization 1.5", "number-range"),
        ("--gpu-memory-utilization x", "number-invalid"),
        ("--gpu-memory-utilization nan", "number-invalid"),
        ("--data-parallel-rpc-port 99999", "number-range"),
        ("--speculative-config.num_speculative_tokens -1", "number-range"),
        ("--port -5", "port-range"),
        ("--master-port 0", "port-range"),
        ("--port 0", ""),
        ("--max-model-len -1", ""),
        ("--max-model-len auto", ""),
        ("--gpu-memory-utilization 0.92", ""),
        ("--gpu-memory-utilization $UTILISATION", ""),
        ("--seed -1", ""),
    ],
)
def test_plain_flags(words: str, rule: str) -> None:
    line = "vllm serve GLM-5.2-w8a8 -tp 8 -dp 2 --enable-expert-parallel " + words
    found = {f.rule for f in examine(contexts(line)) if f.severity == "error"}
    wanted = {rule} if rule else set()
    assert found & (NUMBER_RULES | {"size-zero", "number-invalid", "port-range"}) == wanted
