"""Caches, schedulers, drafts and graphs of one engine."""

from __future__ import annotations

from collections.abc import Iterator

from glm5_ascend.deploy.check.checks_keys import CONFIG, change_key
from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.check.context import CONSUMER, LI, PRODUCER, SFA, Context, truth
from glm5_ascend.deploy.check.rule import Condition, Mend, check

_ATTENTION = "--attention-config"
_CACHE = "--kv-cache-dtype"
_LONG = 900_000
_OLD_KERNEL_ROWS = 1024
_SWITCHES = {
    "sparse_c8": {SFA: "enable_sparse_c8", LI: "enable_sparse_c8"},
    "split": {SFA: "enable_sparse_sfa_c8", LI: "enable_sparse_li_c8"},
}


def respell(spelling: str, caches: set[str]) -> Mend:
    """A change to ``spelling`` for these int8 caches."""

    def mend(command: ServeCommand) -> ServeCommand:
        config = command.json(CONFIG)
        dtype = command.text(_CACHE)
        for names in _SWITCHES.values():
            config = {k: v for k, v in config.items() if k not in names.values()}
        attention = command.json(_ATTENTION)
        attention.pop("indexer_kv_dtype", None)
        changed = command.with_json(_ATTENTION, attention)
        if dtype in ("int8", "fp8"):
            changed = changed.without(_CACHE)
        if spelling == "dtype":
            changed = changed.with_flag(_CACHE, "int8") if SFA in caches else changed
            if LI in caches:
                changed = changed.with_json(_ATTENTION, attention | {"indexer_kv_dtype": "int8"})
        elif spelling in _SWITCHES:
            config |= {_SWITCHES[spelling][cache]: True for cache in sorted(caches)}
        return changed.with_json(CONFIG, config)

    return mend


@check
def c8(context: Context) -> Iterator[Condition]:
    spelling, caches = context.release.c8, context.int8_caches
    keys = {key for names in _SWITCHES.values() for key in names.values()}
    written = [key for key in context.additional if key in keys]
    own = set(_SWITCHES.get(spelling, {}).values())
    foreign = [key for key in written if key not in own]
    indexer = context.command.json(_ATTENTION).get("indexer_kv_dtype")
    dtypes = [_CACHE] if context.command.text(_CACHE) == "int8" else []
    dtypes += [f"{_ATTENTION}.indexer_kv_dtype"] if indexer is not None else []
    words = _spelling_words(spelling, caches)
    mend = respell(spelling, caches)
    if spelling != "dtype" and dtypes:
        yield Condition("c8-dtype-early", dtypes[0], " and ".join(dtypes), words, mend)
    elif foreign:
        is_known = all(key in context.release.additional for key in foreign)
        rule = "c8-ignored" if is_known or not context.release.strict else "c8-spelling"
        yield Condition(rule, foreign[0], " and ".join(foreign), words, mend)
    if spelling == "dtype" and context.chip in ("A2", "A3"):
        other = [v for v in (context.command.text(_CACHE), str(indexer)) if v in ("fp8", "mxfp4")]
        if other:
            yield Condition("c8-chip", _CACHE, f"{other[0]} on {context.chip}", mend=mend)


def _spelling_words(spelling: str, caches: set[str]) -> str:
    if not caches:
        return "remove it: it is false"
    if spelling == "none":
        return "remove it: this release has no int8 cache"
    if spelling == "dtype":
        parts = ["--kv-cache-dtype int8"] if SFA in caches else []
        parts += ["--attention-config.indexer_kv_dtype int8"] if LI in caches else []
        return f"write {' '.join(parts)}"
    keys = sorted({_SWITCHES[spelling][cache] for cache in caches})
    return f"write {', '.join(f'{key}: true' for key in keys)} in {CONFIG}"


@check
def c8_limits(context: Context) -> Iterator[Condition]:
    caches = context.effective_caches
    if SFA in caches and context.dcp > 1 and (context.length or 0) >= _LONG:
        detail = f"DCP{context.dcp}, {context.length:,} tokens"
        yield Condition("c8-dcp-long", _CACHE, detail, mend=respell("split", caches - {SFA}))
    node_uses_it = context.release.series < (0, 29) or context.role == PRODUCER
    setting = context.additional.get("c8_enable_reshape_optim", True)
    if LI in caches and node_uses_it and truth(setting):
        mend = change_key("c8_enable_reshape_optim", "c8_enable_reshape_optim", False)
        yield Condition("c8-reshape", "c8_enable_reshape_optim", mend=mend)


