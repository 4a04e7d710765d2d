"""Flags and variables of vLLM: what ``add_argument`` and the dataclasses behind it say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tools.catalogue.archives import Trees
from tools.catalogue.limits import limits

SWITCH, JSON, TEXT, LIST, WHOLE, NUMBER = "switch", "json", "text", "list", "whole", "number"
_JSON_ALTHOUGH = ("--allowed-origins", "--allowed-methods", "--allowed-headers", "--hf-overrides")
# Flags with the keys of a class, and flags with the names in a table.
_CLASSES = {
    "--attention-config": "AttentionConfig",
    "--compilation-config": "CompilationConfig",
    "--kv-transfer-config": "KVTransferConfig",
    "--speculative-config": "SpeculativeConfig",
    "--eplb-config": "EPLBConfig",
}
_TABLES = {
    "--tool-call-parser": ("vllm/tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
    "--reasoning-parser": ("vllm/reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
}


@dataclass
class Flags:
    """Kinds by long name, choices of some, keys of some in JSON, bounds, and short forms."""

    kinds: dict[str, str] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)
    short: dict[str, str] = field(default_factory=dict)
    limits: dict[str, list[str]] = field(default_factory=dict)


def read_flags(trees: Trees) -> Flags:
    """Every flag of ``vllm serve``."""
    flags = Flags()
    literals = _literals(trees)
    engine = trees["vllm/engine/arg_utils.py"]
    annotations = dict(_fields(engine, "EngineArgs")) | dict(_fields(engine, "AsyncEngineArgs"))
    command_lines = [t for n, t in trees.items() if n.endswith("cli_args.py")]
    front: dict[str, str] = {}
    for tree in command_lines:
        for name in ("BaseFrontendArgs", "FrontendArgs"):
            front |= dict(_fields(tree, name))
    for tree in (engine, *command_lines):
        for call in _calls(tree, "add_argument"):
            _add(flags, call, annotations, literals)
    for name, annotation in front.items():
        flag = "--" + name.replace("_", "-")
        _set(flags, flag, annotation, literals)
    flags.kinds |= {flag: JSON for flag in _JSON_ALTHOUGH if flag in flags.kinds}
    for flag, (path, table) in _TABLES.items():
        flags.choices[flag] = sorted(table_keys(trees[path], table))
    for flag, name in _CLASSES.items():
        flags.keys[flag] = sorted({n for tree in trees.values() for n, _ in _fields(tree, name)})
    flags.limits = _limits(trees, flags.kinds)
    return flags


def _limits(trees: Trees, kinds: dict[str, str]) -> dict[str, list[str]]:
    """Bounds of flags, and kind and bounds of the numbers in JSON flags: ``name whole > 0``."""
    known: dict[str, dict[str, str]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                known.setdefault(node.name, {}).update(limits(node))
    found: dict[str, list[str]] = {}
    engine = trees["vllm/engine/arg_utils.py"]
    classes = dict(_keyword_tables(engine))
    for call in _calls(engine, "add_argument"):
        flag = next((ast.literal_eval(a) for a in call.args if isinstance(a, ast.Constant)), "")
        splat = next((k.value for k in call.keywords if k.arg is None), None)
        own, owners = flag[2:].replace("-", "_"), list(dict.fromkeys(classes.values()))
        if isinstance(splat, ast.Subscript) and isinstance(splat.slice, ast.Constant):
            own, owners = str(splat.slice.value), [classes.get(ast.unparse(splat.value), "")]
        words = [known[name][own] for name in owners if own in known.get(name, {})]
        kind, _, bounds = words[0].partition(" ") if len(words) == 1 else ("", "", "")
        if bounds and kinds.get(flag) == kind:
            found[flag] = [f"{kind} {bounds}"]
    for flag, name in _CLASSES.items():
        found[flag] = [f"{key} {words}" for key, words in sorted(known.get(name, {}).items())]
    return dict(sorted(found.items()))


def _keyword_tables(engine: ast.Module) -> Iterator[tuple[str, str]]:
    """Variables that hold the keywords of a class's flags, each with the class."""
    for node in ast.walk(engine):
        is_one = isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if is_one and ast.unparse(node.value.func) == "get_kwargs":  # type: ignore[attr-defined]
            yield ast.unparse(node.targets[0]), ast.unparse(node.value.args[0])  # type: ignore[attr-defined]


