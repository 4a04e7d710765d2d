"""Ports of simulations: neighbours never share one, and a port in use is passed over."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from glm5_ascend.deploy.preflight import free_port
from glm5_ascend.deploy.simulate.ports import planned, reserved
from glm5_ascend.errors import PreflightError
from tests.deploy.simulate.test_serve import three_ports


def test_ports_that_nothing_stands_in_the_way_of() -> None:
    port = three_ports()
    with reserved(port, 2) as ports:
        assert ports == planned(port, 2) == [port + 100, port + 101]
    with reserved(port, 1) as ports:
        assert ports == planned(port, 1) == [port]


def test_neighbours_share_no_port() -> None:
    port = three_ports()
    with (
        reserved(port, 2) as first,
        reserved(port + 1, 2) as second,
        reserved(port + 2, 2) as third,
    ):
        assert len({*first, *second, *third, port, port + 1, port + 2}) == 9
    with reserved(port + 1, 2) as again:
        assert again == [port + 101, port + 102]


def test_an_engines_port_is_no_endpoint_of_another() -> None:
    port = three_ports()
    with (
        reserved(port, 2) as (engine, _),
        pytest.raises(PreflightError, match=f"port {engine} belongs to another simulation"),
        reserved(engine, 1),
    ):
        pass
    with reserved(port + 100, 1), reserved(port, 2) as ports:
        assert port + 100 not in ports


def test_ports_in_use_are_passed_over() -> None:
    port = three_ports()
    with socket.create_server(("127.0.0.1", port + 100)), reserved(port, 2) as ports:
        assert port + 100 not in ports
        assert len(set(ports)) == 2
    taken = free_port()
    with (
        socket.create_server(("127.0.0.1", taken)),
        pytest.raises(PreflightError, match=f"port {taken} on 127.0.0.1 is in use"),
        reserved(taken, 1),
    ):
        pass


def test_a_reservation_ends_with_its_process_however_it_ends() -> None:
    port = three_ports()
    script = (
        "import sys\nfrom glm5_ascend.deploy.simulate.ports import reserved\n"
        f"with reserved({port}, 2) as ports:\n    print(ports, flush=True)\n    sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == f"[{port + 100}, {port + 101}]\n"
        with pytest.raises(PreflightError, match="another simulation"), reserved(port, 2):
            pass
        other.kill()
        other.wait(30)
    with reserved(port, 2) as ports:
        assert ports == [port + 100, port + 101]


def test_no_ports_left() -> None:
    match = "no 2 ports from 65535 on are free"
    with pytest.raises(PreflightError, match=match), reserved(65_435, 2):
        pass
