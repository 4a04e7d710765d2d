"""What a launch found and counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

from glm5_ascend.ops.emulator import abi
from glm5_ascend.ops.emulator.errors import KernelHazard


@dataclass(frozen=True, slots=True)
class Site:
    """A statement of the kernel; ``line`` is 0 where the emulator knows none."""

    api: str
    file: str
    function: str
    line: int
    column: int

    @property
    def key(self) -> str:
        """Names the statement in a mutant."""
        return f"{self.file}:{self.line}:{self.column}:{self.api}"

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}" if self.line else "?"


@dataclass(frozen=True, slots=True)
class Side:
    """The other access of a hazard, or the statement that an error goes back to."""

    core: str
    pipe: str
    site: Site


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, at the place where it was seen first.

    ``kind`` is a class of the README's table. ``memory`` is empty where no memory is concerned;
    ``address`` counts bytes from the start of the memory, or of GM's ``argument``. ``count``: how
    often the same pair of statements had it.
    """

    kind: str
    text: str
    core: str
    pipe: str
    site: Site
    memory: str
    address: int
    argument: str
    other: Side | None
    count: int

    @property
    def place(self) -> str:
        """Memory and address, for people."""
        if not self.memory:
            return ""
        name = f"{self.memory} {self.argument}" if self.argument else self.memory
        return f"{name} + {self.address:#x}"

    def __str__(self) -> str:
        where = f"{self.core}.{self.pipe}" if self.pipe else self.core
        text = f"{self.kind} at {self.site} {self.site.api} ({where}): {self.text}"
        if self.place:
            text += f"; {self.place}"
        if self.other is not None:
            text += f"; other side {self.other.site} {self.other.site.api}"
            text += f" ({self.other.core}{'.' if self.other.pipe else ''}{self.other.pipe})"
        return text


@dataclass(frozen=True, slots=True)
class Order:
    """A synchronisation statement, or a pair of them, that a launch executed ``count`` times.

    ``kind``: "barrier", "flag", "cross-flag", "queue" (EnQue and DeQue), "reuse" (FreeTensor and
    AllocTensor) or "sync-all". ``second`` is the waiting side; None for one statement.
    """

    kind: str
    first: Site
    second: Site | None
    count: int

    def __str__(self) -> str:
        if self.second is None:
            return f"{self.first.api} at {self.first}"
        return f"{self.first.api} at {self.first} to {self.second.api} at {self.second}"


@dataclass(frozen=True, slots=True)
class Lane:
    """Counters of one pipe of one core.

    ``busy`` and ``end`` are modelled cycles. The mappings go from a name of ``abi.PATHS``,
    ``abi.VECTOR_OPS`` or ``abi.CUBE_TYPES`` to bytes, transfers, blocks, elements, repeats,
    multiply-adds and Mmad instructions.
    """

    core: str
    pipe: str
    instructions: int
    busy: float
    end: float
    moved: Mapping[str, int]
    transfers: Mapping[str, int]
    blocks: Mapping[str, int]
    elements: Mapping[str, int]
    repeats: Mapping[str, int]
    products: Mapping[str, int]
    matmuls: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Span:
    """An instruction on the modelled timeline, in cycles."""

    core: str
    pipe: str
    site: Site
    start: float
    end: float


@dataclass(frozen=True)
class Report:
    """Result of a launch. ``dropped``: findings beyond the limit."""

    findings: tuple[Finding, ...]
    dropped: int
    instructions: int
    orders: tuple[Order, ...]
    lanes: tuple[Lane, ...]
    spans: tuple[Span, ...]
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @cached_property
    def cycles(self) -> float:
        """Modelled length of the launch, without its head."""
        return max((lane.end for lane in self.lanes), default=0.0)

    def check(self, what: str) -> None:
        """Refuse the results of a launch with findings.

        Raises:
            KernelHazard: with the first finding.
        """
        if self.findings:
            more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
            raise KernelHazard(
                f"{what}: {self.findings[0]}{more}",
                "run `glm5-ascend ops emulate` for the whole list",
            )


def parse(text: str, seconds: float) -> Report:
    """The report from the JSON of ``csrc/write_report.cpp``."""
    raw = json.loads(text)
    sites = [Site(**each) for each in raw.get("sites", ())] or [Site("", "", "", 0, 0)]
    cores = raw.get("cores", ())

    def side(other: Mapping[str, Any] | None) -> Side | None:
        return other and Side(other["core"], other["pipe"], sites[other["site"]])

    def finding(each: Mapping[str, Any]) -> Finding:
        return Finding(
            each["kind"],
            each["text"],
            each["core"],
            each["pipe"],
            sites[each["site"]],
            each.get("memory", ""),
            each.get("address", 0),
            each.get("argument", ""),
            side(each.get("other")),
            each["count"],
        )

    return Report(
        findings=tuple(finding(each) for each in raw["findings"]),
        dropped=raw.get("dropped", 0),
        instructions=raw.get("instructions", 0),
        orders=tuple(
            Order(
                each["kind"],
                sites[each["first"]],
                sites[each["second"]] if each["second"] else None,
                each["count"],
            )
            for each in raw.get("orders", ())
        ),
        lanes=tuple(_lane(each) for each in raw.get("lanes", ())),
        spans=tuple(
            Span(cores[core], abi.PIPES[pipe], sites[site], start, end)
            for core, pipe, site, start, end in raw.get("spans", ())
        ),
        seconds=seconds,
    )


def _lane(each: Mapping[str, Any]) -> Lane:
    def named(key: str, names: tuple[str, ...]) -> dict[str, int]:
        return {names[int(index)]: value for index, value in each[key].items()}

    return Lane(
        each["core"],
        each["pipe"],
        each["instructions"],
        each["busy"],
        each["end"],
        named("moved", abi.PATHS),
        named("transfers", abi.PATHS),
        named("blocks", abi.PATHS),
        named("elements", abi.VECTOR_OPS),
        named("repeats", abi.VECTOR_OPS),
        named("products", abi.CUBE_TYPES),
        named("matmuls", abi.CUBE_TYPES),
    )
