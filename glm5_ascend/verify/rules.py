"""What each release of vllm-ascend does about each condition: tables, every row with its source.

A condition without a row for a release is no problem there. Where a behaviour is known for two
releases only and differs, the row ends before the newer one, and a warning covers the gap.
"""

from __future__ import annotations

from glm5_ascend.verify.rule import Rule, Verdict
from glm5_ascend.verify.rules_description import DESCRIPTION
from glm5_ascend.verify.rules_files import FILES
from glm5_ascend.verify.rules_tensors import TENSORS
from glm5_ascend.verify.rules_values import VALUES

__all__ = ["RULES", "Rule", "Verdict"]

RULES: dict[str, Rule] = {**FILES, **DESCRIPTION, **TENSORS, **VALUES}
