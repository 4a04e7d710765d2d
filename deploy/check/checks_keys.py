"""Keys of ``--additional-config`` and variables: unknown, misplaced, removed, or not read."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from glm5_ascend.deploy.catalogue.releases import releases_with_key, releases_with_variable
from glm5_ascend.deploy.check.command_line import ServeCommand, whole_number
from glm5_ascend.deploy.check.context import Context, truth
from glm5_ascend.deploy.check.moved import moved
from glm5_ascend.deploy.check.near import nearest
from glm5_ascend.deploy.check.rule import Condition, Mend, check

CONFIG = "--additional-config"
EPLB = "eplb_config"
_SCHEDULERS = (
    "enable_balance_scheduling",
    "recompute_scheduler_enable",
    "short_request_first_config",
    "profiling_chunk_config",
    "batch_job_sched_config",
)
# These have rules of their own, which say what to write instead.
_C8_KEYS = ("enable_sparse_c8", "enable_sparse_sfa_c8", "enable_sparse_li_c8")
_TYPO = 0.88
_ENGINE_NAMES = re.compile(r"VLLM_[A-Z0-9_]+")


def change_key(name: str, to: str | None, value: object = None) -> Mend:
    """A change of ``--additional-config``: ``name`` goes, its value (or ``value``) comes to ``to``.

    Both may be dotted. An existing value at ``to`` stays.
    """

    def mend(command: ServeCommand) -> ServeCommand:
        config = copy.deepcopy(command.json(CONFIG))
        old = _take(config, name.split("."))
        if to is not None:
            _give(config, to.split("."), old if value is None else value)
        return command.with_json(CONFIG, config)

    return mend


def _take(config: dict[str, Any], path: list[str]) -> Any:
    *outer, last = path
    chain = [config]
    for key in outer:
        inner = chain[-1].get(key)
        if not isinstance(inner, dict):
            return None
        chain.append(inner)
    value = chain[-1].pop(last, None)
    for parent, key in reversed(list(zip(chain, outer, strict=False))):
        if parent[key] == {}:
            del parent[key]
    return value


def _give(config: dict[str, Any], path: list[str], value: object) -> None:
    *outer, last = path
    for key in outer:
        config = config.setdefault(key, {})
    config.setdefault(last, value)


def _places(key: str, context: Context) -> list[str]:
    """Dotted names below which the release knows ``key``."""
    known = context.release.additional
    found = [key] if key in known else []
    for top, below in known.items():
        found += [f"{top}.{name}" for name in below if name.split(".")[-1] == key]
    return found


@check
def top_keys(context: Context) -> Iterator[Condition]:
    known = context.release.additional
    for key, value in context.additional.items():
        if key in _C8_KEYS:
            continue
        if key not in known:
            yield _unknown(key, key, context)
            continue
        if key in moved()["derived"]["keys"] and context.release.series >= (0, 29):
            yield Condition("key-derived", key, key, mend=change_key(key, None))
        if key in _SCHEDULERS and "scheduler_config" in known:
            to = f"scheduler_config.{key}"
            yield Condition("key-deprecated", key, key, f"write {to}", change_key(key, to))
        if isinstance(value, Mapping) and known[key]:
            yield from _below(key, value, known[key], "", context)


def _below(
    top: str, value: Mapping[str, Any], known: tuple[str, ...], prefix: str, context: Context
) -> Iterator[Condition]:
    for key, inner in value.items():
        name = f"{prefix}{key}"
        deeper = [item for item in known if item.startswith(f"{name}.")]
        if name not in known:
            yield _unknown(key, f"{top}.{name}", context)
        elif isinstance(inner, Mapping) and deeper:
            yield from _below(top, inner, known, f"{name}.", context)


def _unknown(key: str, path: str, context: Context) -> Condition:
    places = _places(key, context)
    moved_to = moved()["keys"].get(key)
    if moved_to is not None and moved_to not in places and _is_known(moved_to, context):
        places = [moved_to]
    if path.startswith(f"{EPLB}."):
        meant = nearest(key, [n for n in context.release.additional[EPLB] if "." not in n])
        to = f"{EPLB}.{meant}" if meant else None
        fix = f"write {meant}" if meant else "remove it"
        return Condition("key-unknown-eplb", path, path, fix, change_key(path, to))
    if places:
        return Condition(
            "key-misplaced", path, path, f"write {places[0]}", change_key(path, places[0])
        )
    others = releases_with_key(key) if "." not in path else []
    if others:
        detail = f"{path} (known to {_span(others)})"
        return Condition("key-removed", path, detail, mend=change_key(path, None))
    outer = path.rpartition(".")[0]
    siblings = _siblings(outer, context)
    meant = nearest(key, siblings)
    if meant is None:
        every = {name for names in context.release.additional.values() for name in names}
        far = nearest(key, {name.split(".")[-1] for name in every})
        meant_at = _places(far, context)[0] if far else None
    else:
        meant_at = f"{outer}.{meant}" if outer else meant
    fix = f"write {meant_at}" if meant_at else "remove it"
    return Condition("key-unknown", path, path, fix, change_key(path, meant_at))


def _is_known(path: str, context: Context) -> bool:
    top, _, below = path.partition(".")
    names = context.release.additional.get(top)
    return names is not None and (not below or below in names)


def _siblings(outer: str, context: Context) -> list[str]:
    if not outer:
        return list(context.release.additional)
    top, _, rest = outer.partition(".")
    prefix = f"{rest}." if rest else ""
    names = context.release.additional.get(top, ())
    below = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return [name for name in below if "." not in name]


def _span(versions: list[str]) -> str:
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


@check
def variables(context: Context) -> Iterator[Condition]:
    neighbours = set(moved()["neighbours"]["names"])
    known = context.release.variables | neighbours
    for name in context.command.env:
        if name in known:
            continue
        others = releases_with_variable(name) if _is_engines(name) else []
        if others:
            yield _ignored(name, others, context)
            continue
        is_nobodys = name in moved()["nobody"]["names"]
        meant = nearest(name, known, _TYPO) if "_" in name and not is_nobodys else None
        if meant is None and not (is_nobodys or _ENGINE_NAMES.fullmatch(name)):
            continue
        yield Condition(
            "env-unknown",
            name,
            name,
            f"write {meant}" if meant else "remove it",
            _rename(name, meant),
        )


def _is_engines(name: str) -> bool:
    return bool(_ENGINE_NAMES.fullmatch(name)) or name in moved()["variables"]


def _rename(name: str, meant: str | None) -> Mend:
    def mend(command: ServeCommand) -> ServeCommand:
        value = command.env[name]
        changed = command.with_env(name, None)
        keep = meant is not None and meant not in changed.env
        return changed.with_env(meant, value) if meant and keep else changed

    return mend


def _ignored(name: str, others: list[str], context: Context) -> Condition:
    key = moved()["variables"].get(name)
    if key is None or not _is_known(key, context):
        mend: Mend = _rename(name, None)
        return Condition("env-ignored", name, f"{name} (read by {_span(others)})", mend=mend)
    text = context.command.env[name]
    number = whole_number(text)
    is_whole = key in moved()["values"]["whole"]
    value: object = number if is_whole and number is not None else truth(text)

    def move(command: ServeCommand) -> ServeCommand:
        return change_key("", key, value)(command.with_env(name, None))

    return Condition(
        "env-ignored",
        name,
        f"{name} (read by {_span(others)})",
        f"write {key} in --additional-config",
        move,
    )


@check
def allocator(context: Context) -> Iterator[Condition]:
    text = context.command.env.get("PYTORCH_NPU_ALLOC_CONF", "")
    words = [part.split(":")[0].strip() for part in text.split(",")]
    clash = [w for w in words if w in ("max_split_size_mb", "garbage_collection_threshold")]
    if clash and re.search(r"expandable_segments\s*:\s*true", text, re.IGNORECASE):

        def keep(command: ServeCommand) -> ServeCommand:
            return command.with_env("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True")

        yield Condition("env-allocator", "PYTORCH_NPU_ALLOC_CONF", text, mend=keep)
    if truth(context.command.env.get("ASCEND_LAUNCH_BLOCKING")) and not context.is_eager:

        def unset(command: ServeCommand) -> ServeCommand:
            return command.with_env("ASCEND_LAUNCH_BLOCKING", None)

        yield Condition("env-launch-blocking", "ASCEND_LAUNCH_BLOCKING", mend=unset)
