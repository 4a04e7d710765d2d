"""Commands are found wherever users write them, with the variables they run with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.check.shell import commands
from glm5_ascend.deploy.check.sites import Site, process_site, read_sites
from glm5_ascend.errors import Glm5Error

SWITCHES = release("0.30").switches


def sites(text: str, name: str = "x.sh") -> list[Site]:
    return read_sites(name, text, SWITCHES)


SCRIPT = r"""#!/bin/bash
# vllm serve in a comment
nic="eth0"; local_ip=10.0.0.1
export HCCL_IF_IP=$local_ip
export GLOO_SOCKET_IFNAME="${nic}" HCCL_BUFFSIZE='400'
export OLD=1
unset OLD
cat <<'EOF' > other.sh
vllm serve not-this
EOF
if [ -n "$X" ]; then
  A=1 nohup vllm serve "/m/my model" \
    --port ${PORT:-8000} \
    --additional-config '{"a":
      "$nic"}' --served-model-name "a $nic" > log 2>&1 &
fi
"""


def test_shell_script() -> None:
    (site,) = sites(SCRIPT)
    command = site.command
    assert command.model == "/m/my model"
    assert command.env == {
        "HCCL_IF_IP": "10.0.0.1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "HCCL_BUFFSIZE": "400",
        "A": "1",
    }
    assert command.text("--port") == "8000"
    assert command.text("--served-model-name") == "a eth0"
    assert command.json("--additional-config") == {"a": "$nic"}
    assert site.place.line == 12


@pytest.mark.parametrize(
    "line",
    [
        "a 'b c' \"d e\" f\\ g h\"i j\"k ''",
        'x="1 2"; echo $x "$x" "${x}" \'$x\'',
        "echo a#b  # comment",
        "echo one \\\n two",
        "V=5 echo ${UNSET:-7} ${UNSET-8}",
        'echo "a\\"b" "c\\\\d" "e\\$f"',
    ],
)
def test_words_are_those_of_a_real_shell(line: str) -> None:
    real = 'show() { for w in "$@"; do printf \'%s\\n\' "[$w]"; done; }\n'
    script = line if "echo" in line else f"echo {line}"
    shown = subprocess.run(
        ["sh", "-c", real + script.replace("echo", "show")], capture_output=True, text=True
    ).stdout.splitlines()
    last = list(commands(script))[-1]
    words = [word.value for word in last.words[1:]]
    assert [f"[{word}]" for word in words] == shown


DOCKER = """docker run --rm -itd --net=host --shm-size=16g -e HCCL_BUFFSIZE=400 --env A=b
 --device /dev/davinci0 --device=/dev/davinci1 --device /dev/davinci_manager
 -v /etc/hccn.conf:/etc/hccn.conf --name x quay.io/ascend/vllm-ascend:v0.30.0rc2-a3
 bash -c "export C=1; vllm serve /m -tp 2"
""".replace("\n", " ")


def test_docker_run() -> None:
    (site,) = sites(DOCKER)
    assert site.command.env == {"HCCL_BUFFSIZE": "400", "A": "b", "C": "1"}
    assert site.command.whole("--tensor-parallel-size", 1) == 2
    assert site.launch.host_network
    assert site.launch.devices == (0, 1)
    assert site.launch.image.endswith("v0.30.0rc2-a3")
    assert "/etc/hccn.conf" in site.launch.mounts


COMPOSE = """
services:
  glm:
    image: quay.io/ascend/vllm-ascend:v0.30.0rc2
    network_mode: host
    environment:
      - HCCL_BUFFSIZE=400
    devices: ["/dev/davinci0:/dev/davinci0", "/dev/davinci_manager"]
    volumes: ["/m:/m"]
    command: >
      vllm serve /m/GLM-5.2-w8a8
        --tensor-parallel-size 8
        --additional-config '{"enable_dsa_cp": true}'
  other:
    image: redis
"""


def test_compose() -> None:
    (site,) = sites(COMPOSE, "compose.yaml")
    assert site.command.env == {"HCCL_BUFFSIZE": "400"}
    assert site.command.json("--additional-config") == {"enable_dsa_cp": True}
    assert site.launch.host_network
    assert site.launch.devices == (0,)
    assert site.place.line == 4


KUBERNETES = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: glm}
spec:
  leaderWorkerTemplate:
    leaderTemplate:
      spec:
        hostNetwork: true
        volumes:
          - name: hccn
            hostPath: {path: /etc/hccn.conf}
        containers:
          - name: leader
            image: quay.io/ascend/vllm-ascend:v0.30.0rc2-a3
            env:
              - {name: HCCL_BUFFSIZE, value: "400"}
            command: ["sh", "-c"]
            args:
              - |
                export B=2
                vllm serve /m/GLM-5.2-w8a8 \\
                  --tensor-parallel-size 16
            resources: {limits: {huawei.com/Ascend910: 16}}
            volumeMounts: [{name: hccn, mountPath: /etc/hccn.conf}]
    workerTemplate:
      spec:
        containers:
          - name: worker
            image: x
            command: [vllm, serve, /m/GLM-5.2-w8a8, --headless, "-tp", "16"]
"""


