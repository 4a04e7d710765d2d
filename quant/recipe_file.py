"""Recipes as YAML: presets of this package, and files of users. Read strictly; no torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import yaml

from glm5_ascend.errors import ConfigError, brief
from glm5_ascend.files import open_regular
from glm5_ascend.quant.recipe_rules import (
    Calibration,
    DtypeName,
    FormatName,
    KvName,
    MtpName,
    Recipe,
    RefineName,
    RoundingName,
    Rule,
    SmoothingName,
)
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.yaml_file import PlainLoader

_SETTINGS = (
    "use_when",
    "rotate",
    "refine_rotation",
    "dtype",
    "mtp",
    "kv",
    "kv_except",
    "smoothing",
    "calibration",
    "format",
    "rules",
)
_T = TypeVar("_T")
_MOST_BYTES = 1 << 20
_EXAMPLE = "see the presets in quant/presets, or glm5-ascend quantize --list-presets"


def preset_names() -> tuple[str, ...]:
    """Names of the presets, those that quantise first."""
    found = [
        entry.name.removesuffix(".yaml")
        for entry in files("glm5_ascend.quant").joinpath("presets").iterdir()
        if entry.name.endswith(".yaml")
    ]
    return tuple(sorted(found, key=lambda name: (name == "none", name)))


def preset(name: str) -> Recipe:
    """The preset ``name``; ``ConfigError`` names the nearest one for an unknown name."""
    names = preset_names()
    if name not in names:
        raise ConfigError(
            f"there is no preset {brief(name)}{_meant(name, names)}",
            f"known are {', '.join(names)}; --recipe takes a file",
        )
    file = files("glm5_ascend.quant").joinpath("presets", f"{name}.yaml")
    return parse(file.read_text(encoding="utf-8"), name, f"preset {name}")


def read(file: Path) -> Recipe:
    """The recipe in a YAML file; ``ConfigError`` names what is wrong with it."""
    try:
        with open_regular(file) as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror or error}", "give a YAML file to --recipe"
        ) from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{file} is larger than a recipe can be", _EXAMPLE)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text", _EXAMPLE) from error
    return parse(text, file.stem, str(file))


def parse(text: str, name: str, source: str) -> Recipe:
    """Read the text of a recipe.

    Args:
        text: YAML.
        name: of the recipe.
        source: where the text is from, for messages.

    Raises:
        ConfigError: bad YAML, an unknown key or value, or a missing one.
    """
    try:
        document = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {_first_line(error)}", _EXAMPLE) from error
    except RecursionError as error:
        raise ConfigError(f"{source} is nested too deeply", _EXAMPLE) from error
    return _Reader(source).recipe(document, name)


def overridden(
    recipe: Recipe,
    *,
    rotate: bool | None = None,
    dtype: DtypeName | None = None,
    mtp: MtpName | None = None,
    format: FormatName | None = None,
) -> Recipe:
    """The recipe with the settings that the command line gives; None keeps the recipe's."""
    rotate = recipe.rotate if rotate is None else rotate
    return replace(
        recipe,
        rotate=rotate,
        refine_rotation=recipe.refine_rotation if rotate else "none",
        dtype=dtype or recipe.dtype,
        mtp=mtp or recipe.mtp,
        format=format or recipe.format,
    )


