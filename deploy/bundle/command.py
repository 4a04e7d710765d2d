"""The work of ``glm5-ascend bundle``: collect, seal under a temporary name, rename."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from glm5_ascend import __version__
from glm5_ascend.deploy.bundle.manifest import IMAGES, Compared, compare, write_sums
from glm5_ascend.deploy.bundle.wheels import Target, Wheel, fetch, project_source, resolved
from glm5_ascend.deploy.endpoint.command import IMAGES as AROUND
from glm5_ascend.deploy.plan_file import Plan
from glm5_ascend.deploy.render.command import RenderOptions, render, write_whole
from glm5_ascend.deploy.render.containers import image
from glm5_ascend.errors import ChildFailed, ExitCode, Glm5Error, PreflightError

SCHEMA = 1
_MARK = ".glm5-bundle"
_HERE = Path(__file__).parent
_PLATFORMS = {"aarch64": "linux/arm64", "x86_64": "linux/amd64"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PYTHON = re.compile(r"3\.\d{1,2}")
_SAVE = """\
#!/bin/sh
# On a machine with network and docker: pull what images.txt names and save it to images/.
set -eu
cd "$(dirname "$0")"
mkdir -p images
touch images/SHA256SUMS
while read -r file image; do
	if [ -f "images/$file" ] && grep -qF "  $file" images/SHA256SUMS; then
		continue
	fi
	docker pull --platform {platform} "$image"
	docker save --output "images/.partial" "$image"
	mv images/.partial "images/$file"
	(cd images && sha256sum "$file" >> SHA256SUMS)
done < images.txt
"""
_README = """\
{about}

1. With network and docker, if images/ is missing: sh save-images.sh
2. Carry this folder to every server, or to one and share it.
3. On the server: sh install.sh --digest SUM
   SUM is the digest that glm5-ascend bundle printed. It checks every file, loads the
   images and installs glm5-ascend from wheels/.
4. Start what lies in scripts/ for the server; the checkpoint is not part of the bundle.
"""


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """What the user asked for; the site's settings are those of ``render``.

    Attributes:
        out: folder, or archive where it ends in ``.tar``.
        scripts: a folder that ``render`` wrote, in place of the site's settings.
        wheels: fetch wheels, through pip.
        images: pull and save images, through docker.
        project: source or wheel of this package.
    """

    plan: Path
    out: Path | None
    format: str = "docker"
    checkpoint: str | None = None
    hosts: str | None = None
    nic: str | None = None
    port: int = 8000
    name: str | None = None
    scripts: Path | None = None
    wheels: bool = False
    images: bool = False
    python: str = "3.11"
    arch: str = "aarch64"
    project: Path | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Bundled:
    """What a bundle has or would have; ``digest`` is the sum of its list of sums.

    ``unused`` says which options have no effect on the scripts.
    """

    out: Path | None
    digest: str
    images: tuple[str, ...]
    scripts: tuple[str, ...]
    wheels: tuple[Wheel, ...]
    unused: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {
            "schema": SCHEMA,
            "out": None if self.out is None else str(self.out),
            "digest": self.digest,
            "images": list(self.images),
            "scripts": list(self.scripts),
            "wheels": [asdict(wheel) for wheel in self.wheels],
        }

    def as_text(self) -> str:
        """The list, and where it lies."""
        lines = [f"image   {name}" for name in self.images]
        lines += [f"script  {name}" for name in self.scripts]
        lines += [f"wheel   {wheel.file}" for wheel in self.wheels]
        if self.out is not None:
            lines += [f"written to {self.out}", f"digest {self.digest}"]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of ``--verify``."""

    source: Path
    compared: Compared

    @property
    def exit_code(self) -> ExitCode:
        """1 where something differs."""
        return ExitCode.DONE if self.compared.good else ExitCode.INPUT

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        found = {"schema": SCHEMA, "bundle": str(self.source), "good": self.compared.good}
        return {**found, **asdict(self.compared)}

    def as_text(self) -> str:
        """One line per file that differs."""
        one = self.compared
        lines = [f"{k}: {n}" for k in ("missing", "changed", "unlisted") for n in getattr(one, k)]
        verdict = "as it was made" if one.good else "not as it was made"
        return "\n".join([*lines, f"{one.files} files, {verdict}", f"digest {one.digest}"])


def verify(source: Path) -> Verified:
    """Compare a bundle with its own list of sums."""
    return Verified(source, compare(source))


