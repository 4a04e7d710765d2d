"""What else the machine does while something is measured, and where the measurement runs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

# Other processes may use this share of a core before a measurement counts as disturbed.
QUIET = 0.05
_STAT = Path("/proc/stat")
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class Ticks:
    """Clock ticks of one processor since boot: at work, stolen by the host, and all."""

    busy: int
    stolen: int
    total: int

    def __sub__(self, earlier: Ticks) -> Ticks:
        return Ticks(
            self.busy - earlier.busy, self.stolen - earlier.stolen, self.total - earlier.total
        )


def parse_ticks(stat: str) -> dict[int, Ticks]:
    """Processor times by number, from the text of /proc/stat."""
    ticks = {}
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, wait, irq, soft, steal = (int(field) for field in fields[:8])
            busy = user + nice + system + irq + soft
            ticks[int(name[3:])] = Ticks(busy, steal, busy + idle + wait + steal)
    return ticks


@dataclass(frozen=True, slots=True)
class Load:
    """What the machine did beside this process.

    ``other_cores`` is the time of other processes and ``stolen_cores`` that of other machines on
    the same host, both in cores.
    """

    load_average: float
    other_cores: float
    stolen_cores: float

    @property
    def quiet(self) -> bool:
        """Whether measurements taken meanwhile deserve trust."""
        return self.other_cores <= QUIET and self.stolen_cores <= QUIET

    def __str__(self) -> str:
        text = (
            f"load average {self.load_average:.2f}, other processes {self.other_cores:.2f} cores,"
            f" stolen by the host {self.stolen_cores:.2f} cores"
        )
        return text if self.quiet else f"{text}  <== THE MACHINE IS NOT IDLE"


class Watch:
    """Measures the load from its creation on."""

    def __init__(self) -> None:
        self._ticks = parse_ticks(_STAT.read_text())
        self._own = time.process_time()
        self._start = time.perf_counter()

    def load(self) -> Load:
        """The load since the watch was made."""
        now = parse_ticks(_STAT.read_text())
        own = time.process_time() - self._own
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        spent = [now[cpu] - before for cpu, before in self._ticks.items() if cpu in now]
        second = os.sysconf("SC_CLK_TCK")
        others = sum(part.busy for part in spent) / second - own
        stolen = sum(part.stolen for part in spent) / second
        return Load(os.getloadavg()[0], max(0.0, others) / elapsed, stolen / elapsed)


def busy_shares(seconds: float) -> dict[int, float]:
    """Share of time that each processor is at work while this process sleeps."""
    before = parse_ticks(_STAT.read_text())
    time.sleep(seconds)
    now = parse_ticks(_STAT.read_text())
    spent = {cpu: now[cpu] - ticks for cpu, ticks in before.items() if cpu in now}
    return {cpu: part.busy / max(1, part.total) for cpu, part in spent.items()}


class Affinity:
    """Restricts the calling thread to the quietest processor, or gives it back all it had."""

    def __init__(self, shares: dict[int, float]) -> None:
        self.allowed = sorted(os.sched_getaffinity(0))
        self.quietest = min(self.allowed, key=lambda cpu: (shares.get(cpu, 0.0), cpu))

    def use(self, threads: int) -> None:
        """Pin to one processor for one thread; for more, leave the choice to the system."""
        os.sched_setaffinity(0, {self.quietest} if threads == 1 else self.allowed)


def settle(most: float = 0.05) -> None:
    """Wait until the other threads of this process sleep, ``most`` seconds at most.

    OpenMP's keep a processor busy for some milliseconds after the last work they had. Whoever is
    measured next on more than one thread would share it with them.
    """
    end = time.perf_counter() + most
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.001)
        if time.process_time() - before < 0.0003:
            return


def last_level_cache() -> int:
    """Bytes of the largest cache of processor 0; 0 where the system does not tell."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [file.read_text().strip() for file in _CACHE.glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes), default=0)