class _StrictLoader(PlainLoader):
    """Plain data only; a key given twice is an error, where YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} occurs twice", problem_mark=key_node.start_mark
                )
            seen.add(key if isinstance(key, str) else repr(key))
        return dict(super().construct_mapping(node, deep))


class _Reader:
    """Values out of parsed YAML, each with its place in the message."""

    def __init__(self, source: str) -> None:
        self._source = source

    def recipe(self, document: object, name: str) -> Recipe:
        top = self._mapping(document, "the recipe", _SETTINGS)
        if "rules" not in top:
            self._fail("there are no `rules`")
        rotate = self._flag(top.get("rotate", True), "rotate")
        refine: RefineName = self._choice(
            top.get("refine_rotation", "none"), "refine_rotation", get_args(RefineName)
        )
        if refine != "none" and not rotate:
            self._fail(f"`refine_rotation` is {refine}, but `rotate` is false")
        return Recipe(
            name=name,
            rules=tuple(self._rules(top["rules"])),
            use_when=self._text(top.get("use_when", ""), "use_when"),
            rotate=rotate,
            refine_rotation=refine,
            dtype=self._choice(top.get("dtype", "bfloat16"), "dtype", get_args(DtypeName)),
            mtp=self._choice(top.get("mtp", "w8"), "mtp", get_args(MtpName)),
            kv=self._choice(top.get("kv", "none"), "kv", get_args(KvName)),
            kv_except=self._many(top.get("kv_except", []), "kv_except", self._layer),
            smoothing=self._smoothing(top.get("smoothing", [])),
            format=self._choice(top.get("format", "ascend"), "format", get_args(FormatName)),
            calibration=self._calibration(top.get("calibration", {})),
        )

    def _smoothing(self, value: object) -> tuple[SmoothingName, ...]:
        names: tuple[SmoothingName, ...] = self._many(
            value, "smoothing", lambda one, where: self._choice(one, where, get_args(SmoothingName))
        )
        if {"awq", "fit-experts"} <= set(names):
            self._fail("`smoothing` names awq and fit-experts, which are for the same modules")
        return names

    def _rules(self, value: object) -> Iterable[Rule]:
        if not isinstance(value, list) or not value:
            self._fail("`rules` must be a list of rules")
        for number, entry in enumerate(value, start=1):
            where = f"rule {number}"
            rule = self._mapping(entry, where, ("modules", "scheme", "rounding"))
            for key in ("modules", "scheme"):
                if key not in rule:
                    self._fail(f"{where} lacks `{key}`")
            globs = rule["modules"]
            globs = globs if isinstance(globs, list) else [globs]
            scheme = self._choice(
                rule["scheme"], f"scheme of {where}", tuple(scheme.value for scheme in Scheme)
            )
            rounding = self._choice(
                rule.get("rounding", "search"), f"rounding of {where}", get_args(RoundingName)
            )
            modules = self._many(globs, f"modules of {where}", self._glob)
            if not modules:
                self._fail(f"modules of {where} is empty")
            yield Rule(modules, Scheme(scheme), rounding)

    def _calibration(self, value: object) -> Calibration:
        given = self._mapping(value, "calibration", ("text", "tokens", "sequence", "seed"))
        default = Calibration()
        return Calibration(
            text=self._text(given.get("text", default.text), "calibration.text"),
            tokens=self._number(given.get("tokens", default.tokens), "calibration.tokens", 1),
            sequence=(
                default.sequence
                if given.get("sequence") is None
                else self._number(given["sequence"], "calibration.sequence", 2)
            ),
            seed=self._number(given.get("seed", default.seed), "calibration.seed", 0),
        )

    def _mapping(self, value: object, where: str, known: tuple[str, ...]) -> Mapping[str, object]:
        if not isinstance(value, dict):
            self._fail(f"{where} must be a mapping of keys, got {brief(value)}")
        for key in value:
            if key not in known:
                self._fail(
                    f"unknown key {brief(key)} in {where}{_meant(str(key), known)}",
                    f"known are {', '.join(known)}",
                )
        return value

    def _many(
        self, value: object, where: str, read_one: Callable[[object, str], _T]
    ) -> tuple[_T, ...]:
        if not isinstance(value, list):
            self._fail(f"{where} must be a list, got {brief(value)}")
        return tuple(read_one(item, where) for item in value)

    def _choice(self, value: object, where: str, known: tuple[str, ...]) -> Any:
        if value not in known:
            self._fail(
                f"{where} is {brief(value)}{_meant(str(value), known)}",
                f"it can be {', '.join(known)}",
            )
        return value

    def _glob(self, value: object, where: str) -> str:
        text = self._text(value, where)
        if not text:
            self._fail(f"{where} holds an empty glob")
        if text.endswith((".weight", ".bias")):
            self._fail(
                f"{where}: {brief(text)} names a tensor",
                "globs are of modules: leave .weight away",
            )
        return text

    def _layer(self, value: object, where: str) -> int:
        return self._number(value, where, 0)

    def _text(self, value: object, where: str) -> str:
        if not isinstance(value, str):
            self._fail(f"{where} must be text, got {brief(value)}")
        return value.strip()

    def _flag(self, value: object, where: str) -> bool:
        if not isinstance(value, bool):
            self._fail(f"{where} must be true or false, got {brief(value)}")
        return value

    def _number(self, value: object, where: str, low: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            self._fail(f"{where} must be a whole number from {low}, got {brief(value)}")
        return value

    def _fail(self, problem: str, hint: str = _EXAMPLE) -> NoReturn:
        raise ConfigError(f"{self._source}: {problem}", hint)


def _meant(text: str, known: Iterable[str]) -> str:
    folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(text[:80].casefold(), list(folded), n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]}?" if close else ""


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