def bundle(options: BundleOptions) -> Bundled:
    """Make a bundle; interrupted, the same command goes on with the wheels and images it has.

    Raises:
        Glm5Error: the plan, the site or a setting is at fault, or pip or docker failed.
        OSError: a file cannot be read or written.
    """
    if not _PYTHON.fullmatch(options.python):
        raise Glm5Error(f"--python {options.python!r} is no version", "3.11 or the like")
    plan = Plan.load(options.plan)
    if not options.dry_run:
        _check_before(options)
    images = (image(plan), *AROUND.values())
    scripts, unused = _scripts(options, None)
    target = Target(options.python, options.arch)
    with ExitStack() as stack:
        own, wheels = Path(), list[Wheel]()
        if options.wheels:
            own, wheels = stack.enter_context(resolved(project_source(options.project), target))
        if options.dry_run or options.out is None:
            return Bundled(None, "", images, scripts, tuple(wheels), unused)
        work = _work_folder(options.out, keep_wheels=options.wheels, keep_images=options.images)
        _scripts(options, work / "scripts")
        plan.dump(work / "plan.yaml")
        _write_texts(work, plan, options, images)
        if options.wheels:
            fetch(own, wheels, target, work / "wheels")
    if options.images:
        _save_images(work)
    made = Bundled(options.out, "", images, scripts, tuple(wheels))
    described = {**made.as_dict(), "out": None, "plan": plan.as_dict()}
    described |= {"project": f"glm5-ascend {__version__}"}
    described |= {"python": options.python, "arch": options.arch}
    write_whole(work / "bundle.json", json.dumps(described, indent=1) + "\n")
    digest = write_sums(work, _MARK)
    _finish(work, options.out)
    return replace(made, digest=digest, unused=unused)


def _scripts(options: BundleOptions, out: Path | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the scripts, which are written where ``out`` is a folder, and what had no use."""
    if options.scripts is not None:
        return _copied(options.scripts, out), ()
    rendering = RenderOptions(
        plan=options.plan,
        format=options.format,
        out=out,
        checkpoint=options.checkpoint,
        hosts=options.hosts,
        nic=options.nic,
        port=options.port,
        name=options.name,
        dry_run=out is None,
    )
    rendered = render(rendering)
    return tuple(rendered.texts), rendered.unused


def _copied(source: Path, out: Path | None) -> tuple[str, ...]:
    paths = sorted(source.iterdir())
    if not paths:
        raise Glm5Error(f"{source} is empty", "name a folder that render wrote")
    for path in paths:
        if path.is_symlink() or not path.is_file() or not _NAME.fullmatch(path.name):
            raise Glm5Error(f"{path} is no file of render", "name a folder that render wrote")
    if out is not None:
        out.mkdir()
        for path in paths:
            shutil.copy(path, out / path.name)
    return tuple(path.name for path in paths)


def _partial(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def _check_before(options: BundleOptions) -> None:
    """Refuse before hours of downloads what cannot end well."""
    out = options.out
    if out is not None and (out.exists() or out.is_symlink()):
        raise Glm5Error(f"{out} exists", "remove it, or name another")
    if out is not None and _partial(out).exists() and not (_partial(out) / _MARK).is_file():
        raise Glm5Error(
            f"{_partial(out)} is in the way and not of a bundle", "remove it, or name another"
        )
    if options.images and shutil.which("docker") is None:
        raise PreflightError(
            "docker is not here, which pulls and saves images", "run save-images.sh elsewhere"
        )


def _work_folder(out: Path, *, keep_wheels: bool, keep_images: bool) -> Path:
    """``OUT.partial``, emptied but for what was fetched."""
    work = _partial(out)
    work.mkdir(parents=True, exist_ok=True)
    (work / _MARK).touch()
    kept = {_MARK, *(["wheels"] if keep_wheels else []), *([IMAGES] if keep_images else [])}
    for path in work.iterdir():
        if path.name in kept:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return work


def _write_texts(work: Path, plan: Plan, options: BundleOptions, images: tuple[str, ...]) -> None:
    rows = [f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.tar {name}\n" for name in images]
    write_whole(work / "images.txt", "".join(rows))
    write_whole(work / "save-images.sh", _SAVE.format(platform=_PLATFORMS[options.arch]))
    write_whole(work / "install.sh", (_HERE / "install.sh").read_text(encoding="utf-8"))
    about = f"{plan.model} {plan.quant} on {plan.servers} x {plan.sku}, vllm-ascend {plan.release}"
    write_whole(work / "README.txt", _README.format(about=about))


def _save_images(work: Path) -> None:
    done = subprocess.run(["sh", str(work / "save-images.sh")], check=False, stdout=2)
    if done.returncode:
        raise ChildFailed(
            f"save-images.sh ended with {done.returncode}", "the same command goes on"
        )


def _finish(work: Path, out: Path) -> None:
    """Rename, or pack with fixed order, owners and times, so that equal bundles are equal files."""
    if out.suffix != ".tar":
        (work / _MARK).unlink()
        os.replace(work, out)
        return
    packed = out.with_name(f"{out.name}.packing")

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = 0
        return member

    try:
        with packed.open("wb") as stream:
            with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for path in sorted(set(work.rglob("*")) - {work / _MARK}):
                    inner = f"{out.stem}/{path.relative_to(work).as_posix()}"
                    archive.add(path, inner, recursive=False, filter=plain)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(packed, out)
    except BaseException:
        packed.unlink(missing_ok=True)
        raise
    shutil.rmtree(work)
