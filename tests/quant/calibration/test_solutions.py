"""What calibrated checkpoints compute, expert coverage, smoothing and static ranges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from glm5_ascend.quant import recipe_file
from glm5_ascend.quant.calibration import smoothing_run, spill
from glm5_ascend.quant.calibration.corpus import Corpus
from glm5_ascend.quant.calibration.options import CalibrationOptions, Setting
from glm5_ascend.quant.calibration.session import Session
from glm5_ascend.quant.command import QuantizeOptions, run
from glm5_ascend.quant.verify import VerifyOptions
from glm5_ascend.quant.verify import run as verify
from glm5_ascend.simulator.model import OfflineModel
from tests.quant.calibration.conftest import session, tiny_corpus
from tests.quant.conftest import json_of, tensors_of
from tests.support.ascend import AscendOracle
from tests.support.oracle import HfOracle
from tests.support.tiny_model import write_tiny

W8 = "[{modules: '*', scheme: W8A8_DYNAMIC, rounding: %s}]"
STATIC = (
    "[{modules: ['*.q_a_proj', '*.kv_a_proj_with_mqa', '*.q_b_proj', '*.o_proj'], scheme: W8A8},"
    " {modules: '*', scheme: W8A8_DYNAMIC}]"
)
W4 = "[{modules: '*.mlp.experts.*', scheme: W4A8_DYNAMIC, rounding: gptq},"
W4 += " {modules: '*', scheme: W8A8_DYNAMIC, rounding: gptq}]"


@pytest.fixture(autouse=True)
def _random_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "glm5_ascend.quant.calibration.calibrated_run.make_corpus", lambda *_: tiny_corpus()
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("solutions") / "source")


def quantised(
    source: Path, destination: Path, rules: str, setting: Setting | None = None, more: str = ""
) -> Path:
    recipe = destination.with_suffix(".yaml")
    recipe.write_text(f"mtp: rules\n{more}\nrules: {rules}\n")
    options = (
        CalibrationOptions(setting=setting or Setting(min_tokens=8, sample=48))
        if "gptq" in rules + more
        else CalibrationOptions()
    )
    run(QuantizeOptions(source, destination, recipe=recipe, calibration=options))
    return destination


def hidden_error(oracle: Any, reference: HfOracle) -> float:
    """Relative error of the hidden states of the tiny corpus, choices those of the reference."""
    tokens, part, whole = tiny_corpus().tokens, 0.0, 0.0
    for rows in tiny_corpus().spans():
        wanted = reference.forward(tokens[rows])
        found = oracle.forward(tokens[rows], inject=wanted.choices)
        part += float((found.logits - wanted.logits).double().square().sum())
        whole += float(wanted.logits.double().square().sum())
    return (part / whole) ** 0.5


def test_the_next_layer_sees_what_the_checkpoint_computes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden states of the calibration are those of the written checkpoint's own forward."""
    kept: list[torch.Tensor] = []
    original = Session._solve

    def solve(session: Session, store: Any, layer: int, progress: Any) -> None:
        if layer == 4:
            rows = len(tiny_corpus().tokens)
            kept.append(spill.open_rows(session._hidden(4), rows, 96).clone())
        original(session, store, layer, progress)

    monkeypatch.setattr(Session, "_solve", solve)
    model = OfflineModel.load(quantised(source, tmp_path / "out", W4))
    for rows in tiny_corpus().spans():
        wanted = model.forward(tiny_corpus().tokens[rows]).hidden
        found = model.norm(kept[0][rows])
        # A code that rounds the other way moves a few rows; a wrong layer moves all of them.
        error = (found - wanted).abs().amax(1) / wanted.std()
        assert float(error.median()) < 1e-4
        assert float(error.max()) < 0.2


def test_gptq_is_better_than_search_on_the_calibration_text(source: Path, tmp_path: Path) -> None:
    reference = HfOracle(source)
    search = quantised(source, tmp_path / "search", W4.replace("gptq", "search"))
    gptq = quantised(source, tmp_path / "gptq", W4)
    before, after = (hidden_error(AscendOracle(d), reference) for d in (search, gptq))
    assert after < 0.95 * before  # a few hundred rows, whose correlations are damped
    reports = [verify(VerifyOptions(d, full=True, manifest=True)) for d in (search, gptq)]
    assert reports[1].findings == reports[0].findings
    assert not any(finding.severity == "error" for finding in reports[1].findings)


def test_descent_is_better_than_gptq_on_the_calibration_text(source: Path, tmp_path: Path) -> None:
    reference = HfOracle(source)
    rules = W4.replace("gptq", "descent", 1)
    gptq = quantised(source, tmp_path / "gptq", W4)
    descent = quantised(source, tmp_path / "descent", rules)
    before, after = (hidden_error(AscendOracle(d), reference) for d in (gptq, descent))
    assert after < 0.995 * before
    made, base = tensors_of(descent), tensors_of(gptq)
    for name in made:
        if name.startswith("model.layers.0."):
            assert torch.equal(made[name], base[name])
    assert any(
        not torch.equal(made[n], base[n]) for n in made if ".1.mlp.experts.0.down_proj.weight" in n
    )


