"""Chips as they are sold: memory, peak rates and links of one die, and what a user calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache

from glm5_ascend.deploy.catalogue.tables import CatalogueError, entries, pick, read, sourced
from glm5_ascend.errors import brief

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Link:
    """A link of one die: ``gbs`` decimal GB/s per direction, ``latency_us`` per message."""

    name: str
    gbs: float
    latency_us: float
    scope: str
    source: Mapping[str, str] = field(repr=False, hash=False)


@dataclass(frozen=True, slots=True)
class Sku:
    """One variant of a chip; the numbers are per die.

    Attributes:
        chip: family, ``A2``, ``A3`` or ``A5``.
        support: ``full``, ``limited`` or ``refused``; ``note`` says what that means.
        hbm_gib: total memory that the device reports, GiB.
        hbm_gbs: memory bandwidth, decimal GB/s.
        bf16_tflops, int8_tops: dense peaks, 1e12/s; 0 where no source has them.
        intra, inter: links inside and between servers.
        ep_sizes: expert-parallel sizes that the dispatch operator takes; empty for any.
        local_experts_at_most: experts per die that it takes; 0 for any.
        source: per number, where it is from: measured, published, modelled or assumed.
    """

    name: str
    product: str
    chip: str
    support: str
    note: str
    dies_per_server: int
    hbm_gib: float
    hbm_gbs: float
    bf16_tflops: float
    int8_tops: float
    intra: Link
    inter: Link
    ep_sizes: tuple[int, ...]
    local_experts_at_most: int
    source: Mapping[str, str] = field(repr=False, hash=False)

    @property
    def memory_bytes(self) -> int:
        """Memory of a die as the device reports it, bytes."""
        return round(self.hbm_gib * GIB)


@dataclass(frozen=True, slots=True)
class Hardware:
    """A number of servers of one SKU.

    Attributes:
        assumed: a sentence about what the user left open, or None.
    """

    sku: Sku
    servers: int
    assumed: str | None = None

    @property
    def dies(self) -> int:
        """Dies of all servers."""
        return self.servers * self.sku.dies_per_server

    def __str__(self) -> str:
        return f"{self.sku.name}:{self.servers}"


_LINK_NUMBERS = ("gbs", "latency_us")
_SKU_NUMBERS = [
    "dies_per_server",
    "hbm_gib",
    "hbm_gbs",
    "bf16_tflops",
    "int8_tops",
    "ep_sizes",
    "local_experts_at_most",
]
_REQUEST = re.compile(r"([a-z0-9][a-z0-9-]*?)(?::([1-9][0-9]{0,4}))?")


@cache
def links() -> dict[str, Link]:
    """Every link by name."""
    found = {}
    for name, entry in entries(read("interconnects.toml"), "link").items():
        source = sourced(name, entry, _LINK_NUMBERS)
        found[name] = Link(name=name, **{**entry, "source": source})  # type: ignore[arg-type]
    return found


@cache
def skus() -> dict[str, Sku]:
    """Every SKU by name."""
    return {n: _sku(n, e) for n, e in entries(read("hardware.toml"), "sku").items()}


def _sku(name: str, entry: dict[str, object]) -> Sku:
    wanted = {item.name for item in fields(Sku)} - {"name"}
    if wanted != entry.keys():
        raise CatalogueError(
            f"SKU {name} has other keys than {', '.join(sorted(wanted))}", "correct hardware.toml"
        )
    sizes = entry["ep_sizes"]
    numbers = tuple(key for key in _SKU_NUMBERS if entry[key] != [])
    values = {
        **entry,
        "intra": links()[str(entry["intra"])],
        "inter": links()[str(entry["inter"])],
        "ep_sizes": tuple(sizes) if isinstance(sizes, list) else (),
        "source": sourced(name, entry, numbers),
    }
    return Sku(name=name, **values)  # type: ignore[arg-type]


def hardware(request: str) -> Hardware:
    """Read ``SKU``, ``SKU:SERVERS``, ``a2`` or ``a3:4``; a bare family is its slowest SKU.

    Raises:
        CatalogueError: no such SKU, or one that is refused.
    """
    match = _REQUEST.fullmatch(request.strip().lower())
    if match is None:
        raise CatalogueError(
            f"{brief(request)} names no hardware",
            "write SKU:SERVERS, e.g. a3-752t:2, with 1 to 99999 servers",
        )
    name, servers = match[1], int(match[2] or 1)
    slowest = read("hardware.toml")["slowest"]
    assumed = None
    if isinstance(slowest, dict) and name in slowest:
        assumed = f"{name} taken as {slowest[name]}, its slowest SKU; name yours to be exact"
        name = str(slowest[name])
    pick("hardware", name, list(skus()))
    sku = skus()[name]
    if sku.support == "refused":
        raise CatalogueError(f"{name} is not supported: {sku.note}", "see deploy/catalogue")
    return Hardware(sku, servers, assumed)
