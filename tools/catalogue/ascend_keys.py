"""Keys of ``--additional-config`` and variables that a release of vllm-ascend reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.catalogue.archives import Trees
from tools.catalogue.limits import limits
from tools.catalogue.vllm_flags import connectors, table_keys

CONFIG = "vllm_ascend/ascend_config.py"
_PASSED_OVER = "_NON_USER_INPUT_KEYS"
# Built outside of the configuration's own class.
_NESTED = (
    ("scheduler_config", "SchedulerConfig"),
    ("sparse_kv_offload_config", "SparseKVOffloadConfig"),
)
Keys = dict[str, list[str]]


def read_variables(trees: Trees) -> list[str]:
    """Names in vllm-ascend's table of variables, and others that its modules read by name."""
    names = set(table_keys(trees["vllm_ascend/envs.py"], "env_variables"))
    for tree in trees.values():
        names |= {name for name in _read_by_name(tree) if re.fullmatch(r"[A-Z][A-Z0-9_]{3,}", name)}
    return sorted(names)


def read_connectors(trees: Trees) -> list[str]:
    """Names that KV connectors are registered under."""
    return sorted({name for tree in trees.values() for name in connectors(tree)})


def is_strict(trees: Trees) -> bool:
    """Whether unknown keys are refused."""
    return any(
        isinstance(node, ast.ClassDef) and node.name == "AscendConfig" and _is_forbidding(node)
        for node in ast.walk(trees[CONFIG])
    )


def read_keys(trees: Trees) -> Keys:
    """Top-level keys, each with the keys below it, dotted where they are deeper."""
    classes = {n.name: n for n in ast.walk(trees[CONFIG]) if isinstance(n, ast.ClassDef)}
    if is_strict(trees):
        return _typed_keys(trees[CONFIG], classes)
    keys: Keys = {}
    for tree in trees.values():
        for name in _looked_up(tree):
            keys.setdefault(name, [])
    for name, node in classes.items():
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=TP)(?=C)", "_", name).lower()
        snake = {"finegrained_tpconfig": "finegrained_tp_config"}.get(snake, snake)
        if snake in keys:
            keys[snake] = sorted(set(_keys_of_loose(node, snake)))
    return keys


def read_limits(trees: Trees) -> list[str]:
    """Kind and bounds of the numbers and switches, by dotted key: ``a.b whole >= 0``."""
    classes = {n.name: n for n in ast.walk(trees[CONFIG]) if isinstance(n, ast.ClassDef)}
    if not is_strict(trees):
        own = limits(classes["EplbConfig"]) if "EplbConfig" in classes else {}
        return sorted(f"eplb_config.{name} {words}" for name, words in own.items())
    found = dict(_limits_below("AscendConfig", classes, ""))
    for name, of in _NESTED:
        if of in classes:
            found |= dict(_limits_below(of, classes, f"{name}."))
    return sorted(f"{name} {words}" for name, words in found.items())


def _limits_below(
    annotation: str, classes: dict[str, ast.ClassDef], prefix: str
) -> Iterator[tuple[str, str]]:
    for word in re.findall(r"\w+", annotation):
        if word in classes:
            yield from ((f"{prefix}{name}", text) for name, text in limits(classes[word]).items())
            for name, kind in _fields(classes[word]):
                yield from _limits_below(kind, classes, f"{prefix}{name}.")


def _typed_keys(tree: ast.Module, classes: dict[str, ast.ClassDef]) -> Keys:
    keys = {name: _below(kind, classes) for name, kind in _fields(classes["AscendConfig"])}
    for node in ast.walk(tree):
        named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if named and node.targets[0].id == _PASSED_OVER:  # type: ignore[attr-defined]
            for name in ast.literal_eval(node.value):  # type: ignore[attr-defined]
                if not name.startswith("_"):
                    keys.setdefault(name, [])
    for name, of in _NESTED:
        if of in classes:
            keys[name] = _below(of, classes)
    for name in keys.get("scheduler_config", []):
        outer, _, inner = name.partition(".")
        if inner and outer in keys and inner not in keys[outer]:
            keys[outer].append(inner)
    return keys


def _below(annotation: str, classes: dict[str, ast.ClassDef]) -> list[str]:
    found: list[str] = []
    for word in re.findall(r"\w+", annotation):
        if word in classes:
            for name, kind in _fields(classes[word]):
                found += [name, *(f"{name}.{deeper}" for deeper in _below(kind, classes))]
    return found


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for item in node.body:
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
            continue
        kind = ast.unparse(item.annotation)
        internal = item.value is not None and "init=False" in ast.unparse(item.value)
        if not item.target.id.startswith("_") and "ClassVar" not in kind and not internal:
            yield item.target.id, kind


def _is_forbidding(node: ast.ClassDef) -> bool:
    text = " ".join(ast.unparse(item) for item in (*node.decorator_list, *node.body))
    plain = any(ast.unparse(item).split("(")[0] == "config" for item in node.decorator_list)
    return plain or 'extra="forbid"' in text or "extra='forbid'" in text


def _looked_up(tree: ast.AST) -> Iterator[str]:
    """Keys that are asked of something called ``additional_config``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("get", "setdefault"):
            owner = ast.unparse(node.func.value)  # type: ignore[attr-defined]
            if owner.rstrip(")").endswith("additional_config") and node.args:
                yield from _text(node.args[0])
        elif isinstance(node, ast.Call) and len(node.args) > 1 and _is_additional(node.args[0]):
            yield from _text(node.args[1])
        elif isinstance(node, ast.Subscript) and _is_additional(node.value):
            yield from _text(node.slice)
        elif isinstance(node, ast.Compare) and _is_additional(node.comparators[0]):
            yield from _text(node.left)


def _is_additional(node: ast.AST) -> bool:
    return ast.unparse(node).endswith("additional_config")


def _text(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _keys_of_loose(node: ast.ClassDef, config: str) -> Iterator[str]:
    for item in ast.walk(node):
        if isinstance(item, ast.Call) and getattr(item.func, "attr", "") == "get" and item.args:
            owner = ast.unparse(item.func.value)  # type: ignore[attr-defined]
            if owner in (config, "config", "kwargs", "user_config"):
                yield from _text(item.args[0])
        elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Dict):
            if getattr(item.targets[0], "id", "") == "_defaults":
                yield from (word for key in item.value.keys if key for word in _text(key))
        elif isinstance(item, ast.FunctionDef) and item.name == "__init__" and item.args.defaults:
            for argument in item.args.args[-len(item.args.defaults) :]:
                if argument.arg not in ("user_config", config, "config", "vllm_config"):
                    yield argument.arg


def _read_by_name(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("os.getenv", "os.environ.get", "getenv", "environ.get") and node.args:
                yield from _text(node.args[0])
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            yield from _text(node.slice)
