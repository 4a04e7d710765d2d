"""The command ``plan``: options to targets, the search, its report, chart and plan file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.deploy.catalogue import hardware
from glm5_ascend.deploy.catalogue.hardware import GIB
from glm5_ascend.deploy.memory.command import resolve_model
from glm5_ascend.deploy.memory.settings import CACHES
from glm5_ascend.deploy.performance.parameters import fitted
from glm5_ascend.deploy.plan_file import Plan, Value
from glm5_ascend.deploy.planner import chart
from glm5_ascend.deploy.planner.candidates import Choices
from glm5_ascend.deploy.planner.flags import plan_file
from glm5_ascend.deploy.planner.nearest import Nearest, nearest
from glm5_ascend.deploy.planner.search import Point, Search, search
from glm5_ascend.deploy.planner.targets import REFERENCE_DRAFTS, Targets
from glm5_ascend.engine_releases import find_release
from glm5_ascend.errors import ExitCode, Glm5Error
from glm5_ascend.files import make_folder, refuse_unwritable

SCHEMA = 1
_DRAFTS = (0, 1, 2, 3, 5)
_INDEX_CACHE_SINCE = (0, 20)
_INDEX_CACHE_PERIOD = 4
_MOST_SERVERS = 128


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the command line asks; see ``glm5-ascend plan --help``."""

    model: str
    quant: str
    hw: str
    isl: int
    osl: int
    kv: str | None = None
    prefix: float = 0.0
    prefix_d: float | None = None
    concurrency: int | None = None
    rate: float | None = None
    tpot: float = 50.0
    ttft: float = 5000.0
    accepted: float = 2.8
    drafts: int | None = None
    index_cache: bool = True
    release: str = "0.30"
    top: int = 5
    out: Path | None = None
    chart: Path | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """The answer of ``plan``."""

    targets: Targets
    found: Search
    near: Sequence[Nearest]
    plan: Plan | None
    seconds: float

    @property
    def exit_code(self) -> ExitCode:
        """0, or 4 where no layout meets the targets."""
        return ExitCode.DONE if self.found.best else ExitCode.NO_LAYOUT

    @property
    def trouble(self) -> tuple[str, str] | None:
        """What stands in the way and what would help, where no layout meets the targets."""
        targets = self.targets
        if self.found.best:
            return None
        if not self.found.nearest:
            if targets.rate is not None and self.found.evaluations:
                return (
                    f"no layout on {targets.hardware} keeps up with {targets.rate:g} requests/s",
                    "lower --rate or add servers",
                )
            return (
                f"{targets.model.title} {targets.quant} with {targets.prompt + targets.output:,}"
                f" tokens fits on no layout of {targets.hardware}",
                "add servers or choose a smaller --quant; glm5-ascend fit shows the bill",
            )
        _, ttft, tpot = self.found.nearest[0].values
        return (
            f"no layout meets TPOT {1e3 * targets.tpot:g} ms and TTFT {1e3 * targets.ttft:g} ms",
            f"{self.found.nearest[0].name} reaches {1e3 * tpot:,.1f} and {1e3 * ttft:,.0f} ms:"
            " relax the limits, lower the load or add servers",
        )

    def as_dict(self) -> dict[str, object]:
        """JSON form, schema 1; every number is modelled unless it says published."""
        best = zip(self.found.best, self.near, strict=True)
        return {
            "schema": SCHEMA,
            "kind": "modelled",
            "hardware": str(self.targets.hardware),
            "assumed": self.targets.hardware.assumed,
            "layouts": [{**_point(self.targets, p), **_near(p, n)} for p, n in best],
            "rejected": self.found.rejected,
            "nearest_misses": [_point(self.targets, point) for point in self.found.nearest],
            "layouts_tried": self.found.layouts,
            "evaluations": self.found.evaluations,
            "seconds": round(self.seconds, 2),
            "plan": self.plan.as_dict() if self.plan else None,
        }

    def as_text(self) -> str:
        """The same for people."""
        targets = self.targets
        lines = [targets.hardware.assumed] if targets.hardware.assumed else []
        lines.append(
            f"{targets.model.title} {targets.quant} on {targets.hardware}"
            f" ({targets.hardware.dies} dies), {targets.prompt:,} in and {targets.output:,} out;"
            " all numbers modelled unless published"
        )
        lines.append(
            f"{self.found.layouts} roles, {self.found.evaluations:,} evaluations,"
            f" {self.seconds:.1f} s"
        )
        if self.found.best:
            lines += ["", _HEAD]
            for number, point in enumerate(self.found.best, 1):
                lines.append(_row(number, targets, point))
            lines += ["", f"nearest published measurement of 1: {self.near[0].text()}"]
            sure = _confidence(self.found.best[0], self.near[0])
            lines.append(f"confidence: {sure}; nothing here ran on an NPU")
        elif not self.found.nearest:
            lines += ["", "NO LAYOUT meets the targets, and none is near"]
        else:
            lines += ["", "NO LAYOUT meets the targets; the nearest:", _HEAD]
            for number, point in enumerate(self.found.nearest, 1):
                lines.append(_row(number, targets, point))
        lines += ["", "left out:"]
        lines += [f"  {count:>6}  {reason}" for reason, count in _most(self.found.rejected)]
        lines += ["", chart.terminal(self.found.points, targets)]
        return "\n".join(lines)


