"""``glm5-ascend sensitivity``: measure, choose under a budget, write the recipe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from glm5_ascend.checkpoint import (
    CheckpointReader,
    expected_tensors,
    tensor_bytes,
    write_text,
)
from glm5_ascend.config import Glm5Config
from glm5_ascend.console import format_bytes, progress
from glm5_ascend.errors import ConfigError, Glm5Error
from glm5_ascend.files import make_folder, present
from glm5_ascend.quant import recipe_file
from glm5_ascend.quant.calibration.corpus import make_corpus
from glm5_ascend.quant.calibration.proposal import (
    Upgrade,
    base_schemes,
    propose,
    recipe_text,
    tabulated,
)
from glm5_ascend.quant.calibration.sensitivity import (
    Group,
    Measured,
    Scan,
    TrialStore,
    groups_of,
    is_tried,
    schemes_of,
    with_scheme,
)
from glm5_ascend.quant.plan import make_plan
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.recipe_rules import Calibration, Recipe, assign
from glm5_ascend.quant.rotation import rotations
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.workers import one_thread

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class SensitivityOptions:
    """What the command line was asked for.

    Attributes:
        source: Hugging Face checkpoint.
        out: recipe to write; None writes none.
        budget: bytes that may be added to the base preset's output.
        scheme: name of the base preset.
        text: ``default`` or a file.
        tokens: of the text.
        with_kl: also measure the divergence at the end of the model.
    """

    source: Path
    out: Path | None
    budget: int
    scheme: str = "w4a8"
    text: str = "default"
    tokens: int = 4096
    with_kl: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """Measurements, largest loss first, and what the budget is spent on."""

    rows: list[Measured]
    upgrades: list[Upgrade]
    budget: int
    recipe: str
    out: Path | None = field(default=None)

    def as_dict(self) -> dict[str, object]:
        """Return everything as one JSON object."""
        return {
            "schema": 1,
            "budget": self.budget,
            "recipe": self.recipe,
            "measured": [
                {
                    "layer": row.group.layer,
                    "group": row.group.name,
                    "scheme": row.scheme.value,
                    "error": row.error,
                    "kl": row.kl,
                    "bytes": row.nbytes,
                }
                for row in self.rows
            ],
            "upgrades": [
                {
                    "layer": one.group.layer,
                    "group": one.group.name,
                    "from": one.before.value,
                    "to": one.after.value,
                    "added_bytes": one.added_bytes,
                    "gain": one.gain,
                }
                for one in self.upgrades
            ],
        }

    def as_text(self) -> str:
        """Return the most sensitive groups and the proposal as lines for people."""
        worst = sorted(self.rows, key=lambda row: -row.error if row.kl is None else -row.kl)
        lines = ["layer  group                scheme           error       KL         size"]
        lines += [_line(row) for row in worst[:_SHOWN] if row.error]
        added = sum(one.added_bytes for one in self.upgrades)
        lines.append(
            f"{len(self.upgrades)} upgrades add {format_bytes(added)} of the budget of"
            f" {format_bytes(self.budget)}"
        )
        lines += [
            f"layer {one.group.layer} {one.group.name}: {one.before.value} -> {one.after.value},"
            f" {format_bytes(one.added_bytes)}"
            for one in self.upgrades[:_SHOWN]
        ]
        if self.out is not None:
            lines.append(f"recipe written to {self.out}")
        return "\n".join(lines)


def _line(row: Measured) -> str:
    kl = "-" if row.kl is None else f"{row.kl:.2e}"
    return (
        f"{row.group.layer:>5}  {row.group.name:<19}  {row.scheme.value:<13}  {row.error:>8.2e}"
        f"  {kl:>9}  {format_bytes(row.nbytes):>9}"
    )


def _check_output(file: Path | None) -> None:
    """Refuse before hours of work what could not be written after them."""
    if file is None:
        return
    if present(file):
        raise Glm5Error(f"{file} exists", "give another file to --out")
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise Glm5Error(f"cannot write into {folder}", "name a file in a folder of yours")


def run(options: SensitivityOptions) -> Result:
    """Measure every group of the model and choose.

    Raises:
        Glm5Error: the source, the text or the preset is at fault.
    """
    _check_output(options.out)
    base = recipe_file.preset(options.scheme)
    if base.is_float:
        raise ConfigError(f"preset {base.name} quantises nothing", "use w4a8 or w8a8")
    with CheckpointReader(options.source) as reader, one_thread():
        config = reader.config
        tensors = expected_tensors(config)
        reader.check_inventory(tensors)
        wanted = Calibration(options.text, options.tokens)
        corpus = make_corpus(options.source, config, wanted)
        plan = make_plan(config, base)
        steps = [step for shard in plan.shards for step in shard.steps]
        matrices = rotations(config) if base.rotate else {}
        exact = [with_scheme(step, Scheme.FLOAT) if is_tried(step) else step for step in steps]
        store = TrialStore(reader, exact, matrices)
        groups = groups_of(steps, config)
        scan = Scan(store, corpus, with_kl=options.with_kl)
        with progress("trying schemes", _work(store.steps, groups)) as advance:
            rows = list(scan.run(groups, lambda group: advance(_work(store.steps, [group]))))
    table = tabulated(rows)
    decisions = assign(config, base, [name for name in tensors if not name.endswith("_scale_inv")])
    decided = {name: decision.scheme for name, decision in decisions.items()}
    upgrades = propose(table, base_schemes(table, decided), options.budget)
    modules = [step.name.removesuffix(".weight") for step in steps if is_tried(step)]
    text = recipe_text(base, upgrades, _ruled(config, base, modules))
    recipe_file.parse(text, "proposal", "the proposed recipe")
    if options.out is not None:
        make_folder(options.out)
        write_text(options.out, text)
    return Result(rows, upgrades, options.budget, text, options.out)


def _ruled(config: Glm5Config, base: Recipe, modules: list[str]) -> list[str]:
    """Modules that the rules decide about: not the MTP layer's, unless the recipe says so."""
    if base.mtp == "rules":
        return modules
    return [name for name in modules if not config.is_mtp(int(name.split(".")[2]))]


def _work(table: Mapping[str, Step], groups: Iterable[Group]) -> int:
    """Bytes of float weights that are rounded."""
    return sum(
        tensor_bytes(table[f"{module}.weight"].stored[f"{module}.weight"]) * len(schemes_of(group))
        for group in groups
        for module in group.modules
    )
