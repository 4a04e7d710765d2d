#!/bin/sh
# Checks this bundle, then installs from it without network.
set -eu

usage() {
	cat <<'END'
Usage: sh install.sh [--check] [--digest SHA256] [--venv DIR | --into PYTHON] [--no-images]

  --check        Check the files and stop.
  --digest SUM   What `glm5-ascend bundle` printed; SHA256SUMS itself must have this sum.
  --venv DIR     New virtual environment for glm5-ascend.  [default: /opt/glm5-ascend]
  --into PYTHON  Install into this Python instead, e.g. inside a container.
  --no-images    Leave the images alone.
END
}

# fail CODE MESSAGE HINT
fail() {
	printf 'error: %s\nhint: %s\n' "$2" "$3" >&2
	exit "$1"
}

only_check='' digest='' venv=/opt/glm5-ascend into='' with_images=yes
while [ $# -gt 0 ]; do
	case $1 in
	--check) only_check=yes ;;
	--no-images) with_images='' ;;
	--digest | --venv | --into)
		[ $# -gt 1 ] || fail 2 "$1 needs a value" "see sh install.sh --help"
		case $1 in
		--digest) digest=$2 ;;
		--venv) venv=$2 ;;
		--into) into=$2 ;;
		esac
		shift
		;;
	--help)
		usage
		exit 0
		;;
	*) fail 2 "unknown argument $1" "see sh install.sh --help" ;;
	esac
	shift
done

case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
cd "$(dirname "$0")"
again="copy the bundle again"
[ -f SHA256SUMS ] || fail 1 "SHA256SUMS is missing" "$again"
if [ -n "$digest" ]; then
	[ "$(sha256sum SHA256SUMS | cut -d' ' -f1)" = "$digest" ] ||
		fail 1 "SHA256SUMS is not the one that was made with this bundle" "$again"
fi

# check_folder FOLDER NAME PRUNED: every file is listed, every listed file is there and as it was.
check_folder() (
	cd "$1"
	odd=$(find . -path "$3" -prune -o ! -type f ! -type d -print | head -n 1)
	[ -z "$odd" ] || fail 1 "$odd of $2 is no regular file" "$again"
	found=$(find . -path "$3" -prune -o -type f ! -path ./SHA256SUMS -print | sed 's|^\./||' | LC_ALL=C sort)
	listed=$(cut -c67- SHA256SUMS | LC_ALL=C sort)
	extra=$(printf '%s\n' "$found" | while read -r file; do
		printf '%s\n' "$listed" | grep -qxF -- "$file" || printf '%s ' "$file"
	done)
	[ -z "$extra" ] || fail 1 "$2 has files that are not listed: $extra" "remove them, or $again"
	sha256sum --check --strict --quiet SHA256SUMS >&2 ||
		fail 1 "files of $2 are missing or changed" "$again"
)

check_folder . 'the bundle' ./images
if [ -d images ]; then
	[ -f images/SHA256SUMS ] || fail 1 "images/SHA256SUMS is missing" "run save-images.sh again"
	check_folder images images ./none
fi
echo "all files are as they were made"
[ -z "$only_check" ] || exit 0

if [ -d images ] && [ -n "$with_images" ]; then
	command -v docker > /dev/null ||
		fail 5 "docker is not here, and images are to be loaded" "--no-images leaves them out"
	while read -r file _; do
		[ -f "images/$file" ] || fail 1 "images/$file is missing" "run save-images.sh again"
		docker load --input "images/$file"
	done < images.txt
fi

if [ -d wheels ]; then
	python=${into:-python3}
	command -v "$python" > /dev/null || fail 5 "$python is not here" "name one with --into"
	wanted=$(cat wheels/python.txt)
	here=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	[ "$here" = "$wanted" ] ||
		fail 5 "$python is Python $here, the wheels are for $wanted" "name another with --into"
	wanted=$(cat wheels/arch.txt)
	here=$("$python" -c 'import platform; print(platform.machine())')
	[ "$here" = "$wanted" ] ||
		fail 5 "this machine is $here, the wheels are for $wanted" "bundle with --arch $here"
	if [ -z "$into" ]; then
		[ -f "$venv/pyvenv.cfg" ] || "$python" -m venv "$venv"
		python=$venv/bin/python
	fi
	PIP_CONFIG_FILE=/dev/null "$python" -m pip --isolated install --quiet --no-index \
		--disable-pip-version-check --find-links wheels --require-hashes \
		--requirement wheels/requirements.txt
	"$python" -m pip --isolated show glm5-ascend 2> /dev/null | sed -n 1,2p
	[ -n "$into" ] || echo "the command is $venv/bin/glm5-ascend"
fi
echo "what each server runs lies in scripts/"