@check
def schedulers(context: Context) -> Iterator[Condition]:
    is_split = context.role in (PRODUCER, CONSUMER)
    if context.balances and is_split:
        yield Condition("balance-role", "enable_balance_scheduling", context.role, mend=_unbalance)
    if context.balances and context.recomputes:
        drop = _unbalance if context.role == CONSUMER else _unrecompute
        yield Condition("schedulers-both", "scheduler_config", mend=drop)
    if context.recomputes and context.role == PRODUCER:
        yield Condition("recompute-prefill", "recompute_scheduler_enable", mend=_unrecompute)
    elif context.recomputes and not is_split:
        yield Condition("recompute-mixed", "recompute_scheduler_enable", mend=_unrecompute)


def _unbalance(command: ServeCommand) -> ServeCommand:
    command = command.with_env("VLLM_ASCEND_BALANCE_SCHEDULING", None)
    return _drop_scheduler(command, "enable_balance_scheduling")


def _unrecompute(command: ServeCommand) -> ServeCommand:
    return _drop_scheduler(command, "recompute_scheduler_enable")


def _drop_scheduler(command: ServeCommand, key: str) -> ServeCommand:
    return change_key(f"scheduler_config.{key}", None)(change_key(key, None)(command))


@check
def drafts(context: Context) -> Iterator[Condition]:
    step = 1 + context.drafts
    is_glm = context.model_name.startswith("glm-5")
    eager = truth(context.speculative.get("enforce_eager")) or context.is_eager
    if context.drafts and is_glm and not eager:
        config = context.speculative | {"enforce_eager": True}
        yield Condition(
            "draft-graph",
            "--speculative-config",
            mend=lambda command: command.with_json("--speculative-config", config),
        )
    if context.sequences is None:
        return
    tokens = context.sequences * step
    if context.drafts and tokens > _OLD_KERNEL_ROWS:
        yield Condition("draft-batch", "--max-num-seqs", f"{context.sequences} x {step}")
    if context.batched and context.batched < context.sequences:
        least = context.sequences
        yield Condition(
            "batched-sequences",
            "--max-num-batched-tokens",
            f"{context.batched} < {least}",
            f"write --max-num-batched-tokens {tokens}",
            lambda command: command.with_flag("--max-num-batched-tokens", tokens),
        )
    elif context.batched and context.batched < tokens and context.role != PRODUCER:
        yield Condition(
            "batched-small",
            "--max-num-batched-tokens",
            f"{context.batched} < {context.sequences} x {step}",
            f"write --max-num-batched-tokens {tokens}",
            lambda command: command.with_flag("--max-num-batched-tokens", tokens),
        )


@check
def graphs(context: Context) -> Iterator[Condition]:
    step = 1 + context.drafts
    odd = [size for size in context.capture_sizes if size % step and size > step]
    if odd and not context.is_eager:
        detail = f"{', '.join(map(str, odd[:4]))} with steps of {step}"
        yield Condition("capture-multiple", "--compilation-config", detail)
    if not context.flashcomm:
        return
    if context.tp == 1:
        yield Condition("flashcomm-tp1", "enable_flashcomm1", mend=_no_flashcomm)
    elif not context.has_ep:

        def add(command: ServeCommand) -> ServeCommand:
            return command.with_flag("--enable-expert-parallel", True)

        yield Condition("flashcomm-ep", "--enable-expert-parallel", mend=add)
    elif not context.is_eager and context.largest_step is not None:
        yield from _capture_tp(context)
    seqs = context.sequences
    if seqs is not None and seqs % context.tp and context.tp > 1:
        yield Condition("dp-async-sp18", "--max-num-seqs", f"{seqs} with TP{context.tp}")


def _capture_tp(context: Context) -> Iterator[Condition]:
    largest, tp = context.largest_step or 0, context.tp
    if context.capture_sizes:
        if any(size % tp == 0 for size in context.capture_sizes):
            return
        detail = f"{', '.join(map(str, context.capture_sizes[:6]))} with TP{tp}"
        yield Condition("capture-tp", "--compilation-config", detail)
    elif largest < tp:
        needed = -(-tp // (1 + context.drafts))
        yield Condition(
            "capture-tp",
            "--max-num-seqs",
            f"the largest step has {largest} tokens, TP is {tp}",
            f"write --max-num-seqs {needed}",
            lambda command: command.with_flag("--max-num-seqs", needed),
        )


def _no_flashcomm(command: ServeCommand) -> ServeCommand:
    command = command.with_env("VLLM_ASCEND_ENABLE_FLASHCOMM1", None)
    return change_key("enable_flashcomm1", None)(change_key("enable_dsa_cp", None)(command))
