"""The package list, the links and what a wheel holds."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINKED = ("deploy", "ops", "quant")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def packages_on_disk(root: Path) -> set[str]:
    """Dotted name of every folder with an ``__init__.py`` below the package's four roots."""
    roots = {root / "glm5_ascend": "glm5_ascend"}
    roots |= {root / name: f"glm5_ascend.{name}" for name in LINKED}
    found = set()
    for top, name in roots.items():
        for folder, folders, files in os.walk(top):
            folders[:] = [f for f in folders if not (Path(folder) / f).is_symlink()]
            if "__init__.py" in files:
                below = Path(folder).relative_to(top).parts
                found.add(".".join((name, *below)))
    return found


def test_package_list_equals_folders() -> None:
    listed = SETTINGS["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == packages_on_disk(ROOT), "correct [tool.setuptools] packages"


def test_a_forgotten_folder_is_noticed(tmp_path: Path) -> None:
    for name in ("glm5_ascend", "ops", "ops/new_op"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "glm5_ascend" / "ops").symlink_to("../ops")
    assert packages_on_disk(tmp_path) == {
        "glm5_ascend",
        "glm5_ascend.ops",
        "glm5_ascend.ops.new_op",
    }


def test_every_mapped_folder_has_a_relative_link_and_the_other_way_round() -> None:
    mapping = SETTINGS["package-dir"]
    assert mapping == {f"glm5_ascend.{name}": name for name in LINKED}
    for name in LINKED:
        link = ROOT / "glm5_ascend" / name
        assert link.is_symlink()
        assert os.readlink(link) == f"../{name}"
        assert (link / "__init__.py").is_file()


def test_no_stray_top_level_names() -> None:
    assert all(name.split(".")[0] == "glm5_ascend" for name in SETTINGS["packages"])
    code = (
        "import importlib.metadata as m, sys; import glm5_ascend;"
        "print([n for n in ('ops', 'quant', 'deploy') if m.packages_distributions().get(n)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "tests", check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wheel_and_sdist_in_a_clean_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.check_wheel"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
