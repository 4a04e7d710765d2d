"""A tiny checkpoint of ours in memory, to be damaged one way at a time and written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from glm5_ascend.quant.command import QuantizeOptions, run
from tests.support.tiny_model import write_tiny

# Layers 0, 1 and 2 own an indexer, 3 shares, 4 is the MTP layer; experts from layer 1 on. GLM-5.2
# publishes head_dim equal to qk_nope_head_dim, and vLLM 0.23 counts on that. The hidden size leaves
# room for a group of 256, which is what old releases take for granted.
MTP = "model.layers.4."
_SHAPE = {"hidden_size": 384}
_HEAD = {"head_dim": 16}
_FILE = "quant_model_weights-00001-of-00001.safetensors"
_TEXTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class Sample:
    """Tensors, description and configuration of one checkpoint, all mutable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: dict[str, torch.Tensor] = {}
        for path in sorted(folder.glob("*.safetensors")):
            self.tensors |= load_file(path)
        self.description = _read(folder / "quant_model_description.json")
        self.config = _read(folder / "config.json")
        self.extra: dict[str, str] = {}

    def copy(self) -> Sample:
        """The same checkpoint, to be changed."""
        made = object.__new__(Sample)
        made.folder, made.tensors = self.folder, dict(self.tensors)
        made.description, made.config = dict(self.description), dict(self.config)
        made.extra = {}
        return made

    def write(self, target: Path) -> Path:
        """Write it as one shard with the quantiser's text files."""
        target.mkdir(parents=True)
        tensors = {name: value.contiguous().clone() for name, value in self.tensors.items()}
        save_file(tensors, target / _FILE, {"format": "pt"})
        texts = {"config.json": self.config, "quant_model_description.json": self.description}
        for name, document in texts.items():
            if document is not None:
                (target / name).write_text(json.dumps(document, indent=1), encoding="utf-8")
        for name in _TEXTS:
            shutil.copyfile(self.folder / name, target / name)
        for name, text in self.extra.items():
            (target / name).write_text(text, encoding="utf-8")
        return target

    def drop(self, *prefixes: str) -> None:
        """Take tensors out of files and description."""
        self.lose(*prefixes)
        self.forget(*prefixes)

    def lose(self, *prefixes: str) -> None:
        """Take tensors out of the files only."""
        for name in [n for n in self.tensors if n.startswith(prefixes)]:
            del self.tensors[name]

    def forget(self, *prefixes: str) -> None:
        """Take names out of the description only."""
        for name in [n for n in self.description if n.startswith(prefixes)]:
            del self.description[name]

    def put(self, name: str, value: torch.Tensor, scheme: str) -> None:
        """Add or replace a tensor and its entry."""
        self.tensors[name], self.description[name] = value, scheme

    def shape(self, module: str) -> tuple[int, int]:
        """[out, in] of a module whose weight is not packed."""
        rows, columns = self.tensors[f"{module}.weight"].shape
        return rows, columns

    def put_int8(self, module: str, scheme: str = "W8A8_DYNAMIC") -> None:
        """Make a linear int8 with a scale per row."""
        rows, columns = self.shape(module)
        self.put(f"{module}.weight", torch.ones(rows, columns, dtype=torch.int8), scheme)
        for part in ("weight_scale", "weight_offset"):
            self.put(f"{module}.{part}", torch.ones(rows, 1, dtype=torch.bfloat16), scheme)

    def put_static(self, module: str, input_scale: float = 0.5) -> None:
        """Make a linear static W8A8 with every tensor that the engine reads."""
        rows, _ = self.shape(module)
        self.put_int8(module, "W8A8")
        for part, value in (
            ("input_scale", torch.tensor([input_scale], dtype=torch.bfloat16)),
            ("input_offset", torch.zeros(1, dtype=torch.int8)),
            ("quant_bias", torch.zeros(rows, dtype=torch.int32)),
            ("deq_scale", torch.ones(rows, dtype=torch.float32)),
        ):
            self.put(f"{module}.{part}", value, "W8A8")

    def put_float(self, module: str) -> None:
        """Make a linear BF16."""
        rows, columns = self.shape(module)
        self.drop(f"{module}.")
        weight = torch.full((rows, columns), 0.01, dtype=torch.bfloat16)
        self.put(f"{module}.weight", weight, "FLOAT")


def write_sample(scratch: Path, scheme: str, style: str = "5.2") -> Sample:
    """A random tiny model, quantised by this project's quantiser.

    Args:
        scheme: "w8a8" or "w4a8".
        style: "5.2" (shared indexers) or "5.1" (an indexer in every layer).
    """
    shape: dict[str, Any] = _SHAPE | (_HEAD if style == "5.2" else {})
    source = write_tiny(scratch / f"source-{style}-{scheme}", style=style, tokenizer=True, **shape)
    target = scratch / f"{style}-{scheme}"
    run(QuantizeOptions(source, target, scheme))
    return Sample(target)


def _read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document
