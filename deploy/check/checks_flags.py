"""Flags: unknown, misspelt, repeated, with a wrong value; and the keys of JSON flags."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from glm5_ascend.deploy.catalogue.releases import Release
from glm5_ascend.deploy.check.command_line import (
    Option,
    ServeCommand,
    long_name,
    read_json,
    whole_number,
)
from glm5_ascend.deploy.check.context import Context, is_open
from glm5_ascend.deploy.check.moved import moved
from glm5_ascend.deploy.check.near import mended_json, nearest
from glm5_ascend.deploy.check.rule import Condition, Mend, check

# Values that vllm-ascend adds to those of vLLM, from the release on.
_ADDED = {"--kv-cache-dtype": ("int8", (0, 29))}
# Not read with the configuration's own class: their keys are checked elsewhere or are free.
_FREE = ("--hf-overrides", "--additional-config")
_C8_FLAGS = ("--kv-cache-dtype",)
# Keys that vLLM takes besides the fields of the class.
_MORE_KEYS = {"--compilation-config": ("level",)}
_NO_NUMBER = ("auto", "None")
# Sizes that are 1 at least.
SIZES = (
    "--tensor-parallel-size",
    "--data-parallel-size",
    "--pipeline-parallel-size",
    "--decode-context-parallel-size",
    "--prefill-context-parallel-size",
    "--nnodes",
    "--block-size",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--max-model-len",
)
_REPEATABLE = ("--middleware", "--lora-modules", "--api-key")


def replace_option(old: Option, new: Option | None) -> Mend:
    """A change that puts ``new`` in the place of ``old``."""

    def mend(command: ServeCommand) -> ServeCommand:
        options = [new if o == old else o for o in command.options]
        return replace(command, options=tuple(o for o in options if o is not None))

    return mend


def _known(option: Option, context: Context) -> bool:
    name = option.name
    negative = name.replace("--no-", "--", 1)
    return name in context.release.flags or context.release.flags.get(negative) == "switch"


def completed(command: ServeCommand, release: Release) -> ServeCommand:
    """The command with abbreviated flags under their full names, as argparse takes them."""
    options = []
    for option in command.options:
        found = [flag for flag in release.flags if flag.startswith(option.name)]
        is_short = option.name.startswith("--") and option.name not in release.flags
        options.append(replace(option, name=found[0]) if is_short and len(found) == 1 else option)
    return replace(command, options=tuple(options))


@check
def names(context: Context) -> Iterator[Condition]:
    for option in context.command.options:
        if _known(option, context) or option.name == "-O":
            written = long_name(option.spelled or option.name)
            if written != option.name:
                detail = f"{option.spelled} for {option.name}"
                mend = replace_option(option, replace(option, spelled=""))
                yield Condition("flag-abbreviated", option.name, detail, mend=mend)
            continue
        is_single = not option.name.startswith("--")
        meant = _meant(option.name, context)
        rule = "flag-one-dash" if is_single and meant else "flag-unknown"
        fix = f"write {meant}" if meant else "remove it"
        new = None
        if meant:
            is_switch = context.release.flags[meant] == "switch"
            kept = () if is_switch else option.values
            new = Option(meant, kept, option.path, at=option.at)
        written = option.words[0].partition("=")[0]
        yield Condition(rule, written, written, fix, replace_option(option, new))


def _meant(name: str, context: Context) -> str | None:
    """The flag that an unknown one stands for; never its opposite."""
    plain = "--" + name.lstrip("-")
    if plain in moved()["flags"]["gone"]:
        return None
    meant = nearest(plain, set(context.release.flags))
    opposite = {plain.split("-")[2], (meant or "--").split("-")[2]} == {"enable", "disable"}
    return None if opposite else meant


@check
def values(context: Context) -> Iterator[Condition]:
    for option in context.command.options:
        kind = context.release.flags.get(option.name, "")
        if kind in ("", "switch") or option.path or is_open("".join(option.values)):
            continue
        if not option.values:
            yield Condition("flag-value-missing", option.name, option.spelled)
        elif not _is_of_kind(option.values[0], kind):
            yield Condition("number-invalid", option.name, f"{option.name} {option.values[0]}")
        elif option.name in SIZES and is_below_one(option.name, option.values[0]):
            yield Condition("size-zero", option.name, f"{option.name} {option.values[0]}")
        yield from _choice(option, context)


def _is_of_kind(text: str, kind: str) -> bool:
    if kind == "number" and text not in _NO_NUMBER:
        try:
            return float(text) == float(text)  # "nan" is within no bounds
        except ValueError:
            return False
    if kind == "whole":
        return whole_number(text.removeprefix("-")) is not None or text in _NO_NUMBER
    return True


def is_below_one(name: str, text: str) -> bool:
    """Whether a size of :data:`SIZES` is zero or negative."""
    if (name, text) == ("--max-model-len", "-1"):
        return False  # the length that fits
    return text.startswith("-") or whole_number(text) == 0


def _choice(option: Option, context: Context) -> Iterator[Condition]:
    choices = set(context.release.choices.get(option.name, ()))
    added, since = _ADDED.get(option.name, ("", (9, 9)))
    choices |= {added} if context.release.series >= since else set()
    if not choices or not option.values or option.values[0] in choices | {"None"}:
        return
    if option.name in _C8_FLAGS and option.values[0] in ("int8", "fp8"):
        return  # the spelling of int8 caches has a rule of its own
    value = option.values[0]
    meant = nearest(value, choices)
    few = ", ".join(sorted(choices)) if len(choices) < 12 else f"{len(choices)} known"
    new = replace(option, values=(meant,)) if meant else None
    yield Condition(
        "choice-unknown",
        option.name,
        f"{option.name} {value}",
        f"write {meant}" if meant else f"use one of: {few}",
        replace_option(option, new) if new else None,
    )


@check
def stray_words(context: Context) -> Iterator[Condition]:
    for word in dict.fromkeys(context.command.stray):

        def drop(command: ServeCommand, word: str = word) -> ServeCommand:
            return replace(command, stray=tuple(w for w in command.stray if w != word))

        yield Condition("word-stray", word, repr(word), mend=drop)
    for option in context.command.options:
        kind = context.release.flags.get(option.name)
        taken = 0 if kind == "switch" and not option.joined else 1
        if kind in (None, "list") or option.path or len(option.values) <= taken:
            continue
        new = replace(option, values=option.values[:taken])
        detail = f"{' '.join(option.values[taken:])} behind {option.name}"
        yield Condition("word-stray", option.name, detail, mend=replace_option(option, new))


@check
def repeated(context: Context) -> Iterator[Condition]:
    seen: dict[str, Option] = {}
    for option in context.command.options:
        if option.path or option.name in _REPEATABLE:
            continue
        earlier = seen.get(option.name)
        if earlier is not None:
            detail = f"{option.name} ({' '.join(earlier.values)}, then {' '.join(option.values)})"
            mend = replace_option(earlier, None)
            yield Condition("flag-repeated", option.name, detail, mend=mend)
        seen[option.name] = option


@check
def json_values(context: Context) -> Iterator[Condition]:
    for option in context.command.options:
        is_json = context.release.flags.get(option.name) == "json"
        if not is_json or option.path or not option.values:
            continue
        text = option.values[0]
        try:
            value = read_json(text)
        except json.JSONDecodeError as error:
            meant = mended_json(text)
            change = _json_mend(option.name, meant) if meant is not None else None
            detail = f"{option.name}: {error.msg} at character {error.pos + 1}"
            yield Condition("json-invalid", option.name, detail, mend=change)
            continue
        if isinstance(value, dict):
            yield from _json_keys(option, value, context)


def _json_mend(name: str, value: Mapping[str, Any]) -> Mend:
    return lambda command: command.with_flag(name, dict(value))


def _json_keys(option: Option, value: dict[str, Any], context: Context) -> Iterator[Condition]:
    known = {*context.release.keys.get(option.name, ()), *_MORE_KEYS.get(option.name, ())}
    if not known or option.name in _FREE:
        return
    for key in value:
        if key in known or (option.name == "--attention-config" and key == "indexer_kv_dtype"):
            continue
        meant = nearest(key, known)
        kept = {(meant if k == key and meant else k): v for k, v in value.items()}
        kept = kept if meant else {k: v for k, v in value.items() if k != key}
        yield Condition(
            "json-key-unknown",
            f"{option.name}.{key}",
            f"{key} in {option.name}",
            f"write {meant}" if meant else "remove it",
            _json_mend(option.name, kept),
        )


@check
def needs(context: Context) -> Iterator[Condition]:
    command = context.command
    if command.switch("--enable-auto-tool-choice") and not command.given("--tool-call-parser"):

        def add(changed: ServeCommand) -> ServeCommand:
            return changed.with_flag("--tool-call-parser", "glm47")

        yield Condition("tools-without-parser", "--enable-auto-tool-choice", mend=add)
    if command.switch("--headless") and command.whole("--api-server-count", 0) > 0:

        def drop(changed: ServeCommand) -> ServeCommand:
            return changed.without("--api-server-count")

        yield Condition("headless-with-api", "--headless", mend=drop)
    for line in context.launch.breaks:
        yield Condition("continuation-broken", f"line {line}", f"line {line}")