def read_connectors(trees: Trees) -> list[str]:
    """Names of vLLM's own KV connectors."""
    return sorted(connectors(trees["vllm/distributed/kv_transfer/kv_connector/factory.py"]))


def connectors(tree: ast.AST) -> Iterator[str]:
    """First argument of each ``register_connector`` call."""
    for call in _calls(tree, "register_connector"):
        if call.args and isinstance(call.args[0], ast.Constant):
            yield str(call.args[0].value)


def read_variables(trees: Trees) -> list[str]:
    """Names in ``vllm/envs.py``'s table."""
    return sorted(table_keys(trees["vllm/envs.py"], "environment_variables"))


def table_keys(tree: ast.Module, name: str) -> Iterator[str]:
    """String keys of the dictionary that is assigned to ``name`` at module level."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if name in names and isinstance(value, ast.Dict):
            yield from (
                key.value
                for key in value.keys
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            )


def _calls(tree: ast.AST, method: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == method:
            yield node


def _fields(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id, ast.unparse(item.annotation)


def _literals(trees: Trees) -> dict[str, list[str]]:
    """Members of every ``Literal`` that has a name, those that it is made of included."""
    nodes: dict[str, ast.AST] = {}
    for tree in trees.values():
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Name) and isinstance(node, ast.Assign):
                nodes |= {target.id: node.value} if _is_literal(node.value) else {}
    return {name: _members(node, nodes) for name, node in nodes.items()}


def _is_literal(node: ast.AST) -> bool:
    return ast.unparse(node).startswith("Literal[")


def _members(node: ast.AST, nodes: dict[str, ast.AST]) -> list[str]:
    found = _strings(node)
    for item in ast.walk(node):
        if isinstance(item, ast.Name) and item.id in nodes and nodes[item.id] is not node:
            found += _members(nodes[item.id], nodes)
    return list(dict.fromkeys(found))


def _strings(node: ast.AST) -> list[str]:
    return [
        item.value
        for item in ast.walk(node)
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]


def _add(
    flags: Flags, call: ast.Call, annotations: dict[str, str], literals: dict[str, list[str]]
) -> None:
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    long = next((n for n in names if n.startswith("--")), None)
    if long is None:
        return
    for other in names:
        if other != long:
            flags.short[other] = long
    keywords = {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg}
    if "store_true" in keywords.get("action", "") or "Boolean" in keywords.get("action", ""):
        flags.kinds[long] = SWITCH
        return
    key = long[2:].replace("-", "_")
    splat = next((k.value for k in call.keywords if k.arg is None), None)
    if isinstance(splat, ast.Subscript) and isinstance(splat.slice, ast.Constant):
        key = str(splat.slice.value)
    own = long[2:].replace("-", "_")
    annotation = annotations.get(own) or annotations.get(key) or keywords.get("type", "str")
    _set(flags, long, annotation, literals)


def _set(flags: Flags, flag: str, annotation: str, literals: dict[str, list[str]]) -> None:
    words = set(re.findall(r"\w+", annotation))
    named = next((word for word in words if word in literals), None)
    flags.kinds[flag] = _kind(annotation, words, named is not None)
    choices = literals[named] if named else []
    if "Literal" in words:
        choices = _strings(ast.parse(annotation, mode="eval"))
    if choices and flags.kinds[flag] == TEXT:
        flags.choices[flag] = choices


def _kind(annotation: str, words: set[str], is_named: bool) -> str:
    if "bool" in words and not words <= {"bool", "str", "None"} - {"bool"}:
        return TEXT if words == {"bool", "str", "None"} else SWITCH
    if words & {"list", "List", "tuple", "set"} and not words & {"dict", "Dict"}:
        return LIST
    if is_named or "Literal" in words:
        return TEXT
    if words & {"dict", "Dict"} or any(word.endswith("Config") for word in words):
        return JSON
    if "int" in words and "str" not in words:
        return WHOLE
    return NUMBER if "float" in words and "str" not in words else TEXT
