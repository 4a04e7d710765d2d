"""The catalogue of releases: complete, consistent, and as facts read elsewhere say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glm5_ascend.deploy.catalogue.releases import (
    images,
    release,
    releases_with_key,
    releases_with_variable,
)
from glm5_ascend.engine_releases import RELEASES


@pytest.mark.parametrize("version", [known.text for known in RELEASES])
def test_every_release_is_complete(version: str) -> None:
    found = release(version)
    assert found.vllm.split(".")[:2] == version.split(".")[:2]
    assert {"python", "cann", "torch", "torch_npu", "mooncake"} <= set(found.software)
    assert found.flags["--max-num-seqs"] == "whole"
    assert found.flags["--enable-expert-parallel"] == "switch"
    assert found.flags["--additional-config"] == "json"
    assert "glm47" in found.choices["--tool-call-parser"]
    assert {"MooncakeConnectorV1", "MultiConnector"} <= found.connectors
    assert {"VLLM_RPC_TIMEOUT", "SOC_VERSION"} - found.variables <= {"VLLM_RPC_TIMEOUT"}
    assert set(found.short.values()) <= set(found.flags)
    assert set(found.keys) <= set(found.flags)
    assert all(found.sources.values())


@pytest.mark.parametrize("version", [known.text for known in RELEASES])
def test_c8_spelling_agrees_with_what_the_release_reads(version: str) -> None:
    found = release(version)
    has_split = {"enable_sparse_sfa_c8", "enable_sparse_li_c8"} <= set(found.additional)
    expected = "sparse_c8" if "enable_sparse_c8" in found.additional else "split"
    if not has_split and expected == "split":
        expected = "none"
    # From 0.29 on the split keys are still read, and then overwritten from the dtypes.
    assert found.c8 == ("dtype" if found.series >= (0, 29) else expected)
    if found.c8 == "dtype":
        assert "indexer_kv_dtype" in found.keys["--attention-config"]


def test_strictness_began_with_0_27() -> None:
    for known in RELEASES:
        assert release(known.text).strict == (known.series >= (0, 27))


def test_keys_of_the_newest_release() -> None:
    keys = release("0.30").additional
    assert "fuse_muls_add" not in keys
    assert "fuse_muls_add" in keys["ascend_compilation_config"]
    assert "profiling_chunk_config.min_chunk" in keys["scheduler_config"]
    gone = {"layer_sharding", "weight_prefetch_config", "enable_sparse_c8", "dp_allreduce_on_npu"}
    assert not gone & set(keys)


def test_what_older_releases_knew() -> None:
    assert releases_with_key("layer_sharding")[-1] == "0.23.0.post1"
    assert releases_with_key("no_such_key") == []
    for name in ("VLLM_ASCEND_ENABLE_MLAPO", "VLLM_ASCEND_BALANCE_SCHEDULING"):
        assert releases_with_variable(name)[-1] == "0.26.0rc1"
    assert releases_with_variable("VLLM_ASCEND_ENABLE_FLASHCOMM1")[-1] == "0.30.0rc2"


def test_images_name_a_chip() -> None:
    chips = images()["chip_of_suffix"]
    assert (chips[""], chips["a3"], chips["a5-openeuler"]) == ("A2", "A3", "A5")


def test_flags_read_as_syntax_are_those_of_the_real_parser() -> None:
    path = Path(__file__).parents[1] / "data" / "deploy" / "vllm_parser_0.30.0.json"
    real = json.loads(path.read_text(encoding="utf-8"))
    flags = release("0.30.0rc2").flags
    assert set(flags) == {*real["switch"], *real["several"], *real["one"]}
    assert {flag for flag, kind in flags.items() if kind == "switch"} == set(real["switch"])
    # argparse takes these one by one: middleware is appended, device ids are one word with commas.
    one_by_one = {"--middleware", "--device-ids"}
    assert {f for f, kind in flags.items() if kind == "list"} - one_by_one == set(real["several"])
