"""What a release consists of, and one case for every kind of work in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from glm5_ascend.checkpoint import TensorSpec, expected_tensors, tensor_bytes
from glm5_ascend.checkpoint_inventory import is_fp8
from glm5_ascend.config import Glm5Config
from glm5_ascend.inspection import part_of
from glm5_ascend.quant.plan import Plan, make_plan
from glm5_ascend.quant.recipe import Action, Step
from glm5_ascend.quant.recipe_file import preset
from glm5_ascend.quant.scheme import stored_tensors
from tools.results_table import ROOT

CONFIGS = ROOT / "tests" / "data" / "configs"
RELEASE = "GLM-5.2"
# Rows of a vocabulary matrix that are measured: all rows are alike, and all of them are 1.9 GB.
_MOST_ROWS = 16384


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of matrix: what is done to it, and how many weights of a release are of this kind.

    Attributes:
        name: of the module, shortened.
        step: the step to measure, with fewer rows than the release's where those are very many.
        dtype: of the source, BF16 or F8_E4M3.
        parts: weights in the release by part of the model.
    """

    name: str
    step: Step
    dtype: str
    parts: dict[str, int]

    @property
    def weights(self) -> int:
        """Of the measured matrix."""
        return self.step.shape[0] * self.step.shape[1]

    @property
    def total(self) -> int:
        """Weights in the release."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Release:
    """A release and what it becomes under a preset."""

    name: str
    config: Glm5Config
    source_bytes: int
    output_bytes: int
    cases: tuple[Case, ...]


def release(name: str, scheme: str = "w4a8") -> Release:
    """The kinds of work in a published release, from its ``config.json`` alone."""
    raw = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    config = Glm5Config.from_dict(raw, source=f"{name}.json")
    plan = make_plan(config, preset(scheme))
    return Release(name, config, _source_bytes(config), plan.nbytes, tuple(_cases(config, plan)))


def _cases(config: Glm5Config, plan: Plan) -> Iterator[Case]:
    kinds: dict[tuple[object, ...], tuple[Step, str, Counter[str]]] = {}
    for step in (step for shard in plan.shards for step in shard.steps):
        if step.action is not Action.MATRIX:
            continue
        dtype = "F8_E4M3" if is_fp8(config, step.source) else "BF16"
        key = (step.shape, step.scheme, step.fold.columns, step.fold.rows, dtype, step.float_dtype)
        _, _, parts = kinds.setdefault(key, (step, dtype, Counter()))
        parts[part_of(config, step.name)] += step.shape[0] * step.shape[1]
    for step, dtype, parts in kinds.values():
        yield Case(_short(step), _cut(step), dtype, dict(parts))


def _cut(step: Step) -> Step:
    rows, columns = step.shape
    if rows <= _MOST_ROWS or step.fold.rows is not None:
        return step
    shape = (_MOST_ROWS, columns)
    stored = stored_tensors(step.name, shape, step.scheme, step.float_dtype)
    return replace(step, shape=shape, stored=stored)


def _short(step: Step) -> str:
    words = step.name.removesuffix(".weight").split(".")
    tail = [word for word in words if not word.isdigit() and word not in ("model", "layers")]
    return ".".join(tail[-2:])


def _source_bytes(config: Glm5Config) -> int:
    return sum(map(tensor_bytes, expected_tensors(config).values()))


def inputs(case: Case) -> dict[str, TensorSpec]:
    """The tensors that a case reads, by name."""
    step = case.step
    specs = {step.source: TensorSpec(step.shape, case.dtype)}
    if case.dtype == "F8_E4M3":
        grid = (-(-step.shape[0] // 128), -(-step.shape[1] // 128))
        specs[f"{step.source}_scale_inv"] = TensorSpec(grid, "F32")
    for norm in step.fold.norms:
        specs[norm] = TensorSpec((step.shape[1] // len(step.fold.norms),), "BF16")
    return specs


def config_file(name: str) -> Path:
    """The ``config.json`` of a release."""
    return CONFIGS / f"{name}.json"
