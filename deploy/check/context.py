"""What the rules look at: one command, its release, its hardware, and what follows from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from glm5_ascend.deploy.catalogue.hardware import Hardware
from glm5_ascend.deploy.catalogue.models import Model, models
from glm5_ascend.deploy.catalogue.releases import Release
from glm5_ascend.deploy.check.command_line import ServeCommand, whole_number
from glm5_ascend.deploy.check.finding import Place

PRODUCER, CONSUMER = "kv_producer", "kv_consumer"
SFA, LI = "sfa", "li"
INT8 = ("int8", "fp8")
GRAPH_CEILING = 512  # vLLM captures no larger batch by default
_OWN_SIZES = {"--data-parallel-size": "dp_size", "--tensor-parallel-size": "tp_size"}
_HOLDER = re.compile(r"\{\{.*\}\}|[A-Z]+(_[A-Z]+)+|[xX.]{2,}")
_NAME = re.compile(r"glm-?5(\.[123])?(-flash)?(?![\d.])", re.IGNORECASE)
_QUANT = re.compile(r"w(4|8|16)a(4|8|16)(c8)?", re.IGNORECASE)


@dataclass(frozen=True)
class Launch:
    """How a command is started, where the file says so.

    Attributes:
        image: container image.
        host_network: whether the container shares the host's network; None outside containers.
        devices: NPU device nodes that the container gets; None where the file does not list them.
        mounts: paths of the host.
        proxy: words of a proxy's command in the same file.
        breaks: line numbers where blanks behind a backslash end the command.
        copies: processes of external data parallelism that one template starts here.
    """

    image: str = ""
    host_network: bool | None = None
    devices: tuple[int, ...] | None = None
    mounts: tuple[str, ...] = ()
    proxy: tuple[str, ...] = ()
    breaks: tuple[int, ...] = ()
    copies: int = 1


@dataclass(frozen=True)
class Context:
    """One command with all that is known about it.

    Attributes:
        peers: the other commands of the same deployment, without their own peers.
        directory: the checkpoint, where the user gave one.
    """

    command: ServeCommand
    release: Release
    hardware: Hardware | None = None
    place: Place = field(default_factory=Place)
    launch: Launch = field(default_factory=Launch)
    peers: tuple[Context, ...] = field(default=(), repr=False)
    directory: Path | None = None

    @cached_property
    def chip(self) -> str:
        """``A2``, ``A3``, ``A5`` or nothing."""
        return self.hardware.sku.chip if self.hardware else ""

    @cached_property
    def dies(self) -> int:
        """Dies of a server; 0 where the hardware is not given."""
        return self.hardware.sku.dies_per_server if self.hardware else 0

    @cached_property
    def model_name(self) -> str:
        """``glm-5.2``, ``glm-5.3-flash`` or nothing, from the model's path or served name."""
        served = self.command.option("--served-model-name")
        for text in (self.command.model or "", *(served.values if served else ())):
            match = _NAME.search(text)
            if match:
                return f"glm-5{match[1] or ''}{(match[2] or '').lower()}"
        return ""

    @cached_property
    def model(self) -> Model | None:
        """The catalogued model."""
        return models().get(self.model_name)

    @cached_property
    def quant(self) -> str:
        """``w4a8``, ``w8a8`` and so on, from the model's name."""
        match = _QUANT.search(self.command.model or "")
        return f"w{match[1]}a{match[2]}" if match else ""

    @cached_property
    def shares_indexers(self) -> bool:
        """Whether layers of the model share indexers."""
        return bool(self.model and self.model.index_layers < self.model.layers)

    def size(self, name: str) -> int:
        """A parallel size, 1 by default.

        Where a template leaves it open, the own side of the transfer config tells it.
        """
        if is_open(self.command.text(name)):
            side = {PRODUCER: "prefill", CONSUMER: "decode"}.get(self.role, "")
            found = self.connector("Mooncake") or {}
            sizes = found.get("kv_connector_extra_config")
            own = sizes.get(side) if isinstance(sizes, Mapping) else None
            value = own.get(_OWN_SIZES.get(name)) if isinstance(own, Mapping) else None
            return value if isinstance(value, int) and value > 0 else 1
        return max(self.command.whole(name, 1), 1)

    @cached_property
    def has_open_sizes(self) -> bool:
        """Whether a parallel size is left open and nothing tells it."""
        flags = [name for name in _OWN_SIZES if is_open(self.command.text(name))]
        return any(self.size(name) == 1 for name in flags)

    @cached_property
    def tp(self) -> int:
        return self.size("--tensor-parallel-size")

    @cached_property
    def pp(self) -> int:
        return self.size("--pipeline-parallel-size")

    @cached_property
    def dp(self) -> int:
        return self.size("--data-parallel-size")

    @cached_property
    def pcp(self) -> int:
        return self.size("--prefill-context-parallel-size")

    @cached_property
    def dcp(self) -> int:
        return self.size("--decode-context-parallel-size")

    @cached_property
    def has_ep(self) -> bool:
        return self.command.switch("--enable-expert-parallel")

    @cached_property
    def ep(self) -> int:
        """Size of the expert-parallel group; 1 without expert parallelism."""
        return self.dp * self.tp * self.pcp if self.has_ep else 1

    @cached_property
    def additional(self) -> dict[str, Any]:
        return self.command.json("--additional-config")

    def key(self, name: str) -> Any:
        """A key of ``--additional-config``, of its ``scheduler_config`` first."""
        inner = self.additional.get("scheduler_config")
        if isinstance(inner, Mapping) and name in inner:
            return inner[name]
        return self.additional.get(name)

    def key_or(self, name: str, default: object) -> object:
        """A key of ``--additional-config``, or its default where it is not given."""
        value = self.key(name)
        return default if value is None else value

    def on(self, name: str) -> bool:
        """Whether a key of ``--additional-config`` is true."""
        return truth(self.key(name))

    def variable_on(self, name: str) -> bool:
        """Whether a variable is set to something true, and the release reads it."""
        return name in self.release.variables and truth(self.command.env.get(name))

    @cached_property
    def balances(self) -> bool:
        """Whether balance scheduling is asked for in a way that the release reads."""
        inner = self.additional.get("scheduler_config", {})
        nested = isinstance(inner, Mapping) and truth(inner.get("enable_balance_scheduling"))
        nested = nested and "scheduler_config" in self.release.additional
        top = "enable_balance_scheduling" in self.release.additional
        is_top = top and truth(self.additional.get("enable_balance_scheduling"))
        return nested or is_top or self.variable_on("VLLM_ASCEND_BALANCE_SCHEDULING")

    @cached_property
    def recomputes(self) -> bool:
        """Whether the recompute scheduler is asked for."""
        return self.on("recompute_scheduler_enable")

    @cached_property
    def flashcomm(self) -> bool:
        """Whether FlashComm1 is on, by itself or through DSA-CP."""
        implied = self.release.series >= (0, 27) and self.on("enable_dsa_cp")
        asked = self.on("enable_flashcomm1") and "enable_flashcomm1" in self.release.additional
        return implied or asked or self.variable_on("VLLM_ASCEND_ENABLE_FLASHCOMM1")

    @cached_property
    def fused_mc2(self) -> object:
        """The fused MC2 level that the release reads; 0 by default."""
        if "enable_fused_mc2" in self.additional:
            return self.additional["enable_fused_mc2"]
        name = "VLLM_ASCEND_ENABLE_FUSED_MC2"
        text = self.command.env.get(name, "0") if name in self.release.variables else "0"
        return whole_number(text) if whole_number(text) is not None else text

    @cached_property
    def is_eager(self) -> bool:
        return self.command.switch("--enforce-eager")

    @cached_property
    def runs_v2(self) -> bool:
        return truth(self.command.env.get("VLLM_USE_V2_MODEL_RUNNER"))

    @cached_property
    def speculative(self) -> dict[str, Any]:
        return self.command.json("--speculative-config")

    @cached_property
    def drafts(self) -> int:
        """Draft tokens per step."""
        given = self.speculative.get("num_speculative_tokens", 0)
        return given if isinstance(given, int) and given > 0 else 0

    @cached_property
    def sequences(self) -> int | None:
        return self.command.whole("--max-num-seqs", 0) or None

    @cached_property
    def batched(self) -> int | None:
        return self.command.whole("--max-num-batched-tokens", 0) or None

    @cached_property
    def length(self) -> int | None:
        return self.command.whole("--max-model-len", 0) or None

    @cached_property
    def capture_sizes(self) -> list[int]:
        """Batches that graphs are captured for, as given; empty where vLLM chooses."""
        given = self.command.json("--compilation-config").get("cudagraph_capture_sizes", [])
        return [size for size in given if isinstance(size, int)] if isinstance(given, list) else []

    @cached_property
    def largest_step(self) -> int | None:
        """Tokens of the largest decode step of a DP rank that graphs are captured for.

        Without graphs the engine counts its sequences.
        """
        if self.capture_sizes:
            return max(self.capture_sizes)
        if self.sequences is None:
            return None
        if self.is_eager:
            return min(self.sequences, GRAPH_CEILING)
        tokens = self.sequences * (1 + self.drafts)
        return min(tokens, GRAPH_CEILING, self.batched or GRAPH_CEILING)

    @cached_property
    def transfer(self) -> dict[str, Any]:
        return self.command.json("--kv-transfer-config")

    @cached_property
    def role(self) -> str:
        """``kv_producer``, ``kv_consumer``, another role, or nothing."""
        return str(self.transfer.get("kv_role", ""))

    @cached_property
    def connectors(self) -> list[dict[str, Any]]:
        """The connector's configuration, or those inside a MultiConnector."""
        return list(_connectors(self.transfer)) if self.transfer else []

    def connector(self, *words: str) -> dict[str, Any] | None:
        """The first connector with one of the words in its name."""
        for found in self.connectors:
            if any(word in str(found.get("kv_connector", "")) for word in words):
                return found
        return None

    @cached_property
    def transport(self) -> dict[str, Any] | None:
        """The Mooncake connector between prefill and decode."""
        return self.connector("Mooncake") if not self.connector("Layerwise") else None

    @cached_property
    def kv_port(self) -> int | None:
        """First port of the transfer between prefill and decode."""
        found = self.connector("Mooncake") or {}
        return whole_number(str(found.get("kv_port", "")))

    @cached_property
    def port_count(self) -> int:
        """Ports behind ``kv_port``: one per rank, and with MooncakeConnectorV2 one per DP rank."""
        ranks = self.dp * self.tp * self.pp * self.pcp
        name = str((self.transport or {}).get("kv_connector", ""))
        return ranks + (self.dp if name.endswith("V2") else 0)

    @cached_property
    def int8_caches(self) -> set[str]:
        """Which caches the command asks to be int8, in whatever spelling."""
        found = {SFA, LI} if self.on("enable_sparse_c8") else set()
        found |= {SFA} if self.on("enable_sparse_sfa_c8") else set()
        found |= {LI} if self.on("enable_sparse_li_c8") else set()
        found |= {SFA} if self.command.text("--kv-cache-dtype") in INT8 else set()
        indexer = self.command.json("--attention-config").get("indexer_kv_dtype")
        return found | ({LI} if indexer in INT8 else set())

    @cached_property
    def effective_caches(self) -> set[str]:
        """Which caches are int8 in this release with this command."""
        spelling = self.release.c8
        if spelling == "sparse_c8":
            # Up to 0.20 the switch covered the indexer's keys alone.
            both = {LI} if self.release.series < (0, 21) else {SFA, LI}
            return both if self.on("enable_sparse_c8") else set()
        if spelling == "split":
            found = {SFA} if self.on("enable_sparse_sfa_c8") else set()
            return found | ({LI} if self.on("enable_sparse_li_c8") else set())
        found = {SFA} if self.command.text("--kv-cache-dtype") in INT8 else set()
        indexer = self.command.json("--attention-config").get("indexer_kv_dtype")
        return found | {LI} if indexer in INT8 and spelling == "dtype" else found

    @cached_property
    def local_ranks(self) -> int:
        """DP ranks that this command starts."""
        if self.command.given("--data-parallel-rank"):
            return self.launch.copies
        return self.command.whole("--data-parallel-size-local", 0) or self.dp

    @cached_property
    def is_multi_node(self) -> bool:
        """Whether other servers belong to the same engine."""
        return self.size("--nnodes") > 1 or (self.local_ranks < self.dp)


def is_open(text: str) -> bool:
    """Whether a value is left to whoever runs the command: a variable, or a place holder."""
    return "$" in text or text.startswith("<") or bool(_HOLDER.fullmatch(text))


def truth(value: object) -> bool:
    """Whether a value of JSON or of the environment means yes."""
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "yes", "on", "2")
    return bool(value)


def _connectors(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    inner = config.get("kv_connector_extra_config")
    several = inner.get("connectors") if isinstance(inner, Mapping) else None
    if config.get("kv_connector") == "MultiConnector" and isinstance(several, list):
        for item in several:
            if isinstance(item, Mapping):
                yield from _connectors({"kv_role": config.get("kv_role"), **item})
    else:
        yield dict(config)
