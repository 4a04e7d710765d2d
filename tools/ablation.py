"""What each accuracy method of the quantiser is worth, on the small trained model.

``python -m tools.ablation`` quantises the model once per variant with one calibration text,
measures KL to the BF16 model on text that is not in it, through the arithmetic of the NPU, and
appends a row per variant to ``tools/results/ablation.jsonl``; the table of the last run goes into
``quant/methods/README.md``. ``--work DIR`` keeps checkpoints and scores, so that a run which was
ended goes on; ``--render`` only fills the table, ``--check`` compares it with the rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glm5_ascend.console import note
from glm5_ascend.demo import SMALL_MODEL
from tools.check_docs import with_block
from tools.peers.source import write_calibration
from tools.results_table import ROOT, provenance, sha256

README = ROOT / "quant" / "methods" / "README.md"
ROWS = ROOT / "tools" / "results" / "ablation.jsonl"
_TOKENS, _PIECES, _DRAWS = 32_768, 16, 1000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Variant:
    """One recipe; ``against`` names the variant whose KL it is compared with."""

    name: str
    title: str
    against: str | None
    experts: str
    rounding: str = "search"
    linears: str = "search"
    scheme: str = "W8A8_DYNAMIC"
    rotate: bool = True
    smoothing: tuple[str, ...] = ()
    refine: str = "none"

    def recipe(self) -> Row:
        """The recipe file's content."""
        content: Row = {
            "rotate": self.rotate,
            "mtp": "float",
            "rules": [
                {
                    "modules": "*.mlp.experts.*",
                    "scheme": self.experts,
                    "rounding": self.rounding,
                },
                {"modules": "*.mlp.*", "scheme": "W8A8_DYNAMIC", "rounding": self.linears},
                {"modules": "*", "scheme": self.scheme, "rounding": self.linears},
            ],
        }
        if self.smoothing:
            content["smoothing"] = list(self.smoothing)
        if self.refine != "none":
            content["refine_rotation"] = self.refine
        return content


_INT4, _INT8 = "W4A8_DYNAMIC", "W8A8_DYNAMIC"
_FITTED = ("fit", "fit-experts")


def _refined(scheme: str, against: str, experts: str, rounding: str) -> tuple[Variant, ...]:
    """The variant ``against`` with refined rotations, on activations and on weights too."""
    return tuple(
        Variant(
            f"{scheme}-refined-{refine}",
            f"rotation refined on {what}",
            against,
            experts,
            rounding,
            rounding,
            smoothing=_FITTED,
            refine=refine,
        )
        for refine, what in (("inputs", "activations"), ("all", "activations and all weights"))
    )


VARIANTS = (
    Variant("w4a8-nearest", "nearest, unrotated", None, _INT4, "nearest", "nearest", rotate=False),
    Variant("w4a8-plain", "scale search", "w4a8-nearest", _INT4, rotate=False),
    Variant("w4a8", "rotation", "w4a8-plain", _INT4),
    Variant("w4a8-gptq", "GPTQ of the int4 experts", "w4a8", _INT4, "gptq"),
    Variant("w4a8-gptq-all", "GPTQ of all modules", "w4a8-gptq", _INT4, "gptq", "gptq"),
    Variant(
        "w4a8-smooth",
        "fitted smoothing (fit, fit-experts)",
        "w4a8-gptq-all",
        _INT4,
        "gptq",
        "gptq",
        smoothing=_FITTED,
    ),
    Variant(
        "w4a8-descent",
        "descent after GPTQ",
        "w4a8-smooth",
        _INT4,
        "descent",
        "descent",
        smoothing=_FITTED,
    ),
    *_refined("w4a8", "w4a8-descent", _INT4, "descent"),
    Variant(
        "w4a8-all-unrotated",
        "descent without rotation",
        "w4a8-descent",
        _INT4,
        "descent",
        "descent",
        rotate=False,
        smoothing=_FITTED,
    ),
    Variant("w8a8-plain", "scale search, unrotated", None, _INT8, rotate=False),
    Variant("w8a8", "rotation", "w8a8-plain", _INT8),
    Variant("w8a8-gptq", "GPTQ of all modules", "w8a8", _INT8, "gptq", "gptq"),
    Variant(
        "w8a8-smooth",
        "fitted smoothing (fit, fit-experts)",
        "w8a8-gptq",
        _INT8,
        "gptq",
        "gptq",
        smoothing=_FITTED,
    ),
    Variant(
        "w8a8-flex",
        "smoothing of attention (flex)",
        "w8a8-gptq",
        _INT8,
        "gptq",
        "gptq",
        smoothing=("flex",),
    ),
    *_refined("w8a8", "w8a8-smooth", _INT8, "gptq"),
    Variant("w8a8-static", "static attention", "w8a8-gptq", _INT8, "gptq", "gptq", scheme="W8A8"),
)


