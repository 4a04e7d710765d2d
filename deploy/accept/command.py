"""The work of ``glm5-ascend accept``: put the questions, and say go or no-go."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from glm5_ascend.console import one_line
from glm5_ascend.deploy.accept import probes
from glm5_ascend.deploy.accept.client import Client, Refused
from glm5_ascend.deploy.accept.probes import FAIL, PASS, Check, Limits
from glm5_ascend.deploy.accept.progress import shown
from glm5_ascend.deploy.accept.questions import GLM5, SMALL
from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.deploy.simulate import MARK
from glm5_ascend.errors import ExitCode, Glm5Error, brief
from glm5_ascend.files import open_regular

SCHEMA = 1
# Assumed, where neither a plan nor the user says: what a person still reads along with.
TTFT_MS, TPOT_MS = 10_000.0, 200.0
# The performance model is off by about this much on published runs.
_MARGIN = 1.25
_SIMULATED = " (simulated on a CPU with a small model: says nothing about NPUs or GLM-5's answers)"


@dataclass(frozen=True, slots=True)
class AcceptOptions:
    """What the user asked for; limits in milliseconds, the plan's prediction without them."""

    url: str
    model: str | None = None
    plan: Path | None = None
    ttft: float | None = None
    tpot: float | None = None
    timeout: float = 120.0
    api_key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What the checks found.

    Attributes:
        interrupted: the check at which Ctrl-C came; there is no verdict then.
    """

    url: str
    model: str
    checks: list[Check]
    measured: dict[str, float] = field(default_factory=dict)
    simulated: bool = False
    interrupted: str = ""

    @property
    def failed(self) -> list[Check]:
        """The reasons against it."""
        return [check for check in self.checks if check.verdict == FAIL]

    @property
    def exit_code(self) -> ExitCode:
        """0 go; 1 an answer is wrong, broken or slow; 6 the server failed; 130 interrupted."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if any(check.broken for check in self.failed):
            return ExitCode.UNHEALTHY
        return ExitCode.INPUT if self.failed else ExitCode.DONE

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {
            "schema": SCHEMA,
            "url": self.url,
            "model": self.model,
            "simulated": self.simulated,
            "go": None if self.interrupted else not self.failed,
            **({"interrupted": self.interrupted} if self.interrupted else {}),
            "reasons": [f"{check.name}: {check.detail}" for check in self.failed],
            "checks": [
                {"name": check.name, "verdict": check.verdict, "detail": check.detail}
                for check in self.checks
            ],
            "measured": self.measured,
        }

    def as_text(self) -> str:
        """A line per check, then the verdict."""
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [f"{c.verdict:<7} {c.name:<{width}}  {one_line(c.detail)}" for c in self.checks]
        names = ", ".join(check.name for check in self.failed)
        verdict = f"no-go: {names}" if names else "go"
        if self.interrupted:
            verdict = f"no verdict: interrupted at {self.interrupted}"
        return "\n".join([*lines, f"{verdict}{_SIMULATED}" if self.simulated else verdict])


def accept(options: AcceptOptions) -> Acceptance:
    """Put every question to the endpoint, with progress on stderr; Ctrl-C ends it early.

    Raises:
        Unhealthy: nobody answers there, or with a status from 500.
        Glm5Error: it is no OpenAI endpoint, or serves no such model.
    """
    client = Client.of(options.url, options.timeout, _key(options.api_key_file))
    plan = None if options.plan is None else Plan.load(options.plan)
    model, longest, simulated = _model(client, options.model)
    limits = _limits(options, plan, simulated)
    questions = SMALL if simulated else GLM5
    asks = [
        *probes.golden(client, model, questions),
        ("long prompt", lambda: probes.long_prompt(client, model, longest, questions)),
        ("tool call", lambda: probes.tool_call(client, model, questions)),
    ]
    checks: list[Check] = []
    with shown(len(asks) + 1, client.url) as progress:
        try:
            for name, ask in asks:
                progress.begin(name)
                checks.append(ask())
                progress.finish(checks[-1].verdict)
            progress.begin("stream")
            timed, measured = probes.speed(client, model, limits, questions, progress.piece)
            progress.finish(FAIL if any(c.verdict == FAIL for c in timed) else PASS)
        except KeyboardInterrupt:
            return Acceptance(client.url, model, checks, {}, simulated, progress.name)
    return Acceptance(client.url, model, [*checks, *timed], measured, simulated)


def _key(path: Path | None) -> str:
    if path is None:
        return ""
    with open_regular(path) as stream:
        text = stream.read(4096).decode("utf-8", "replace").strip()
    if not text.isascii() or not text.isprintable() or not text:
        raise Glm5Error(f"{path} holds no API key", "put the key alone into the file")
    return text


def _limits(options: AcceptOptions, plan: Plan | None, simulated: bool) -> Limits:
    drafts = plan is not None and any("speculative-config" in r.flags for r in plan.roles)
    asked = options.ttft is not None or options.tpot is not None
    if simulated and not asked:
        said = "a CPU and a small model say nothing about the plan's NPUs"
        return Limits(math.inf, math.inf, drafts, said)

    def limit(given: float | None, key: str, assumed: float) -> float:
        if given is not None:
            return given
        if simulated:
            return math.inf
        if plan is None:
            return assumed
        value = plan.predicted.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise PlanError(f"{options.plan} predicts no {key}", "give --ttft and --tpot")
        return _MARGIN * value

    ttft = limit(options.ttft, "ttft_ms", TTFT_MS)
    return Limits(ttft, limit(options.tpot, "tpot_ms", TPOT_MS), drafts)


def _model(client: Client, asked: str | None) -> tuple[str, int | None, bool]:
    """Name of the model, the longest request where the server says it, and if it is simulated."""
    try:
        listed = client.get_json("/v1/models").get("data")
    except Refused as error:
        raise Glm5Error(
            f"{client.url} is no OpenAI endpoint: {error.message}", error.hint
        ) from error
    entries = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    names = [str(entry["id"]) for entry in entries if "id" in entry]
    if not names:
        raise Glm5Error(f"{client.url} lists no models", "give the URL of an OpenAI endpoint")
    name = names[0] if asked is None else asked
    if name not in names:
        raise Glm5Error(f"{client.url} serves no {brief(name)}", f"it has {', '.join(names)}")
    longest = next(e for e in entries if str(e.get("id")) == name).get("max_model_len")
    return name, longest if isinstance(longest, int) else None, MARK in names
