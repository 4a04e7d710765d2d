"""What a release accepts, read from syntax trees; and the published recipes, judged again."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tools.catalogue import ascend_keys, vllm_flags
from tools.catalogue.recipes import TARGET, page_rows
from tools.oracle.install import Environment
from tools.oracle.releases import find_release

ARGUMENTS = """
class EngineArgs:
    max_model_len: int = 1
    kv_cache_dtype: CacheDType = "auto"
    enforce_eager: bool = False
    names: str | list[str] | None = None
    additional_config: dict[str, Any] = None
    share: float = 0.9

def add_cli_args(parser):
    group.add_argument("--max-model-len", **model_kwargs["max_model_len"])
    group.add_argument("--kv-cache-dtype", **cache_kwargs["cache_dtype"])
    group.add_argument("--enforce-eager", **model_kwargs["enforce_eager"])
    group.add_argument("--names", "-n", **model_kwargs["names"])
    group.add_argument("--additional-config", **k["additional_config"])
    group.add_argument("--share", **k["share"])
    group.add_argument("--headless", action="store_true")
"""
FILES = {
    "vllm/engine/arg_utils.py": ARGUMENTS,
    "vllm/config/cache.py": 'Inner = Literal["fp8"]\nCacheDType = Literal["auto", Inner]',
    "vllm/config/attention.py": "class AttentionConfig:\n    backend: str = 'x'\n",
    "vllm/entrypoints/cli_args.py": "class FrontendArgs:\n    allowed_origins: list[str] = 1\n",
    "vllm/tool_parsers/__init__.py": '_TOOL_PARSERS_TO_REGISTER = {"glm47": ("a", "b")}',
    "vllm/reasoning/__init__.py": '_REASONING_PARSERS_TO_REGISTER = {"glm45": ("a", "b")}',
}


def trees(files: dict[str, str]) -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in files.items()}


def test_flags() -> None:
    flags = vllm_flags.read_flags(trees(FILES))
    assert flags.kinds == {
        "--max-model-len": "whole",
        "--kv-cache-dtype": "text",
        "--enforce-eager": "switch",
        "--names": "list",
        "--additional-config": "json",
        "--share": "number",
        "--headless": "switch",
        "--allowed-origins": "json",
    }
    assert flags.choices["--kv-cache-dtype"] == ["auto", "fp8"]
    assert flags.choices["--tool-call-parser"] == ["glm47"]
    assert flags.keys["--attention-config"] == ["backend"]
    assert flags.short == {"-n": "--names"}


LOOSE = """
class AscendConfig:
    def __init__(self, vllm_config):
        self.a = additional_config.get("plain", False)
        x = self._get(additional_config, "by_helper", "ENV", 1)
        if "asked" in additional_config:
            pass
        xlite_graph_config = additional_config.get("xlite_graph_config", {})

class XliteGraphConfig:
    def __init__(self, xlite_graph_config):
        self.enabled = xlite_graph_config.get("enabled", False)
"""
STRICT = """
@config
class Inner:
    deep: int = 0
    hidden: int = field(default=0, init=False)

@config
class SchedulerConfig:
    inner_config: Inner = field(default_factory=Inner)

@config
class AscendConfig:
    model_config = ConfigDict(extra="forbid")
    plain: bool = True
    scheduler_config: SchedulerConfig = None
    _private: int = 0

def init():
    _NON_USER_INPUT_KEYS = {"refresh", "_private", "inner_config"}
"""


def test_keys_of_a_release_that_ignores_unknown_ones() -> None:
    files = trees({ascend_keys.CONFIG: LOOSE})
    assert not ascend_keys.is_strict(files)
    assert ascend_keys.read_keys(files) == {
        "plain": [],
        "by_helper": [],
        "asked": [],
        "xlite_graph_config": ["enabled"],
    }


def test_keys_of_a_release_that_refuses_unknown_ones() -> None:
    files = trees({ascend_keys.CONFIG: STRICT})
    assert ascend_keys.is_strict(files)
    assert ascend_keys.read_keys(files) == {
        "plain": [],
        "scheduler_config": ["inner_config", "inner_config.deep"],
        "refresh": [],
        "inner_config": ["deep"],
    }


def test_variables_and_connectors() -> None:
    text = 'env_variables = {"SOC_VERSION": 1}'
    other = (
        'x = os.getenv("HCCL_X") or os.environ["ASCEND_Y"]\nF.register_connector("V1", "m", "c")'
    )
    files = trees({"vllm_ascend/envs.py": text, "vllm_ascend/a.py": other})
    assert ascend_keys.read_variables(files) == ["ASCEND_Y", "HCCL_X", "SOC_VERSION"]
    assert ascend_keys.read_connectors(files) == ["V1"]


@pytest.mark.parametrize("version", ["0.23.0.post1", "0.30.0rc2"])
def test_recipes_are_judged_as_recorded(version: str) -> None:
    environment = Environment(find_release(version))
    folder = environment.docs / "tutorials" / "models"
    if not folder.is_dir():
        pytest.skip(f"not installed: python -m tools.strict_oracle install --for {version}")
    pages = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("GLM5*.md")}
    recorded = tomllib.loads(Path(TARGET).read_text(encoding="utf-8"))["recipe"]
    wanted = [r for r in recorded if r["release"] == version and not r["id"].startswith("ci ")]
    assert list(page_rows(version, pages)) == wanted
