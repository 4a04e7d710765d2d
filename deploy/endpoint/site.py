"""Where the engines of a plan answer HTTP, and what follows from the plan for those around them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from itertools import islice

from glm5_ascend.deploy.plan_file import Plan, PlanError, RolePlan
from glm5_ascend.deploy.render.nodes import api_servers, nodes
from glm5_ascend.deploy.render.place import PORT, is_split, place_of
from glm5_ascend.deploy.render.proxy import proxy_node

# The engines' own switches for what nginx does here.
_INSTEAD = ("api-key", "ssl-keyfile", "ssl-certfile", "uds", "root-path")
_KEY_VARIABLE, _KEEP_VARIABLE = "VLLM_API_KEY", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
_KEEP_ALIVE_S = 5  # vLLM's default, and uvicorn's, which the proxy of a split plan keeps.
_SEQUENCES = 256  # vLLM's default.
# Assumed: no text of a model's context is longer in JSON. Chinese escaped as \uXXXX takes six
# bytes a character and about twelve a token.
BYTES_PER_TOKEN = 32
_LEAST_BODY_MIB = 8
TPOT_MS = 100.0  # assumed where the plan predicts none
_LEAST_TIMEOUT_S, _LONGEST_TIMEOUT_S = 600, 86_400


@dataclass(frozen=True, slots=True)
class Engine:
    """One API server: number of its instance, role, and ``address:port``."""

    instance: int
    role: str
    target: str


@dataclass(frozen=True, slots=True)
class Site:
    """The API servers, and what nginx passes requests to.

    Attributes:
        plan: the plan.
        engines: with ``/metrics``; the first server of each instance, or every rank's.
        entries: ``address:port`` of what answers users: the engines, or the proxy of a split plan.
        servers: address of every server.
    """

    plan: Plan
    engines: tuple[Engine, ...]
    entries: tuple[str, ...]
    servers: tuple[str, ...]

    @property
    def health(self) -> str:
        """Path that says whether an entry serves."""
        return "/healthcheck" if is_split(self.plan) else "/health"

    @property
    def answering(self) -> tuple[RolePlan, ...]:
        """The roles that write answers."""
        return tuple(role for role in self.plan.roles if role.role != "prefill")

    @property
    def context(self) -> int:
        """Longest request in tokens.

        Raises:
            PlanError: the plan does not say it.
        """
        lengths = [_count(role.flags.get("max-model-len")) for role in self.plan.roles]
        if 0 in lengths:
            raise PlanError(
                "the plan has no number as max-model-len of every role",
                "add it to `flags`: body size and timeouts follow from it",
            )
        return min(lengths)

    @property
    def sequences(self) -> int:
        """Requests that write answers at once, over all data-parallel ranks."""
        total = 0
        for role in self.answering:
            total += role.group.dp * (_count(role.flags.get("max-num-seqs")) or _SEQUENCES)
        return total

    @property
    def body_mib(self) -> int:
        """MiB of a request body that the longest context fits into."""
        return max(_LEAST_BODY_MIB, math.ceil(self.context * BYTES_PER_TOKEN / 2**20))

    @property
    def tpot_ms(self) -> float:
        """Predicted time per token, or what is assumed."""
        return predicted(self.plan, "tpot_ms") or TPOT_MS

    @property
    def timeout_s(self) -> int:
        """Twice the time of an answer as long as the context, which may come in one piece."""
        wanted = math.ceil(2 * self.context * self.tpot_ms / 1e3)
        return min(max(wanted, _LEAST_TIMEOUT_S), _LONGEST_TIMEOUT_S)

    @property
    def keep_alive_s(self) -> int:
        """Seconds for which an idle connection to an entry is kept: one less than it keeps it."""
        texts = [] if is_split(self.plan) else [r.env.get(_KEEP_VARIABLE) for r in self.plan.roles]
        kept = [
            int(text) if text and re.fullmatch("[0-9]{1,6}", text) else _KEEP_ALIVE_S
            for text in texts
        ]
        return max(1, min(kept, default=_KEEP_ALIVE_S) - 1)


def _count(value: object) -> int:
    """A number of tokens or sequences; 0 for anything else."""
    return value if type(value) is int and 0 < value < 1 << 31 else 0


def predicted(plan: Plan, key: str) -> float | None:
    """A positive number out of the plan's predictions."""
    value = plan.predicted.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        return None
    return float(value)


def site_of(
    plan: Plan, *, hosts: str | None = None, port: int = PORT, external_dp: bool = False
) -> Site:
    """The site of a plan; one server without addresses is this machine.

    Args:
        external_dp: every data-parallel rank is a server of its own, as ``render`` has it.

    Raises:
        PlanError: addresses are missing or wrong, or engines want TLS or a key themselves.
    """
    place = place_of(plan, hosts=hosts, port=port, external_dp=external_dp, templated=True)
    if not place.hosts and plan.servers > 1:
        raise PlanError(
            f"the addresses of {plan.servers} servers are missing",
            "add --hosts 10.0.0.1,10.0.0.2 in the order of the plan's nodes",
        )
    for role in plan.roles:
        for name in [n for n in _INSTEAD if n in role.flags]:
            raise PlanError(
                f"flag {name} of {role.role} does what nginx is to do", "take it out of the plan"
            )
        if _KEY_VARIABLE in role.env:
            raise PlanError(
                f"{_KEY_VARIABLE} of {role.role} does what nginx is to do",
                "take it out of the plan",
            )
    place = replace(place, hosts=place.hosts or ("127.0.0.1",))
    nodes(plan, place)  # refuses what render refuses
    servers = iter(api_servers(plan, place))
    engines: list[Engine] = []
    for number, role in enumerate(plan.roles):
        count = role.group.dp if external_dp else 1
        engines += [Engine(number, kind, f"{h}:{p}") for kind, h, p in islice(servers, count)]
    entries = tuple(engine.target for engine in engines)
    proxy = proxy_node(plan)
    if proxy is not None:
        entries = (f"{place.hosts[proxy]}:{place.port}",)
    return Site(plan, tuple(engines), entries, place.hosts)
