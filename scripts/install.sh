#!/usr/bin/env bash
# Installs Tandem into a virtual environment: scripts/install.sh deps|project PROFILE VENV [TORCH_INDEX]. Called by the Makefile.
set -euo pipefail
cd "$(dirname "$0")/.."
step=$1 profile=$2 venv=$3 torch_index=${4:-}

die() {
    echo "install: $*" >&2
    exit 2
}

find_python() {
    local name
    for name in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    die "no Python 3.11 to 3.13 with its venv module here; install one (Debian: sudo make system-deps) or name it with PYTHON=..."
}

make_venv() {
    if [[ -e $venv/.profile && $(<"$venv/.profile") != "$profile" ]]; then
        die "$venv was made for PROFILE=$(<"$venv/.profile"); remove it, or keep both with VENV=.venv-$profile"
    fi
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        local python
        python=$(find_python)
        "$python" -m venv "$venv"
    fi
    echo "$profile" >"$venv/.profile"
}

install_torch() {
    local pin
    pin=$(grep '^torch==' "requirements/$profile.txt")
    pip install --no-deps "${index[@]}" "$pin" || die "pip knows no $pin (above). For the CPU build name PyTorch's index of CPU" \
        "wheels: make install TORCH_INDEX=<url of PyTorch's CPU wheel index>"
    if [[ $profile == gpu && $("$venv/bin/python" -c 'from importlib.metadata import version; print(version("torch"))') == *+cpu ]]; then
        die "pip chose a CPU build of torch for PROFILE=gpu; take the CPU wheels out of pip's settings (pip config list) and run it again"
    fi
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$1" --quiet --no-input "${@:2}"; }

index=()
[[ -z $torch_index ]] || index=(--extra-index-url "$torch_index")

case $step in
deps)
    [[ $profile == cpu || $profile == gpu ]] || die "PROFILE is cpu or gpu, not '$profile'"
    [[ $(uname -sm) == "Linux x86_64" ]] || die "the pinned engine builds are for Linux on x86-64; this is $(uname -sm)"
    make_venv
    echo "install: $(grep -vch '^#' "requirements/$profile.txt") packages into $venv for PROFILE=$profile; the first time takes about 3 minutes"
    find_links=()
    if [[ $profile == cpu ]]; then
        rm -rf "$venv/shims"
        "$venv/bin/python" requirements/shims/build.py "$venv/shims" >/dev/null
        pip install --no-index --no-deps --force-reinstall "$venv"/shims/*.whl
        find_links=(--find-links "$venv/shims")
    fi
    install_torch
    pip install "${find_links[@]}" "${index[@]}" -r "requirements/$profile.txt" -r requirements/dev.txt
    ;;
project)
    pip install --no-deps --no-build-isolation -e libs \
        -e services/rollout -e services/learner -e services/checkpoint_manager -e services/controller \
        -e services/viewer
    "$venv/bin/python" -m pip --disable-pip-version-check check
    ;;
*) die "unknown step '$step'" ;;
esac
