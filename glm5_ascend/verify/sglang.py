"""What SGLang's ``--quantization modelslim`` is documented to load; nothing here was run.

The page on quantisation for Ascend says: the scheme of each layer is the one that
``quant_model_description.json`` gives it; linear layers can be W8A8 (static) or W8A8_DYNAMIC,
experts W8A8_DYNAMIC or W4A8_DYNAMIC. It does not mention ``rot.weight``. The format itself is
ModelSlim's, so whatever is wrong with a folder as such is wrong here as well; what only
vllm-ascend's releases do about a good folder is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from glm5_ascend.ascend_schemes import FLOAT, ROTATION, W4A8_DYNAMIC, W8A8, W8A8_DYNAMIC
from glm5_ascend.files import DESCRIPTION_FILE
from glm5_ascend.verify.findings import Condition, Finding
from glm5_ascend.verify.folder import Folder
from glm5_ascend.verify.layouts import EXPERT
from glm5_ascend.verify.rule import AGAIN, COPY
from glm5_ascend.verify.rules_files import FILES
from glm5_ascend.verify.rules_tensors import TENSORS
from glm5_ascend.verify.rules_values import VALUES

NAME = "sglang"
PAGE = "documented: docs.sglang.io, Quantization on Ascend; not run"
FORMAT = "the format of ModelSlim's files"
ENGINE = "SGLang"
LINEAR_SCHEMES, EXPERT_SCHEMES = (W8A8, W8A8_DYNAMIC), (W8A8_DYNAMIC, W4A8_DYNAMIC)
# About vllm-ascend's handling of a folder that is in order.
_OF_VLLM = frozenset(["release-too-old", "config-head-dim", "mtp-undescribed"])
# Float checkpoints as released share embedding and head with the MTP layer.
_OF_QUANTISED = frozenset(["mtp-vocabulary"])
_UNDESCRIBED = frozenset(
    ["undescribed-fused", "undescribed-int8", "undescribed-linear", "mtp-undescribed"]
)
_FOREIGN = frozenset(["scheme-unknown", "scheme-a5", "scheme-int4-linear", "scheme-float-only"])
_SHARED = frozenset(["fused-mixed", "shared-input", "description-value", "description-missing"])
_SHOWN = 3


def judge_for_sglang(folder: Folder, schemes: Mapping[str, str | None]) -> list[Finding]:
    """Findings by the documented rules, errors first.

    Args:
        folder: examined; its conditions are what ``verify`` found.
        schemes: of each tensor of the model, None where they were not looked into.
    """
    conditions = folder.conditions
    if folder.description is None:
        conditions = [one for one in conditions if one.rule not in _OF_QUANTISED]
    found = [*_of_format(conditions), *_of_page(folder, schemes)]
    return sorted(found, key=lambda finding: finding.severity != "error")


def _of_format(conditions: list[Condition]) -> Iterator[Finding]:
    """A folder that is damaged as such is so for every engine."""
    known = {**FILES, **TENSORS, **VALUES}
    by_rule: dict[str, list[Condition]] = {}
    for condition in conditions:
        by_rule.setdefault(condition.rule, []).append(condition)
    for rule, group in by_rule.items():
        if rule in known and rule not in _OF_VLLM:
            severities = {verdict.severity for verdict in known[rule].verdicts}
            severity = "error" if "error" in severities else "warning"
            yield _finding(severity, rule, known[rule].problem, known[rule].fix, FORMAT, group)
        elif rule in _SHARED:
            yield _finding("error", rule, rule.replace("-", " "), AGAIN, FORMAT, group)
        elif rule in _UNDESCRIBED:
            problem = "layer without a scheme in the description"
            yield _finding("error", "sglang-undescribed", problem, COPY, PAGE, group)
        elif rule in _FOREIGN:
            problem = "scheme that the page does not list for such a layer"
            yield _finding("error", "sglang-scheme", problem, AGAIN, PAGE, group)


def _of_page(folder: Folder, schemes: Mapping[str, str | None]) -> Iterator[Finding]:
    if folder.description is None:
        yield _finding(
            "error",
            "sglang-unquantised",
            "nothing for --quantization modelslim to read",
            "quantise it first, or serve it without that flag",
            PAGE,
            [Condition("sglang-unquantised", DESCRIPTION_FILE, "is missing")],
        )
    other = [
        Condition("sglang-scheme", name, f"has {scheme}")
        for name, scheme in schemes.items()
        if scheme not in (None, FLOAT) and scheme not in _listed(name)
    ]
    if other:
        problem = "scheme that the page does not list for such a layer"
        yield _finding("error", "sglang-scheme", problem, AGAIN, PAGE, other)
    if ROTATION in folder.tensors:
        yield _finding(
            "warning",
            "sglang-rotation",
            "the MTP layer needs rot.weight, which the page does not mention",
            "measure how many drafts are accepted, or quantise with --no-rotate",
            PAGE,
            [Condition("sglang-rotation", ROTATION)],
        )


def _listed(name: str) -> tuple[str, ...]:
    return EXPERT_SCHEMES if EXPERT.fullmatch(name) else LINEAR_SCHEMES


def _finding(
    severity: str, rule: str, problem: str, fix: str, source: str, group: list[Condition]
) -> Finding:
    shown = "; ".join(map(str, group[:_SHOWN]))
    more = f" (and {len(group) - _SHOWN:,} more)" if len(group) > _SHOWN else ""
    subjects = tuple(dict.fromkeys(condition.subject for condition in group))
    return Finding(severity, rule, f"{problem}: {shown}{more}", fix, source, subjects, ENGINE)
