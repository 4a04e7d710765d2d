"""What a launch found and counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
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

    The mappings go from a name of ``abi.PATHS``,
    ``abi.VECTOR_OPS`` or ``abi.CUBE_TYPES`` to bytes, transfers, blocks, elements, repeats,
    multiply-adds and Mmad instructions.
    """

    core: str
    pipe: str
    instructions: int
    moved: Mapping[str, int]
    transfers: Mapping[str, int]
    blocks: Mapping[str, int]
    elements: Mapping[str, int]
    repeats: Mapping[str, int]
    products: Mapping[str, int]
    matmuls: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Occupation:
    """Modelled cycles of one pipe of one core.

    ``work``: at the core's own rates; ``busy``: with the waits for bandwidth that cores share.
    ``bins``: busy part of equal pieces of the launch, where they were asked for.
    """

    core: str
    pipe: str
    work: float
    busy: float
    end: float
    bins: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """The modelled time of a launch, without its head, with one set of rates.

    ``hbm``: bytes of GM that pipes moved and that the launch had not touched before, workspaces
    aside; ``l2``: the other bytes of GM that they moved.
    """

    cycles: float
    hbm: int
    l2: int
    lanes: tuple[Occupation, ...]


@dataclass(frozen=True)
class Report:
    """Result of a launch. ``dropped``: findings beyond the limit.

    With models of time, ``touched`` has the bytes of each argument that the launch touched, and
    ``workspace`` their sum over workspaces.
    """

    findings: tuple[Finding, ...]
    dropped: int
    instructions: int
    orders: tuple[Order, ...]
    lanes: tuple[Lane, ...]
    models: tuple[Model, ...]
    touched: Mapping[str, int]
    workspace: int
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

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
    gm = raw.get("gm", ())

    def side(other: Mapping[str, Any] | None) -> Side | None:
        return Side(other["core"], other["pipe"], sites[other["site"]]) if other else None

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
        models=tuple(_model(each) for each in raw.get("models", ())),
        touched={each["argument"]: each["bytes"] for each in gm},
        workspace=sum(each["bytes"] for each in gm if each["workspace"]),
        seconds=seconds,
    )


def _model(each: Mapping[str, Any]) -> Model:
    lanes = (Occupation(**{**lane, "bins": tuple(lane["bins"])}) for lane in each["lanes"])
    return Model(each["cycles"], each["hbm"], each["l2"], tuple(lanes))


def _lane(each: Mapping[str, Any]) -> Lane:
    def named(key: str, names: tuple[str, ...]) -> dict[str, int]:
        return {names[int(index)]: value for index, value in each[key].items()}

    return Lane(
        each["core"],
        each["pipe"],
        each["instructions"],
        named("moved", abi.PATHS),
        named("transfers", abi.PATHS),
        named("blocks", abi.PATHS),
        named("elements", abi.VECTOR_OPS),
        named("repeats", abi.VECTOR_OPS),
        named("products", abi.CUBE_TYPES),
        named("matmuls", abi.CUBE_TYPES),
    )
