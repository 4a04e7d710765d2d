"""Run msModelSlim's own command line on a GLM-5 checkpoint of any size, on a CPU.

Runs inside msModelSlim's environment. Each patch below is a row of ``PATCHES``; nothing else of the
tool is touched, and its arithmetic never is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

# YaRN of the tool's own rotary embedding starts beyond this length.
_YARN_LENGTH = 4096
_TOOLS_LAYERS = 79
PATCHES = {
    "geometry": "ModelArgs holds the 744B model's sizes and config.json is never read: filled from"
    " config.json",
    "layers": "init_model sets 79 layers: those of config.json plus one",
    "router-bias": "the router has a correction bias only if hidden_size is 6144: always",
    "lm-head": "lm_head is created F32 and fed BF16: BF16",
    "npu": "the forward pass calls .npu() and .to('npu'): the CPU",
    "rope": "with --rope config: theta of config.json and no YaRN, what the model really has."
    " With --rope tool nothing is patched: theta 10000 and YaRN x 40",
}


def patch(model: Path, rope: str) -> None:
    """Apply every patch in memory.

    Args:
        model: checkpoint whose ``config.json`` gives the sizes.
        rope: "config" or "tool".
    """
    config = json.loads((model / "config.json").read_text())
    from msmodelslim.model.glm_5 import model as network
    from msmodelslim.model.glm_5 import model_adapter as adapter

    _patch_configuration(network, adapter, config, rope)
    _patch_modules(network)
    _patch_device()


def _patch_configuration(network: Any, adapter: Any, config: dict[str, Any], rope: str) -> None:
    fields = {field.name for field in dataclasses.fields(network.ModelArgs)} & set(config)
    values = {name: config[name] for name in fields - {"dtype"}}
    values["max_batch_size"] = 1
    values["max_seq_len"] = _YARN_LENGTH if rope == "config" else 4 * _YARN_LENGTH
    if rope == "config":
        values["rope_theta"] = float(config["rope_parameters"]["rope_theta"])
    layers = config["num_hidden_layers"] + 1

    class Args(network.ModelArgs):  # type: ignore[misc, name-defined]
        def __setattr__(self, name: str, value: Any) -> None:
            is_constant = (name, value) == ("num_hidden_layers", _TOOLS_LAYERS)
            super().__setattr__(name, layers if is_constant else value)

    adapter.ModelArgs = lambda: Args(**values)


def _patch_modules(network: Any) -> None:
    gate_init, top_init = network.Gate.__init__, network.Transformer.__init__

    def gate(self: Any, args: Any) -> None:
        gate_init(self, args)
        empty = torch.empty(args.n_routed_experts, dtype=torch.float32)
        self.e_score_correction_bias = torch.nn.Parameter(empty)

    def transformer(self: Any, args: Any) -> None:
        top_init(self, args)
        self.lm_head = self.lm_head.to(torch.bfloat16)

    network.Gate.__init__, network.Transformer.__init__ = gate, transformer


def _patch_device() -> None:
    torch.Tensor.npu = lambda self, *_, **__: self  # type: ignore[attr-defined]
    for kind in (torch.Tensor, torch.nn.Module):
        original = kind.to

        def to(self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            args = tuple("cpu" if arg == "npu" else arg for arg in args)
            return _original(self, *args, **kwargs)

        kind.to = to  # type: ignore[method-assign, assignment]


def recipe(name: str, model: Path, calibration: Path, dynamic: bool) -> dict[str, Any]:
    """The recipe ``name`` of the tool's best practices for this model.

    Only what names layers and files is changed: dense layers, the MTP layer, the calibration text.
    ``dynamic`` also gives attention the per-token scheme of the MLPs, and leaves the MTP layer
    float.
    """
    import msmodelslim

    config = json.loads((model / "config.json").read_text())
    practice = Path(msmodelslim.__file__).parent / "lab_practice" / "glm_5" / f"{name}.yaml"
    text = practice.read_text().replace("layers.78", f"layers.{config['num_hidden_layers']}")
    document: dict[str, Any] = yaml.safe_load(text)
    spec = document["spec"]
    spec["dataset"] = str(calibration)
    dense = config["first_k_dense_replace"]
    for step in _steps(spec["process"]):
        for key in ("include", "exclude"):
            if key in step:
                step[key] = [p for p in step[key] if not _is_no_dense_layer(p, dense)]
        if dynamic and step["type"] == "linear_quant":
            step["qconfig"]["act"] |= {"scope": "per_token", "symmetric": True}
            step["exclude"] = [
                *step.get("exclude", []),
                f"model.layers.{config['num_hidden_layers']}*",
            ]
    return document


def _steps(process: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [inner for step in process for inner in (step, *step.get("configs", []))]


def _is_no_dense_layer(pattern: str, dense: int) -> bool:
    """Whether ``pattern`` names one of the first three layers, which are dense in GLM-5 only."""
    words = pattern.split(".")
    return words[:2] == ["model", "layers"] and words[2] in ("1", "2") and int(words[2]) >= dense


def main() -> None:
    """Write the recipe and hand over to the tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--rope", choices=["config", "tool"], required=True)
    parser.add_argument("--dynamic", action="store_true")
    args = parser.parse_args()
    document = recipe(args.recipe, args.model, args.calibration, args.dynamic)
    file = args.output.with_suffix(".yaml")
    # The tool refuses files that a group may write.
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    patch(args.model, args.rope)
    sys.argv = [
        "msmodelslim",
        "quant",
        "--model_path",
        str(args.model),
        "--save_path",
        str(args.output),
        "--device",
        "cpu",
        "--model_type",
        "GLM-5",
        "--config_path",
        str(file),
        "--trust_remote_code",
        "False",
    ]
    from msmodelslim.cli.__main__ import main as command

    command()


if __name__ == "__main__":
    main()
