"""Release against model, image against chip, container, and checkpoint against flags."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glm5_ascend import engine_releases
from glm5_ascend.deploy.catalogue.releases import images
from glm5_ascend.deploy.check.command_line import read_json
from glm5_ascend.deploy.check.context import CONSUMER, LI, PRODUCER, SFA, Context, truth
from glm5_ascend.deploy.check.rule import Condition, check
from glm5_ascend.errors import Glm5Error

if TYPE_CHECKING:
    from glm5_ascend.verify.findings import Finding

_IMAGE = re.compile(r"vllm-ascend:([\w.-]+)")
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+(?:rc\d+|\.post\d+)?)(?:-(.+))?")
_DESCRIPTION = "quant_model_description.json"


@cache
def known_issues() -> dict[str, Any]:
    """The table of faults by release, and of first releases by model."""
    text = (Path(__file__).parent / "known_issues.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _series(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


@check
def model_release(context: Context) -> Iterator[Condition]:
    first = known_issues()["models"].get(context.model_name)
    if first and context.release.series < _series(first):
        detail = f"{context.model_name} needs {first}"
        yield Condition("model-release", context.model_name, detail, f"use {first} or newer")


@check
def issues(context: Context) -> Iterator[Condition]:
    series = context.release.series
    for issue in known_issues()["issue"]:
        low, high = (_series(issue.get(side, ".".join(map(str, series)))) for side in _SIDES)
        named = context.release.text in issue.get("releases", [context.release.text])
        if low <= series <= high and named and _holds(issue["when"], context):
            detail = f"{issue['message']} ({issue['source']})"
            yield Condition("known-issue", issue["id"], detail, issue["fix"])


_SIDES = ("since", "until")


def _facets(context: Context) -> dict[str, Any]:
    compilation: Any = context.additional.get("ascend_compilation_config", {})
    is_off = isinstance(compilation, Mapping) and not truth(
        compilation.get("enable_npugraph_ex", True)
    )
    return {
        "role": context.role,
        "model": context.model_name,
        "quant": context.quant,
        "chip": context.chip,
        "drafts": context.drafts > 0,
        "graph": not context.is_eager,
        "dcp": context.dcp > 1,
        "sfa": SFA in context.effective_caches,
        "npugraph_ex": not is_off,
        "tp": context.tp,
        "ep": context.ep,
        "length": context.length or 0,
    }


def _holds(when: Mapping[str, Any], context: Context) -> bool:
    facets = _facets(context)
    for name, wanted in when.items():
        value = facets[name.removesuffix("_at_least")]
        if name.endswith("_at_least"):
            if value < wanted:
                return False
        elif value not in (wanted if isinstance(wanted, list) else [wanted]):
            return False
    return True


@check
def image(context: Context) -> Iterator[Condition]:
    match = _IMAGE.search(context.launch.image)
    if match is None:
        return
    tag = match[1]
    version = _VERSION.fullmatch(tag)
    suffix = (version[2] or "") if version else _suffix(tag)
    chip = images()["chip_of_suffix"].get(suffix)
    if chip and context.chip and chip != context.chip:
        yield Condition("image-chip", context.launch.image, f"{tag} is for {chip}")
    if version and version[1] != context.release.text:
        yield Condition("image-release", context.launch.image, f"{tag} for {context.release.text}")


def _suffix(tag: str) -> str:
    """Suffix of a tag without a version, such as ``glm5.2-a3`` or ``nightly-main-a3``."""
    found = re.search(r"-(a3|a5|310p)(?:-(openeuler))?(?:-|$)", tag)
    return "" if found is None else "-".join(part for part in found.groups() if part)


@check
def container(context: Context) -> Iterator[Condition]:
    launch = context.launch
    if launch.host_network is False:
        yield Condition("container-network", launch.image or "container")
    needed = context.local_ranks * context.tp * context.pp * context.pcp
    needed = -(-needed // context.size("--nnodes"))
    if launch.devices is not None and len(launch.devices) < needed:
        detail = f"{len(launch.devices)} passed, {needed} used"
        yield Condition("container-devices", "/dev/davinci", detail)
    is_container = bool(launch.image) and launch.mounts
    transfers = context.role in (PRODUCER, CONSUMER)
    if is_container and transfers and not any("hccn.conf" in m for m in launch.mounts):
        yield Condition("container-hccn", "/etc/hccn.conf")


@check
def checkpoint(context: Context) -> Iterator[Condition]:
    folder = context.directory
    if folder is None:
        return
    description = folder / _DESCRIPTION
    asks = context.command.text("--quantization") == "ascend"
    if asks and not description.is_file():
        yield Condition(
            "checkpoint-format",
            "--quantization",
            str(folder),
            mend=lambda command: command.without("--quantization"),
        )
    for finding in _verified(folder, context.release.release):
        rule = "checkpoint" if finding.severity == "error" else "checkpoint-warning"
        yield Condition(rule, finding.rule, finding.message, finding.fix)
    if LI in context.effective_caches and description.is_file():
        marks = [k for k in _mapping_of(description) if k.endswith(".indexer.quant_type")]
        if not marks:
            yield Condition("checkpoint-c8", _DESCRIPTION)
    config = _mapping_of(folder / "config.json")
    if context.drafts and not config.get("num_nextn_predict_layers"):
        yield Condition(
            "checkpoint-mtp",
            "--speculative-config",
            mend=lambda command: command.without("--speculative-config"),
        )


@cache
def _verified(folder: Path, engine: engine_releases.Release) -> tuple[Finding, ...]:
    """What the verifier says of a checkpoint; repairs ask for it many times."""
    # Loaded here because most runs have no checkpoint at hand.
    from glm5_ascend.verify.check import check_headers

    return tuple(check_headers(folder, engine))


def _mapping_of(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Glm5Error(f"cannot read {path}: {error}", "give a complete checkpoint") from error
    return value if isinstance(value, dict) else {}