def test_an_fp8_source_is_dequantised_for_the_forward(tmp_path: Path) -> None:
    """The FP8 release and the BF16 checkpoint that it stands for give nearly the same hidden states
    and the same form of output."""
    source = write_tiny(tmp_path / "fp8", fp8=True)
    search = quantised(source, tmp_path / "search", W4.replace("gptq", "search"))
    gptq = quantised(source, tmp_path / "gptq", W4)
    reference = HfOracle(source)
    before, after = (hidden_error(AscendOracle(d), reference) for d in (search, gptq))
    assert after < 0.95 * before  # a few hundred rows, whose correlations are damped


def test_static_ranges(source: Path, tmp_path: Path) -> None:
    reference = HfOracle(source)
    out = quantised(source, tmp_path / "static", STATIC)
    dynamic = quantised(source, tmp_path / "dynamic", W8 % "gptq")
    stored = tensors_of(out)
    for layer in range(5):
        prefix = f"model.layers.{layer}.self_attn"
        shared = [stored[f"{prefix}.{m}.input_scale"] for m in ("q_a_proj", "kv_a_proj_with_mqa")]
        assert torch.equal(*shared)
    assert hidden_error(AscendOracle(out), reference) < 4 * hidden_error(
        AscendOracle(dynamic), reference
    )


@pytest.fixture(scope="module")
def outliers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("outliers") / "source", outlier_channels=6)


@pytest.mark.parametrize(
    ("rotate", "methods"), [("true", "flex, fit, fit-experts"), ("false", "flex, fit, awq")]
)
def test_smoothing_changes_no_function(
    outliers: Path, tmp_path: Path, rotate: str, methods: str
) -> None:
    reference = HfOracle(outliers)
    plain, smooth = (
        quantised(
            outliers,
            tmp_path / name,
            W8 % "gptq",
            more=f"rotate: {rotate}\nsmoothing: [{methods}]",
        )
        for name, methods in (("plain", ""), ("smooth", methods))
    )
    before, after = (hidden_error(AscendOracle(d), reference) for d in (plain, smooth))
    assert after < 1.1 * before
    norm = tensors_of(smooth)["model.layers.1.input_layernorm.weight"]
    assert norm.float().std() > 0 or rotate == "false"


def test_a_reader_that_is_forgotten_is_seen(
    outliers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = smoothing_run.factors

    def forgetful(group: Any, vector: torch.Tensor) -> Any:
        made = original(group, vector)
        return {
            name: scales
            for name, scales in made.items()
            if not name.endswith("kv_a_proj_with_mqa.weight")
        }

    reference = HfOracle(outliers)
    more = "rotate: false\nsmoothing: [flex]"
    right = quantised(outliers, tmp_path / "right", W8 % "search", more=more)
    monkeypatch.setattr(smoothing_run, "factors", forgetful)
    wrong = quantised(outliers, tmp_path / "wrong", W8 % "search", more=more)
    before, after = (hidden_error(AscendOracle(d), reference) for d in (right, wrong))
    assert after > 3 * before


def test_an_expert_without_tokens_is_rounded_from_its_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_tiny(tmp_path / "source", dead_expert=True)
    out = quantised(source, tmp_path / "out", W4)
    error = capsys.readouterr().err
    assert "warning: " in error
    assert "saw fewer than 8 calibration tokens" in error
    search = quantised(source, tmp_path / "search", W4.replace("gptq", "search"))
    found, wanted = tensors_of(out), tensors_of(search)
    dead = [name for name in found if ".mlp.experts.7." in name]
    assert len(dead) == 4 * 3 * 4
    for name in dead:
        assert torch.equal(found[name], wanted[name])
    scales = [t for name, t in found.items() if name.endswith("weight_scale")]
    assert all(bool((t > 0).all()) and bool(torch.isfinite(t).all()) for t in scales)
    live = [name for name in found if ".mlp.experts.0." in name and name.endswith("proj.weight")]
    assert any(not torch.equal(found[name], wanted[name]) for name in live)
    manifest = json_of(out / "quantize_manifest.json")
    for layer in ("1", "2", "3", "4"):
        row = manifest["calibration"]["coverage"][layer]
        assert row["unused"] == 1
        assert row["cold"] >= 1
        assert row["min"] == 0


@pytest.mark.slow
def test_memory_and_disk_stay_flat_across_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """78 layers: neither anonymous memory nor files grow from layer to layer."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    source = write_tiny(
        tmp_path / "deep",
        num_hidden_layers=78,
        n_routed_experts=2,
        num_experts_per_tok=1,
        mtp=False,
    )
    recipe = recipe_file.preset("w4a8")
    rules = tuple(replace(rule, rounding="gptq") for rule in recipe.rules)
    corpus = Corpus(tiny_corpus().tokens[:40], (0,))
    calibration = session(source, tmp_path / "work", replace(recipe, rules=rules), corpus)
    calibration.begin(resume=False)
    memory, sizes = [], []
    for layer in calibration.run():
        calibration.solutions().release(layer)
        memory.append(anonymous_bytes())
        sizes.append(sum(path.stat().st_size for path in (tmp_path / "work").iterdir()))
    assert len(memory) == 78
    # The first layers fill caches; a leak of one layer's weights would be > 20 MB by the end.
    assert memory[-1] - memory[10] < 2_000_000
    assert sizes[-1] - sizes[10] < 40_000


def anonymous_bytes() -> int:
    rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return (
        sum(int(row.split()[1]) for row in rows if row.startswith(("Anonymous", "Shared_D"))) * 1024
    )
