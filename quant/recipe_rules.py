"""What a user wants from a quantisation: a rule per group of modules, and settings of the whole.

A recipe comes from a preset or a YAML file (``recipe_file.py``). It names no layer of a model
unless its globs do; :func:`assign` fits it to one model and refuses what does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Literal

from glm5_ascend.ascend_schemes import schemes_for
from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError
from glm5_ascend.quant.scheme import Scheme

RoundingName = Literal["search", "gptq", "descent", "nearest"]
DtypeName = Literal["bfloat16", "float32"]
MtpName = Literal["w8", "float", "rules"]
KvName = Literal["none", "c8"]
FormatName = Literal["ascend", "compressed-tensors"]
RefineName = Literal["none", "inputs", "all"]
SmoothingName = Literal["flex", "fit", "awq", "fit-experts"]
# Roundings that need the second moments of a module's input.
CALIBRATED: tuple[RoundingName, ...] = ("gptq", "descent")

STORED_DTYPE: dict[DtypeName, str] = {"bfloat16": "BF16", "float32": "F32"}

# vllm-ascend accepts these as float only; first match wins.
_ALWAYS_FLOAT: tuple[tuple[str, str], ...] = (
    ("embed_tokens.weight", "vocabulary matrix: a look-up, not a product"),
    ("lm_head.weight", "vocabulary matrix: decides the logits"),
    (".shared_head.head.weight", "vocabulary matrix of the MTP layer"),
    (".mlp.gate.weight", "router: the engine refuses another shape or dtype"),
    (".e_score_correction_bias", "router bias: F32 in every release"),
    (".kv_b_proj.weight", "absorbed into attention, which asserts that it is dense"),
    (".indexer.wk.weight", "the engine fuses wk and weights_proj without quantisation"),
    (".indexer.weights_proj.weight", "the engine fuses wk and weights_proj without quantisation"),
    (".k_norm.weight", "LayerNorm of the indexer key"),
    (".k_norm.bias", "LayerNorm of the indexer key"),
    (".eh_proj.weight", "the engine has no quantised form of the MTP input projection"),
    ("norm.weight", "RMSNorm"),
)
# Modules that the engine runs as one, and therefore with one scheme.
_FUSED = (
    (re.compile(r"(.*\.self_attn)\.(?:q_a_proj|kv_a_proj_with_mqa)"), "q_a and kv_a"),
    (re.compile(r"(.*\.mlp\.experts)\.\d+\.(?:gate|up|down)_proj"), "all experts"),
    (re.compile(r"(.*\.mlp(?:\.shared_experts)?)\.(?:gate|up)_proj"), "gate and up"),
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Scheme and rounding of the modules that a glob matches and no earlier rule has taken.

    Attributes:
        modules: globs of module names such as ``model.layers.*.mlp.experts.*``; ``*`` also matches
            dots.
        scheme: how they are stored.
        rounding: ``search`` (scales of least squared error, from weights alone), ``gptq`` (with
            the statistics of a calibration), ``descent`` (GPTQ, then every code once more; seven
            times the products) or ``nearest`` (scale of the extreme value).
    """

    modules: tuple[str, ...]
    scheme: Scheme
    rounding: RoundingName = "search"

    def matches(self, module: str) -> bool:
        """Whether a module name matches one of the globs."""
        return any(fnmatchcase(module, glob) for glob in self.modules)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The text that statistics are taken from.

    Attributes:
        text: a JSONL or text file; ``default`` is the built-in one.
        tokens: how many of them.
        sequence: tokens per sequence at most; None is twice the model's ``index_topk``.
        seed: of the choice of sequences.
    """

    text: str = "default"
    tokens: int = 262_144
    sequence: int | None = None
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything about a quantisation that decides values (workers and paths do not).

    Attributes:
        name: of the preset or file.
        rules: first match wins; together they cover every module that can be quantised.
        use_when: one sentence for people.
        rotate: fuse norms and rotate (QuaRot).
        refine_rotation: refine the rotations first: on activations (``inputs``), or also on the
            weights of an axis where they are few enough to look at them all (``all``).
        dtype: of the tensors that stay float.
        mtp: the MTP layer's modules in int8 (``w8``), ``float``, or as the rules say.
        kv: ``c8`` marks the layers whose indexer keys the engine may cache in int8.
        kv_except: layers that are not marked.
        smoothing: methods that move outliers from activations to weights: ``flex`` for the inputs
            of attention's linears, ``fit`` for dense blocks and shared experts, ``awq`` or
            ``fit-experts`` for routed experts.
        format: of the files: for vllm-ascend, or for vLLM elsewhere.
        calibration: used if rounding, a static scheme or smoothing need one.
    """

    name: str
    rules: tuple[Rule, ...]
    use_when: str = ""
    rotate: bool = True
    refine_rotation: RefineName = "none"
    dtype: DtypeName = "bfloat16"
    mtp: MtpName = "w8"
    kv: KvName = "none"
    kv_except: tuple[int, ...] = ()
    smoothing: tuple[SmoothingName, ...] = ()
    calibration: Calibration = Calibration()
    format: FormatName = "ascend"

    @property
    def schemes(self) -> frozenset[Scheme]:
        """Schemes that a model with every kind of module gets."""
        mtp = {Scheme.W8A8_DYNAMIC} if self.mtp == "w8" else set()
        return frozenset({rule.scheme for rule in self.rules} | mtp)

    @property
    def is_float(self) -> bool:
        """Whether nothing is quantised."""
        return self.schemes <= {Scheme.FLOAT}

    @property
    def refines(self) -> bool:
        """Whether refinements of the rotations are learned."""
        return self.refine_rotation != "none"

    @property
    def needs_calibration(self) -> bool:
        """Whether statistics of activations decide some of the values."""
        return (
            bool(self.smoothing)
            or self.refines
            or Scheme.W8A8 in self.schemes
            or any(rule.rounding in CALIBRATED for rule in self.rules)
        )

    def as_dict(self) -> dict[str, object]:
        """JSON form without ``use_when``, equal for recipes that give equal bytes.

        The calibration is left out where nothing depends on it.
        """
        result: dict[str, object] = asdict(self)
        del result["use_when"]
        if not self.needs_calibration:
            del result["calibration"]
        result["rules"] = [
            {"modules": list(rule.modules), "scheme": rule.scheme.value, "rounding": rule.rounding}
            for rule in self.rules
        ]
        result["kv_except"], result["smoothing"] = list(self.kv_except), list(self.smoothing)
        return result


