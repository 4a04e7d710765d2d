"""KV transfer between prefill and decode: roles, sizes, identities, and both sides' symmetry."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from glm5_ascend.deploy.check.command_line import ServeCommand, whole_number
from glm5_ascend.deploy.check.context import CONSUMER, PRODUCER, Context
from glm5_ascend.deploy.check.near import nearest
from glm5_ascend.deploy.check.rule import Condition, Mend, check

TRANSFER = "--kv-transfer-config"
_ROLES = (PRODUCER, CONSUMER, "kv_both")
_OWN = {PRODUCER: "prefill", CONSUMER: "decode"}
_ABORT = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
_SHORT_SECONDS, _DEFAULT_SECONDS, _LONG_TOKENS = 120, 480, 131_072
_BLOCK = 128


def edit_transfer(change: Mapping[str, Any], path: tuple[str, ...] = ()) -> Mend:
    """A change of the transfer config: these keys, at ``path`` below its top."""

    def mend(command: ServeCommand) -> ServeCommand:
        config = copy.deepcopy(command.json(TRANSFER))
        inner = config
        for key in path:
            inner = inner.setdefault(key, {})
        inner.update(change)
        return command.with_json(TRANSFER, config)

    return mend


def _is_multi(context: Context) -> bool:
    return context.transfer.get("kv_connector") == "MultiConnector"


@check
def roles(context: Context) -> Iterator[Condition]:
    if not context.transfer:
        return
    if context.role not in _ROLES:
        meant = nearest(context.role, _ROLES) if context.role else None
        mend = edit_transfer({"kv_role": meant}) if meant else None
        fix = f"write {meant}" if meant else ""
        yield Condition("kv-json-role", f"{TRANSFER}.kv_role", repr(context.role), fix, mend)
    for found in context.connectors:
        name = str(found.get("kv_connector", ""))
        if not name or name in context.release.connectors or found.get("kv_connector_module_path"):
            continue
        meant = nearest(name, context.release.connectors)
        can = meant and not _is_multi(context)
        yield Condition(
            "connector-unknown",
            f"{TRANSFER}.kv_connector",
            name,
            f"write {meant}" if meant else "",
            edit_transfer({"kv_connector": meant}) if can else None,
        )


@check
def sizes(context: Context) -> Iterator[Condition]:
    found = context.connector("MooncakeConnectorV1")
    extra: Any = (found or {}).get("kv_connector_extra_config", {})
    if found is None or not isinstance(extra, Mapping):
        return
    if not all(isinstance(extra.get(side), Mapping) for side in ("prefill", "decode")):
        yield Condition("pd-sizes-missing", f"{TRANSFER}.kv_connector_extra_config")
        return
    own = _OWN.get(context.role)
    if own and not _is_multi(context):
        wrong = {
            name: size
            for name, size in (("dp_size", context.dp), ("tp_size", context.tp))
            if extra[own].get(name, size) != size
        }
        if wrong:
            said = ", ".join(f"{name} {extra[own][name]} for {wrong[name]}" for name in wrong)
            path = ("kv_connector_extra_config", own)
            yield Condition("pd-sizes", f"{own}", f"{own}: {said}", mend=edit_transfer(wrong, path))
    if extra["decode"].get("pp_size", 1) != 1:
        path = ("kv_connector_extra_config", "decode")
        mend = None if _is_multi(context) else edit_transfer({"pp_size": 1}, path)
        yield Condition(
            "pd-decode-pp", "decode.pp_size", f"{extra['decode']['pp_size']}", mend=mend
        )


@check
def timeouts(context: Context) -> Iterator[Condition]:
    if not context.transport:
        return
    text = context.command.env.get(_ABORT)
    seconds = whole_number(text) if text else _DEFAULT_SECONDS
    if seconds is not None and seconds < _SHORT_SECONDS:
        yield Condition(
            "abort-timeout-short",
            _ABORT,
            f"{seconds} s",
            mend=lambda command: command.with_env(_ABORT, None),
        )
    elif (seconds or 0) <= _DEFAULT_SECONDS and (context.length or 0) >= _LONG_TOKENS:
        yield Condition("abort-timeout-long", _ABORT, f"{context.length:,} tokens")


@check
def pool(context: Context) -> Iterator[Condition]:
    if context.connector("Store", "UCM") and "PYTHONHASHSEED" not in context.command.env:
        yield Condition(
            "hash-seed",
            "PYTHONHASHSEED",
            mend=lambda command: command.with_env("PYTHONHASHSEED", "0"),
        )


def _other_side(context: Context) -> Iterator[Context]:
    """Commands of the other role; each pair is looked at from its decode side alone."""
    if context.role == CONSUMER:
        yield from (peer for peer in context.peers if peer.role == PRODUCER)


@check
def symmetry(context: Context) -> Iterator[Condition]:
    seen: set[str] = set()
    for peer in _other_side(context):
        for condition in _differences(context, peer):
            if condition.rule not in seen:
                yield condition
            seen.add(condition.rule)


def _differences(context: Context, peer: Context) -> Iterator[Condition]:
    if context.effective_caches != peer.effective_caches:
        detail = f"{_words(peer)} on prefill, {_words(context)} on decode"
        yield Condition("peers-caches", "--kv-cache-dtype", detail)
    blocks = [one.command.whole("--block-size", _BLOCK) for one in (peer, context)]
    if blocks[0] != blocks[1]:
        yield Condition("peers-block", "--block-size", f"{blocks[0]} and {blocks[1]}")
    names = [str((one.transport or {}).get("kv_connector", "")) for one in (peer, context)]
    if all(names) and names[0] != names[1]:
        yield Condition("peers-connector", f"{TRANSFER}.kv_connector", " and ".join(names))
    ids = [(one.transport or {}).get("engine_id") for one in (peer, context)]
    if ids[0] is not None and str(ids[0]) == str(ids[1]):
        yield Condition("peers-engine-id", f"{TRANSFER}.engine_id", repr(ids[0]))
    layouts = [_layouts(one) for one in (peer, context)]
    if all(layouts) and layouts[0] != layouts[1]:
        yield Condition("peers-sizes", f"{TRANSFER}.kv_connector_extra_config")


def _layouts(context: Context) -> dict[str, tuple[object, object]]:
    extra: Any = (context.transport or {}).get("kv_connector_extra_config", {})
    sides = {s: extra[s] for s in ("prefill", "decode") if isinstance(extra.get(s), Mapping)}
    return {s: (size.get("dp_size"), size.get("tp_size")) for s, size in sides.items()}


def _words(context: Context) -> str:
    names = {"sfa": "int8 latent cache", "li": "int8 indexer keys"}
    return " and ".join(names[cache] for cache in sorted(context.effective_caches)) or "BF16 caches"


@check
def proxy(context: Context) -> Iterator[Condition]:
    words = context.launch.proxy
    script = next((word for word in words if word.endswith(".py")), "")
    if context.connector("Layerwise") and script and "layerwise" not in script:
        yield Condition("layerwise-proxy", script, script)
    lists = {
        name: _values(words, name)
        for side in ("prefiller", "decoder")
        for name in (f"--{side}-hosts", f"--{side}-ports")
    }
    for side in ("prefiller", "decoder"):
        hosts, ports = lists[f"--{side}-hosts"], lists[f"--{side}-ports"]
        if len(hosts) != len(ports):
            detail = f"{len(hosts)} hosts and {len(ports)} ports for {side}s"
            yield Condition("proxy-lists", f"--{side}-hosts", detail)


def _values(words: tuple[str, ...], name: str) -> list[str]:
    found: list[str] = []
    is_inside = False
    for word in words:
        if word.startswith("--"):
            is_inside = word == name
        elif is_inside:
            found.append(word)
    return found


@check
def headless(context: Context) -> Iterator[Condition]:
    rank = context.command.whole("--node-rank", 0)
    nodes = context.size("--nnodes")
    if nodes > 1 and rank > 0 and not context.command.switch("--headless"):
        yield Condition(
            "node-headless",
            "--headless",
            f"node {rank} of {nodes}",
            mend=lambda command: command.with_flag("--headless", True),
        )
