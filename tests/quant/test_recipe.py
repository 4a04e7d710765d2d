"""Recipes: what YAML may say, which module gets what, and what a release cannot load."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError
from glm5_ascend.quant.nearest import round_nearest
from glm5_ascend.quant.plan import make_plan
from glm5_ascend.quant.recipe_file import parse, preset, preset_names
from glm5_ascend.quant.scheme import Scheme
from tests.quant.conftest import json_of, quantize, tensors_of
from tests.support.tiny_config import tiny_config

DESCRIPTION = "quant_model_description.json"
REST = "\n  - {modules: '*', scheme: W8A8_DYNAMIC}\n"


def model() -> Glm5Config:
    return Glm5Config.from_dict(tiny_config("5.2"), source="tiny")


def invoke(*words: object) -> Result:
    return CliRunner().invoke(cli, ["quantize", *map(str, words)])


def lines_of(result: Result) -> tuple[str, str]:
    """The error and the hint."""
    found = [line for line in result.stderr.splitlines() if line.startswith(("error: ", "hint: "))]
    assert len(found) == 2, result.stderr
    return found[0], found[1]


def test_presets_say_when_to_use_them() -> None:
    names = preset_names()
    thorough = {"w4a8-thorough", "w8a8-thorough"}
    assert set(names) == {"w8a8", "w8a8c8", "w4a8", "w4a8c8", "none"} | thorough
    listed = invoke("--list-presets").stdout.splitlines()
    helped = "".join(invoke("--help").stdout.split())
    for name, line in zip(names, listed, strict=True):
        recipe = preset(name)
        assert (recipe.name, len(recipe.use_when) > 20) == (name, True)
        assert line.split(maxsplit=1) == [name, recipe.use_when]
        assert f"{name}{recipe.use_when}".replace(" ", "") in helped
        make_plan(model(), recipe)
    assert {name for name in names if preset(name).kv == "c8"} == {"w4a8c8", "w8a8c8"}
    assert {name for name in names if preset(name).needs_calibration} == thorough


YAML: dict[str, tuple[str, str]] = {
    "unknown key": (
        "rotatte: true\nrules:" + REST,
        "unknown key 'rotatte' in the recipe; did you mean rotate?",
    ),
    "unknown key of a rule": ("rules:\n  - {module: '*', scheme: FLOAT}", "did you mean modules?"),
    "unknown scheme": (
        "rules:\n  - {modules: '*', scheme: W8A8_DYNAMYC}",
        "did you mean W8A8_DYNAMIC?",
    ),
    "case of a scheme": (
        "rules:\n  - {modules: '*', scheme: w4a8_dynamic}",
        "did you mean W4A8_DYNAMIC?",
    ),
    "unknown rounding": (
        "rules:\n  - {modules: '*', scheme: FLOAT, rounding: gtpq}",
        "did you mean gptq?",
    ),
    "unknown kv": ("kv: c4\nrules:" + REST, "kv is 'c4'"),
    "two methods for experts": (
        "smoothing: [awq, fit-experts]\nrules:" + REST,
        "names awq and fit-experts",
    ),
    "unknown smoothing": ("smoothing: [flexx]\nrules:" + REST, "did you mean flex?"),
    "unknown calibration": ("calibration: {token: 3}\nrules:" + REST, "did you mean tokens?"),
    "number of tokens": ("calibration: {tokens: 0}\nrules:" + REST, "calibration.tokens must be"),
    "no flag": ("rotate: 1\nrules:" + REST, "rotate must be true or false"),
    "no rules": ("rotate: true", "there are no `rules`"),
    "rules of another kind": ("rules: {modules: '*'}", "`rules` must be a list"),
    "no rule at all": ("rules: []", "`rules` must be a list"),
    "no scheme": ("rules:\n  - {modules: '*'}", "rule 1 lacks `scheme`"),
    "no glob": ("rules:\n  - {modules: [], scheme: FLOAT}", "modules of rule 1 is empty"),
    "a tensor": ("rules:\n  - {modules: '*.weight', scheme: FLOAT}", "names a tensor"),
    "a key twice": ("mtp: w8\nmtp: float\nrules:" + REST, "key 'mtp' occurs twice"),
    "no YAML": ("rules: [", "not valid YAML"),
    "an object": ("!!python/object:os.system {}", "not valid YAML"),
    "a date": ("kv: 2020-99-99\nrules:" + REST, "'2020-99-99' cannot be read as timestamp"),
    "a list": ("- 1", "must be a mapping"),
    "empty": ("", "must be a mapping"),
}


@pytest.mark.parametrize("case", YAML)
def test_bad_yaml(case: str, source: Path, tmp_path: Path) -> None:
    text, words = YAML[case]
    file = tmp_path / "own.yaml"
    file.write_text(text)
    result = invoke(source, tmp_path / "out", "--recipe", file)
    error, _ = lines_of(result)
    assert words in error
    assert str(file) in error
    assert result.exit_code == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "cannot read"),
        (lambda path: path.mkdir(), "cannot read"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda path: path.write_bytes(b"#" * (1 << 21)), "larger than a recipe"),
    ],
)
def test_files_that_are_none(
    make: Callable[[Path], object], words: str, source: Path, tmp_path: Path
) -> None:
    make(tmp_path / "own.yaml")
    result = invoke(source, tmp_path / "out", "--recipe", tmp_path / "own.yaml")
    assert words in lines_of(result)[0]


RULES: dict[str, tuple[str, str]] = {
    "matches nothing": (
        "rules:\n  - {modules: '*.expert.*', scheme: FLOAT}" + REST,
        "'*.expert.*' matches no module of this model",
    ),
    "taken by earlier ones": (
        "rules:" + REST + "  - {modules: '*.o_proj', scheme: FLOAT}",
        "have every match",
    ),
    "the MTP layer alone": (
        "rules:\n  - {modules: 'model.layers.4.*', scheme: FLOAT}" + REST,
        "mtp: w8 have every match",
    ),
    "float anyway": (
        "rules:\n  - {modules: '*.kv_b_proj', scheme: W8A8_DYNAMIC}" + REST,
        "absorbed into attention",
    ),
    "int4 of a linear": (
        "rules:\n  - {modules: '*', scheme: W4A8_DYNAMIC}",
        "self_attn.q_a_proj cannot be W4A8_DYNAMIC: vllm-ascend has FLOAT, W8A8, W8A8_DYNAMIC",
    ),
    "static experts": (
        "rules:\n  - {modules: '*.experts.*', scheme: W8A8}" + REST,
        "cannot be W8A8",
    ),
    "half of a fused layer": (
        "rules:\n  - {modules: '*.q_a_proj', scheme: FLOAT}" + REST,
        "one scheme for q_a and kv_a",
    ),
    "one expert": (
        "rules:\n  - {modules: '*.experts.3.*', scheme: W4A8_DYNAMIC}" + REST,
        "one scheme for all experts",
    ),
    "not covered": (
        "rules:\n  - {modules: '*.self_attn.*', scheme: W8A8_DYNAMIC}",
        "no rule matches model.layers.0.mlp.gate_proj",
    ),
    "no indexer": ("kv: c8\nkv_except: [3]\nrules:" + REST, "layer 3, but it has no indexer"),
    "no cache": ("kv_except: [0]\nrules:" + REST, "layer 0, but kv is none"),
}


@pytest.mark.parametrize("case", RULES)
def test_rules_that_do_not_fit(case: str, source: Path, tmp_path: Path) -> None:
    text, words = RULES[case]
    (tmp_path / "own.yaml").write_text(text)
    result = invoke(source, tmp_path / "out", "--recipe", tmp_path / "own.yaml")
    error, _ = lines_of(result)
    assert words in error
    assert result.exit_code == 1
    assert not (tmp_path / "out").exists()


MIXED = """
use_when: a test
mtp: rules
rules:
  - modules: ["model.layers.4.*"]
    scheme: FLOAT
  - modules: "model.layers.2.mlp.experts.*"
    scheme: W8A8_DYNAMIC
    rounding: nearest
  - modules: ["*.mlp.experts.*"]
    scheme: W4A8_DYNAMIC
  - modules: ["*.shared_experts.*", "*.o_proj"]
    scheme: FLOAT
  - modules: "*"
    scheme: W8A8_DYNAMIC
