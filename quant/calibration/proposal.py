"""A recipe under a budget: which groups are worth more bytes than the base recipe gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from glm5_ascend.quant.calibration.sensitivity import Group, Measured
from glm5_ascend.quant.recipe_rules import Recipe, Rule
from glm5_ascend.quant.scheme import Scheme

Table = Mapping[Group, Mapping[Scheme, Measured]]


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A group in a larger scheme than before: what it costs and what it gains."""

    group: Group
    before: Scheme
    after: Scheme
    added_bytes: int
    gain: float


def tabulated(rows: Sequence[Measured]) -> dict[Group, dict[Scheme, Measured]]:
    """Measurements by group and scheme."""
    table: dict[Group, dict[Scheme, Measured]] = {}
    for row in rows:
        table.setdefault(row.group, {})[row.scheme] = row
    return table


def base_schemes(table: Table, decided: Mapping[str, Scheme]) -> dict[Group, Scheme]:
    """What the base recipe gives each group; groups in a scheme that was not measured are left
    out."""
    found = {group: decided[f"{group.modules[0]}.weight"] for group in table}
    return {group: scheme for group, scheme in found.items() if scheme in table[group]}


def propose(table: Table, base: Mapping[Group, Scheme], budget: int) -> list[Upgrade]:
    """Greedy choice: always the upgrade of the largest gain per byte that still fits.

    Args:
        table: measurements.
        base: the scheme of each group to begin with.
        budget: bytes that may be added.

    Returns:
        Upgrades in the order in which they were chosen; later ones may build on earlier ones. The
        gain is in KL where it was measured, otherwise in relative error.
    """
    current, left, chosen = dict(base), budget, list[Upgrade]()
    while True:
        fitting = [one for one in _upgrades(table, current) if one.added_bytes <= left]
        if not fitting:
            return chosen
        best = max(fitting, key=lambda one: (one.gain / one.added_bytes, -one.group.layer))
        chosen.append(best)
        current[best.group] = best.after
        left -= best.added_bytes


def _upgrades(table: Table, current: Mapping[Group, Scheme]) -> list[Upgrade]:
    found = []
    for group, before in current.items():
        here = table[group][before]
        for after, there in table[group].items():
            added, gain = there.nbytes - here.nbytes, _loss(here) - _loss(there)
            if added > 0 and gain > 0:
                found.append(Upgrade(group, before, after, added, gain))
    return found


def _loss(row: Measured) -> float:
    return row.error if row.kl is None else row.kl


def recipe_text(base: Recipe, upgrades: Sequence[Upgrade], modules: Sequence[str]) -> str:
    """YAML of a recipe: a rule per upgraded group, then those of the base that still decide.

    Args:
        base: the recipe to begin with.
        upgrades: as :func:`propose` returns them.
        modules: names of all modules that can be quantised and that rules decide about.
    """
    final = {one.group: one.after for one in upgrades}
    taken = {module for group in final for module in group.modules}
    rules: list[dict[str, object]] = [
        {"modules": _globs(group), "scheme": scheme.value} for group, scheme in final.items()
    ]
    left = [module for module in modules if module not in taken]
    for rule in base.rules:
        matched = [module for module in left if rule.matches(module)]
        left = [module for module in left if module not in matched]
        if matched:
            rules.append(_as_dict(rule))
    document: dict[str, object] = {
        "rotate": base.rotate,
        "dtype": base.dtype,
        "mtp": base.mtp,
        "kv": base.kv,
        "rules": rules,
    }
    if base.kv_except:
        document["kv_except"] = list(base.kv_except)
    if base.refines:
        document["refine_rotation"] = base.refine_rotation
    if base.smoothing:
        document["smoothing"] = list(base.smoothing)
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


def _as_dict(rule: Rule) -> dict[str, object]:
    return {
        "modules": list(rule.modules),
        "scheme": rule.scheme.value,
        "rounding": rule.rounding,
    }


def _globs(group: Group) -> list[str]:
    if group.name == "mlp.experts":
        return [f"model.layers.{group.layer}.mlp.experts.*"]
    return list(group.modules)
