"""Build sdist and wheel, install the wheel alone in a clean environment, and use it there.

    python -m tools.check_wheel

The wheel is built from the sdist, so that a file missing in either is noticed. The environment
gets the base dependencies only: no torch, no vLLM.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
_NOT_COPIED = (".git", ".venv*", ".*_cache", "__pycache__", "build", "dist", "*.egg-info")
SMALL_MODEL = "glm5_ascend/assets/small-glm5/"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command, return its stdout; on failure show everything and stop."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_names(names: list[str]) -> None:
    """One top-level package, and every tracked file of it but the operators' explanations."""
    dist_info = f"glm5_ascend-{SETTINGS['project']['version']}.dist-info/"
    stray = [n for n in names if not n.startswith(("glm5_ascend/", dist_info))]
    if stray:
        sys.exit(f"stray top-level names in the wheel: {stray[:5]}")
    folders = SETTINGS["tool"]["setuptools"]["package-dir"]
    tracked = run("git", "ls-files", "glm5_ascend", *folders.values(), cwd=ROOT).splitlines()
    moved = {folder: package.replace(".", "/") for package, folder in folders.items()}
    for file in tracked:
        top, _, rest = file.partition("/")
        wanted = f"{moved.get(top, top)}/{rest}"
        explains = wanted.endswith(".md") and not wanted.startswith(SMALL_MODEL)
        if not (ROOT / file).is_symlink() and not explains and wanted not in names:
            sys.exit(f"{file} is not in the wheel")


def check_installed(bin_dir: Path, cwd: Path, has_model: bool) -> None:
    """Import, version, help, and a look at the small model with the installed package."""
    python, script = bin_dir / "python", bin_dir / "glm5-ascend"
    where = run(python, "-c", "import glm5_ascend; print(glm5_ascend.__file__)", cwd=cwd).strip()
    if not Path(where).is_relative_to(bin_dir.parent):
        sys.exit(f"imported {where} instead of the installed package")
    version = run(script, "--version", cwd=cwd)
    if SETTINGS["project"]["version"] not in version:
        sys.exit(f"wrong version: {version}")
    for command in ("quantize", "inspect", "serve", "demo"):
        run(script, command, "--help", cwd=cwd)
    if has_model:
        model = Path(where).parent / "assets" / "small-glm5"
        report = json.loads(run(script, "inspect", model, "--json", cwd=cwd))
        if report["family"] != "GLM-5.2/5.3" or report["mtp_layers"] != 1:
            sys.exit(f"the packaged model is not the one expected: {report}")


def main() -> int:
    """Command line entry."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        # From a copy, because building writes egg-info next to pyproject.toml.
        source = scratch / "source"
        shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        run(sys.executable, "-m", "build", "--outdir", scratch, source)
        wheels = list(scratch.glob("*.whl"))
        if len(wheels) != 1 or "py3-none-any" not in wheels[0].name:
            sys.exit(f"expected one pure Python wheel, got {wheels}")
        with zipfile.ZipFile(wheels[0]) as archive:
            names = archive.namelist()
        check_names(names)
        venv.create(scratch / "venv", with_pip=True)
        bin_dir = scratch / "venv" / "bin"
        run(bin_dir / "python", "-m", "pip", "install", "-q", wheels[0])
        has_model = any(n.startswith(SMALL_MODEL) for n in names)
        check_installed(bin_dir, scratch, has_model)
        print(
            f"{wheels[0].name}: {len(names)} files, small model {'in' if has_model else 'NOT in'}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
