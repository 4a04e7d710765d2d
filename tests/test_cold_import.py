"""What must not be imported: in fresh processes, and by reading every import in the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
VENDORS = {"torch_npu", "triton", "vllm", "vllm_ascend"}
ONNX = {"onnx", "onnxruntime"}
HEAVY = {*VENDORS, *ONNX, "torch", "transformers"}


def loaded_by(code: str, watched: set[str]) -> set[str]:
    """Names out of ``watched`` that are in sys.modules after running ``code`` cold."""
    probe = f"{code}\nimport sys\nprint(*sorted(set(sys.modules) & {watched!r}))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "glm5_ascend",
        "glm5_ascend.cli",
        "glm5_ascend.checkpoint",
        "glm5_ascend.inspection",
        "glm5_ascend.deploy",
        "glm5_ascend.deploy.serve",
        "glm5_ascend.deploy.planner.command",
        "glm5_ascend.deploy.accept.command",
        "glm5_ascend.deploy.bundle.command",
        "glm5_ascend.deploy.endpoint.command",
        "glm5_ascend.deploy.render.command",
        "glm5_ascend.deploy.check.run",
        "glm5_ascend.deploy.doctor.run",
        "glm5_ascend.simulator",
    ],
)
def test_nothing_heavy(module: str) -> None:
    assert loaded_by(f"import {module}", HEAVY) == set()


def test_help_imports_nothing_heavy_and_no_progress_bars() -> None:
    code = (
        "from click.testing import CliRunner\n"
        "from glm5_ascend.cli import cli\n"
        "for name in [*cli.commands, None]:\n"
        "    args = [name, '--help'] if name else ['--help']\n"
        "    assert CliRunner().invoke(cli, args).exit_code == 0\n"
    )
    assert loaded_by(code, {*HEAVY, "numpy", "rich"}) == set()


def test_the_probe_sees_what_is_imported() -> None:
    assert loaded_by("import numpy", {"numpy", "rich"}) == {"numpy"}


@pytest.mark.torch
@pytest.mark.parametrize("module", ["glm5_ascend.ops", "glm5_ascend.quant"])
def test_no_vendor_package_with_the_operators(module: str) -> None:
    # torch imports triton itself where it is installed, so it is not asked about here.
    loaded = loaded_by(f"import {module}", (VENDORS | ONNX) - {"triton"})
    assert loaded == set()


# Who may import whom: a name may import its own layer and those with a smaller number.
LAYERS = {"cli": 4, "deploy": 3, "quant": 3, "simulator": 2, "ops": 1, "core": 0}
COMMAND_LINE = {"cli", "__main__", "demo"}
# Layers that may import these somewhere, inside a function if not at the top.
ALLOWED_IN = {
    "torch": {"simulator", "ops", "quant", "demo"},
    "vllm": {"simulator"},
    "onnx": {"ops"},
    "onnxruntime": set(),
}


def layer_of(module: str) -> str:
    """The layer that a dotted module name below ``glm5_ascend`` belongs to."""
    parts = module.split(".")
    if len(parts) == 1:
        return "core"
    if parts[1] in LAYERS:
        return parts[1]
    return "cli" if parts[1] in COMMAND_LINE or parts[1].startswith(("demo_", "cli_")) else "core"


def sources(root: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """Dotted name and path of every module of the package."""
    for folder in ("glm5_ascend", "ops", "quant", "deploy"):
        prefix = "" if folder == "glm5_ascend" else "glm5_ascend."
        for path in sorted((root / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents if parent != root):
                dotted = ".".join(path.relative_to(root).with_suffix("").parts)
                yield prefix + dotted.removesuffix(".__init__"), path


def imports(text: str) -> Iterator[tuple[str, bool]]:
    """Every absolute import in a source text, and whether it is only for type checkers."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(text), False)]
    while pending:
        node, typing_only = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, typing_only
            # "from glm5_ascend import ops" imports a module too.
            yield from ((f"{node.module}.{alias.name}", typing_only) for alias in node.names)
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        pending += [(child, typing_only or guarded) for child in ast.iter_child_nodes(node)]


def violations(module: str, text: str) -> list[str]:
    """What a module imports against the rules."""
    own = layer_of(module)
    family = "demo" if module.startswith("glm5_ascend.demo") else own
    found = []
    for name, typing_only in imports(text):
        root = name.split(".")[0]
        if root == "glm5_ascend":
            other = layer_of(name)
            if LAYERS[other] > LAYERS[own] or {own, other} == {"deploy", "quant"}:
                found.append(f"{module} ({own}) imports {name} ({other})")
        elif root in ("ops", "quant", "deploy"):
            found.append(f"{module} imports {name}: say glm5_ascend.{name}")
        elif root in ALLOWED_IN and not typing_only and not ALLOWED_IN[root] & {own, family}:
            found.append(f"{module} ({own}) imports {name}")
    return found


def test_imports_run_one_way() -> None:
    modules = list(sources())
    assert len(modules) > 30
    assert {layer_of(name) for name, _ in modules} == set(LAYERS)
    found = [line for name, path in modules for line in violations(name, path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("glm5_ascend.checkpoint", "from glm5_ascend.ops import rms_norm"),
        ("glm5_ascend.ops.moe.api", "def f():\n    import glm5_ascend.simulator.model"),
        ("glm5_ascend.simulator.model", "from glm5_ascend.quant.packing import pack"),
        ("glm5_ascend.deploy.serve", "from glm5_ascend import quant"),
        ("glm5_ascend.quant.command", "from glm5_ascend.deploy import serve"),
        ("glm5_ascend.config", "import torch"),
        ("glm5_ascend.cli", "def f():\n    import torch"),
        ("glm5_ascend.deploy.engine", "try:\n    import torch\nexcept ImportError: pass"),
        ("glm5_ascend.quant.plan", "import vllm.config"),
        ("glm5_ascend.cli", "import ops"),
    ],
)
def test_each_kind_of_violation_is_found(module: str, text: str) -> None:
    assert violations(module, text)


def test_what_is_allowed() -> None:
    assert not violations("glm5_ascend.cli", "from glm5_ascend.quant.command import run")
    assert not violations("glm5_ascend.demo", "from glm5_ascend.deploy import serve")
    assert not violations("glm5_ascend.simulator.platform", "import vllm\nimport torch")
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"
    assert not violations("glm5_ascend.deploy.engine", typed)


def at_import_time(text: str) -> set[str]:
    """Packages that importing a module would load, also inside ``try`` and ``if``."""
    pending: list[ast.AST] = [ast.parse(text)]
    found: set[str] = set()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
        pending += ast.iter_child_nodes(node)
    return found


# Only a backend's own file, or a module that only the running engine loads, may need its vendor.
OWN_VENDOR = {
    "triton_kernel": "triton",
    "triton_source": "triton",
    "triton_products": "triton",
    "ascendc": "torch_npu",
    "torch_npu": "torch_npu",
}


def test_no_vendor_at_import_time_even_behind_try() -> None:
    for name, path in sources():
        if layer_of(name) == "simulator" and name != "glm5_ascend.simulator":
            continue
        allowed = {OWN_VENDOR.get(path.stem, "")}
        assert not (at_import_time(path.read_text()) & VENDORS) - allowed, name


def test_vendor_behind_try_is_found() -> None:
    text = "try:\n    import torch_npu\nexcept ImportError:\n    torch_npu = None"
    assert at_import_time(text) == {"torch_npu"}
    assert at_import_time("def f():\n    import vllm") == set()
