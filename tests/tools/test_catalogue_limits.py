"""Kinds and bounds that are read out of a configuration class without running it."""

from __future__ import annotations

import ast
from textwrap import dedent

from tools.catalogue.limits import limits

SOURCE = """
class Config:
    drafts: int = Field(default=None, gt=0)
    share: float | None = Field(default=0.9, gt=0, le=1)
    eager: bool = False
    sizes: list[int] | None = None
    name: str = "x"
    hidden: int = field(default=1, init=False)
    low: int = 0
    chained: float = 0.5
    policy: int = 2
    odd: int = 1
    either: float = 1.0
    guarded: int = 1
    derived: int = 0
    late: int = 0
    first: int = 0
    second: int = 0

    @model_validator(mode="after")
    def _check(self):
        self.derived = compute(self.derived)
        names = ("first", "second")
        for key in names:
            value = getattr(self, key)
            if value < 0:
                raise ValueError(key)
        if self.low <= 3:
            raise ValueError("low")
        if not (0 < self.chained <= 1.0):
            raise ValueError("chained")
        if self.policy not in [0, 1, 2, 3]:
            raise ValueError("policy")
        if self.odd not in (1, 3):
            raise ValueError("odd")
        if not math.isfinite(self.either) or 10 < self.either:
            raise ValueError("either")
        if self.guarded != -1 and self.guarded < 1:
            raise ValueError("guarded")
        if self.derived < 1:
            raise ValueError("derived")
        if not self.eager:
            return self
        if self.late < 9:
            raise ValueError("late")
        return self

    def _only_sometimes(self):
        if self.guarded < 100:
            raise ValueError("guarded")
"""


def read(source: str) -> dict[str, str]:
    node = ast.parse(dedent(source)).body[0]
    assert isinstance(node, ast.ClassDef)
    return limits(node)


def test_fields_and_what_is_always_refused() -> None:
    assert read(SOURCE) == {
        "drafts": "whole > 0",
        "share": "number > 0 <= 1",
        "eager": "switch",
        "sizes": "wholes",
        "low": "whole > 3",
        "chained": "number > 0 <= 1",
        "policy": "whole >= 0 <= 3",
        "odd": "whole",  # no range
        "either": "number <= 10",
        "guarded": "whole",  # refused under a condition alone
        "derived": "whole",  # what is refused is not what was given
        "late": "whole",
        "first": "whole >= 0",
        "second": "whole >= 0",
    }


def test_classes_that_ask_for_integers_themselves() -> None:
    source = """
    class Config:
        def _validate_config(self):
            for key in ["interval", "experts"]:
                if not isinstance(self.config[key], int):
                    raise TypeError(key)
                if self.config[key] < 0:
                    raise ValueError(key)
    """
    assert read(source) == {"interval": "integer >= 0", "experts": "integer >= 0"}
