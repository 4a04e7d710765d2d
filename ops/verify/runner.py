"""Run conformance cases on backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glm5_ascend.env import EnvironmentVariableError
from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.verify import compare
from glm5_ascend.ops.verify.case import Call, Case, Outputs, Problem, Unsupported
from glm5_ascend.ops.verify.compare import Figures
from glm5_ascend.ops.verify.device import at_home

# What a composed operator of the suite is made of.
PARTS = {
    "attention_layers": (
        "norm_rope",
        "mlapo",
        "paged_cache",
        "lightning_indexer",
        "sparse_flash_attention",
    )
}


@dataclass(frozen=True)
class Result:
    """One case on one backend.

    ``declined`` says why the backend did not run the case, ``error`` is what it raised:
    ``BackendUnavailable`` where it could not run here.
    """

    case: Case
    backend: str
    figures: Figures
    declined: str = ""
    error: Exception | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong; a declined case is neither passed nor failed."""
        return self.figures.passed and not self.declined

    def require(self) -> None:
        """Raise AssertionError with the problem, if there is one."""
        if self.figures.problem:
            message = f"{self.case.operator}: {self.case}: {self.figures.problem}"
            raise AssertionError(f"{self.backend}: {message}") from self.error


@dataclass(frozen=True)
class Refusal:
    """Why a backend of the project cannot run an operator here."""

    operator: str
    backend: str
    reason: str
    hint: str


@dataclass(frozen=True)
class Plan:
    """Which backends run which operator: ``calls[operator][backend]``.

    ``named``: the caller named the backends, so one that cannot run after all is an error.
    """

    calls: Mapping[str, Mapping[str, Call]]
    refusals: Sequence[Refusal]
    named: bool


def public(backend: str) -> Call:
    """The public functions with one backend of the project, on its device."""
    from glm5_ascend import ops

    def call(function: str, /, **arguments: Any) -> Any:
        return getattr(ops, function)(**arguments, backend=backend)

    return at_home(call, backend)


def plan(
    operators: Iterable[str],
    backends: Sequence[str] = (),
    extra_backends: Mapping[str, Call] | None = None,
) -> Plan:
    """Who runs ``operators``.

    Args:
        operators: names as in ``Case.operator``.
        backends: wanted backends, of the project or of ``extra_backends``; none = all that can
            run here, except the slow "emulated".
        extra_backends: backends of the caller's, name -> function that is called as
            ``function(name_of_public_function, **arguments)`` and returns what the public function
            returns. It raises ``Unsupported`` for what it does not do.

    Raises:
        BackendUnavailable: a wanted backend can run none of the operators.
    """
    extra = dict(extra_backends or {})
    wanted = list(backends) or [*(name for name in _names() if name != "emulated"), *extra]
    calls: dict[str, dict[str, Call]] = {}
    refusals = []
    for operator in operators:
        calls[operator] = {}
        for backend in wanted:
            refusal = None if backend in extra else _refusal(operator, backend)
            if refusal is None:
                calls[operator][backend] = extra.get(backend) or public(backend)
            else:
                refusals.append(refusal)
    for backend in backends:
        mine = [r for r in refusals if r.backend == backend]
        if mine and not any(backend in each for each in calls.values()):
            raise BackendUnavailable(
                f"backend '{backend}' of {mine[0].operator} is not available: {mine[0].reason}",
                mine[0].hint,
            )
    return Plan(calls, refusals if backends else [], bool(backends))


def _names() -> list[str]:
    from glm5_ascend.ops import availability

    return list(dict.fromkeys(row.backend for row in availability()))


def _refusal(operator: str, backend: str) -> Refusal | None:
    from glm5_ascend.ops import availability

    rows = {(row.operator, row.backend): row for row in availability()}
    for part in PARTS.get(operator, (operator,)):
        row = rows[part, backend]
        if row.reason:
            return Refusal(operator, backend, row.reason, row.hint)
    return None


def run(
    cases: Iterable[Case], runs: Plan, done: Callable[[Result], None] = lambda result: None
) -> list[Result]:
    """Every case on every backend of the plan; inputs and oracle are computed once per case.

    Raises:
        BackendUnavailable: a named backend turned out to be unable to run.
    """
    results = []
    for case in cases:
        problem: Problem | None = None
        for backend, call in runs.calls[case.operator].items():
            problem = problem or case.problem()
            try:
                result = run_one(case, problem, backend, call)
            except BackendUnavailable as reason:
                if runs.named:
                    raise
                result = Result(case, backend, Figures(), declined=reason.message, error=reason)
            results.append(result)
            done(result)
    return results


def run_one(case: Case, problem: Problem, backend: str, call: Call) -> Result:
    """One case on one backend: against the oracle, once more, and in another batch.

    Raises:
        BackendUnavailable: the backend cannot run here.
        EnvironmentVariableError: nor could any case, with what the environment says.
    """
    try:
        outputs = problem.run(call)
        figures = problem.judge(outputs)
        if figures.problem:
            return Result(case, backend, _with_suspect(figures, problem, outputs))
        again = _same(problem.run(call), outputs, "second run")
        shuffled = _same(problem.run(call, shuffled=True), outputs, "another batch")
    except (BackendUnavailable, EnvironmentVariableError):
        raise
    except (Unsupported, Declined) as reason:
        return Result(case, backend, Figures(), declined=str(reason))
    except Exception as error:
        problem_text = f"raised {type(error).__name__}: {error}"
        return Result(case, backend, Figures(problem=problem_text), error=error)
    return Result(case, backend, compare.worst([figures, *again, *shuffled]))


def _same(outputs: Outputs, expected: Outputs, what: str) -> list[Figures]:
    found = (
        compare.identical(outputs[name], x, name=f"{what}: {name}") for name, x in expected.items()
    )
    return [figures for figures in found if figures.problem]


def _with_suspect(figures: Figures, problem: Problem, outputs: Outputs) -> Figures:
    """Name the known mistakes that would give these outputs."""
    names = [name for name, verdict in problem.mistakes() if verdict(outputs).passed]
    if not names:
        return figures
    suspects = " or ".join(f"'{name}'" for name in names)
    return replace(figures, problem=f"matches the mistake {suspects}: {figures.problem}")