_HEAD = (
    f"{'':>2} {'layout':<28} {'kv':<7}{'MTP':>4} {'DSA-CP':<7}{'seqs':>5}"
    f"{'tok/s/die':>11}{'TPOT ms':>9}{'TTFT ms':>9}{'margin GiB':>12}  bottleneck"
)


def _row(number: int, targets: Targets, point: Point) -> str:
    speed, ttft, tpot = point.values
    settings = point.decoding.settings
    margin = min(c.bill.margin for c in (point.first, point.second) if c) / GIB
    return (
        f"{number:>2} {point.name:<28} {settings.kv:<7}{settings.draft_tokens:>4}"
        f" {'yes' if point.first.settings.dsa_cp else 'no':<7}{point.sequences:>5}"
        f" {speed / targets.hardware.dies:>10.2f} {_ms(tpot, 1):>8} {_ms(ttft, 0):>8}"
        f"{margin:>12.2f}  {point.bottleneck}"
    )


def _ms(seconds: float, digits: int) -> str:
    """Milliseconds; above a million of them seconds, so that columns stay apart."""
    return f"{1e3 * seconds:.{digits}f}" if seconds < 1000 else f"{seconds:.3g}s"


def _confidence(point: Point, near: Nearest) -> str:
    """Of a plan: that of its nearest row; ``low`` with DCP, which no published run has, and with
    more drafts than acceptance is given for."""
    settings = point.decoding.settings
    unknown = settings.group.dcp > 1 or settings.draft_tokens > REFERENCE_DRAFTS
    return "low" if unknown else near.confidence


