"""``bundle``: what is in it, that damage is refused, and that it installs without a network."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from glm5_ascend.deploy.bundle import command
from tests.deploy.bundle import tiny
from tests.deploy.bundle.making import PLAN, install, made, run
from tests.deploy.render.plans import site, written
from tests.deploy.render.test_schemas import complaints

IMAGE = "quay.io/ascend/vllm-ascend:v0.30.0rc2-a3"


# ----- what is in it


def test_files_and_sums(tmp_path: Path) -> None:
    folder = made(tmp_path)
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert files == {
        *("README.txt", "SHA256SUMS", "bundle.json", "images.txt", "install.sh", "plan.yaml"),
        *("save-images.sh", "scripts/node0.sh", "scripts/node1.sh"),
    }
    rows = dict(
        reversed(row.split("  ")) for row in (folder / "SHA256SUMS").read_text().splitlines()
    )
    wanted = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in files}
    assert rows == {n: s for n, s in wanted.items() if n != "SHA256SUMS"}
    run(
        "render", tmp_path / "plan.yaml", "--format", "docker", "--out", tmp_path / "r", *site(PLAN)
    )
    for name in ("node0.sh", "node1.sh"):
        assert (folder / "scripts" / name).read_text() == (tmp_path / "r" / name).read_text()
    images = [row.split() for row in (folder / "images.txt").read_text().splitlines()]
    assert images[0] == ["quay.io_ascend_vllm-ascend_v0.30.0rc2-a3.tar", IMAGE]
    assert len({file for file, _ in images}) == len(images) == 4
    described = json.loads((folder / "bundle.json").read_text())
    assert described["plan"] == PLAN.as_dict()
    assert described["images"][0] == IMAGE
    assert not list(tmp_path.glob("*.partial"))


def test_scripts_pass_shellcheck(tmp_path: Path) -> None:
    folder = made(tmp_path)
    assert complaints(folder / "install.sh", folder / "save-images.sh") == ""


def test_equal_bundles_are_equal_files(tmp_path: Path) -> None:
    folder, first = made(tmp_path), made(tmp_path, "a.tar")
    os.utime(tmp_path / "plan.yaml", (1, 1))
    again = run("bundle", tmp_path / "plan.yaml", "--out", tmp_path / "b" / "a.tar", *site(PLAN))
    assert again.exit_code == 0
    assert first.read_bytes() == (tmp_path / "b" / "a.tar").read_bytes()
    with tarfile.open(first) as archive:
        names = [member.name for member in archive if member.isfile()]
        modes = {member.name: member.mode for member in archive}
    own = [
        f"a/{p.relative_to(folder).as_posix()}" for p in sorted(folder.rglob("*")) if p.is_file()
    ]
    assert names == own
    assert modes["a/install.sh"] & 0o111
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b", "out", "plan.yaml"]
    digests = [
        json.loads(run("bundle", "--verify", path, "--json").stdout)["digest"]
        for path in (folder, first)
    ]
    assert digests[0] == digests[1]
    assert digests[0] == hashlib.sha256((folder / "SHA256SUMS").read_bytes()).hexdigest()


def test_scripts_that_are_there(tmp_path: Path) -> None:
    plan, folder = written(PLAN, tmp_path), tmp_path / "scripts"
    run("render", plan, "--format", "compose", "--out", folder, *site(PLAN))
    (folder / "extra.sh").write_text("#!/bin/sh\n")
    (folder / "extra.sh").chmod(0o755)
    words = ("bundle", plan, "--scripts", folder)
    found = json.loads(run(*words, "--dry-run", "--json").stdout)
    assert found["scripts"] == ["extra.sh", "node0.compose.yaml", "node1.compose.yaml"]
    assert run(*words, "--out", tmp_path / "out").exit_code == 0
    for path in folder.iterdir():
        copy = tmp_path / "out" / "scripts" / path.name
        assert (copy.read_bytes(), copy.stat().st_mode) == (path.read_bytes(), path.stat().st_mode)
    assert run("bundle", "--verify", tmp_path / "out").exit_code == 0
    assert run(*words, "--nic", "eth0", "--dry-run").exit_code == 2
    (folder / "link").symlink_to("/etc/hostname")
    assert "is no file of render" in run(*words, "--dry-run").output
    (tmp_path / "empty").mkdir()
    assert "is empty" in run("bundle", plan, "--scripts", tmp_path / "empty", "--dry-run").output


def test_dry_run(tmp_path: Path) -> None:
    plan = written(PLAN, tmp_path)
    found = json.loads(run("bundle", plan, "--dry-run", "--json", *site(PLAN)).stdout)
    assert found["scripts"] == ["node0.sh", "node1.sh"]
    assert (found["out"], found["wheels"], found["images"][0]) == (None, [], IMAGE)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


# ----- damage


def flip(folder: Path) -> None:
    path = folder / "scripts" / "node1.sh"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


def remove(folder: Path) -> None:
    (folder / "plan.yaml").unlink()


def add(folder: Path) -> None:
    (folder / "scripts" / "node9.sh").write_text("x")


def link(folder: Path) -> None:
    (folder / "plan.yaml").rename(folder.parent / "elsewhere")
    (folder / "plan.yaml").symlink_to(folder.parent / "elsewhere")


def dangling(folder: Path) -> None:
    (folder / "scripts" / "x").symlink_to("/nowhere")


def folder_link(folder: Path) -> None:
    (folder / "more").symlink_to(folder.parent)


def image_changed(folder: Path) -> None:
    folder = folder / "images"
    folder.mkdir()
    (folder / "a.tar").write_text("layers")
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  a.tar\n")


def image_unlisted(folder: Path) -> None:
    (folder / "images").mkdir()
    (folder / "images" / "a.tar").write_text("layers")
    (folder / "images" / "SHA256SUMS").write_text("")


DAMAGES: dict[Callable[[Path], None], tuple[str, str]] = {
    flip: ("changed", "scripts/node1.sh"),
    remove: ("missing", "plan.yaml"),
    add: ("unlisted", "scripts/node9.sh"),
    link: ("changed", "plan.yaml"),
    dangling: ("unlisted", "scripts/x"),
    folder_link: ("unlisted", "more"),
    image_changed: ("changed", "images/a.tar"),
    image_unlisted: ("unlisted", "images/a.tar"),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_damage_is_refused(damage: Callable[[Path], None], tmp_path: Path) -> None:
    folder = made(tmp_path)
    assert run("bundle", "--verify", folder).exit_code == 0
    good = install(folder, "--check")
    assert (good.returncode, good.stderr) == (0, "")
    damage(folder)
    kind, name = DAMAGES[damage]
    packed = tmp_path / "p.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(folder, "top")
    for source in (folder, packed):
        result = run("bundle", "--verify", source, "--json")
        found = json.loads(result.stdout)
        assert (result.exit_code, found["good"]) == (1, False)
        assert {k: found[k] for k in ("missing", "changed", "unlisted")} == {
            **{key: [] for key in ("missing", "changed", "unlisted")},
            kind: [name],
        }
        assert f"{kind}: {name}" in run("bundle", "--verify", source).stdout
    bad = install(folder)
    assert bad.returncode == 1
    assert "error: " in bad.stderr
    assert "hint: " in bad.stderr


def test_the_sum_of_the_sums(tmp_path: Path) -> None:
    plan = written(PLAN, tmp_path)
    result = run("bundle", plan, "--out", tmp_path / "out", *site(PLAN), "--json")
    digest, folder = json.loads(result.stdout)["digest"], tmp_path / "out"
    assert install(folder, "--check", "--digest", digest).returncode == 0
    # Someone who changes a file and its sum is seen by this alone.
    flip(folder)
    done = subprocess.run(
        "sha256sum README.txt bundle.json images.txt install.sh plan.yaml"
        " save-images.sh scripts/* > SHA256SUMS",
        shell=True,
        cwd=folder,
    )
    assert done.returncode == 0
    assert install(folder, "--check").returncode == 0
    bad = install(folder, "--check", "--digest", digest)
    assert bad.returncode == 1
    assert "not the one that was made" in bad.stderr


@pytest.mark.parametrize(
    "text",
    [
        "x",
        f"{'0' * 64}  ../a\n",
        f"{'0' * 64}  a/../b\n",
        f"{'0' * 64}  /etc/passwd\n",
        f"{'0' * 64} a\n",
    ],
)
def test_lists_in_no_form(text: str, tmp_path: Path) -> None:
    (tmp_path / "SHA256SUMS").write_text(text)
    result = run("bundle", "--verify", tmp_path)
    assert result.exit_code == 1
    assert "line 1 of SHA256SUMS is no sum" in result.output


def test_what_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no archive")
    assert "is no whole archive" in run("bundle", "--verify", tmp_path / "a").output
    assert "has no SHA256SUMS" in run("bundle", "--verify", tmp_path).output
    assert run("bundle", "--verify", tmp_path / "none").exit_code == 1


def test_an_archive_that_was_cut(tmp_path: Path) -> None:
    whole = made(tmp_path, "out.tar").read_bytes()
    assert run("bundle", "--verify", tmp_path / "out.tar").exit_code == 0
    with tarfile.open(tmp_path / "out.tar") as archive:
        last = archive.getmembers()[-1]
    cuts = {0: "copy it again", 100: "copy it again", last.offset + 100: "missing: "}
    for size, said in {**cuts, last.offset_data + last.size - 1: "copy it again"}.items():
        (tmp_path / "cut.tar").write_bytes(whole[:size])
        result = run("bundle", "--verify", tmp_path / "cut.tar")
        assert (result.exit_code, type(result.exception)) == (1, SystemExit), size
        assert said in result.output


def test_options_without_effect(tmp_path: Path) -> None:
    plan = written(PLAN, tmp_path)
    for words in (("--verify", plan, "--wheels"), (plan, "--dry-run", "--python", "3.12")):
        result = run("bundle", *words, *(() if "--verify" in words else site(PLAN)))
        assert result.exit_code == 2, words
    result = run("bundle", plan, "--dry-run", "--format", "k8s", *site(PLAN))
    assert result.exit_code == 0
    assert "warning: --hosts is not used for k8s" in result.stderr


def test_usage(tmp_path: Path) -> None:
    plan = written(PLAN, tmp_path)
    for words in ((), (plan,), (plan, "--verify", plan), ("--verify", plan, "--dry-run")):
        assert run("bundle", *words).exit_code == 2, words
    folder = made(tmp_path)
    assert install(folder, "--venv").returncode == 2
    assert install(folder, "--what").returncode == 2
    assert "Usage: sh install.sh" in install(folder, "--help").stdout
    assert run("bundle", plan, "--dry-run", *site(PLAN), "--wheels", "--python", "3").exit_code == 1


# ----- images, and going on


def test_images_are_saved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_ = tmp_path / "bin"
    log = tiny.docker(bin_, broken="docker.io/prom/prometheus:v3.5.0")
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    plan = written(PLAN, tmp_path)
    words = ("bundle", plan, "--out", tmp_path / "out", "--images", *site(PLAN))
    result = run(*words)
    assert result.exit_code == 7
    assert "save-images.sh ended with 7" in result.output
    assert not (tmp_path / "out").exists()
    partial = tmp_path / "out.partial"
    assert len(list((partial / "images").glob("*.tar"))) == 2
    (partial / "scripts" / "stale.sh").write_text("x")
    first = log.read_text()
    tiny.docker(bin_)
    assert run(*words).exit_code == 0
    pulled = [line for line in log.read_text().splitlines() if line.startswith("pull")]
    assert pulled.count(f"pull --platform linux/arm64 {IMAGE}") == 1
    assert len(pulled) == len([row for row in first.splitlines() if row[:4] == "pull"]) + 2
    folder = tmp_path / "out"
    assert not partial.exists()
    assert not (folder / "scripts" / "stale.sh").exists()
    assert "  images/SHA256SUMS\n" in (folder / "SHA256SUMS").read_text()
    name = "quay.io_ascend_vllm-ascend_v0.30.0rc2-a3.tar"
    assert (folder / "images" / name).read_text() == f"layers of {IMAGE}\n"
    assert run("bundle", "--verify", folder).exit_code == 0
    done = install(folder)
    assert done.returncode == 0, done.stderr
    assert f"load --input images/{name}" in log.read_text()
    (folder / "images" / name).write_text("others")
    assert run("bundle", "--verify", folder).exit_code == 1
    assert install(folder).returncode == 1


def test_images_without_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = written(PLAN, tmp_path)
    result = run("bundle", plan, "--out", tmp_path / "out", "--images", *site(PLAN))
    assert result.exit_code == 5
    assert "docker is not here" in result.output


def test_what_is_in_the_way(tmp_path: Path) -> None:
    plan = written(PLAN, tmp_path)
    (tmp_path / "out").mkdir()
    result = run("bundle", plan, "--out", tmp_path / "out", *site(PLAN))
    assert (result.exit_code, "exists" in result.output) == (1, True)
    (tmp_path / "new.partial").mkdir()
    (tmp_path / "new.partial" / "mine").write_text("kept")
    result = run("bundle", plan, "--out", tmp_path / "new", *site(PLAN))
    assert (result.exit_code, "in the way" in result.output) == (1, True)
    assert (tmp_path / "new.partial" / "mine").read_text() == "kept"


def test_a_failed_archive_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = written(PLAN, tmp_path)
    words = ("bundle", plan, "--out", tmp_path / "a.tar", *site(PLAN))

    def full(*words: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(command.tarfile, "open", full)
        assert run(*words).exit_code == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.partial", "plan.yaml"]
    assert run(*words).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "plan.yaml"]