def test_kubernetes() -> None:
    leader, worker = sites(KUBERNETES, "k8s.yaml")
    assert leader.command.env == {"HCCL_BUFFSIZE": "400", "B": "2"}
    assert leader.launch.host_network
    assert leader.launch.mounts == ("/etc/hccn.conf",)
    assert leader.launch.devices == tuple(range(16))
    assert worker.command.switch("--headless")
    assert worker.launch.host_network is False
    assert leader.group == worker.group


CI = """
test_name: "x"
model: "org/GLM-5.2-w8a8"
num_nodes: 2
npu_per_node: 16
env_common: &common {HCCL_BUFFSIZE: 400, SERVER_PORT: 8080, FLAG: true}
deployment:
  - envs: {<<: *common}
    server_cmd: >
      vllm serve org/GLM-5.2-w8a8
        --port $SERVER_PORT
        --additional-config
        '{"enable_dsa_cp": true}'
  - envs: {<<: *common, HCCL_BUFFSIZE: 500}
    server_cmd: "vllm serve org/GLM-5.2-w8a8 --headless"
"""
CI_EXTERNAL = """
model: "org/GLM-5.2-w8a8"
npu_per_node: 16
config:
  - {node_index: 0, dp_size: 4, dp_size_local: 2, dp_rank_start: 2, tp_size: 8, port_start: 7100}
templates:
  - node_index: 0
    envs: {PORT_A: "1"}
    server_cmd_template:
      ["-dp", "${DP_SIZE}", "--data-parallel-rank", "${DP_RANK}", "-tp", "${TP_SIZE}"]
"""
CI_SINGLE = """
_cmd: &cmd ["--port", "$SERVER_PORT", "-tp", "8"]
test_cases:
  - {name: a, model: org/GLM-5-w4a8, envs: {SERVER_PORT: DEFAULT_PORT}, server_cmd: *cmd}
  - name: b
    model: org/GLM-5.1-w8a8
    server_cmd: *cmd
    server_cmd_extra: ["--enforce-eager"]
"""


def test_ci_of_several_nodes() -> None:
    first, second = sites(CI, "ci.yaml")
    assert first.command.env["HCCL_BUFFSIZE"] == "400"
    assert first.command.env["FLAG"] == "true"
    assert first.command.text("--port") == "8080"
    assert first.command.json("--additional-config") == {"enable_dsa_cp": True}
    assert second.command.env["HCCL_BUFFSIZE"] == "500"
    assert (first.npus, first.servers) == (16, 2)


def test_ci_with_a_process_per_rank() -> None:
    (site,) = sites(CI_EXTERNAL, "ci.yaml")
    assert site.command.model == "org/GLM-5.2-w8a8"
    assert site.command.whole("--data-parallel-size", 0) == 4
    assert site.command.whole("--data-parallel-rank", 0) == 2
    assert site.launch.copies == 2


def test_ci_cases_are_deployments_of_their_own() -> None:
    one, two = sites(CI_SINGLE, "ci.yaml")
    assert (one.command.model, two.command.model) == ("org/GLM-5-w4a8", "org/GLM-5.1-w8a8")
    assert two.command.switch("--enforce-eager")
    assert one.group != two.group


def test_a_running_process() -> None:
    code = "import sys, time; print(1, flush=True); time.sleep(60)"
    words = [sys.executable, "-c", code, "vllm", "serve", "/m", "--headless"]
    env = {**os.environ, "HCCL_BUFFSIZE": "400", "SECRET_KEY": "x"}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        site = process_site(process.pid, SWITCHES)
        process.kill()
    assert site.command.model == "/m"
    assert site.command.env["HCCL_BUFFSIZE"] == "400"
    assert "SECRET_KEY" not in site.command.env


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.sh", "echo hello"),
        ("x.yaml", "a: [1"),
        ("x.yaml", "services: {a: {image: b}}"),
        ("x", ""),
    ],
)
def test_what_is_no_command_is_an_error(name: str, text: str) -> None:
    with pytest.raises(Glm5Error):
        sites(text, name)


def test_no_such_process(tmp_path: Path) -> None:
    with pytest.raises(Glm5Error):
        process_site(2**22 + 1, SWITCHES)
    with pytest.raises(Glm5Error, match="no vllm serve"):
        process_site(os.getpid(), SWITCHES)