def _most(rejected: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(rejected.items(), key=lambda item: -item[1])


def _point(targets: Targets, point: Point) -> dict[str, object]:
    speed, ttft, tpot = point.values
    settings = point.decoding.settings
    return {
        "layout": point.name,
        "kv": settings.kv,
        "draft_tokens": settings.draft_tokens,
        "dsa_cp": point.first.settings.dsa_cp,
        "max_num_seqs": point.sequences,
        "tokens_per_s": round(speed, 1),
        "tokens_per_s_per_die": round(speed / targets.hardware.dies, 3),
        "ttft_ms": round(1e3 * ttft, 1),
        "tpot_ms": round(1e3 * tpot, 2),
        "steady_tokens_per_s": round(point.throughput, 1),
        "simulated": point.run is not None,
        "bottleneck": point.bottleneck,
        "margin_gib": round(min(c.bill.margin for c in (point.first, point.second) if c) / GIB, 2),
    }


def _near(point: Point, near: Nearest) -> dict[str, object]:
    return {
        "confidence": _confidence(point, near),
        "nearest_published": {
            "id": near.row.name,
            "source": near.row.source,
            "published_tokens_per_s": near.row.measured["tokens_per_s"],
            "model_error": round(near.error, 3),
        },
    }


def plan(options: PlanOptions) -> Planned:
    """Search, and write what was asked for.

    Raises:
        Glm5Error: contradicting options, an unknown model or hardware, or a chip without rates.
        OSError: an output that cannot be opened, before the search.
    """
    started = time.perf_counter()
    targets = _targets(options)
    index_every = _index_every(options, targets)
    caches = [options.kv] if options.kv else list(CACHES)
    if not targets.model.index_heads:
        caches = ["bf16"]
    refuse_unwritable(*filter(None, (options.out, options.chart)))
    drafts = _DRAFTS if options.drafts is None else (options.drafts,)
    parameters = fitted()
    found = search(targets, Choices(caches, drafts), parameters, index_every, options.top)
    near = [nearest(targets, point, parameters) for point in found.best]
    chosen = None
    if found.best:
        chosen = plan_file(targets, found.best[0], index_every, _predicted(targets, found, near))
        if options.out is not None:
            chosen.dump(options.out)
    if options.chart is not None:
        title = f"{targets.model.title} {targets.quant} on {targets.hardware}"
        page = chart.html(found.points, targets, title)
        make_folder(options.chart)
        options.chart.write_text(page, encoding="utf-8")
    return Planned(targets, found, near, chosen, time.perf_counter() - started)


def _predicted(targets: Targets, found: Search, near: Sequence[Nearest]) -> dict[str, Value]:
    best = found.best[0]
    speed, ttft, tpot = best.values
    return {
        "kind": "modelled",
        "prompt_tokens": targets.prompt,
        "output_tokens": targets.output,
        "tokens_per_s": round(speed, 1),
        "ttft_ms": round(1e3 * ttft, 1),
        "tpot_ms": round(1e3 * tpot, 2),
        "accepted_per_step": round(targets.accepted_with(best.decoding.settings.draft_tokens), 2),
        "confidence": _confidence(best, near[0]),
    }


def _targets(options: PlanOptions) -> Targets:
    if options.out is not None and options.out == options.chart:
        raise Glm5Error("--out and --chart name the same file", "give each a name of its own")
    if (options.concurrency is None) == (options.rate is None):
        raise Glm5Error(
            "give either --concurrency or --rate",
            "a number of users at once, or requests per second",
        )
    where = hardware(options.hw)
    if where.sku.support != "full":
        raise Glm5Error(
            f"no plan for {where.sku.name}: {where.sku.note}", "glm5-ascend fit knows its memory"
        )
    if where.servers > _MOST_SERVERS:
        raise Glm5Error(
            f"no plan for {where.servers} servers: {_MOST_SERVERS} is the most",
            "plan one of several equal clusters",
        )
    geometry = resolve_model(options.model)
    if geometry.validation_only:
        raise Glm5Error(
            f"no plan for {geometry.title}: it is there to validate the model",
            "plans are made for GLM-5 to 5.3",
        )
    if options.isl + options.osl > geometry.positions:
        raise Glm5Error(
            f"{options.isl + options.osl} tokens exceed the {geometry.positions} of"
            f" {geometry.title}",
            "choose a shorter --isl or --osl",
        )
    return Targets(
        model=geometry,
        hardware=where,
        quant=options.quant,
        release=find_release(options.release),
        prompt=options.isl,
        output=options.osl,
        prefix=options.prefix,
        shared=options.prefix if options.prefix_d is None else options.prefix_d,
        concurrency=options.concurrency,
        rate=options.rate,
        tpot=options.tpot / 1e3,
        ttft=options.ttft / 1e3,
        accepted=options.accepted,
    )


def _index_every(options: PlanOptions, targets: Targets) -> int:
    """IndexCache's period: GLM-5 and 5.1 only, others share indexers by themselves."""
    own = targets.model.index_layers == targets.model.layers
    known = targets.release.series >= _INDEX_CACHE_SINCE
    return _INDEX_CACHE_PERIOD if options.index_cache and own and known else 1
