"""``endpoint``: its files, the keys, and what it refuses."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from glm5_ascend.deploy.endpoint.keys import add_keys, known_clients
from glm5_ascend.deploy.endpoint.site import site_of
from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.errors import Glm5Error
from tests.deploy.render.plans import HOSTS, PLANS, plan, role, written
from tests.deploy.render.test_schemas import compose_schema

ONE = PLANS["mixed one node"]


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["endpoint", *(str(word) for word in words)])


def test_files(tmp_path: Path) -> None:
    result = run(written(ONE, tmp_path), "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["schema"], found["format"]) == (1, "endpoint")
    paths = {Path(name) for name in found["files"]}
    assert paths == set((tmp_path / "out").iterdir())
    assert {path.name for path in paths} == {
        *("nginx.conf", "api_keys.map", "prometheus.yml", "alerts.yml", "dashboard.json"),
        *("grafana-datasource.yml", "grafana-dashboards.yml", "compose.yaml"),
    }
    key = re.findall(r"Bearer (\w+)", (tmp_path / "out" / "api_keys.map").read_text())[0]
    others = [path.read_text() for path in paths if path.name != "api_keys.map"]
    assert all(key not in text for text in [*others, result.output])
    assert "@" not in re.sub(r"@e\d{3}", "", (tmp_path / "out" / "nginx.conf").read_text())


def test_dry_run_makes_no_keys(tmp_path: Path) -> None:
    result = run(written(ONE, tmp_path), "--dry-run")
    assert result.exit_code == 0
    assert "# ----- nginx.conf" in result.stdout
    assert "Bearer " not in re.sub(r'"Bearer \$http|Bearer always|Bearer KEY', "", result.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]
    assert run(tmp_path / "plan.yaml").exit_code == 2
    # What a real run would refuse.
    refused = run(tmp_path / "plan.yaml", "--dry-run", "--client", "a b")
    assert (refused.exit_code, refused.stdout) == (1, "")


def test_compose(tmp_path: Path) -> None:
    result = run(written(ONE, tmp_path), "--out", tmp_path / "out", "--cert", "/tls/a.pem")
    assert result.exit_code == 0
    document = yaml.safe_load((tmp_path / "out" / "compose.yaml").read_text())
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft7Validator(compose_schema())
    assert list(validator.iter_errors(document)) == []
    nginx, prometheus, grafana = (
        document["services"][name] for name in ("nginx", "prometheus", "grafana")
    )
    assert "/tls/a.pem:/tls/a.pem:ro" in nginx["volumes"]
    # Nothing but nginx listens to other machines.
    assert "--web.listen-address=127.0.0.1:9090" in prometheus["command"]
    assert grafana["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    for one in (nginx, prometheus, grafana):
        for source, target, *_ in (volume.split(":") for volume in one["volumes"]):
            assert target.startswith("/")
            if source.startswith("./") and source != "./logs":
                assert (tmp_path / "out" / source).is_file()
            assert re.search(r":v?\d+\.\d+\.\d+$", one["image"])


# ----- keys


def test_keys_are_kept_and_added(tmp_path: Path) -> None:
    assert add_keys(tmp_path, ["a", "b", "a"]) == ["a", "b"]
    file = tmp_path / "api_keys.map"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    old = file.read_text()
    assert add_keys(tmp_path, ["a"]) == []
    assert file.read_text() == old
    assert add_keys(tmp_path, ["c"]) == ["c"]
    assert file.read_text().startswith(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    keys = re.findall(r'"Bearer ([0-9a-f]{64})"', file.read_text())
    assert len(set(keys)) == 3
    assert known_clients(file.read_text()) == ["a", "b", "c"]
    assert [path.name for path in tmp_path.iterdir()] == ["api_keys.map"]


@pytest.mark.parametrize(
    "text",
    [
        '"Bearer x" a',
        "Bearer x a;",
        '"Bearer $x" a;',
        '"Bearer x y" a;',
        '"x" a;',
        '"Bearer x" a b;',
    ],
)
def test_lines_that_are_no_keys(text: str, tmp_path: Path) -> None:
    with pytest.raises(Glm5Error, match="line 2 is no key"):
        known_clients(f"# keys\n{text}\n")
    (tmp_path / "api_keys.map").write_text(f"# keys\n{text}\n")
    result = run(written(ONE, tmp_path), "--out", tmp_path)
    assert result.exit_code == 1
    assert (tmp_path / "api_keys.map").read_text() == f"# keys\n{text}\n"


@pytest.mark.parametrize("name", ["", "a b", 'a"', "a;b", "-a", "é", "a" * 65])
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(Glm5Error, match="no name of a client"):
        add_keys(tmp_path, [name])
    assert not list(tmp_path.iterdir())


# ----- what follows from the plan


def changed(made: Plan, flags: dict[str, Any], env: dict[str, str]) -> Plan:
    roles = tuple(
        replace(one, flags={**one.flags, **flags}, env={**one.env, **env}) for one in made.roles
    )
    return replace(made, roles=roles)


def test_sizes_and_times() -> None:
    site = site_of(PLANS["two prefills"], hosts=",".join(HOSTS))
    assert site.entries == ("10.0.0.1:8000",)
    assert site.health == "/healthcheck"
    # 32 ranks of 8 sequences write answers; prefill's do not count.
    assert (site.sequences, site.context) == (256, 65_536)
    long = changed(ONE, {"max-model-len": 1_000_000}, {})
    assert site_of(long).body_mib == 31  # 32,000,000 bytes are 30.5 MiB
    assert site_of(long).timeout_s == 80_000
    assert site_of(replace(long, predicted={})).timeout_s == 86_400
    assert site_of(changed(ONE, {"max-model-len": 2048}, {})).timeout_s == 600
    assert site_of(ONE).keep_alive_s == 4
    kept = changed(ONE, {}, {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "30"})
    assert site_of(kept).keep_alive_s == 29
    two = site_of(PLANS["mixed two instances"], hosts="10.0.0.1,10.0.0.2")
    assert (two.entries, two.health) == (("10.0.0.1:8000", "10.0.0.2:8000"), "/health")


def test_a_server_per_rank() -> None:
    site = site_of(PLANS["two prefills"], hosts=",".join(HOSTS), external_dp=True)
    assert site.entries == ("10.0.0.1:8000",)
    decode = [engine.target for engine in site.engines if engine.role == "decode"]
    assert decode == [f"10.0.0.{host}:{8100 + rank}" for host in (3, 4) for rank in range(16)]
    assert [engine.instance for engine in site.engines] == [0, 1, *[2] * 32]
    with pytest.raises(PlanError):
        site_of(ONE, external_dp=True)


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        ({"max-num-seqs": True}, {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "²"}),
        ({"max-num-seqs": "8"}, {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "-3"}),
        ({"max-num-seqs": 1 << 40}, {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "9" * 9}),
    ],
)
def test_odd_numbers(flags: dict[str, Any], env: dict[str, str]) -> None:
    site = site_of(changed(ONE, flags, env))
    assert (site.sequences, site.keep_alive_s) == (2 * 256, 4)


@pytest.mark.parametrize("length", [True, "64k", 0, 1 << 31, -1])
def test_lengths_that_are_none(length: object) -> None:
    with pytest.raises(PlanError, match="no number as max-model-len"):
        _ = site_of(changed(ONE, {"max-model-len": length}, {})).context


@pytest.mark.parametrize(
    ("flags", "env", "words"),
    [
        ({"api-key": "x"}, {}, "flag api-key"),
        ({"ssl-certfile": "x"}, {}, "flag ssl-certfile"),
        ({}, {"VLLM_API_KEY": "x"}, "VLLM_API_KEY"),
    ],
)
def test_engines_that_do_it_themselves(
    flags: dict[str, Any], env: dict[str, str], words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        site_of(changed(ONE, flags, env))


def test_a_plan_without_a_length(tmp_path: Path) -> None:
    flags = {k: v for k, v in ONE.roles[0].flags.items() if k != "max-model-len"}
    made = replace(ONE, roles=(replace(ONE.roles[0], flags=flags),))
    result = run(written(made, tmp_path), "--dry-run")
    assert result.exit_code == 1
    assert "error: the plan has no number as max-model-len" in result.output
    assert "hint: " in result.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--cert", "tls/a.pem"), "no plain absolute path"),
        (("--cert-key", "/a;b"), "no plain absolute path"),
        (("--logs", "/a b"), "no plain absolute path"),
        (("--domain", "a;b"), "no host name"),
        (("--listen", "70000"), "no port"),
        (("--rate", "2000000"), "no limit"),
        (("--npu-exporter", "70000"), "no port"),
        (("--hosts", "10.0.0.1,10.0.0.2"), "2 addresses for 1"),
    ],
)
def test_settings_that_cannot_be(words: tuple[str, ...], text: str, tmp_path: Path) -> None:
    result = run(written(ONE, tmp_path), "--out", tmp_path / "out", *words)
    assert result.exit_code == 1
    assert text in result.output
    assert "hint: " in result.output
    assert not (tmp_path / "out").exists()


def test_servers_without_addresses() -> None:
    made = plan("a3-752t", 2, *(role("mixed", (n,), "dp2tp8", 400) for n in (0, 1)))
    with pytest.raises(PlanError, match="addresses of 2 servers are missing"):
        site_of(made)


def test_what_render_refuses_is_refused() -> None:
    with pytest.raises(PlanError, match="tensor-parallel-size"):
        site_of(changed(ONE, {"tensor-parallel-size": 3}, {}))
