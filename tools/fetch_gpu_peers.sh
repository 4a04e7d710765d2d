#!/usr/bin/env bash
# Gathers the wheels of the kernels that tools/bench_gpu.py races against, for the machine with the
# GPU: Linux on x86_64, Python 3.12, torch 2.11 with CUDA 13.0. They are downloaded without what they
# depend on and are not installed; the benchmark unpacks them.
#
#   tools/fetch_gpu_peers.sh [FOLDER]    default .gpu-peers, which git ignores
#
# Variables: PYTHON (any with pip), PEER_PYTHON (3.12). A compiled top-k of FlashInfer may be put
# beside the wheels as topk.so; without it the benchmark compiles one only if --jit is given.
# FOLDER/commit names the commit for the rows of a machine that has no repository. Fails if a wheel
# cannot be had or if all of FOLDER exceeds 64 MiB.
set -euo pipefail

cd "$(dirname "$0")/.."
folder=${1:-.gpu-peers}
python=${PYTHON:-python3}
target=${PEER_PYTHON:-3.12}
limit=$((64 << 20))

# Newer releases want torch 2.14 (FlashMLA, DeepGEMM) or exceed the limit (FlashInfer 0.7: 101 MB).
# tokenspeed-flashmla stands in where sgl-flash-mla does not load; tvm-ffi is what FlashInfer loads
# its kernels with.
wheels=(
    sgl-flash-mla==1.0.0
    tokenspeed-flashmla==1.0.0.post20260810
    tokenspeed-deepgemm==2.5.0.post20260629
    flashinfer-python==0.6.12
    apache-tvm-ffi==0.1.12
)

platforms=()
for name in manylinux_2_34 manylinux_2_31 manylinux_2_28 manylinux_2_24 manylinux2014 linux; do
    platforms+=(--platform "${name}_x86_64")
done

mkdir -p "$folder"
rm -rf "$folder/site"  # what the benchmark unpacked of earlier wheels
missing=()
for wheel in "${wheels[@]}"; do
    if ! "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --only-binary :all: --python-version "$target" --implementation cp \
        --abi "cp${target/./}" --abi abi3 --abi none "${platforms[@]}" --platform any \
        --dest "$folder" "$wheel"; then
        missing+=("$wheel")
    fi
done

commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
[[ -z $(git status --porcelain --untracked-files=no 2>/dev/null) ]] || commit+=-dirty
echo "$commit" >"$folder/commit"

find "$folder" -maxdepth 1 -name '*.whl' -printf '%12s  %f\n' -o -name '*.so' -printf '%12s  %f\n'
total=$(find "$folder" -maxdepth 1 -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
echo "$total bytes of $limit in $folder"

if ((${#missing[@]})); then
    echo "error: not to be had from the package index: ${missing[*]}" >&2
    echo "hint: the benchmark runs without them and says so; see pip's message above" >&2
    exit 1
fi
if ((total > limit)); then
    echo "error: $folder holds $total bytes, more than $limit" >&2
    echo "hint: remove wheels of other releases from it" >&2
    exit 3
fi
