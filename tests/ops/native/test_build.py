"""The cache of compiled kernels: what makes a new file, who waits for whom, what errors say."""

from __future__ import annotations

import ctypes
import errno
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from glm5_ascend.env import EnvironmentVariableError
from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.native import build, compiler, isa, library

loader = sys.modules["glm5_ascend.ops.native.library"]  # the name means its function
_ONE = 'extern "C" __attribute__((visibility("default"))) int one() { return VALUE; }\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLM5_ASCEND_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    path = tmp_path / "one.cpp"
    path.write_text('#include "value.h"\n' + _ONE)
    return path


def _build(source: Path, flags: tuple[str, ...] = ()) -> Path:
    return build.build("one", [source], [source.with_name("value.h")], flags, source.parent)


def _one(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).one())


@pytest.mark.usefixtures("cache")
def test_compiles_once(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = _build(source)
    assert _one(path) == 1
    assert capfd.readouterr().err == "compiling CPU kernels: one\n"
    before = path.stat().st_mtime_ns
    assert _build(source) == path
    assert path.stat().st_mtime_ns == before
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("cache")
def test_header_source_flags_and_compiler_make_a_new_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {_build(source)}
    source.with_name("value.h").write_text("#define VALUE 2\n")
    changed = _build(source)
    assert _one(changed) == 2
    found.add(changed)
    source.write_text(source.read_text() + "// more\n")
    found.add(_build(source))
    found.add(_build(source, ("-DANYTHING",)))
    wrapper = tmp_path / "newer"
    wrapper.write_text('#!/bin/sh\n[ "$1" = --version ] && echo newer || exec g++ "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(wrapper))
    found.add(_build(source))
    assert len(found) == 5


def test_who_comes_second_waits(
    source: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads here; the lock is one of open files and holds between processes alike."""
    wrapper, log = tmp_path / "slow", tmp_path / "log"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || {{ echo x >> {log}; sleep 0.3; }}\nexec g++ "$@"\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(wrapper))
    with ThreadPoolExecutor(3) as pool:
        paths = set(pool.map(_build, [source] * 3))
    assert len(paths) == 1
    assert log.read_text() == "x\nx\n"  # one compilation, one link
    assert not [p for p in cache.iterdir() if p.is_dir()]


@pytest.mark.usefixtures("cache")
def test_no_compiler(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailable) as caught:
        _build(source)
    assert caught.value.message == "the CPU kernels cannot be compiled: no C++ compiler"
    assert "install g++" in caught.value.hint
    assert "--op-backend reference" in caught.value.hint


@pytest.mark.usefixtures("cache")
def test_a_named_compiler_is_never_replaced(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++ -q")
    with pytest.raises(
        BackendUnavailable, match="CXX is '/nowhere/c\\+\\+ -q', which does not run"
    ):
        _build(source)


@pytest.mark.usefixtures("cache")
def test_a_compiler_that_is_no_command(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "'g++ -q")
    with pytest.raises(BackendUnavailable, match="which is no command: no closing quotation"):
        _build(source)


@pytest.mark.parametrize("stage", ["-c", "-shared"])
def test_a_compiler_that_writes_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, stage: str
) -> None:
    wrapper = tmp_path / "idle"
    wrapper.write_text(f'#!/bin/sh\ncase " $* " in *" {stage} "*) ;; *) exec g++ "$@" ;; esac\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(wrapper))
    name = "one-[0-9a-f]{16}" + (r"\.o" if stage == "-c" else r"\.so")
    with pytest.raises(
        BackendUnavailable, match=f"idle ends with exit code 0 but wrote no {name}"
    ) as caught:
        _build(source)
    assert "set CXX" in caught.value.hint
    assert not list(cache.glob("*.so"))


def test_a_folder_that_lets_nobody_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prefix: str, dir: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(dir / prefix))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with (
        pytest.raises(BackendUnavailable, match="cannot write compiled kernels to"),
        build.unfinished(tmp_path / "file"),
    ):
        pass


def test_an_error_in_a_source(source: Path, cache: Path) -> None:
    source.write_text("int one() { return missing; }\n")
    with pytest.raises(
        BackendUnavailable, match=r": one\.cpp:1:\d+: error: 'missing' was"
    ) as caught:
        _build(source)
    log = next(cache.glob("*/*.log"))
    assert str(log) in caught.value.hint
    text = log.read_text()
    assert "-std=c++17" in text
    assert "missing" in text
    assert not list(cache.glob("*.so")) + list(cache.glob("*.o"))


def test_only_the_latest_failure_is_kept(source: Path, cache: Path) -> None:
    good, other = source.read_text(), source.with_name("one_more.cpp")
    foreign = cache / f"one-{'0' * 16}.o.working"  # of another process, unfinished
    foreign.mkdir(parents=True)

    def fail(path: Path, name: str) -> Path:
        path.write_text(f"int one() {{ return {name}; }}\n")
        with pytest.raises(BackendUnavailable, match=f"'{name}' was") as caught:
            build.build("one", [path], [], (), path.parent)
        (log,) = (log for log in cache.glob("*/*.log") if str(log) in caught.value.hint)
        return log

    elsewhere = fail(other, "far")
    for name in ("first", "second", "third"):
        log = fail(source, name)
        assert set(cache.glob("*/*.log")) == {log, elsewhere}
        assert name in log.read_text()
    source.write_text(good)
    _build(source)
    assert {path for path in cache.iterdir() if path.is_dir()} == {elsewhere.parent, foreign}


def test_what_is_interrupted_leaves_no_folder(tmp_path: Path) -> None:
    def interrupted() -> None:
        with build.unfinished(tmp_path / "one.o") as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_a_cache_that_cannot_be_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GLM5_ASCEND_CACHE", str(tmp_path / "file"))
    with pytest.raises(BackendUnavailable, match="no folder for compiled kernels") as caught:
        _build(source)
    assert "GLM5_ASCEND_CACHE" in caught.value.hint


def test_no_home(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(BackendUnavailable, match="no folder for compiled kernels"):
        _build(source)


@pytest.mark.usefixtures("cache")
def test_a_library_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_bytes(b"no library")
    monkeypatch.setattr(loader, "build", lambda *_: tmp_path / "broken.so")
    with pytest.raises(BackendUnavailable, match=r"cannot be loaded: .*broken\.so"):
        loader._load.__wrapped__("native", "portable")


def test_an_unfinished_file_is_made_again(source: Path, cache: Path) -> None:
    path = _build(source)
    library_bytes = path.read_bytes()
    path.unlink()
    assert _build(source).read_bytes() == library_bytes
    assert len(list(cache.glob("*.o"))) == 1


def test_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    best = isa.selected()
    assert not isa.missing(best)
    for chosen in isa.INSTRUCTION_SETS:
        monkeypatch.setenv("GLM5_ASCEND_CPU_ISA", chosen.name)
        lack = isa.missing(chosen)
        if not lack:
            assert isa.selected() == chosen
            continue
        with pytest.raises(BackendUnavailable, match=f"'{chosen.name}', but.* lacks {lack[0]}"):
            library("native")
    monkeypatch.setenv("GLM5_ASCEND_CPU_ISA", "sse9")
    with pytest.raises(EnvironmentVariableError, match="'sse9', which is not one of auto, avx512"):
        library("native")


def test_auto_takes_the_best_set_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {chosen.name: chosen for chosen in isa.INSTRUCTION_SETS}
    machines = {"avx512": "x86_64", "avx2": "x86_64", "neon": "aarch64", "portable": "riscv64"}
    for name, machine in machines.items():
        monkeypatch.setattr(isa.platform, "machine", lambda m=machine: m)
        monkeypatch.setattr(isa, "_features", lambda n=name: by_name[n].features)
        isa._named.cache_clear()
        assert isa.selected().name == name
    isa._named.cache_clear()


@pytest.mark.parametrize("value", ["0", "-1", "two", "1025", "1.5"])
def test_impossible_numbers_of_threads(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_ASCEND_THREADS", value)
    with pytest.raises(EnvironmentVariableError, match="no number from 1 to 1024"):
        library("native")


def test_flags_keep_the_meaning_of_nan_and_the_order_of_sums() -> None:
    assert not {"-ffast-math", "-Ofast", "-fassociative-math", "-ffinite-math-only"} & set(
        compiler.FLAGS
    )
