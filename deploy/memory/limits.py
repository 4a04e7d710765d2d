"""What forbids a layout whatever the memory: divisibility, operators, known defects."""

from __future__ import annotations

from glm5_ascend.deploy.memory.settings import Settings


def refusals(settings: Settings) -> list[str]:
    """Reasons why no engine starts with these settings, each one sentence."""
    model, group, sku = settings.model, settings.group, settings.sku
    found = []
    slots = model.experts + settings.redundant
    if slots % group.ep:
        least = -(-model.experts // group.ep) * group.ep - model.experts
        found.append(
            f"EP {group.ep} does not divide {slots} experts; {least} redundant experts would"
        )
    if model.heads % group.tp:
        found.append(f"TP {group.tp} does not divide {model.heads} heads")
    if group.pp > 1 and settings.role != "prefill":
        found.append("pipeline parallelism is for prefill nodes only")
    if settings.max_model_len > model.positions:
        found.append(f"{settings.max_model_len} tokens exceed the model's {model.positions}")
    if sku.chip == "A2" and settings.redundant:
        found.append("A2 takes no redundant experts")
    if sku.chip == "A5" and group.dcp > 1:
        found.append("the 950 series has no DCP for sparse attention")
    if settings.kv in ("sfa-c8", "both") and group.dcp > 1 and settings.release.series < (0, 24):
        found.append("the packed int8 latent cache crashes with DCP in 0.23 (vllm-ascend #16683)")
    if not model.index_heads and settings.kv != "bf16":
        found.append(f"{model.title} has no sparse attention, so no C8 cache")
    return found


def cautions(settings: Settings) -> list[str]:
    """What runs, but slower or less reliably than asked for."""
    group, sku = settings.group, settings.sku
    found = []
    if sku.ep_sizes and group.ep not in sku.ep_sizes:
        sizes = ", ".join(map(str, sku.ep_sizes))
        found.append(f"EP {group.ep} on {sku.chip}: fused dispatch needs EP of {sizes}")
    if settings.role == "decode" and settings.max_num_batched_tokens < settings.rows:
        least = settings.rows
        found.append(f"max-num-batched-tokens below {least} caps the sequences of a decode node")
    return found