def build(variant: Variant, model: Path, work: Path) -> Path:
    """Quantise ``model`` below ``work`` unless that was done; return the checkpoint."""
    from glm5_ascend.quant.calibration.options import FROM_RECIPE, CalibrationOptions
    from glm5_ascend.quant.command import QuantizeOptions, run
    from glm5_ascend.quant.recipe_rules import CALIBRATED

    target, mark = work / variant.name, work / f"{variant.name}.done"
    if mark.is_file():
        return target
    text = (work / "calibration.json").with_suffix(".jsonl")
    if not text.is_file():
        write_calibration(work / "calibration.json", _PIECES)
    recipe = work / f"{variant.name}.yaml"
    # JSON is YAML.
    recipe.write_text(json.dumps(variant.recipe()), encoding="utf-8")
    needs = not {variant.rounding, variant.linears}.isdisjoint(CALIBRATED) or bool(
        variant.smoothing
    )
    given = CalibrationOptions(text=str(text)) if needs else FROM_RECIPE
    run(QuantizeOptions(model, target, recipe=recipe, calibration=given, overwrite=True))
    mark.touch()
    return target


def scores(folders: Mapping[str, Path], model: Path, tokens: int, work: Path) -> dict[str, Row]:
    """Metrics and KL per window by variant; what ``work`` holds is not measured again."""
    from glm5_ascend.quant.evaluation.windows import read_windows
    from glm5_ascend.simulator.evaluate import evaluate, summarise
    from glm5_ascend.simulator.model import OfflineModel
    from glm5_ascend.simulator.offline_metrics import WindowScore

    files = {name: work / f"{name}.scores-{tokens}.json" for name in folders}
    missing = [name for name in folders if not files[name].is_file()]
    reference = OfflineModel.load(model)
    text = read_windows(model, reference.config, None, tokens)
    for name in missing:
        found: list[WindowScore] = []
        models = {"reference": reference, name: OfflineModel.load(folders[name])}
        for which, score in evaluate(models, text.windows, reference="reference"):
            if which == name:
                found.append(score)
        row = {
            "text": text.as_dict(),
            "metrics": summarise(found).as_dict(),
            "window_kl": [float(score.kl.mean()) for score in found],
        }
        note(f"{name}: KL {row['metrics']['kl_mean']:.6f}")
        files[name].write_text(json.dumps(row), encoding="utf-8")
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}


def ratio(kl: Sequence[float], base: Sequence[float]) -> Row:
    """Σ kl / Σ base with a paired 95 % bootstrap interval over windows."""
    first, second = np.array(kl), np.array(base)
    draws = np.random.default_rng(0).integers(len(first), size=(_DRAWS, len(first)))
    values = first[draws].sum(1) / second[draws].sum(1)
    low, high = np.quantile(values, [0.025, 0.975])
    return {"value": float(first.sum() / second.sum()), "interval": [float(low), float(high)]}


