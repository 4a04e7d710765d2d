"""Whether a ``vllm serve`` command fits: the memory rule of ``check``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from glm5_ascend.deploy.catalogue import Hardware, Model, models
from glm5_ascend.deploy.catalogue.hardware import GIB
from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.check.finding import ERROR, Finding, Place
from glm5_ascend.deploy.layout import Group, LayoutError
from glm5_ascend.deploy.memory.bill import Bill, bill
from glm5_ascend.deploy.memory.changes import nearest_changes
from glm5_ascend.deploy.memory.settings import NEWEST, Settings
from glm5_ascend.deploy.memory.text import verdict
from glm5_ascend.engine_releases import Release

_NAME = re.compile(r"(glm-5(?:\.[123])?|deepseek-(?:v3\.2|v3|r1))(?![.\d]*-?flash)", re.IGNORECASE)
_QUANT = re.compile(r"w[48]a8", re.IGNORECASE)
_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
_PACKED_SINCE = (0, 21)
# vLLM's own defaults where a command says nothing.
_DEFAULT_SEQUENCES, _DEFAULT_BATCH, _DEFAULT_UTILISATION = 256, 8192, 0.92


def memory_verdict(
    command: ServeCommand, hardware: Hardware, release: Release = NEWEST
) -> Finding | None:
    """An error-severity finding where the command cannot fit, else None.

    None as well where its model is not one of the catalogue's, by the name of its path.
    """
    settings = settings_of(command, hardware, release)
    if settings is None:
        return None
    found = bill(settings)
    if found.fits:
        return None
    return Finding(
        severity=ERROR,
        rule="memory",
        where=Place(item=str(settings.group)),
        message=verdict(found).partition(": ")[2],
        why=_why(found),
        fix=_fix(settings, hardware),
        source="modelled: deploy/README.md, memory",
    )


def settings_of(command: ServeCommand, hardware: Hardware, release: Release) -> Settings | None:
    """The memory settings of a command; None for an unknown model or an impossible layout."""
    name = command.model or ""
    geometry = _model(name)
    if geometry is None:
        return None
    whole = command.whole
    try:
        group = Group(
            dp=whole("--data-parallel-size", 1),
            tp=whole("--tensor-parallel-size", 1),
            pp=whole("--pipeline-parallel-size", 1),
            dcp=whole("--decode-context-parallel-size", 1),
        )
    except LayoutError:
        return None
    extra = command.json("--additional-config")
    drafts = command.json("--speculative-config").get("num_speculative_tokens", 0)
    role = _ROLES.get(str(command.json("--kv-transfer-config").get("kv_role")), "mixed")
    eplb = extra.get("eplb_config")
    redundant = eplb.get("num_redundant_experts", 0) if isinstance(eplb, dict) else 0
    settings = Settings(
        model=geometry,
        sku=hardware.sku,
        group=group,
        quant=_quant(command, name),
        kv=_cache(command, extra, release) if geometry.index_heads else "bf16",
        role=role,
        max_model_len=whole("--max-model-len", geometry.positions),
        max_num_seqs=whole("--max-num-seqs", _DEFAULT_SEQUENCES),
        max_num_batched_tokens=whole("--max-num-batched-tokens", _DEFAULT_BATCH),
        utilisation=_utilisation(command),
        draft_tokens=drafts if isinstance(drafts, int) else 0,
        dsa_cp=bool(extra.get("enable_dsa_cp")),
        sequence_parallel=bool(extra.get("enable_flashcomm1")),
        keep_unfused=bool(extra.get("mlapo_keep_prefill_weights")),
        graph=not command.switch("--enforce-eager"),
        block=whole("--block-size", 512 if hardware.sku.chip == "A5" else 128),
        redundant=redundant if isinstance(redundant, int) else 0,
        release=release,
    )
    buffsize = command.env.get("HCCL_BUFFSIZE", "")
    return replace(settings, buffsize=int(buffsize)) if buffsize.isdecimal() else settings


def _model(name: str) -> Model | None:
    found = _NAME.search(name.rstrip("/").rpartition("/")[2])
    return models()[found[1].lower()] if found else None


def _quant(command: ServeCommand, name: str) -> str:
    found = _QUANT.search(name.rstrip("/").rpartition("/")[2])
    if found:
        return found[0].lower()
    return "w8a8" if command.given("--quantization") else "bf16"


def _cache(command: ServeCommand, extra: dict[str, Any], release: Release) -> str:
    """The cache's format from any release's switches."""
    both = bool(extra.get("enable_sparse_c8"))
    packed = both and release.series >= _PACKED_SINCE
    packed = packed or bool(extra.get("enable_sparse_sfa_c8"))
    packed = packed or command.text("--kv-cache-dtype") == "int8"
    keys = both or bool(extra.get("enable_sparse_li_c8"))
    keys = keys or command.json("--attention-config").get("indexer_kv_dtype") == "int8"
    return {(0, 0): "bf16", (0, 1): "li-c8", (1, 0): "sfa-c8", (1, 1): "both"}[packed, keys]


def _utilisation(command: ServeCommand) -> float:
    try:
        value = float(command.text("--gpu-memory-utilization"))
    except ValueError:
        return _DEFAULT_UTILISATION
    return value if 0 < value <= 1 else _DEFAULT_UTILISATION


def _why(found: Bill) -> str:
    weights, total = found.weights / GIB, found.settings.sku.memory_bytes / GIB
    return (
        f"weights take {weights:.1f} of {total:.2f} GiB per die and leave {found.kv / GIB:.1f} GiB"
        " of the budget for the cache; the engine refuses to start or runs out of memory"
    )


def _fix(settings: Settings, hardware: Hardware) -> str:
    changes = nearest_changes(settings, hardware.dies, most=2)
    return " or ".join(change.text for change in changes) or "no single change fits"
