"""What every quantiser of the comparison gets: one checkpoint, one calibration text."""

from __future__ import annotations

import json
import shutil
import sysconfig
from pathlib import Path

from safetensors.torch import load_file, save_file

from glm5_ascend.config import Glm5Config

# Training text of the small model; the evaluation reads other packages.
CALIBRATION_PACKAGES = (
    "asyncio",
    "concurrent",
    "ctypes",
    "importlib",
    "logging",
    "unittest",
    "xml",
)
_CHARACTERS = 1500
_FILE = "model.safetensors"


def calibration_text(samples: int) -> list[str]:
    """``samples`` pieces of about 1500 characters, whole lines, evenly spaced over the packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for package in CALIBRATION_PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if not {"test", "tests", "__pycache__"} & set(path.parts)
    ]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    pieces = []
    for number in range(samples):
        start = text.index("\n", number * (len(text) - 2 * _CHARACTERS) // samples) + 1
        pieces.append(text[start : text.index("\n", start + _CHARACTERS) + 1])
    return pieces


def write_calibration(file: Path, samples: int) -> Path:
    """Write the text as a JSON list that only its owner may write, as msModelSlim demands, and as
    JSON lines beside it, as ``glm5-ascend quantize`` reads it."""
    pieces = calibration_text(samples)
    file.touch(mode=0o600)
    file.write_text(json.dumps(pieces), encoding="utf-8")
    lines = "".join(json.dumps({"text": piece}) + "\n" for piece in pieces)
    file.with_suffix(".jsonl").write_text(lines, encoding="utf-8")
    return file


def with_all_indexers(source: Path, target: Path) -> Path:
    """Copy a checkpoint of one file; layers that share an indexer get a copy of the one they share.

    msModelSlim knows no shared indexers. The copies are left out again when its result is read.
    """
    config = Glm5Config.from_dir(source)
    target.mkdir()
    tensors = load_file(source / _FILE)
    last = 0
    for layer in range(config.layer_count):
        last = layer if config.has_indexer(layer) else last
        old, new = (f"model.layers.{i}.self_attn.indexer." for i in (last, layer))
        copies = {n.replace(old, new): t.clone() for n, t in tensors.items() if n.startswith(old)}
        tensors |= copies if last != layer else {}
    save_file(tensors, target / _FILE, metadata={"format": "pt"})
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, target)
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, _FILE)}
    (target / f"{_FILE}.index.json").write_text(json.dumps(index))
    return target
