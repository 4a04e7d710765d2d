"""The work of ``glm5-ascend render``: make the files of a format and write them whole."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.deploy.plan_file import MOST_BYTES, Plan, PlanError, load_yaml
from glm5_ascend.deploy.render import script
from glm5_ascend.deploy.render.place import PORT, Place, place_of
from glm5_ascend.deploy.render.schedulers import Cluster
from glm5_ascend.files import read_text, refuse_inputs

SCHEMA = 1
Files = Callable[[Plan, Place], dict[str, str]]


def _formats(cluster: Cluster) -> dict[str, Files]:
    # YAML is loaded with the formats that write it.
    from glm5_ascend.deploy.render import ci, containers, kubernetes

    return {
        "bash": script.files,
        "docker": containers.docker_files,
        "compose": containers.compose_files,
        "k8s": lambda plan, place: kubernetes.files(plan, place, cluster),
        "ci": ci.files,
        "plan": lambda plan, place: {"plan.yaml": plan.text()},
    }


# Options that a format has no place for.
_UNUSED = {
    "k8s": ("hosts",),
    "ci": ("hosts", "nic", "proxy_script"),
    "plan": ("checkpoint", "hosts", "nic", "port", "name", "proxy_script"),
}
_NAME = re.compile(r"node\d+(\.sh|\.compose\.yaml)|proxy\.sh")
# Their runtime has the addresses: LeaderWorkerSet and the CI's own variables.
TEMPLATED = ("k8s", "ci", "plan")


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What the user asked for; ``render.place.place_of`` explains the site.

    Attributes:
        plan: a plan file, or a CI file of several nodes.
        release: of vllm-ascend, for a CI file.
        hw: SKU, for a CI file.
        scheduler, queue, npu_resource: of Kubernetes, see ``render.schedulers.Cluster``.
    """

    plan: Path
    format: str
    out: Path | None = None
    checkpoint: str | None = None
    hosts: str | None = None
    nic: str | None = None
    port: int = PORT
    name: str | None = None
    proxy_script: str | None = None
    external_dp: bool = False
    release: str | None = None
    hw: str | None = None
    scheduler: str = "default"
    queue: str = "default"
    npu_resource: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Rendered:
    """Texts by file name, and where they went; ``folder`` is None where nothing was written.

    Attributes:
        lost: what was in a CI file and is in none of the texts.
        unused: options without effect, and files of another plan in the folder.
    """

    format: str
    texts: dict[str, str]
    folder: Path | None
    lost: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        names = [str(self.folder / name) if self.folder else name for name in self.texts]
        found: dict[str, object] = {"schema": SCHEMA, "format": self.format, "files": names}
        found |= {"lost": list(self.lost)} if self.lost else {}
        return found if self.folder else {**found, "texts": self.texts}

    def as_text(self) -> str:
        """The files' paths, or their texts where nothing was written."""
        if self.folder:
            return "\n".join(str(self.folder / name) for name in self.texts)
        parts = [f"# ----- {name}\n{text}" for name, text in self.texts.items()]
        return "\n".join(parts).rstrip("\n")


def render(options: RenderOptions) -> Rendered:
    """Render a plan file, or a CI file that is read as one.

    Raises:
        PlanError: the file, or what is said of the site, cannot be rendered.
        OSError: a file cannot be read or written.
    """
    plan, checkpoint, hosts, lost = _read(options)
    place = place_of(
        plan,
        checkpoint=checkpoint if options.checkpoint is None else options.checkpoint,
        hosts=hosts if options.hosts is None else options.hosts,
        nic=options.nic,
        port=options.port,
        name=options.name,
        proxy_script=options.proxy_script,
        external_dp=options.external_dp,
        templated=options.format in TEMPLATED,
    )
    if options.external_dp and options.format != "bash":
        raise PlanError(
            f"{options.format} has no server per rank", "--external-dp goes with --format bash"
        )
    cluster = Cluster(options.scheduler, options.queue, options.npu_resource)
    if cluster != Cluster() and options.format != "k8s":
        raise PlanError(f"{options.format} has no scheduler", "these options go with --format k8s")
    texts = _formats(cluster)[options.format](plan, place)
    unused = tuple(
        f"--{name.replace('_', '-')} is not used for {options.format}"
        for name in _UNUSED.get(options.format, ())
        if getattr(options, name) not in (None, PORT)
    )
    if options.dry_run:
        return Rendered(options.format, texts, None, lost, unused)
    if options.out is None:
        raise PlanError("there is no folder to write to", "add --out DIR, or --dry-run")
    refuse_inputs((options.out / name for name in texts), options.plan)
    options.out.mkdir(parents=True, exist_ok=True)
    write_all(options.out, texts)
    unused += tuple(
        f"{path} is of an earlier plan"
        for path in sorted(options.out.iterdir())
        if _NAME.fullmatch(path.name) and path.name not in texts
    )
    return Rendered(options.format, texts, options.out, lost, unused)


def _read(options: RenderOptions) -> tuple[Plan, str | None, str | None, tuple[str, ...]]:
    """The plan, and what a CI file says of checkpoint, hosts, and things that no plan has."""
    text = read_text(options.plan, MOST_BYTES, "give a plan, or a CI file of vllm-ascend")
    document = load_yaml(text, str(options.plan))
    from glm5_ascend.deploy.render.ci_read import is_ci, read_ci

    if is_ci(document):
        found = read_ci(str(options.plan), text, options.release, options.hw)
        return found.plan, found.checkpoint, found.hosts, found.lost
    if options.release or options.hw:
        raise PlanError("--for and --hw are for CI files; a plan says both", "leave them out")
    return Plan.read(document, str(options.plan)), None, None, ()


def write_all(folder: Path, texts: dict[str, str]) -> None:
    """Write every file under a temporary name, then rename them: no reader sees half a file, and a
    failure leaves the old ones.

    Raises:
        OSError: a file cannot be written, or has the name of a folder.
    """
    made: dict[Path, str] = {}
    try:
        for name, text in texts.items():
            target = folder / name
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
            made[target] = _temporary(target, text)
        while made:
            target = next(iter(made))
            os.replace(made[target], target)
            del made[target]
    finally:
        for temporary in made.values():
            Path(temporary).unlink(missing_ok=True)


def write_whole(target: Path, text: str) -> None:
    """:func:`write_all` of one file."""
    write_all(target.parent, {target.name: text})


def _temporary(target: Path, text: str) -> str:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, (0o777 if text.startswith("#!") else 0o666) & ~mask)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return temporary
