"""The work of ``glm5-ascend render``: make the files of a format and write them whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.deploy.render import script
from glm5_ascend.deploy.render.place import PORT, Place, place_of

SCHEMA = 1
Files = Callable[[Plan, Place], dict[str, str]]


def _formats() -> dict[str, Files]:
    # YAML is loaded with the formats that write it.
    from glm5_ascend.deploy.render import ci, containers, kubernetes

    return {
        "bash": script.files,
        "docker": containers.docker_files,
        "compose": containers.compose_files,
        "k8s": kubernetes.files,
        "ci": ci.files,
    }


# Their runtime has the addresses: LeaderWorkerSet and the CI's own variables.
TEMPLATED = ("k8s", "ci")


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What the user asked for; ``render.place.place_of`` explains the site."""

    plan: Path
    format: str
    out: Path | None = None
    checkpoint: str | None = None
    hosts: str | None = None
    nic: str | None = None
    port: int = PORT
    name: str | None = None
    proxy_script: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Rendered:
    """Texts by file name, and where they went; ``folder`` is None where nothing was written."""

    format: str
    texts: dict[str, str]
    folder: Path | None

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        names = [str(self.folder / name) if self.folder else name for name in self.texts]
        found: dict[str, object] = {"schema": SCHEMA, "format": self.format, "files": names}
        return found if self.folder else {**found, "texts": self.texts}

    def as_text(self) -> str:
        """The files' paths, or their texts where nothing was written."""
        if self.folder:
            return "\n".join(str(self.folder / name) for name in self.texts)
        parts = [f"# ----- {name}\n{text}" for name, text in self.texts.items()]
        return "\n".join(parts).rstrip("\n")


def render(options: RenderOptions) -> Rendered:
    """Render a plan file.

    Raises:
        PlanError: the plan, or what is said of the site, cannot be rendered.
        OSError: a file cannot be read or written.
    """
    plan = Plan.load(options.plan)
    place = place_of(
        plan,
        checkpoint=options.checkpoint,
        hosts=options.hosts,
        nic=options.nic,
        port=options.port,
        name=options.name,
        proxy_script=options.proxy_script,
        templated=options.format in TEMPLATED,
    )
    texts = _formats()[options.format](plan, place)
    if options.dry_run:
        return Rendered(options.format, texts, None)
    if options.out is None:
        raise PlanError("there is no folder to write to", "add --out DIR, or --dry-run")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(options.out / name, text)
    return Rendered(options.format, texts, options.out)


def write_whole(target: Path, text: str) -> None:
    """Write under a temporary name, then rename, so that no reader sees half a file."""
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, (0o777 if text.startswith("#!") else 0o666) & ~mask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
