"""Published measurements, and what the model says of each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from glm5_ascend.deploy.catalogue import model, skus
from glm5_ascend.deploy.layout import Group, Layout
from glm5_ascend.deploy.memory import Settings
from glm5_ascend.deploy.performance.engine import Traffic
from glm5_ascend.deploy.performance.parameters import MOE_US, Parameters
from glm5_ascend.deploy.performance.scenario import Deployment, run
from glm5_ascend.deploy.performance.simulate import Load
from glm5_ascend.deploy.performance.step import StepModel
from glm5_ascend.deploy.performance.work import work_of

FILE = Path(__file__).parent / "measurements.toml"
LIST = Path(__file__).parent / "calibration.toml"
QUANTITIES = ("tokens_per_s", "ttft_ms", "tpot_ms", "step_ms")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of ``measurements.toml``.

    Attributes:
        measured: published values by quantity, one of :data:`QUANTITIES`.
        values: every other key of the row.
    """

    name: str
    kind: str
    grade: str
    source: str
    measured: Mapping[str, float]
    values: Mapping[str, Any] = field(repr=False)

    @property
    def uncounted(self) -> str | None:
        """Why the row is printed and not counted, if so."""
        reason = self.values.get("uncounted")
        return str(reason) if reason else None

    @property
    def layout(self) -> Layout:
        """The layout."""
        return Layout.parse(str(self.values["layout"]))

    def settings(self, group: Group, flags: Mapping[str, Any]) -> Settings:
        """Memory settings of one group with its flags."""
        values = self.values
        return Settings(
            model=model(str(values["model"])),
            sku=skus()[str(values["sku"])],
            group=group,
            quant=str(values["quant"]),
            kv=str(values["kv"]),
            draft_tokens=int(values["drafts"]),
            **flags,
        )

    @property
    def deployment(self) -> Deployment:
        """The deployment of a serving row."""
        groups = list(self.layout.groups.values())
        first = self.settings(groups[0], self.values["first"])
        second = self.settings(groups[1], self.values["second"]) if len(groups) > 1 else None
        return Deployment(first, second, int(self.values.get("index_every", 1)))

    @property
    def traffic(self) -> Traffic:
        """The requests of a serving row."""
        values = self.values
        cached = round(values["isl"] * values["prefix"])
        accepted, warm = float(values["accepted"]), bool(values.get("warm"))
        return Traffic(values["isl"], values["osl"], cached, cached, accepted, warm)

    @property
    def load(self) -> Load:
        """The benchmark of a serving row."""
        values = self.values
        return Load(values["requests"], values["concurrency"], values.get("rate"))

    def predict(self, parameters: Parameters) -> dict[str, float]:
        """The model's value for every measured quantity; empty where nothing can run."""
        if self.kind == "serving":
            found = run(self.deployment, self.traffic, self.load, parameters)
            if found is None:
                return {}
            every = {
                "tokens_per_s": found.throughput,
                "ttft_ms": 1e3 * found.ttft,
                "tpot_ms": 1e3 * found.tpot,
            }
            return {name: every[name] for name in self.measured}
        return {"step_ms": 1e3 * self._step(parameters)}

    def _step(self, parameters: Parameters) -> float:
        settings = self.settings(Group.parse(str(self.values["layout"])), {})
        overlap = bool(self.values.get("overlap"))
        hits = float(self.values.get("hits", 1.0))
        bare = StepModel(work_of(settings), parameters, kernels=True, overlap=overlap, hits=hits)
        ranks = settings.group.dp
        none, context = np.zeros(ranks), float(self.values["context"])
        if self.kind == "prefill":
            chunk = np.full(ranks, float(self.values["chunk"]))
            return bare.seconds(none, none, chunk, np.full(ranks, context / 2))
        seqs = np.full(ranks, float(self.values["sequences"]))
        return bare.seconds(seqs, np.full(ranks, context), none, none)


@cache
def measurements(path: Path = FILE) -> dict[str, Measurement]:
    """Every row by name."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["row"]
    return {
        name: Measurement(
            name, row["kind"], row["grade"], row["source"], row["measured"], values=row
        )
        for name, row in rows.items()
    }


@dataclass(frozen=True, slots=True)
class Operator:
    """Dispatch and combine of one layer by themselves: ``tokens`` per die over ``ep`` dies."""

    name: str
    tokens: int
    ep: int
    seconds: float

    def predict(self, parameters: Parameters) -> float:
        """Seconds, with int8 out and BF16 back and hidden size 7168."""
        sku, geometry = skus()["a3-752t"], model("deepseek-r1")
        per_token = geometry.experts_per_token * 3 * geometry.hidden
        moved = self.tokens * per_token * (1 - 1 / self.ep)
        return MOE_US * 1e-6 + moved / (sku.intra.gbs * 1e9 * parameters.link)


@cache
def calibration() -> tuple[tuple[str, ...], tuple[Operator, ...]]:
    """Names of the rows, and the operators, that the parameters are fitted to."""
    table = tomllib.loads(LIST.read_text(encoding="utf-8"))
    operators = tuple(
        Operator(item["name"], item["tokens"], item["ep"], item["seconds"])
        for item in table["operator"]
    )
    return (*table["steps"], *table["serving"]), operators
