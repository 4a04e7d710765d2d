# Prints facts about this machine; changes nothing. Sections start with "=== NAME" and end with
# "=== rc N". MODEL is a folder or empty.
section() { echo "=== $1"; shift; { "$@"; } 2>&1; echo "=== rc $?"; }
have() { command -v "$1" >/dev/null 2>&1; }
each() { for d in $devices; do echo "--- $d"; "$@" ; done; }
devices=$(ls /dev 2>/dev/null | sed -n 's/^davinci\([0-9][0-9]*\)$/\1/p' | sort -n)
hccn=$(command -v hccn_tool || ls /usr/local/Ascend/driver/tools/hccn_tool 2>/dev/null)
section devices echo "$devices"
have npu-smi && section npu-smi npu-smi info
have npu-smi && section topo npu-smi info -t topo
pods() {
  for n in $(npu-smi info -l 2>/dev/null | sed -n 's/.*NPU ID *: *\([0-9]*\).*/\1/p'); do
    for c in 0 1; do
      echo "--- $n.$c"; npu-smi info -t spod-info -i "$n" -c "$c" 2>&1
    done
  done
}
have npu-smi && section spod pods
if [ -n "$hccn" ] && [ -n "$devices" ]; then
  for topic in link lldp net_health netdetect gateway ip vnic tls; do
    ask() { "$hccn" -i "$d" -$topic -g 2>&1; }
    section "$topic" each ask
  done
fi
section hccn.conf cat /etc/hccn.conf
section shm df -Pk /dev/shm
section meminfo cat /proc/meminfo
section limits sh -c 'ulimit -l; ulimit -n'
section governor cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
section numa_balancing cat /proc/sys/kernel/numa_balancing
section swappiness cat /proc/sys/vm/swappiness
section time date +%s
section user sh -c 'id -u; awk -F: "{print \$3}" /etc/passwd'
section addresses sh -c 'ip -o addr 2>/dev/null || hostname -I'
section listening sh -c 'ss -Hltn 2>/dev/null || netstat -ltn'
section driver cat /usr/local/Ascend/driver/version.info
section cann sh -c 'cat /usr/local/Ascend/ascend-toolkit/latest/version.cfg 2>/dev/null || cat /usr/local/Ascend/cann/version.cfg'
section machine uname -m
section container sh -c 'if [ -e /.dockerenv ] || grep -qs kubepods /proc/1/cgroup; then echo yes; else echo no; fi'
packages() {
  python3 - <<'PY'
from importlib import metadata, util
for name in ("vllm", "vllm-ascend", "torch", "torch-npu", "transformers", "fastapi",
             "mooncake-transfer-engine", "triton-ascend"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
spec = util.find_spec("vllm_ascend")
if spec and spec.submodule_search_locations:
    try:
        text = open(spec.submodule_search_locations[0] + "/_build_info.py").read()
        print("device-type", text.split("__device_type__", 1)[1].split("=", 1)[1].split()[0].strip("'\""))
    except (OSError, IndexError):
        pass
PY
}
have python3 && section packages packages
checkpoint() {
  cd "$MODEL" || return 1
  for f in config.json quant_model_description.json quantize_manifest.json *.index.json; do
    [ -f "$f" ] && sha256sum "$f"
  done
  ls -Ln ./*.safetensors | awk '{print $5, $NF}'
}
[ -n "$MODEL" ] && section checkpoint checkpoint
true
