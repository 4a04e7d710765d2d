"""How ranks are laid out over dies: ``dp8tp4dcp4``, or ``p=2*dp2tp8,d=dp32tp1``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glm5_ascend.errors import Glm5Error

_GROUP = re.compile(r"(?:([1-9]\d{0,3})\*)?((?:(?:dp|tp|pp|dcp)[1-9]\d{0,4})+)")
_PART = re.compile(r"(dp|tp|pp|dcp)(\d+)")
_HINT = "write dp8tp4, dp1tp16dcp16, or p=dp4tp8,d=dp32tp1 (2*dp2tp8 for two instances)"


class LayoutError(Glm5Error):
    """A layout that cannot be read or cannot exist."""


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Ranks of one role: ``copies`` independent instances of DP x PP x TP dies.

    Attributes:
        dp, tp, pp: data, tensor and pipeline parallel size of one instance.
        dcp: decode context parallel size, a divisor of ``tp``: it shares the TP ranks.
        copies: instances, each with its own experts.
    """

    dp: int
    tp: int
    pp: int = 1
    dcp: int = 1
    copies: int = 1

    def __post_init__(self) -> None:
        if self.tp % self.dcp:
            raise LayoutError(
                f"DCP {self.dcp} does not divide TP {self.tp}", "DCP shares the ranks of TP"
            )

    @property
    def ep(self) -> int:
        """Expert parallel size of one instance, DP x TP."""
        return self.dp * self.tp

    @property
    def dies(self) -> int:
        """Dies of all instances."""
        return self.copies * self.ep * self.pp

    def __str__(self) -> str:
        copies = f"{self.copies}*" if self.copies > 1 else ""
        pp = f"pp{self.pp}" if self.pp > 1 else ""
        dcp = f"dcp{self.dcp}" if self.dcp > 1 else ""
        return f"{copies}dp{self.dp}tp{self.tp}{pp}{dcp}"

    @classmethod
    def parse(cls, text: str) -> Group:
        """Read ``[COPIES*]dpNtpN[ppN][dcpN]`` in any order of the parts; absent parts are 1.

        Raises:
            LayoutError: anything else, or a DCP that does not divide TP.
        """
        match = _GROUP.fullmatch(text.strip().lower())
        if match is None:
            raise LayoutError(f"{text!r} is no layout", _HINT)
        found = _PART.findall(match[2])
        sizes = {name: int(size) for name, size in found}
        if len(sizes) != len(found):
            raise LayoutError(f"{text!r} says one of its sizes twice", _HINT)
        return cls(
            sizes.get("dp", 1),
            sizes.get("tp", 1),
            sizes.get("pp", 1),
            sizes.get("dcp", 1),
            int(match[1] or 1),
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """One group for everything (``mixed``), or one for prefill and one for decode."""

    mixed: Group | None = None
    prefill: Group | None = None
    decode: Group | None = None

    def __post_init__(self) -> None:
        split = self.prefill is not None and self.decode is not None
        either = self.prefill is not None or self.decode is not None
        if (self.mixed is not None) == either or either != split:
            raise LayoutError("a layout has one group, or prefill and decode", _HINT)

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read ``dp8tp4dcp4`` or ``p=dp4tp8,d=dp32tp1``.

        Raises:
            LayoutError: anything else.
        """
        if "=" not in text:
            return cls(mixed=Group.parse(text))
        groups: dict[str, Group] = {}
        for part in text.split(","):
            role, _, group = part.partition("=")
            if role.strip().lower() not in ("p", "d") or role.strip().lower() in groups:
                raise LayoutError(f"{part!r} in {text!r} is no role of its own", _HINT)
            groups[role.strip().lower()] = Group.parse(group)
        return cls(prefill=groups.get("p"), decode=groups.get("d"))

    @property
    def groups(self) -> dict[str, Group]:
        """The groups by role: ``mixed``, or ``prefill`` and ``decode``."""
        roles = {"mixed": self.mixed, "prefill": self.prefill, "decode": self.decode}
        return {role: group for role, group in roles.items() if group is not None}

    @property
    def dies(self) -> int:
        """Dies of all groups."""
        return sum(group.dies for group in self.groups.values())

    def __str__(self) -> str:
        if self.mixed is not None:
            return str(self.mixed)
        return f"p={self.prefill},d={self.decode}"
