"""Numbers and switches in flags and JSON flags: kind, and bounds of the release's classes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from glm5_ascend.deploy.check.checks_flags import SIZES
from glm5_ascend.deploy.check.command_line import dump, whole_number
from glm5_ascend.deploy.check.context import Context, is_open
from glm5_ascend.deploy.check.rule import Condition, check

_WORDS = {
    "whole": "a whole number",
    "integer": "a whole number without quotation marks",
    "number": "a number",
    "switch": "true or false",
    "wholes": "a list of whole numbers",
}
_SWITCH = ("true", "false", "1", "0", "yes", "no", "on", "off", "t", "f", "y", "n")
_WHOLE = re.compile(r"\s*[+-]?\d+(?:_\d+)*(?:\.0*)?\s*")
_BOUND = re.compile(r"([<>]=?) (\S+)")
_PORT = "whole > 0 <= 65535"
_PORTS = ("--port", "--master-port")  # --data-parallel-rpc-port has bounds of its own
_SIDES = ("prefill", "decode")
_SIDE_SIZES = ("dp_size", "tp_size", "pp_size")


def read_number(value: object, kind: str) -> float | None:
    """A value as pydantic reads it for a field of ``kind``; None where it refuses it.

    Strings of digits, floats without a fraction and booleans are whole numbers there; an
    ``integer`` is asked for with ``isinstance`` and must be written as one.
    """
    if kind == "integer":
        return float(value) if isinstance(value, int) else None
    if isinstance(value, str):
        return _of_text(value) if kind == "number" or _WHOLE.fullmatch(value) else None
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if kind == "number" or number.is_integer() else None


def _of_text(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number  # "nan" is within no bounds


def is_switch(value: object) -> bool:
    """Whether pydantic reads a value as a boolean."""
    if isinstance(value, str):
        return value.lower() in _SWITCH
    return isinstance(value, bool) or (isinstance(value, int | float) and value in (0, 1))


def breach(number: float, words: str) -> str:
    """The first bound of ``whole > 0 <= 9`` that a number breaks, or nothing."""
    for operator, text in _BOUND.findall(words):
        limit = float(text)
        kept = {
            ">": number > limit,
            ">=": number >= limit,
            "<": number < limit,
            "<=": number <= limit,
        }
        if not kept[operator]:
            return f"must be {operator} {text}"
    return ""


@check
def flags(context: Context) -> Iterator[Condition]:
    for option in context.command.options:
        words = context.release.limits.get(option.name, ())
        is_json = context.release.flags.get(option.name) == "json"
        if is_json or not words or option.path or not option.values:
            continue
        text = option.values[0]
        number = _of_flag(text)
        if number is None or (option.name in SIZES and number < 1):
            continue  # number-invalid and size-zero say it
        broken = breach(number, words[0])
        if broken:
            yield Condition("number-range", option.name, f"{option.name} {text}, {broken}")


def _of_flag(text: str) -> float | None:
    number = whole_number(text)
    return _of_text(text) if number is None else float(number)


@check
def keys(context: Context) -> Iterator[Condition]:
    for flag in ("--additional-config", *context.release.keys):
        config = context.command.json(flag)
        for entry in context.release.limits.get(flag, ()):
            name, _, words = entry.partition(" ")
            value = _at(config, name)
            if value is not None:
                yield from _judge(f"{flag}.{name}", value, words)


@check
def graphs(context: Context) -> Iterator[Condition]:
    flag = "--compilation-config"
    config = context.command.json(flag)
    largest, sizes = config.get("max_cudagraph_capture_size"), config.get("cudagraph_capture_sizes")
    if isinstance(sizes, list):
        read = [read_number(size, "whole") for size in sizes]
        if None in read:
            return  # json-value says it
        largest = max((size for size in read if size is not None), default=0)
    number = None if largest is None else read_number(largest, "whole")
    if number is not None and number < 1 and not context.is_eager:
        yield Condition("capture-none", flag, f"the largest is {number:g}" if sizes != [] else "")


@check
def ports(context: Context) -> Iterator[Condition]:
    command = context.command
    given = {name: command.text(name) for name in _PORTS}
    given["HCCL_IF_BASE_PORT"] = command.env.get("HCCL_IF_BASE_PORT", "")
    for name, text in given.items():
        number = _of_flag(text)
        least = "whole >= 0 <= 65535" if name == "--port" else _PORT  # 0 is any free port
        if number is not None and breach(number, least):
            yield Condition("port-range", name, f"{name} {text}")


@check
def transfers(context: Context) -> Iterator[Condition]:
    for connector in context.connectors:
        port = connector.get("kv_port")
        number = None if port is None else read_number(port, "whole")
        if number is not None and breach(number, _PORT):
            yield Condition("kv-port-range", "--kv-transfer-config.kv_port", _short(port))
        extra = connector.get("kv_connector_extra_config")
        if not str(connector.get("kv_connector", "")).startswith("Mooncake"):
            continue
        for side, sizes in extra.items() if isinstance(extra, Mapping) else ():
            for name in _SIDE_SIZES if side in _SIDES and isinstance(sizes, Mapping) else ():
                value = sizes.get(name)
                if value is None or (isinstance(value, str) and is_open(value)):
                    continue
                if not isinstance(value, int) or value < 1:
                    detail = f"{side}.{name} {_short(value)}"
                    yield Condition("pd-sizes-number", f"{side}.{name}", detail)


def _at(config: Mapping[str, Any], name: str) -> Any:
    found: Any = config
    for key in name.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _judge(item: str, value: object, words: str) -> Iterator[Condition]:
    kind = words.partition(" ")[0]
    if isinstance(value, str) and (is_open(value) or not value):
        return
    if kind == "wholes" and not isinstance(value, list):
        yield _misfit(item, value, kind)
        return
    for each in value if kind == "wholes" and isinstance(value, list) else [value]:
        if isinstance(each, str) and is_open(each):
            continue
        if kind == "switch":
            if not is_switch(each):
                yield _misfit(item, each, kind)
                return
            continue
        number = read_number(each, "whole" if kind == "wholes" else kind)
        if number is None:
            yield _misfit(item, value, kind)
            return
        broken = breach(number, words)
        if broken:
            yield Condition("number-range", item, f"{item} {_short(value)}, {broken}")
            return


def _misfit(item: str, value: object, kind: str) -> Condition:
    return Condition("json-value", item, f"{item} {_short(value)}", f"write {_WORDS[kind]}")


def _short(value: object) -> str:
    text = dump(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
