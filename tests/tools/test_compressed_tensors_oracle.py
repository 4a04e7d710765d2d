"""What vLLM alone says about compressed-tensors exports on its CUDA platform, kernels aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tools.oracle.exports import CASES, write_export
from tools.oracle.inside.watch import SourceWatch, poison, uninitialised
from tools.oracle.install import vllm_alone
from tools.oracle.record import compact, read_rows
from tools.oracle.record_gpu import EXPORTS, VERSIONS
from tools.oracle.releases import UnknownRelease
from tools.oracle.trials import GPUS, Oracle

NEWEST = VERSIONS[-1]
OLD = VERSIONS[0]
GOOD = ("w8a8", "w4a8", "w4a8, Marlin with int8 inputs", "trained w8a8")
BYTES = "int4 one per byte, int8 activations"
NO_SCALE = "w8a8 without one weight_scale"


def recorded() -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["vllm"], row["case"]): row for row in read_rows(EXPORTS)}


def test_every_case_is_recorded() -> None:
    assert set(recorded()) == {(version, case) for version in VERSIONS for case in CASES}
    assert {row["made_by"] for row in recorded().values()} == {"python -m tools.oracle.record_gpu"}


def test_new_releases_load_every_tensor_of_the_presets() -> None:
    rows = recorded()
    for version in VERSIONS[1:]:
        for case in GOOD:
            row = rows[version, case]
            assert row["verdict"] == "accepted", (version, case)
            assert not {"uninitialised", "unread", "cast", "overwritten"} & set(row)
            experts = "CompressedTensorsWNA16MoEMethod: MarlinExperts"
            if "w8a8" in case:
                experts = "CompressedTensorsW8A8Int8MoEMethod: TritonExperts"
            assert row["methods"][experts] >= 3
            assert "mtp: CompressedTensorsW8A8Int8MoEMethod: TritonExperts" in row["methods"]
            assert "CompressedTensorsW8A8Int8: CutlassInt8ScaledMMLinearKernel" in row["methods"]


def test_an_old_release_only_lacks_indexers_that_it_need_not_build() -> None:
    """Its shared layers get an indexer, which stays empty and is not used."""
    for case in ("w8a8", "w4a8"):
        row = recorded()[OLD, case]
        assert row["verdict"] == "silent"
        names = [name for name in row["uninitialised"] if not name.startswith("and ")]
        assert {name.split(".indexer.")[0] for name in names} == {"model.layers.3.self_attn"}
        assert "unread" not in row


def test_what_is_refused_and_what_is_seen() -> None:
    rows = recorded()
    for version in VERSIONS:
        earlier = rows[version, BYTES]
        assert earlier["verdict"] == "rejected"
        assert earlier["message"] == "W4A8 Int8 MoE is only supported on CPU platforms"
        # Marlin takes hidden sizes that are multiples of 128; that of the trained model is 192.
        assert rows[version, "trained w4a8"]["exception"] == "AssertionError"
        missing = rows[version, NO_SCALE]
        assert missing["verdict"] == "silent"
        assert missing["uninitialised"][0].endswith("w13_weight_scale")
    assert rows[OLD, "w4a8 without group_size"]["exception"] == "TypeError"
    assert rows[NEWEST, "w4a8 without group_size"]["verdict"] == "accepted"


def test_tensors_that_nobody_read_are_seen() -> None:
    given = {name: torch.ones(2, 3) for name in ("whole", "turned", "item", "cast", "left")}
    with SourceWatch() as watch:
        for name, tensor in [*watch.noted(given.items()), *watch.noted(given.items())]:
            if name == "whole":
                torch.zeros(2, 3).copy_(tensor)
            elif name == "turned":
                torch.zeros(3, 2).copy_(tensor.t().contiguous())
            elif name == "item":
                torch.zeros(4, 2, 3)[1] = tensor
            elif name == "cast":
                torch.zeros(3).copy_(tensor.to(torch.bfloat16)[0])
    assert watch.unread() == ["left"]


def test_made_values_are_poisoned_too() -> None:
    model = torch.nn.Linear(3, 2)
    torch.nn.init.ones_(model.weight)
    model.codes = torch.nn.Parameter(torch.ones(2, 16, dtype=torch.int8), requires_grad=False)
    poison(model)
    assert uninitialised(model) == ["weight", "bias", "codes"]


def test_unknown_release_of_vllm() -> None:
    with pytest.raises(UnknownRelease, match="unknown release of vLLM") as raised:
        vllm_alone("0.1")
    assert OLD in raised.value.hint


@pytest.mark.slow
def test_newest_release_again(tmp_path: Path) -> None:
    with Oracle(vllm_alone(NEWEST), "load", GPUS[0]) as oracle:
        for number, name in enumerate(("w8a8", "w4a8", BYTES)):
            target = write_export(tmp_path, CASES[name], f"export-{number}")
            record = compact(oracle.ask({"directory": str(target), "mtp": True}))
            row = recorded()[NEWEST, name]
            assert {key: row.get(key) for key in record} == record
