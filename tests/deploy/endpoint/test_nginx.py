"""A real nginx on the loopback, in front of a server that streams when it is told to."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from glm5_ascend.deploy.endpoint.keys import add_keys
from tests.deploy.endpoint import gate as gates
from tests.deploy.endpoint.engine import Engine, engine
from tests.deploy.endpoint.gate import Gate, command, configured, running
from tests.deploy.render.plans import HOSTS, PLANS, written

pytestmark = pytest.mark.skipif(bool(gates.MISSING), reason=gates.MISSING)
CHAT = "/v1/chat/completions"
PROMPT = "the-prompt-that-nobody-logs"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gate, Engine]]:
    folder = tmp_path_factory.mktemp("gate")
    plan = written(PLANS["mixed one node"], folder)
    with engine() as server, running(plan, folder / "e", server.server_port) as gate:
        yield gate, server


@pytest.mark.parametrize("name", PLANS)
def test_nginx_accepts_the_configuration(name: str, tmp_path: Path) -> None:
    made = PLANS[name]
    hosts = ",".join(HOSTS[: made.servers])
    plan = written(made, tmp_path)
    gate = configured(plan, tmp_path / "e", 8000, "--hosts", hosts, "--domain", "glm.example.org")
    done = subprocess.run(command(gate, "-t"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr
    text = (gate.folder / "nginx.conf").read_text()
    (gate.folder / "nginx.conf").write_text(text.replace("keepalive 64;", "keepalive x;"))
    assert subprocess.run(command(gate, "-t"), capture_output=True).returncode == 1


def test_pieces_arrive_one_by_one(served: tuple[Gate, Engine]) -> None:
    """The next piece is sent only once the last has arrived, so a buffer would stop it all."""
    gate, server = served
    connection = gate.connect()
    body = json.dumps({"stream": True, "pieces": 5, "messages": [PROMPT]})
    server.go.release()
    connection.request("POST", CHAT, body, {"Authorization": f"Bearer {gate.key}"})
    response = connection.getresponse()
    assert response.status == 200
    assert response.getheader("Content-Type") == "text/event-stream"
    for number in range(5):
        started = time.monotonic()
        assert response.readline() == f"data: {number}\n".encode()
        assert response.readline() == b"\n"
        assert time.monotonic() - started < 2
        server.go.release() if number < 4 else None
    assert response.read() == b""
    connection.close()


def test_a_buffer_would_be_seen(tmp_path: Path) -> None:
    plan = written(PLANS["mixed one node"], tmp_path)

    def buffered(text: str) -> str:
        return text.replace("proxy_buffering off;", "proxy_buffering on;")

    with (
        engine() as server,
        running(plan, tmp_path / "e", server.server_port, change=buffered) as gate,
    ):
        connection = gate.connect()
        connection.timeout = 1
        server.go.release()
        body = json.dumps({"stream": True, "pieces": 2})
        connection.request("POST", CHAT, body, {"Authorization": f"Bearer {gate.key}"})
        with pytest.raises(TimeoutError):
            connection.getresponse().readline()
        connection.close()
        server.go.release()


def test_prompts_pass_without_being_collected(served: tuple[Gate, Engine]) -> None:
    gate, server = served
    text = json.dumps({"messages": ["x" * 200_000]}).encode()
    connection = gate.connect()
    connection.putrequest("POST", CHAT)
    connection.putheader("Authorization", f"Bearer {gate.key}")
    connection.putheader("Content-Length", str(len(text)))
    connection.endheaders()
    while server.arrived.acquire(blocking=False):
        pass
    connection.send(text[:100_000])
    assert server.arrived.acquire(timeout=10), "the engine has seen nothing of the first half"
    connection.send(text[100_000:])
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())) == (200, {"echo": len(text)})
    connection.close()


def test_keys(served: tuple[Gate, Engine]) -> None:
    gate, server = served
    before = len(server.seen)
    for key in (None, "wrong", gate.key[:-1], f"{gate.key}0"):
        response, body = gate.ask(CHAT, {"messages": []}, key)
        assert response.status == 401
        assert response.getheader("WWW-Authenticate") == "Bearer"
        assert json.loads(body)["error"]["type"] == "authentication_error"
    assert gate.ask("/v1/models", key=None)[0].status == 401
    assert gate.ask(f"/v1/models?api_key={gate.key}", key=None)[0].status == 401
    assert len(server.seen) == before
    for path, words in ((CHAT, {}), ("/v1/messages", {"x-api-key": gate.key})):
        key = None if words else gate.key
        response, _ = gate.ask(path, {"messages": []}, key, Cookie="mine", **words)
        assert response.status == 200
        assert server.headers.keys().isdisjoint({"authorization", "x-api-key", "cookie"})
    assert server.headers["x-request-id"] == response.getheader("X-Request-Id")


def test_paths(served: tuple[Gate, Engine]) -> None:
    gate, server = served
    for path in ("/v1/completions", "/v1/responses", "/v1/messages/count_tokens?beta=true"):
        assert gate.ask(path, {})[0].status == 200
        assert server.seen[-1] == f"POST {path}"
    assert gate.ask("/v1/models/zai-org/GLM-5.2")[1] == b"this is /v1/models/zai-org/GLM-5.2"
    assert gate.ask("/health", key=None)[1] == b"this is /health"
    before = len(server.seen)
    inner = ("/metrics", "/docs", "/reset_prefix_cache", "/v1/load_lora_adapter", "/tokenize")
    for path in (*inner, "/_authorise", "/v1/models/../../metrics", "/"):
        response, body = gate.ask(path)
        assert (response.status, json.loads(body)["error"]["code"]) == (404, 404), path
    assert len(server.seen) == before


def test_errors_of_the_engine_are_its_own(served: tuple[Gate, Engine]) -> None:
    gate, _ = served
    response, body = gate.ask(CHAT, {"status": 503})
    assert (response.status, json.loads(body)) == (503, {"echo": 15})
    assert gate.ask(CHAT, {"status": 401})[1] == b'{"echo": 15}'


def test_body_size(served: tuple[Gate, Engine]) -> None:
    gate, server = served
    # 65,536 tokens of 32 bytes are 2 MiB, and 8 MiB is the least.
    text = json.dumps({"messages": ["x" * (8 * 2**20 - 100)]}).encode()
    assert gate.ask(CHAT, text)[0].status == 200
    assert server.bytes == len(text)
    connection = gate.connect()
    connection.putrequest("POST", CHAT)
    connection.putheader("Authorization", f"Bearer {gate.key}")
    connection.putheader("Content-Length", str(8 * 2**20 + 1))
    connection.endheaders()
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (413, 413)
    connection.close()


def test_connections_to_the_engine_are_kept(served: tuple[Gate, Engine]) -> None:
    gate, server = served
    server.connections.clear()
    connection = gate.connect()
    for _ in range(20):
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {gate.key}"})
        assert connection.getresponse().read() == b"this is /v1/models"
    connection.close()
    assert len(server.connections) == 1


def test_tls(served: tuple[Gate, Engine]) -> None:
    gate, _ = served
    with socket.create_connection(("localhost", gate.port), timeout=10) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert plain.recv(100).startswith(b"HTTP/1.1 400")
    with socket.create_connection(("localhost", gate.port), timeout=10) as one:
        context = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(one, server_hostname="localhost")
    connection = gate.connect()
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    assert connection.sock.version() == "TLSv1.3"
    connection.close()


def test_a_client_that_leaves_is_noticed(served: tuple[Gate, Engine]) -> None:
    gate, server = served
    server.broken.clear()
    connection = gate.connect()
    body = json.dumps({"stream": True, "pieces": 50})
    server.go.release()
    connection.request("POST", CHAT, body, {"Authorization": f"Bearer {gate.key}"})
    response = connection.getresponse()
    response.readline()
    response.close()
    connection.close()
    for _ in range(49):
        server.go.release()
        if server.broken.wait(0.1):
            break
    assert server.broken.is_set(), "the engine would go on writing for nobody"
    while server.go.acquire(blocking=False):
        pass


def test_the_audit_log(tmp_path: Path) -> None:
    plan = written(PLANS["mixed one node"], tmp_path)
    with engine() as server, running(plan, tmp_path / "e", server.server_port) as gate:
        text = {"messages": [PROMPT], "model": "GLM"}
        response, body = gate.ask(f"{CHAT}?text={PROMPT}", text, **{"User-Agent": PROMPT})
        gate.audit(1)
        gate.ask_and_log(2, f"/v1/models/{PROMPT}")
        gate.ask_and_log(3, f"/{PROMPT}?key={gate.key}")
        gate.ask_and_log(4, CHAT, text, "a-wrong-key-of-mine", Cookie=PROMPT, Referer=PROMPT)
        gate.ask("/health", key=None)
        gate.ask(f"{CHAT}?key={gate.key}&text={PROMPT}", b"x" * (9 * 2**20))
        lines = gate.audit(5)
        logged, key = gate.logged(), gate.key
    assert len(lines) == 5
    first = lines[0]
    assert first["id"] == response.getheader("X-Request-Id")
    assert (first["client"], first["route"], first["method"]) == ("default", CHAT, "POST")
    assert (first["status"], first["engine_status"], first["complete"]) == (200, "200", "OK")
    assert first["engine"] == f"127.0.0.1:{server.server_port}"
    assert first["bytes_in"] > len(json.dumps(text))
    assert first["bytes_out"] > len(body)
    # Both are read from a clock of milliseconds.
    assert float(first["first_byte"]) <= first["seconds"] + 0.002 < 10
    assert [line["route"] for line in lines] == [CHAT, "/v1/models", "other", CHAT, CHAT]
    assert [line["status"] for line in lines] == [200, 200, 404, 401, 413]
    assert [line["client"] for line in lines] == ["default"] * 3 + ["", "default"]
    for secret in (PROMPT, key, "a-wrong-key-of-mine"):
        assert secret not in logged


def test_rate_and_running_requests_of_a_client(tmp_path: Path) -> None:
    plan = written(PLANS["mixed one node"], tmp_path)
    words = ("--rate", "1", "--burst", "3", "--concurrent", "1", "--client", "a", "--client", "b")
    with engine() as server, running(plan, tmp_path / "e", server.server_port, *words) as gate:
        first, second = gate.keys()
        # A request counts as running until it is logged.
        statuses = [gate.ask_and_log(number, "/v1/models").status for number in range(1, 7)]
        assert statuses == [200] * 4 + [429] * 2
        response, body = gate.ask("/v1/models")
        gate.audit(7)
        assert json.loads(body)["error"]["type"] == "rate_limit_error"
        assert response.getheader("Retry-After") == "1"
        # The other client has a rate of its own, and one request at a time.
        connection = gate.connect()
        server.go.release()
        text = json.dumps({"stream": True, "pieces": 2})
        connection.request("POST", CHAT, text, {"Authorization": f"Bearer {second}"})
        held = connection.getresponse()
        held.readline()
        assert gate.ask("/v1/models", key=second)[0].status == 429
        server.go.release()
        held.read()
        connection.close()
        time.sleep(0.1)
        assert gate.ask("/v1/models", key=second)[0].status == 200
        # Wrong keys count for the address.
        statuses = [gate.ask("/v1/models", key="no")[0].status for _ in range(40)]
        assert statuses[0] == 401
        assert statuses[-1] == 429
        assert [line["client"] for line in gate.audit(8)][:8] == ["a"] * 7 + ["b"]
        assert first != second


def test_a_slow_answer_is_waited_for(tmp_path: Path) -> None:
    made = PLANS["mixed one node"]
    plan = written(made, tmp_path)
    # 65,536 tokens of 40 ms, twice: 5243 s; the same plan without a prediction takes 100 ms.
    for changed, seconds in ((made, 5243), (replace(made, predicted={}), 13_108)):
        gate = configured(written(changed, tmp_path), tmp_path / str(seconds), 8000)
        text = (gate.folder / "nginx.conf").read_text()
        assert re.findall(r"proxy_read_timeout (\d+)s", text)[0] == str(seconds)
        assert re.findall(r" {8}keepalive_timeout (\d+)s", text) == ["4"]  # vLLM closes after 5 s.

    def shorter(text: str) -> str:
        return text.replace("proxy_read_timeout 5243s", "proxy_read_timeout 1s")

    plan, folder = written(made, tmp_path), tmp_path / "run"
    with engine() as server, running(plan, folder, server.server_port, change=shorter) as gate:
        server.wait_s = 10
        response, body = gate.ask(CHAT, {"a": 1})
        server.delay.set()
    assert (response.status, json.loads(body)["error"]["code"]) == (504, 504)


def test_an_engine_that_is_down(tmp_path: Path) -> None:
    plan = written(PLANS["mixed two instances"], tmp_path)
    with engine() as server:
        port, words = server.server_port, ("--hosts", "127.0.0.2,127.0.0.1")
        with running(plan, tmp_path / "e", port, *words) as gate:
            assert [gate.ask(CHAT, {"a": 1})[0].status for _ in range(6)] == [200] * 6
            assert gate.ask("/health", key=None)[0].status == 200
            server.shutdown()
            server.server_close()
            response, body = gate.ask(CHAT, {"a": 1})
            assert (response.status, json.loads(body)["error"]["code"]) == (502, 502)
            assert gate.ask("/health", key=None)[0].status == 502
            engines = [line["engine"] for line in gate.audit(7)]
    assert f"127.0.0.2:{port}, 127.0.0.1:{port}" in engines


def test_requests_go_where_fewer_run(tmp_path: Path) -> None:
    plan = written(PLANS["mixed two instances"], tmp_path)
    words = ("--hosts", "127.0.0.1,127.0.0.2")
    with (
        engine() as one,
        engine("127.0.0.2", one.server_port) as two,
        running(plan, tmp_path / "e", one.server_port, *words) as gate,
    ):
        connection = gate.connect()
        one.go.release()
        two.go.release()
        body = json.dumps({"stream": True, "pieces": 2})
        connection.request("POST", CHAT, body, {"Authorization": f"Bearer {gate.key}"})
        held = connection.getresponse()
        held.readline()
        busy = one if one.seen else two
        for _ in range(6):
            assert gate.ask("/v1/models")[0].status == 200
        assert (len(busy.seen), len(one.seen) + len(two.seen)) == (1, 7)
        one.go.release()
        two.go.release()
        held.read()
        connection.close()


def test_the_proxy_of_a_split_plan(tmp_path: Path) -> None:
    made = PLANS["split"]
    prefill, decode = made.roles
    swapped = (replace(decode, nodes=(0, 1)), replace(prefill, nodes=(2, 3)))
    plan = written(replace(made, roles=swapped), tmp_path)
    # It runs on the first server of prefill.
    hosts = "127.0.0.3,127.0.0.2,127.0.0.1,127.0.0.4"
    with (
        engine() as server,
        running(plan, tmp_path / "e", server.server_port, "--hosts", hosts) as gate,
    ):
        assert gate.ask("/health", key=None)[1] == b"this is /healthcheck"
        assert gate.ask(CHAT, {"a": 1})[0].status == 200


def test_a_new_client(tmp_path: Path) -> None:
    plan = written(PLANS["mixed one node"], tmp_path)
    with engine() as server, running(plan, tmp_path / "e", server.server_port) as gate:
        old = gate.key
        assert add_keys(gate.folder, ["default", "second"]) == ["second"]
        _, new = gate.keys()
        assert gate.ask("/v1/models", key=new)[0].status == 401
        gate.reload()
        # Workers with the old keys may answer for a moment.
        for _ in range(200):
            if gate.ask("/v1/models", key=new)[0].status == 200:
                break
            time.sleep(0.05)
        else:
            pytest.fail("the new key is not known")
        assert gate.ask("/v1/models", key=old)[0].status == 200
