"""A rule, its verdicts by release, and the words that the tables of rules share."""

from __future__ import annotations

from dataclasses import dataclass

RAN = (
    "observed: the Python of vllm-ascend 0.23.0.post1 and 0.30.0rc2 with vLLM 0.23.0 and 0.30.0,"
    " on a CPU, no NPU; most of it is recorded in tests/data/oracle/checkpoints.jsonl"
)
READ = "read: source of vllm-ascend 0.17.0rc1 to 0.30.0rc2"
FORMAT = "the safetensors format"
MODEL = "config.json of the GLM-5 releases"

SILENT = "loads without a word and computes with uninitialised memory"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the series from ``since`` to ``until`` (inclusive, None: open) do, and how it is known.

    ``severity`` is ``"error"`` where the engine refuses or computes wrongly, else ``"warning"``.
    """

    severity: str
    effect: str
    source: str
    since: tuple[int, int] | None = None
    until: tuple[int, int] | None = None

    def covers(self, series: tuple[int, int]) -> bool:
        """Whether the verdict holds for a series such as (0, 23)."""
        low, high = self.since or series, self.until or series
        return low <= series <= high

    @property
    def engines(self) -> str:
        """The series in words."""
        low, high = (".".join(map(str, s)) if s else "" for s in (self.since, self.until))
        if low and high:
            return f"vllm-ascend {low}" if low == high else f"vllm-ascend {low} to {high}"
        if low or high:
            return f"vllm-ascend from {low}" if low else f"vllm-ascend up to {high}"
        return "every vllm-ascend"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition in words, what helps, and the verdicts by release.

    ``mendable`` says that ``glm5-ascend repair`` knows what to do, if the folder allows it;
    ``of_engine`` that the engine is at fault rather than the folder: it is not mentioned where no
    engine was named.
    """

    problem: str
    fix: str
    verdicts: tuple[Verdict, ...]
    mendable: bool = False
    of_engine: bool = False


def always(effect: str, source: str = RAN) -> tuple[Verdict, ...]:
    """An error in every release."""
    return (Verdict("error", effect, source),)


def warn(effect: str, source: str) -> tuple[Verdict, ...]:
    """A warning in every release."""
    return (Verdict("warning", effect, source),)


REPAIR = "run glm5-ascend repair"
AGAIN = "quantise the checkpoint again"
COPY = "copy or download this file again and compare checksums"
