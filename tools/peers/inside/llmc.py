"""Run llm-compressor on a GLM-5 checkpoint on a CPU; runs inside llm-compressor's environment."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

# A look for torchvision, which a CPU build of torch has not, must not end in an exception.
PATCHES = {
    "torchvision": "transformers' lazy modules fail while llm-compressor scans them for image"
    " processors where torchvision is absent: reported as absent",
}
METHODS = ("model-free", "rtn", "gptq", "smoothquant-rtn", "smoothquant-gptq")
_EIGHT = (
    r"re:.*self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|indexer\.wq_b)$",
    r"re:.*mlp\.(shared_experts\.)?(gate_proj|up_proj|down_proj)$",
)
_EXPERTS = (r"re:.*mlp\.experts\.\d+\.(gate_proj|up_proj|down_proj)$",)
_IGNORE = (
    "lm_head",
    r"re:.*embed_tokens$",
    r"re:.*mlp\.gate$",
    r"re:.*kv_b_proj$",
    r"re:.*indexer\.(wk|weights_proj|k_norm)$",
    r"re:.*(eh_proj|shared_head\.head)$",
)


def groups(bits: int) -> dict[str, Any]:
    """Attention, dense MLPs and shared experts in int8, routed experts in ``bits``; per channel,
    activations per token."""

    def group(targets: tuple[str, ...], width: int) -> dict[str, Any]:
        common = {"type": "int", "symmetric": True}
        return {
            "targets": list(targets),
            "weights": {"num_bits": width, "strategy": "channel", "dynamic": False, **common},
            "input_activations": {"num_bits": 8, "strategy": "token", "dynamic": True, **common},
        }

    return {"linears": group(_EIGHT, 8), "experts": group(_EXPERTS, bits)}


def model_free(model: Path, output: Path, bits: int, ignore: list[str]) -> None:
    """``model_free_ptq``: no model, no calibration."""
    from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
    from llmcompressor import model_free_ptq

    schemes = {name: QuantizationScheme(**group) for name, group in groups(bits).items()}
    config = QuantizationConfig(config_groups=schemes, ignore=ignore)
    model_free_ptq(model_stub=str(model), save_directory=str(output), config=config, device="cpu")


def one_shot(
    model: Path, output: Path, bits: int, method: str, ignore: list[str], texts: list[str]
) -> None:
    """``oneshot`` with the calibration text, one sample per line of the batch."""
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="bfloat16")
    rows = [tokenizer(text, return_tensors=None) for text in texts]
    kept = ("input_ids", "attention_mask")
    dataset = Dataset.from_list([{key: row[key] for key in kept} for row in rows])
    recipe: list[Any] = []
    if method.startswith("smoothquant"):
        recipe.append(SmoothQuantModifier(smoothing_strength=0.5))
    kind = GPTQModifier if method.endswith("gptq") else QuantizationModifier
    recipe.append(kind(config_groups=groups(bits), ignore=ignore))
    oneshot(
        model=loaded,
        processor=tokenizer,
        dataset=dataset,
        recipe=recipe,
        num_calibration_samples=len(rows),
        max_seq_length=max(len(row["input_ids"]) for row in rows),
    )
    loaded.save_pretrained(output, save_compressed=True)
    tokenizer.save_pretrained(output)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--bits", type=int, choices=[4, 8], required=True)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--calibration", type=Path, required=True)
    args = parser.parse_args()
    _patch_torchvision()
    layers = json.loads((args.model / "config.json").read_text())["num_hidden_layers"]
    ignore = [*_IGNORE, rf"re:.*layers\.{layers}\..*"]
    if args.method == "model-free":
        model_free(args.model, args.output, args.bits, ignore)
    else:
        texts = json.loads(args.calibration.read_text())
        one_shot(args.model, args.output, args.bits, args.method, ignore, texts)


def _patch_torchvision() -> None:
    if importlib.util.find_spec("torchvision") is None:
        from transformers.utils import import_utils

        import_utils.is_torchvision_available = lambda: False


if __name__ == "__main__":
    main()
