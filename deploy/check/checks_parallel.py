"""Parallel sizes against each other, the model and the features that restrict them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from glm5_ascend.deploy.check.checks_keys import change_key
from glm5_ascend.deploy.check.command_line import ServeCommand, whole_number
from glm5_ascend.deploy.check.context import CONSUMER, PRODUCER, SFA, Context, truth
from glm5_ascend.deploy.check.rule import Condition, check

_FUSED_LIMITS = {1: 32, 2: 64}
_SAFE_UTILIZATION = 0.97
_BLOCK = 128


@check
def context_parallel(context: Context) -> Iterator[Condition]:
    if context.dcp > 1:
        yield from _dcp_size(context)
        interleave = context.command.whole("--cp-kv-cache-interleave-size", 1)
        block = context.command.whole("--block-size", _BLOCK)
        if context.transfer and interleave != block:
            yield Condition(
                "dcp-interleave",
                "--cp-kv-cache-interleave-size",
                f"{interleave}, block size {block}",
                f"write --cp-kv-cache-interleave-size {block}",
                lambda command: command.with_flag("--cp-kv-cache-interleave-size", block),
            )
        if context.chip == "A5" and context.model:
            yield Condition("dcp-a5", "--decode-context-parallel-size")
    if context.pcp > 1 and not context.runs_v2:
        yield Condition("pcp-runner", "--prefill-context-parallel-size", f"{context.pcp}")
    if context.pcp > 1 and context.dp > 1:
        yield Condition("pcp-dp", "--prefill-context-parallel-size")
    if context.on("enable_dsa_cp"):
        if context.pcp > 1:
            yield Condition("dsa-cp-pcp", "enable_dsa_cp", mend=change_key("enable_dsa_cp", None))
        if context.runs_v2:
            yield Condition(
                "dsa-cp-runner", "enable_dsa_cp", mend=change_key("enable_dsa_cp", None)
            )


def _dcp_size(context: Context) -> Iterator[Condition]:
    flag, dcp, tp, pcp = "--decode-context-parallel-size", context.dcp, context.tp, context.pcp
    is_sparse = bool(context.model and context.model.index_heads)
    divisor = max((n for n in range(1, dcp) if tp % n == 0), default=1)
    wanted = tp * pcp if is_sparse else divisor

    def resize(command: ServeCommand) -> ServeCommand:
        return command.with_flag(flag, wanted)

    if tp % dcp:
        yield Condition("dcp-tp", flag, f"{dcp}, TP {tp}", f"write {flag} {wanted}", resize)
    elif is_sparse and dcp not in (pcp, tp * pcp):
        yield Condition("dcp-sparse", flag, f"{dcp}, TP {tp}", f"write {flag} {wanted}", resize)


@check
def fused_mc2(context: Context) -> Iterator[Condition]:
    level = context.fused_mc2
    level = whole_number(level) if isinstance(level, str) else level
    if level in (0, False):
        return
    item = "enable_fused_mc2"
    if level not in (1, 2):
        yield Condition("fused-mc2-value", item, f"{level}", mend=change_key(item, None))
        return
    if context.chip == "A2":
        yield Condition("fused-mc2-chip", item, mend=_unfuse)
    limit = _FUSED_LIMITS[int(level)]
    if context.ep > limit:
        yield Condition("fused-mc2-size", item, f"{context.ep} ranks, at most {limit}")
    if context.on("enable_mc2_hierarchy_comm") or context.key("mc2_comm_alg") == "hierarchy":
        yield Condition("fused-mc2-hierarchy", item, mend=_unfuse)
    if context.on("multistream_overlap_shared_expert"):
        name = "multistream_overlap_shared_expert"
        yield Condition("fused-mc2-overlap", name, mend=change_key(name, None))
    if context.connector("Store", "MultiConnector", "UCM"):
        yield Condition("fused-mc2-pool", item)


def _unfuse(command: ServeCommand) -> ServeCommand:
    command = command.with_env("VLLM_ASCEND_ENABLE_FUSED_MC2", None)
    return change_key("enable_fused_mc2", None)(command)


@check
def memory_layout(context: Context) -> Iterator[Condition]:
    if context.on("mlapo_keep_prefill_weights") and not truth(context.key_or("enable_mlapo", True)):
        name = "mlapo_keep_prefill_weights"
        yield Condition("mlapo-keep", name, mend=change_key(name, None))
    if context.on("enable_kv_nz") and context.model_name.startswith("glm-5"):
        yield Condition("kv-nz", "enable_kv_nz", mend=change_key("enable_kv_nz", None))
    text = context.command.text("--gpu-memory-utilization")
    try:
        share = float(text or 0)
    except ValueError:
        share = 0.0
    if share > _SAFE_UTILIZATION:
        yield Condition("utilization", "--gpu-memory-utilization", text, "write 0.95 or less")
    model, length = context.model, context.length
    allowed = truth(context.command.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN"))
    if model and length and length > model.positions and not allowed:
        yield Condition(
            "length-model",
            "--max-model-len",
            f"{length}, the model has {model.positions}",
            f"write --max-model-len {model.positions}",
            lambda command: command.with_flag("--max-model-len", model.positions),
        )
    overrides = context.command.json("--hf-overrides")
    cache = [k for k in overrides if k in ("use_index_cache", "index_topk_freq")]
    if context.shares_indexers and cache:
        rest = {k: v for k, v in overrides.items() if k not in cache}
        yield Condition(
            "indexcache-shared",
            "--hf-overrides",
            mend=lambda command: command.with_json("--hf-overrides", rest),
        )


@check
def experts(context: Context) -> Iterator[Condition]:
    config: Any = context.additional.get("eplb_config", {})
    config = config if isinstance(config, dict) else {}
    redundant = config.get("num_redundant_experts", 0)
    redundant = redundant if isinstance(redundant, int) else 0
    if context.model and context.model.experts:
        total = context.model.experts + redundant
        if context.tp and context.model.heads % context.tp:
            yield Condition(
                "heads-tp",
                "--tensor-parallel-size",
                f"{context.model.heads} heads, TP {context.tp}",
            )
        if not context.has_ep and (context.dp > 1 or context.tp > 1):

            def add(command: ServeCommand) -> ServeCommand:
                return command.with_flag("--enable-expert-parallel", True)

            yield Condition("experts-replicated", "--enable-expert-parallel", mend=add)
        if context.ep > 1 and total % context.ep:
            rule = "eplb-redundant" if redundant else "experts-ep"
            yield Condition(rule, "--data-parallel-size", f"{total} experts, EP {context.ep}")
    if redundant and context.chip == "A2":
        name = "eplb_config.num_redundant_experts"
        yield Condition("eplb-a2", name, mend=change_key(name, None))
    is_dynamic = truth(config.get("dynamic_eplb"))
    env = context.command.env
    if is_dynamic and not (truth(env.get("DYNAMIC_EPLB")) or truth(env.get("EXPERT_MAP_RECORD"))):
        yield Condition(
            "eplb-variable",
            "DYNAMIC_EPLB",
            mend=lambda command: command.with_env("DYNAMIC_EPLB", "true"),
        )
    if is_dynamic and context.on("enable_force_eplb"):
        yield Condition(
            "eplb-forced", "enable_force_eplb", mend=change_key("enable_force_eplb", None)
        )
    if context.command.switch("--enable-eplb") and not context.runs_v2:
        yield Condition(
            "eplb-flag", "--enable-eplb", mend=lambda command: command.without("--enable-eplb")
        )


@check
def finegrained(context: Context) -> Iterator[Condition]:
    config: Any = context.additional.get("finegrained_tp_config", {})
    for name, size in config.items() if isinstance(config, dict) else ():
        if not isinstance(size, int) or size <= 0:
            continue
        item = f"finegrained_tp_config.{name}"
        if context.dp % size:
            yield Condition("finegrained-dp", item, f"{size}, DP {context.dp}")
        if name.startswith(("oproj", "mlp")):
            lacks = [
                word
                for word, is_missing in (
                    ("TP1", context.tp > 1),
                    ("graphs", context.is_eager),
                    ("a decode node", context.role != CONSUMER),
                    ("the recompute scheduler", not context.recomputes),
                )
                if is_missing
            ]
            if lacks:
                yield Condition("finegrained-tp", item, f"{name} needs {', '.join(lacks)}")


@check
def pipeline(context: Context) -> Iterator[Condition]:
    if context.pp > 1 and context.role == CONSUMER:
        yield Condition("pp-decode", "--pipeline-parallel-size", f"{context.pp}")
    if context.pp > 1 and context.drafts and context.role != PRODUCER:
        yield Condition("pp-mtp", "--pipeline-parallel-size")
    text = context.command.env.get("VLLM_PP_LAYER_PARTITION")
    if text and context.model:
        sizes = [whole_number(part) or 0 for part in text.split(",")]
        layers = context.model.layers
        if len(sizes) != context.pp or sum(sizes) != layers:
            detail = f"{text}: {sum(sizes)} of {layers} layers in {len(sizes)} stages"
            yield Condition("pp-partition", "VLLM_PP_LAYER_PARTITION", detail)
        elif context.shares_indexers:
            starts = [sum(sizes[: stage + 1]) for stage in range(len(sizes) - 1)]
            bad = [start for start in starts if max(start - 2, 0) % context.model.index_period]
            if bad:
                yield Condition("pp-shared", "VLLM_PP_LAYER_PARTITION", f"{text}, layer {bad[0]}")
    sharding = context.additional.get("layer_sharding")
    if sharding and (context.pp > 1 or context.role != PRODUCER):
        detail = "with pipeline parallelism" if context.pp > 1 else "outside a prefill node"
        mend = change_key("layer_sharding", None)
        yield Condition("layer-sharding", "layer_sharding", detail, mend=mend)


@check
def exclusive(context: Context) -> Iterator[Condition]:
    chunk: Any = context.key("profiling_chunk_config")
    is_chunked = isinstance(chunk, dict) and truth(chunk.get("enabled"))
    if is_chunked and (context.pp == 1 or context.balances):
        why = "without pipeline parallelism" if context.pp == 1 else "with balance scheduling"
        yield Condition("profiling-chunk", "profiling_chunk_config", why)
    offload: Any = context.additional.get("sparse_kv_offload_config")
    if isinstance(offload, dict) and truth(offload.get("enabled")):
        reasons = [
            word
            for word, applies in (
                ("an int8 latent cache", SFA in context.effective_caches),
                ("DCP", context.dcp > 1),
                ("pipeline parallelism", context.pp > 1),
                ("a node that is not for decode", context.role != CONSUMER),
            )
            if applies
        ]
        if reasons:
            yield Condition("sparse-offload", "sparse_kv_offload_config", f"with {reasons[0]}")