"""


def test_first_match_wins(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mixed.yaml").write_text(MIXED)
    out = tmp_path / "out"
    result = invoke(source, out, "--recipe", tmp_path / "mixed.yaml", "--no-rotate", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["scheme"] == "mixed"
    schemes = json_of(out / DESCRIPTION)
    wanted = {
        "model.layers.2.mlp.experts.5.up_proj": "W8A8_DYNAMIC",
        "model.layers.3.mlp.experts.5.up_proj": "W4A8_DYNAMIC",
        "model.layers.4.mlp.experts.5.up_proj": "FLOAT",
        "model.layers.4.self_attn.q_a_proj": "FLOAT",
        "model.layers.2.mlp.shared_experts.up_proj": "FLOAT",
        "model.layers.1.self_attn.o_proj": "FLOAT",
        "model.layers.1.self_attn.q_b_proj": "W8A8_DYNAMIC",
    }
    assert {name: schemes[f"{name}.weight"] for name in wanted} == wanted
    assert schemes["model_quant_type"] == "W4A8_DYNAMIC"
    # Rounded to nearest: recomputed with NumPy from the source.
    name = "model.layers.2.mlp.experts.5.up_proj"
    weight = tensors_of(source)[f"{name}.weight"].double().numpy()
    made = tensors_of(out)
    scale = made[f"{name}.weight_scale"].numpy()
    assert np.allclose(scale[:, 0], np.abs(weight).max(1) / 127, rtol=2**-8)
    assert np.array_equal(
        made[f"{name}.weight"].numpy(), np.clip(np.rint(weight.astype("f4") / scale), -128, 127)
    )
    recipe = json_of(out / "quantize_manifest.json")["recipe"]
    assert recipe["rules"][1] == {
        "modules": ["model.layers.2.mlp.experts.*"],
        "scheme": "W8A8_DYNAMIC",
        "rounding": "nearest",
    }
    assert (recipe["name"], recipe["rotate"], "calibration" in recipe) == ("mixed", False, False)


def test_another_recipe_is_another_job(source: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(MIXED)
    assert invoke(source, tmp_path / "out", "--recipe", own).exit_code == 0
    own.write_text(MIXED.replace("nearest", "search"))
    error, _ = lines_of(invoke(source, tmp_path / "out", "--recipe", own, "--resume"))
    assert "differs in rules" in error
    # What people read is no part of the job.
    own.write_text(MIXED.replace("a test", "another text"))
    assert invoke(source, tmp_path / "out", "--recipe", own, "--resume").exit_code == 0


def test_rounding_and_settings_are_in_the_digest() -> None:
    recipe = preset("w4a8")
    digest = make_plan(model(), recipe).digest()
    rules = tuple(replace(rule, rounding="nearest") for rule in recipe.rules)
    for other in (replace(recipe, rules=rules), replace(recipe, kv="c8")):
        assert make_plan(model(), other).digest() != digest
    step = make_plan(model(), replace(recipe, rules=rules)).shards[0].steps[1]
    assert step.rounding == "nearest"


@pytest.mark.parametrize("text", ["smoothing: [flex]", "smoothing: [awq, flex]"])
def test_a_recipe_that_needs_statistics_is_never_run_without(
    text: str, source: Path, tmp_path: Path
) -> None:
    assert parse(f"{text}\nrules:{REST}", "own", "own").needs_calibration
    for rule in ("{modules: '*', scheme: W8A8_DYNAMIC, rounding: gptq}",):
        assert parse(f"rules:\n  - {rule}", "own", "own").needs_calibration
    assert not preset("w4a8").needs_calibration


# Marks of the int8 indexer cache.


def test_layers_with_an_indexer_are_marked(source: Path, tmp_path: Path) -> None:
    described = json_of(quantize(source, tmp_path / "all", "w8a8c8") / DESCRIPTION)
    suffix = ".self_attn.indexer.quant_type"
    marks = {key.removesuffix(suffix): described[key] for key in described if key.endswith(suffix)}
    # Layer 3 shares the indexer of the layer before it; layer 4 is the MTP layer.
    owners = {f"model.layers.{layer}" for layer in (0, 1, 2, 4)}
    assert marks == dict.fromkeys(owners, "INT8_DYNAMIC")
    assert "indexer_quant_type" not in described
    (tmp_path / "own.yaml").write_text("kv: c8\nkv_except: [0, 4]\nrules:" + REST)
    own = tmp_path / "own"
    assert invoke(source, own, "--recipe", tmp_path / "own.yaml").exit_code == 0
    kept = {key.removesuffix(suffix) for key in json_of(own / DESCRIPTION) if suffix in key}
    assert kept == owners - {"model.layers.0", "model.layers.4"}


# Releases.

QUERY_FLOAT = "rules:\n  - {modules: '*.q_b_proj', scheme: FLOAT}" + REST


@pytest.mark.parametrize(
    ("text", "engine", "words"),
    [
        (QUERY_FLOAT, "0.30", "q_b_proj"),
        (QUERY_FLOAT, "0.23", ""),
        ("kv: c8\nrules:" + REST, "0.17", "no int8 cache of indexer keys"),
        ("kv: c8\nrules:" + REST, "0.26", ""),
        ("rules:" + REST, "0.18", "shared indexers"),
        ("rules:" + REST, "0.99", "there are no rules for"),
    ],
)
def test_what_a_release_cannot_load_is_refused(
    text: str, engine: str, words: str, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(text)
    arguments = [source, tmp_path / "out", "--recipe", tmp_path / "own.yaml"]
    for more in (["--dry-run"], []):
        result = invoke(*arguments, "--for", f"vllm-ascend=={engine}", *more)
        if words:
            assert words in lines_of(result)[0]
            assert result.exit_code == 1
            assert not (tmp_path / "out").exists()
        else:
            assert result.exit_code == 0, result.stderr


def test_the_newest_release_of_a_series_is_named(source: Path, tmp_path: Path) -> None:
    arguments = [source, tmp_path / "out", "--scheme", "w8a8", "--for", "vllm-ascend==0.23"]
    assert "for vllm-ascend 0.23.0.post1" in invoke(*arguments, "--dry-run").stdout
    assert invoke(*arguments).stdout.splitlines()[-1] == "for vllm-ascend 0.23.0.post1"
    result = invoke(*arguments, "--overwrite", "--json")
    assert json.loads(result.stdout)["engine"] == "vllm-ascend 0.23.0.post1"


def test_presets_load_in_every_series_that_has_the_model(source: Path, tmp_path: Path) -> None:
    for engine in ("0.20", "0.23", "0.26", "0.30"):
        for name in preset_names():
            result = invoke(
                source, tmp_path / "out", "--scheme", name, "--for", engine, "--dry-run"
            )
            assert result.exit_code == 0, (engine, name, result.stderr)
            assert "warning" not in result.stderr


def test_unknown_presets(source: Path, tmp_path: Path) -> None:
    result = invoke(source, tmp_path / "out", "--scheme", "w4a8c")
    assert result.exit_code == 2
    assert "did you mean w4a8c8?" in result.stderr
    for words in ([], ["--scheme", "w8a8", "--recipe", "own.yaml"]):
        assert "give one of --scheme and --recipe" in invoke(source, "out", *words).stderr
    with pytest.raises(ConfigError, match="no preset"):
        preset("../w4a8")


@pytest.mark.parametrize("bits", [4, 8])
def test_nearest(bits: int) -> None:
    weight = torch.randn(9, 40, generator=torch.Generator().manual_seed(1))
    weight[3] = 0
    codes, scale = round_nearest(weight, bits)
    limit = 2 ** (bits - 1)
    assert int(codes.min()) >= -limit
    assert int(codes.max()) <= limit - 1
    assert bool((scale > 0).all())
    assert bool(((weight - codes * scale).abs() <= scale / 2 * (1 + 2**-6)).all())
    if bits == 8:
        assert torch.equal(scale.bfloat16().float(), scale)


def test_schemes_are_the_description_s_strings() -> None:
    assert [scheme.value for scheme in Scheme] == ["FLOAT", "W8A8", "W8A8_DYNAMIC", "W4A8_DYNAMIC"]
