"""How much each group of modules costs in accuracy and in bytes, scheme by scheme.

One group at a time is rounded (data-free, as the writer does it) and applied with its activation
quantisation, everything else stays float. The error is Σ ‖y' - y‖² / Σ ‖y‖² of the layer's output,
residual stream included, over the calibration text; errors of different groups are small and
independent, so that they add up. Where the rest of the model fits into memory, the KL divergence
at its end is measured as well, and says more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from glm5_ascend.ascend_schemes import schemes_for
from glm5_ascend.checkpoint import tensor_bytes
from glm5_ascend.config import Glm5Config
from glm5_ascend.quant.calibration import attention_run
from glm5_ascend.quant.calibration.corpus import Corpus
from glm5_ascend.quant.calibration.folded_store import FoldedStore, solved_linear
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.scheme import Scheme, stored_tensors
from glm5_ascend.simulator.offline_layers import DecoderLayer
from glm5_ascend.simulator.offline_linear import Linear
from glm5_ascend.simulator.offline_load import load_layer, load_norm

# Modules that the engine runs as one, or that read one input; below a layer's prefix.
GROUPS: tuple[tuple[str, str], ...] = (
    ("self_attn.q_a_kv_a", r"self_attn\.(?:q_a_proj|kv_a_proj_with_mqa)"),
    ("self_attn.q_b", r"self_attn\.q_b_proj"),
    ("self_attn.o", r"self_attn\.o_proj"),
    ("indexer.wq_b", r"self_attn\.indexer\.wq_b"),
    ("mlp", r"mlp\.(?:gate|up|down)_proj"),
    ("mlp.shared_experts", r"mlp\.shared_experts\.(?:gate|up|down)_proj"),
    ("mlp.experts", r"mlp\.experts\.\d+\.(?:gate|up|down)_proj"),
)
_TRIED = (Scheme.W4A8_DYNAMIC, Scheme.W8A8_DYNAMIC)


@dataclass(frozen=True, slots=True)
class Group:
    """Modules of one layer that get one scheme."""

    layer: int
    name: str
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """One scheme of one group.

    Attributes:
        error: relative squared error of the layer's output; 0 for FLOAT.
        kl: mean divergence of the next token's distribution in nats, or None.
        nbytes: stored size.
    """

    group: Group
    scheme: Scheme
    error: float
    kl: float | None
    nbytes: int


class TrialStore(FoldedStore):
    """A store in which the modules named by ``trial`` are rounded to ``scheme`` when read."""

    trial: frozenset[str] = frozenset()
    scheme: Scheme = Scheme.FLOAT

    def linear(self, module: str) -> Linear:
        if module not in self.trial:
            return super().linear(module)
        step = with_scheme(self.steps[f"{module}.weight"], self.scheme)
        return solved_linear(step, self.data_free(step))


def with_scheme(step: Step, scheme: Scheme) -> Step:
    """The step of a matrix in another scheme."""
    shape = (step.shape[0], step.shape[1])
    stored = stored_tensors(step.name, shape, scheme, step.float_dtype)
    return replace(step, scheme=scheme, rounding="search", stored=stored)


def is_tried(step: Step) -> bool:
    """Whether a step is a module that the engine can hold as integers."""
    return len(step.shape) == 2 and len(schemes_for(step.name)) > 1


def groups_of(steps: Iterable[Step], config: Glm5Config) -> list[Group]:
    """The groups of all decoder layers, in order; the MTP layer has its own setting."""
    found: dict[tuple[int, str], list[str]] = {}
    for step in steps:
        match = re.match(r"model\.layers\.(\d+)\.(.+)\.weight$", step.name)
        if match is None or config.is_mtp(int(match[1])):
            continue
        for name, pattern in GROUPS:
            if re.fullmatch(pattern, match[2]):
                module = step.name.removesuffix(".weight")
                found.setdefault((int(match[1]), name), []).append(module)
    return [Group(layer, name, tuple(modules)) for (layer, name), modules in found.items()]


def schemes_of(group: Group) -> list[Scheme]:
    """Schemes to compare, smallest first: those that the engine has for every module."""
    known = [set(schemes_for(f"{module}.weight")) for module in group.modules]
    return [scheme for scheme in _TRIED if all(scheme.value in some for some in known)]


class Scan:
    """Measures groups layer by layer; memory holds one layer's attention and one expert.

    Args:
        store: weights.
        corpus: text.
        with_kl: pass every trial through the rest of the model, which multiplies the time by half
            the number of layers.
    """

    def __init__(self, store: TrialStore, corpus: Corpus, *, with_kl: bool) -> None:
        self._store, self._corpus, self._with_kl = store, corpus, with_kl
        self._config = store.config
        self._reference: Tensor | None = None

    def run(self, groups: Sequence[Group], done: Callable[[Group], None]) -> Iterator[Measured]:
        """Yield every scheme of every group; ``done`` is called after each group."""
        hidden = self._store.embed("model.embed_tokens.weight", self._corpus.tokens)
        chosen: list[Tensor | None] = [None for _ in self._corpus.spans()]
        if self._with_kl:
            self._reference = self._logits(*self._rest(0, hidden, chosen))
        for layer in range(self._config.num_hidden_layers):
            exact, following = self._pass(self._load(layer), hidden, chosen)
            for group in (one for one in groups if one.layer == layer):
                yield from self._group(group, hidden, chosen, exact)
                done(group)
            hidden, chosen = exact, following

    def _group(
        self, group: Group, hidden: Tensor, chosen: list[Tensor | None], exact: Tensor
    ) -> Iterator[Measured]:
        steps = [self._store.steps[f"{module}.weight"] for module in group.modules]
        for scheme in schemes_of(group):
            self._store.trial, self._store.scheme = frozenset(group.modules), scheme
            found, following = self._pass(self._load(group.layer), hidden, chosen)
            self._store.trial = frozenset()
            error = float((found - exact).double().square().sum() / exact.double().square().sum())
            kl = None
            if self._reference is not None:
                kl = _divergence(
                    self._reference,
                    self._logits(*self._rest(group.layer + 1, found, following)),
                )
            yield Measured(group, scheme, error, kl, _size(steps, scheme))
        zero = None if self._reference is None else 0.0
        yield Measured(group, Scheme.FLOAT, 0.0, zero, _size(steps, Scheme.FLOAT))

    def _load(self, layer: int) -> DecoderLayer:
        return load_layer(self._store, layer, self._config.rms_norm_eps)

    def _pass(
        self, layer: DecoderLayer, hidden: Tensor, chosen: list[Tensor | None]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Output [T, H] of a layer and its choices, sequence by sequence; the feed-forward block
        takes all tokens at once, so that each expert is read once."""
        after, inputs = torch.empty_like(hidden), torch.empty_like(hidden)
        following: list[Tensor | None] = []
        for rows, shared in zip(self._corpus.spans(), chosen, strict=True):
            done = attention_run.attend(layer, attention_run.Sequence(rows, hidden[rows], shared))
            after[rows], inputs[rows] = done.hidden, done.mlp_input
            following.append(done.chosen)
        return after + layer.mlp(inputs, None)[0], following

    def _rest(
        self, first: int, hidden: Tensor, chosen: list[Tensor | None]
    ) -> tuple[Tensor, list[Tensor | None]]:
        for layer in range(first, self._config.num_hidden_layers):
            hidden, chosen = self._pass(self._load(layer), hidden, chosen)
        return hidden, chosen

    def _logits(self, hidden: Tensor, _: list[Tensor | None]) -> Tensor:
        state = load_norm(self._store, "model.norm")(hidden)
        return torch.nn.functional.linear(state, self._store.float("lm_head.weight"))


def _divergence(reference: Tensor, found: Tensor) -> float:
    log_p, log_q = reference.double().log_softmax(-1), found.double().log_softmax(-1)
    return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


def _size(steps: Sequence[Step], scheme: Scheme) -> int:
    return sum(
        tensor_bytes(spec) for step in steps for spec in with_scheme(step, scheme).stored.values()
    )