def collect(
    wanted: Sequence[Variant], model: Path, tokens: int, work: Path, command: Sequence[str]
) -> list[Row]:
    """One row per variant."""
    folders = {variant.name: build(variant, model, work) for variant in wanted}
    found = scores(folders, model, tokens, work)
    shared = provenance(command)
    shared["hardware"] += ", CPU emulation, no NPU"
    shared["model_sha256"] = sha256(model / "model.safetensors")
    rows = []
    for variant in wanted:
        row = {**shared, "variant": variant.name, "title": variant.title, **found[variant.name]}
        row |= {"against": variant.against, "recipe": variant.recipe()}
        if variant.against is not None:
            row["ratio"] = ratio(row["window_kl"], found[variant.against]["window_kl"])
        rows.append(row)
    return rows


def last_run(file: Path) -> list[Row]:
    """The rows with the date of the last row."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["date"] == rows[-1]["date"]]


def markdown(rows: Sequence[Row]) -> str:
    """The table and the sentence that says where it comes from."""
    lines = ["| variant | added | KL, nats per token | median window | top-1 | KL over |"]
    lines.append("|---|---|---:|---:|---:|---|")
    for row in rows:
        metrics, against = row["metrics"], "–"
        if row["against"] is not None:
            low, high = row["ratio"]["interval"]
            against = f"{row['against']}: {row['ratio']['value']:.3f} [{low:.3f}, {high:.3f}]"
        median = float(np.median(row["window_kl"]))
        lines.append(
            f"| {row['variant']} | {row['title']} | {metrics['kl_mean']:.6f} | {median:.6f} |"
            f" {100 * metrics['top1_agreement']:.2f} % | {against} |"
        )
    row = rows[0]
    lines += [
        "",
        f"Mean KL to BF16 on {row['text']['tokens']:,} tokens of {row['text']['name']};"
        " the last column divides it by that of the variant named there, with a paired 95 %"
        f" bootstrap interval over {row['text']['windows']} windows. Calibration text: {_PIECES}"
        " pieces of other packages. The MTP layer stays float. Measured:"
        f" {row['hardware']}; {row['date'][:10]}, commit {row['commit'][:12]}; rows of"
        f" `{ROWS.relative_to(ROOT)}`, made by `{row['command']}`.",
    ]
    return "\n".join(lines) + "\n"


def check(readme: Path, file: Path, model: Path) -> list[str]:
    """What does not belong together; empty when all is well."""
    rows = last_run(file)
    current, problems = readme.read_text(encoding="utf-8"), []
    if with_block(current, "ablation", markdown(rows)) != current:
        problems.append(f"{readme.name} does not show the last rows: run with --render")
    if any(row["model_sha256"] != sha256(model / "model.safetensors") for row in rows):
        problems.append(f"{file.name} was measured with another model: run again")
    return problems


def main(argv: Sequence[str]) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="tools.ablation", description=__doc__)
    parser.add_argument("--tokens", type=int, default=_TOKENS, help="of the evaluation, at least")
    parser.add_argument("--work", type=Path, help="folder to keep, and to go on from")
    parser.add_argument("--render", action="store_true", help="only fill the README")
    parser.add_argument("--check", action="store_true", help="only compare")
    args = parser.parse_args(argv)
    if args.check:
        problems = check(README, ROWS, SMALL_MODEL)
        for problem in problems:
            print(problem, file=sys.stderr)
        return int(bool(problems))
    if not args.render:
        command = ["python", "-m", "tools.ablation", "--tokens", str(args.tokens)]
        with tempfile.TemporaryDirectory(prefix="glm5-ascend-ablation-") as temporary:
            work = args.work or Path(temporary)
            work.mkdir(parents=True, exist_ok=True)
            rows = collect(VARIANTS, SMALL_MODEL, args.tokens, work, command)
        with ROWS.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    table = markdown(last_run(ROWS))
    print(table)
    current = README.read_text(encoding="utf-8")
    README.write_text(with_block(current, "ablation", table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
