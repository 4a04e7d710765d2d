"""``fit`` as a user meets it, and the memory rule on commands."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from glm5_ascend.cli_deploy import fit
from glm5_ascend.deploy.catalogue import hardware, model
from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.layout import Group
from glm5_ascend.deploy.memory import Settings, bill
from glm5_ascend.deploy.memory.changes import nearest_changes
from glm5_ascend.deploy.memory.text import bar
from glm5_ascend.deploy.memory.verdict import memory_verdict, settings_of
from glm5_ascend.engine_releases import Release
from glm5_ascend.errors import Glm5Error


def run(*words: str) -> Result:
    return CliRunner().invoke(fit, [*words, "--json"], standalone_mode=False)


PLAIN = ("--model", "glm-5.1", "--hw", "a3-560t:2", "--layout", "dp8tp4")


def test_a_layout_that_fits() -> None:
    result = run(*PLAIN, "--max-model-len", "131072")
    report = json.loads(result.stdout)
    assert (result.return_value, report["fits"], report["kind"]) == (0, True, "modelled")
    (role,) = report["roles"]
    assert role["margin_gib"] > 0
    assert role["nearest_changes"] == []
    total = sum(role["parts_gib"].values()) + role["kv_gib"]
    assert total == pytest.approx(role["budget_gib"], abs=0.01)


def test_exit_code_3_and_changes_that_really_fit() -> None:
    result = run("--model", "glm-5.1", "--hw", "a2:2", "--layout", "dp2tp8")
    report = json.loads(result.stdout)
    assert result.return_value == 3
    assert "a2-280t" in report["assumed"]
    settings = Settings(model("glm-5.1"), hardware("a2").sku, Group(2, 8), max_model_len=202_752)
    changes = nearest_changes(settings, 16)
    assert changes[0].text.startswith("--max-model-len")
    assert all(change.bill.fits for change in changes)
    assert len({change.text.split()[0] for change in changes}) == len(changes)


def test_the_suggested_length_is_the_longest() -> None:
    settings = Settings(model("glm-5.1"), hardware("a2").sku, Group(2, 8), max_model_len=202_752)
    longest = bill(settings).max_context
    words = ["--model", "glm-5.1", "--hw", "a2:2", "--layout", "dp2tp8", "--max-model-len"]
    assert run(*words, str(longest)).return_value == 0
    assert run(*words, str(longest + 1)).return_value == 3


def test_both_roles_are_billed() -> None:
    words = ("--model", "glm-5.1", "--hw", "a3-752t:4", "--layout", "p=dp4tp8,d=dp32tp1")
    result = run(*words, "--max-model-len", "131072", "--max-num-seqs", "32")
    prefill, decode = json.loads(result.stdout)["roles"]
    assert (prefill["fits"], decode["fits"]) == (True, False)
    text = CliRunner().invoke(fit, words, standalone_mode=False).stdout
    assert "nearest change that fits" in text
    assert text.count("modelled") == 2


def test_too_many_dies_is_an_error() -> None:
    with pytest.raises(Glm5Error, match="takes 64 dies"):
        CliRunner().invoke(
            fit, [*PLAIN[:-1], "dp16tp4"], standalone_mode=False, catch_exceptions=False
        )


def test_the_bar_shows_shares() -> None:
    found = bill(Settings(model("glm-5.1"), hardware("a3").sku, Group(8, 4)))
    drawn = bar(found, 1000)
    assert len(drawn) == 1000
    experts = found.parts["experts"] / found.settings.sku.memory_bytes
    assert drawn.count("W") == round(1000 * experts)
    crowded = bill(Settings(model("glm-5.1"), hardware("a3").sku, Group(1, 8), quant="bf16"))
    assert bar(crowded).endswith("!")


ISSUE_12839 = (
    "vllm serve /data/GLM-5-w8a8 --tensor-parallel-size 16 --decode-context-parallel-size 16"
    " --max-num-seqs 4 --max-model-len 66600 --max-num-batched-tokens 4096"
    " --gpu-memory-utilization 0.96 --quantization ascend"
)
RELEASE = Release.parse("0.30.0rc2")


def test_a_command_is_judged_as_its_bill() -> None:
    command = ServeCommand.parse(ISSUE_12839.split(), {"HCCL_BUFFSIZE": "200"})
    where = hardware("a3:1")
    assert memory_verdict(command, where) is None
    longer = command.with_flag("--max-model-len", 202752).with_flag("--tensor-parallel-size", 8)
    finding = memory_verdict(longer.without("--decode-context-parallel-size"), where)
    assert finding is not None
    assert (finding.severity, finding.rule) == ("error", "memory")
    assert memory_verdict(command.with_flag("--tensor-parallel-size", 3), where) is None


@pytest.mark.parametrize(
    ("flags", "release", "kv"),
    [
        ("--additional-config {'enable_sparse_c8':true}", "0.18.0", "li-c8"),
        ("--additional-config {'enable_sparse_c8':true}", "0.22.1rc1", "both"),
        ("--additional-config {'enable_sparse_li_c8':true}", "0.23.0", "li-c8"),
        ("--kv-cache-dtype int8", "0.30.0rc2", "sfa-c8"),
        ("--kv-cache-dtype int8 --attention_config.indexer_kv_dtype int8", "0.30.0rc2", "both"),
        ("", "0.30.0rc2", "bf16"),
    ],
)
def test_each_spelling_of_c8(flags: str, release: str, kv: str) -> None:
    words = f"vllm serve Eco-Tech/GLM-5.2-w8a8c8 {flags}".replace("'", '"').split()
    found = settings_of(ServeCommand.parse(words), hardware("a3:1"), Release.parse(release))
    assert found is not None
    assert (found.kv, found.quant, found.model.name) == (kv, "w8a8", "glm-5.2")


@pytest.mark.parametrize("name", ["/models/GLM-5.3-Flash-w8a8", "Qwen/Qwen3-8B", "/glm-5.1/x"])
def test_an_unknown_model_is_not_judged(name: str) -> None:
    command = ServeCommand.parse(["vllm", "serve", name])
    assert settings_of(command, hardware("a3:1"), RELEASE) is None