@dataclass(frozen=True, slots=True)
class Decision:
    """Scheme, rounding and why, of one tensor."""

    scheme: Scheme
    rounding: RoundingName
    reason: str


def assign(config: Glm5Config, recipe: Recipe, weights: Iterable[str]) -> dict[str, Decision]:
    """Decide about every weight of a model.

    Args:
        config: the model.
        recipe: what is wanted of it.
        weights: names of all tensors of the output before quantisation.

    Raises:
        ConfigError: a rule that decides about nothing, a module without a rule, or a scheme that
            the engine does not have for a module.
    """
    decided: dict[str, Decision] = {}
    used: set[int] = set()
    for name in weights:
        reason = _float_reason(name)
        if reason is not None:
            decided[name] = Decision(Scheme.FLOAT, "nearest", reason)
        elif recipe.mtp != "rules" and config.is_mtp(_layer(name)):
            scheme = Scheme.W8A8_DYNAMIC if recipe.mtp == "w8" else Scheme.FLOAT
            decided[name] = Decision(scheme, "search", f"mtp: {recipe.mtp}")
        else:
            number = _rule_for(recipe, name)
            used.add(number)
            decided[name] = _by_rule(recipe.rules[number], name)
    for number, rule in enumerate(recipe.rules):
        if number not in used:
            _refuse_idle(recipe, rule, decided)
    _require_fused_alike(recipe, decided)
    _require_indexers(config, recipe)
    return decided


def _float_reason(name: str) -> str | None:
    return next((reason for suffix, reason in _ALWAYS_FLOAT if name.endswith(suffix)), None)


def _layer(name: str) -> int:
    return int(name.split(".")[2])


def _rule_for(recipe: Recipe, name: str) -> int:
    module = name.removesuffix(".weight")
    for number, rule in enumerate(recipe.rules):
        if rule.matches(module):
            return number
    raise ConfigError(
        f"recipe {recipe.name}: no rule matches {module}",
        "end the rules with one for '*', for example with scheme FLOAT",
    )


def _by_rule(rule: Rule, name: str) -> Decision:
    known = schemes_for(name)
    if rule.scheme.value not in known:
        raise ConfigError(
            f"{name.removesuffix('.weight')} cannot be {rule.scheme.value}: vllm-ascend has"
            f" {', '.join(known)} for it",
            "put a rule with one of these schemes before the rule for"
            f" {', '.join(map(repr, rule.modules))}",
        )
    return Decision(rule.scheme, rule.rounding, f"rule {', '.join(rule.modules)}")


def _refuse_idle(recipe: Recipe, rule: Rule, decided: Mapping[str, Decision]) -> None:
    globs = ", ".join(map(repr, rule.modules))
    modules = {name.removesuffix(".weight"): name for name in decided}
    matched = [module for module in modules if rule.matches(module)]
    if not matched:
        what, hint = "matches no module of this model", "correct the glob, or remove the rule"
    elif all(_float_reason(modules[module]) for module in matched):
        reason = _float_reason(modules[matched[0]])
        what = f"matches only modules that stay float: {matched[0]} ({reason})"
        hint = "remove the rule"
    elif recipe.mtp != "rules" and all(module.startswith("model.layers.") for module in matched):
        what = f"decides about nothing: earlier rules or mtp: {recipe.mtp} have every match"
        hint = "put it before wider rules, or set mtp: rules if it is for the MTP layer"
    else:
        what, hint = "decides about nothing: earlier rules have every match", "put it before them"
    raise ConfigError(f"recipe {recipe.name}: the rule for {globs} {what}", hint)


def _require_fused_alike(recipe: Recipe, decided: Mapping[str, Decision]) -> None:
    first: dict[tuple[str, str], str] = {}
    for name, decision in decided.items():
        module = name.removesuffix(".weight")
        for pattern, words in _FUSED:
            match = pattern.fullmatch(module)
            if match is None:
                continue
            other = first.setdefault((match[1], words), name)
            if decided[other].scheme is not decision.scheme:
                raise ConfigError(
                    f"recipe {recipe.name}: {module} would be {decision.scheme.value}, but"
                    f" {other.removesuffix('.weight')} {decided[other].scheme.value}; the engine"
                    f" has one scheme for {words} of a layer",
                    "let one rule match both",
                )
            break


def _require_indexers(config: Glm5Config, recipe: Recipe) -> None:
    for layer in recipe.kv_except:
        if recipe.kv == "none" or layer >= config.layer_count or not config.has_indexer(layer):
            what = "kv is none" if recipe.kv == "none" else "it has no indexer in this model"
            raise ConfigError(
                f"recipe {recipe.name}: kv_except names layer {layer}, but {what}",
                "remove it from the list",
            )
