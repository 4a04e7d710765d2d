"""The command ``fit``: options to settings, one bill per role, the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from glm5_ascend.deploy.catalogue import Hardware, Model, hardware, model, models
from glm5_ascend.deploy.catalogue.hardware import GIB
from glm5_ascend.deploy.layout import Group, Layout
from glm5_ascend.deploy.memory.bill import Bill, bill
from glm5_ascend.deploy.memory.changes import Change, nearest_changes
from glm5_ascend.deploy.memory.overhead import least_buffsize
from glm5_ascend.deploy.memory.settings import Settings
from glm5_ascend.deploy.memory.text import bill_text
from glm5_ascend.engine_releases import find_release
from glm5_ascend.errors import ExitCode, Glm5Error

SCHEMA = 1
_DEFAULT_BUFFSIZE = 200
# Above this the engine takes AllToAll, whose buffers do not grow with the step.
_MOST_FUSED_TOKENS = 512


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What the command line asks; see ``glm5-ascend fit --help``."""

    model: str
    quant: str
    kv: str
    hw: str
    layout: str
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    utilisation: float = 0.92
    draft_tokens: int = 3
    dsa_cp: bool = False
    keep_unfused: bool = False
    kv_both: bool = False
    buffsize: int | None = None
    eager: bool = False
    redundant: int = 0
    kv_gib: float | None = None
    release: str = "0.30"


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer of ``fit``: a bill and changes per role."""

    hardware: Hardware
    bills: tuple[Bill, ...]
    changes: Mapping[str, list[Change]]
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether every role fits."""
        return all(found.fits for found in self.bills)

    @property
    def exit_code(self) -> ExitCode:
        """0, or 3 where a role does not fit."""
        return ExitCode.DONE if self.fits else ExitCode.DOES_NOT_FIT

    def as_dict(self) -> dict[str, object]:
        """JSON form, schema 1; every number is modelled."""
        roles = []
        for found in self.bills:
            changes = [
                {"change": change.text, "margin_gib": round(change.bill.margin / GIB, 3)}
                for change in self.changes[found.settings.role]
            ]
            roles.append({**found.as_dict(), "nearest_changes": changes})
        return {
            "schema": SCHEMA,
            "kind": "modelled",
            "hardware": str(self.hardware),
            "assumed": self.hardware.assumed,
            "notes": list(self.notes),
            "fits": self.fits,
            "roles": roles,
        }

    def as_text(self) -> str:
        """The same for people."""
        parts = [bill_text(found, self.changes[found.settings.role]) for found in self.bills]
        return "\n".join([*self.notes, "\n\n".join(parts)])


def resolve_model(name: str) -> Model:
    """A name of the catalogue, or a directory with a GLM-5 ``config.json``."""
    if name.strip() and name.strip().lower() not in models() and Path(name).is_dir():
        from glm5_ascend.config import Glm5Config

        return Model.from_config(Glm5Config.from_dir(Path(name)), Path(name).resolve().name)
    return model(name)


def fit(options: FitOptions) -> Fit:
    """Bills of every role of ``options.layout`` on ``options.hw``.

    Raises:
        CatalogueError: unknown model or hardware.
        LayoutError: a layout that cannot be read.
        Glm5Error: the layout needs more dies than there are.
    """
    where = hardware(options.hw)
    layout = Layout.parse(options.layout)
    if layout.dies > where.dies:
        raise Glm5Error(
            f"{layout} takes {layout.dies} dies, {where} has {where.dies}"
            f" ({where.servers} x {where.sku.dies_per_server})",
            "choose a smaller layout or more servers",
        )
    notes = [where.assumed] if where.assumed else []
    if layout.dies < where.dies:
        notes.append(f"{where.dies - layout.dies} of {where.dies} dies stay idle")
    bills = []
    for role, group in layout.groups.items():
        settings = _settings(options, where, role, group)
        given = None if options.kv_gib is None else round(options.kv_gib * GIB)
        bills.append(bill(settings, given))
    changes = {
        found.settings.role: [] if found.fits else nearest_changes(found.settings, where.dies)
        for found in bills
    }
    return Fit(where, tuple(bills), changes, tuple(notes))


def _settings(options: FitOptions, where: Hardware, role: str, group: Group) -> Settings:
    geometry = resolve_model(options.model)
    sequences = options.max_num_seqs or 16
    if options.max_num_batched_tokens is not None:
        batched = options.max_num_batched_tokens
    else:
        decode = sequences * (1 + options.draft_tokens)
        batched = {"mixed": 4096, "prefill": 8192, "decode": decode}[role]
    settings = Settings(
        model=geometry,
        sku=where.sku,
        group=group,
        quant=options.quant,
        kv=options.kv,
        role=role,
        max_model_len=options.max_model_len or geometry.positions,
        max_num_seqs=sequences,
        max_num_batched_tokens=batched,
        utilisation=options.utilisation,
        draft_tokens=options.draft_tokens,
        dsa_cp=options.dsa_cp and role != "decode",
        sequence_parallel=options.dsa_cp,
        keep_unfused=options.keep_unfused,
        kv_both=options.kv_both,
        graph=not options.eager and role != "prefill",
        block=512 if where.sku.chip == "A5" else 128,
        redundant=options.redundant,
        release=find_release(options.release),
    )
    if options.buffsize is not None:
        return replace(settings, buffsize=options.buffsize)
    tokens = min(settings.rows, _MOST_FUSED_TOKENS * group.tp)
    least = least_buffsize(geometry, group, tokens)
    return replace(settings, buffsize=max(_DEFAULT_BUFFSIZE, -(-least // 8) * 8))
