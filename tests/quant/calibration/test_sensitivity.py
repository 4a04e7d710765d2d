"""The sensitivity scan, the greedy choice and the recipe that comes out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.config import Glm5Config
from glm5_ascend.quant import recipe_file
from glm5_ascend.quant.calibration import sensitivity_command as command
from glm5_ascend.quant.calibration.proposal import propose, recipe_text, tabulated
from glm5_ascend.quant.calibration.sensitivity import Group, Measured
from glm5_ascend.quant.command import QuantizeOptions, run
from glm5_ascend.quant.plan import make_plan
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.simulator.model import OfflineModel
from tests.quant.calibration.conftest import tiny_corpus
from tests.quant.conftest import json_of
from tests.support.tiny_model import write_tiny

W4, W8, FLOAT = Scheme.W4A8_DYNAMIC, Scheme.W8A8_DYNAMIC, Scheme.FLOAT
LENGTHS = (48, 40)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("sensitivity") / "source", tokenizer=True)


@pytest.fixture(scope="module")
def result(source: Path, tmp_path_factory: pytest.TempPathFactory) -> command.Result:
    patch = pytest.MonkeyPatch()
    patch.setattr(command, "make_corpus", lambda *_: tiny_corpus(LENGTHS))
    out = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    try:
        return command.run(command.SensitivityOptions(source, out, 20_000, with_kl=True))
    finally:
        patch.undo()


def test_every_group_is_measured_in_every_scheme(source: Path, result: command.Result) -> None:
    table = tabulated(result.rows)
    config = Glm5Config.from_dir(source)
    indexers = sum(config.has_indexer(layer) for layer in range(4))
    # q_a with kv_a, q_b, o and the dense or shared MLP of four layers, three layers of experts.
    assert len(table) == 4 * 4 + indexers + 3
    for group, schemes in table.items():
        assert list(schemes) == ([W4, W8, FLOAT] if group.name == "mlp.experts" else [W8, FLOAT])
        errors = [row.error for row in schemes.values()]
        assert errors == sorted(errors, reverse=True)
        assert errors[-1] == 0.0
        assert all(row.nbytes > 0 and row.kl is not None for row in schemes.values())


def test_an_error_is_that_of_the_checkpoint_with_this_group_quantised(
    source: Path, result: command.Result, tmp_path: Path
) -> None:
    """KL of one trial against the offline model of a checkpoint that the writer made."""
    recipe = tmp_path / "one.yaml"
    recipe.write_text(
        "mtp: float\nrules:\n- {modules: 'model.layers.2.mlp.experts.*', scheme: W4A8_DYNAMIC}\n"
        "- {modules: '*', scheme: FLOAT}\n"
    )
    run(QuantizeOptions(source, tmp_path / "out", recipe=recipe))
    none = tmp_path / "none.yaml"
    none.write_text("mtp: float\nrules: [{modules: '*', scheme: FLOAT}]\n")
    run(QuantizeOptions(source, tmp_path / "plain", recipe=none))
    models = [OfflineModel.load(tmp_path / name) for name in ("plain", "out")]
    corpus, parts = tiny_corpus(LENGTHS), []
    for rows in corpus.spans():
        p, q = (m.forward(corpus.tokens[rows]).logits.double().log_softmax(-1) for m in models)
        parts.append((p.exp() * (p - q)).sum(-1))
    wanted = float(torch.cat(parts).mean())
    (found,) = [
        row.kl
        for row in result.rows
        if row.group.layer == 2 and row.group.name == "mlp.experts" and row.scheme is W4
    ]
    assert found == pytest.approx(wanted, rel=0.02)


def test_the_recipe_is_read_and_costs_what_was_said(source: Path, result: command.Result) -> None:
    assert result.out is not None
    config = Glm5Config.from_dir(source)
    base = make_plan(config, recipe_file.preset("w4a8"))
    chosen = make_plan(config, recipe_file.read(result.out))
    added = sum(one.added_bytes for one in result.upgrades)
    assert 0 < added <= 20_000
    assert chosen.nbytes - base.nbytes == added


def test_greedy_takes_the_best_per_byte_first_and_stays_within_the_budget() -> None:
    groups = [Group(layer, "mlp.experts", (f"model.layers.{layer}.mlp",)) for layer in range(3)]
    rows = [
        Measured(group, scheme, error, None, size)
        for group, (four, eight) in zip(groups, [(9.0, 1.0), (5.0, 4.0), (8.0, 0.1)], strict=True)
        for scheme, error, size in ((W4, four, 100), (W8, eight, 200), (FLOAT, 0.0, 400))
    ]
    table = tabulated(rows)
    base = dict.fromkeys(groups, W4)
    assert propose(table, base, 99) == []
    chosen = propose(table, base, 200)
    assert [(one.group.layer, one.after) for one in chosen] == [(0, W8), (2, W8)]
    loss = 0.0
    final = base | {one.group: one.after for one in propose(table, base, 500)}
    loss = sum(table[group][scheme].error for group, scheme in final.items())
    best = min(
        sum(table[g][s].error for g, s in zip(groups, some, strict=True))
        for some in itertools.product((W4, W8, FLOAT), repeat=3)
        if sum(table[g][s].nbytes for g, s in zip(groups, some, strict=True)) <= 800
    )
    assert loss == best


def test_base_rules_without_a_module_left_are_dropped() -> None:
    base = recipe_file.preset("w4a8")
    modules = ["model.layers.1.mlp.experts.0.up_proj", "model.layers.1.self_attn.o_proj"]
    group = Group(1, "mlp.experts", (modules[0],))
    table = tabulated([Measured(group, W4, 1.0, None, 1), Measured(group, W8, 0.5, None, 2)])
    text = recipe_text(base, propose(table, {group: W4}, 1), modules)
    made = recipe_file.parse(text, "made", "text")
    assert [rule.scheme for rule in made.rules] == [W8, W8]
    assert made.rules[0].modules == ("model.layers.1.mlp.experts.*",)
    assert replace(made, name=base.name, rules=base.rules, use_when=base.use_when) == base


def test_command_line(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "make_corpus", lambda *_: tiny_corpus((40,)))
    out = tmp_path / "recipe.yaml"
    arguments = ["sensitivity", str(source), "--budget", "9kB", "--out", str(out), "--json"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    (tmp_path / "out.json").write_text(done.stdout)
    document = json_of(tmp_path / "out.json")
    assert document["recipe"] == out.read_text()
    assert sum(one["added_bytes"] for one in document["upgrades"]) <= 9000
    assert document["measured"][0]["kl"] is None
    wrong = CliRunner().invoke(cli, ["sensitivity", str(source), "--budget", "much"])
    assert wrong.exit_code == 2


def test_an_existing_file_is_not_replaced(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(Exception, match="exists"):
        command.run(command.SensitivityOptions(source, tmp_path / "mine", 1))
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_folder_that_is_none_is_refused_before_the_work(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "none" / "recipe.yaml"
    with pytest.raises(Exception, match="cannot write into"):
        command.run(command.SensitivityOptions(source, out, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
