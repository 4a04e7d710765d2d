"""Kinds and bounds of the numbers in configuration classes, from their annotations and checks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

WHOLE, NUMBER, SWITCH, WHOLES, INTEGER = "whole", "number", "switch", "wholes", "integer"
_KINDS = {"int": WHOLE, "float": NUMBER, "bool": SWITCH, "list[int]": WHOLES}
_KEYWORDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_OPERATORS = {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<="}
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}
_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
# Run by every construction of the class; other methods are called under conditions.
_ALWAYS = ("__post_init__", "_validate_config", "derive_and_validate")
Bounds = dict[str, list[str]]


def limits(node: ast.ClassDef) -> dict[str, str]:
    """Words on each field that is a number or a switch: ``whole > 0``, ``number > 0 <= 1``.

    Kinds are ``whole``, ``number``, ``switch`` and ``wholes`` (a list) as pydantic reads them, and
    ``integer`` where the class itself asks ``isinstance(value, int)``. Bounds come from ``Field``
    and from what the class refuses whatever else is set.
    """
    kinds: dict[str, str] = {}
    bounds: Bounds = {}
    # What is computed from the given value may be refused where the value is not.
    computed = {_text(t) for n in ast.walk(node) if isinstance(n, ast.Assign) for t in n.targets}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotation = ast.unparse(item.annotation).replace(" | None", "")
            if annotation in _KINDS and "init=False" not in _text(item.value):
                kinds[item.target.id] = _KINDS[annotation]
                bounds[item.target.id] = _of_field(item.value)
        elif isinstance(item, ast.FunctionDef) and _is_always(item):
            for name, more in _of_checks(item):
                if f"self.{name}" in computed:
                    continue
                bounds.setdefault(name, []).extend(more)
            for name in _asked_integers(item):
                kinds.setdefault(name, INTEGER)
    return {
        name: " ".join([kind, *dict.fromkeys(bounds.get(name, []))]) for name, kind in kinds.items()
    }


def _text(node: ast.AST | None) -> str:
    return ast.unparse(node) if node is not None else ""


def _of_field(value: ast.expr | None) -> list[str]:
    if not (isinstance(value, ast.Call) and _text(value.func) == "Field"):
        return []
    found = []
    for word in value.keywords:
        limit = _constant(word.value)
        if word.arg in _KEYWORDS and limit is not None:
            found.append(f"{_KEYWORDS[word.arg]} {limit:g}")
    return found


def _constant(node: ast.AST) -> float | None:
    try:
        value = ast.literal_eval(node)  # type: ignore[arg-type]
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_always(function: ast.FunctionDef) -> bool:
    after = any("mode='after'" in _text(item) for item in function.decorator_list)
    return after or function.name in _ALWAYS


def _statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Those that run whatever the fields are."""
    for item in function.body:
        if any(isinstance(inner, ast.Return) for inner in ast.walk(item)):
            return
        yield item


def _of_checks(function: ast.FunctionDef) -> Iterator[tuple[str, list[str]]]:
    for item in _statements(function):
        if isinstance(item, ast.If) and isinstance(item.body[-1], ast.Raise):
            for part in _alternatives(item.test):
                name, words = _refused(part)
                if name.startswith("self."):
                    yield name.removeprefix("self."), words
        elif isinstance(item, ast.For):
            for inner in item.body:
                if isinstance(inner, ast.If) and isinstance(inner.body[-1], ast.Raise):
                    for part in _alternatives(inner.test):
                        _, words = _refused(part)
                        yield from ((name, words) for name in _looped(item, function))


def _asked_integers(function: ast.FunctionDef) -> Iterator[str]:
    for item in _statements(function):
        if isinstance(item, ast.For) and ", int)" in _text(item) and "isinstance(" in _text(item):
            yield from _looped(item, function)


def _looped(loop: ast.For, function: ast.FunctionDef) -> list[str]:
    """The names that a loop over constants goes through."""
    source: ast.AST = loop.iter
    for item in function.body:
        if isinstance(item, ast.Assign) and _text(item.targets[0]) == _text(loop.iter):
            source = item.value
    try:
        names = ast.literal_eval(source)  # type: ignore[arg-type]
    except (ValueError, SyntaxError):
        return []
    return [name for name in names if isinstance(name, str)]


def _alternatives(test: ast.expr) -> list[ast.expr]:
    is_or = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)
    return test.values if is_or else [test]  # type: ignore[attr-defined]


def _refused(test: ast.expr) -> tuple[str, list[str]]:
    """What is compared, and the bounds that follow where ``test`` leads to an exception."""
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    inner = test.operand if isinstance(test, ast.UnaryOp) else test
    if not isinstance(inner, ast.Compare):
        return "", []
    sides = [inner.left, *inner.comparators]
    if len(sides) == 2 and isinstance(inner.ops[0], ast.NotIn) and not negated:
        return _text(sides[0]), _range(sides[1])
    found: list[str] = []
    name = ""
    for left, operator, right in zip(sides, inner.ops, sides[1:], strict=False):
        word = _OPERATORS.get(type(operator))
        low, high = _constant(left), _constant(right)
        if word is None or (low is None) == (high is None):
            return "", []
        name = _text(left if low is None else right)
        word = word if low is None else _MIRRORED[word]
        limit = high if low is None else low
        found.append(f"{word if negated else _OPPOSITE[word]} {limit:g}")
    # Of a chain that is refused as such, no single bound follows.
    return (name, found) if negated or len(found) == 1 else ("", [])


def _range(node: ast.expr) -> list[str]:
    """Bounds of a list of neighbouring integers."""
    try:
        values = sorted(ast.literal_eval(node))
    except (ValueError, SyntaxError, TypeError):
        return []
    whole = bool(values) and all(type(value) is int for value in values)
    if not whole or values != list(range(values[0], values[-1] + 1)):
        return []
    return [f">= {values[0]}", f"<= {values[-1]}"]
