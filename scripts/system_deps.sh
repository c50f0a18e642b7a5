#!/usr/bin/env bash
# Installs the Debian packages that Tandem or some of its tests use. Needs root; without the programs, tests say what they leave out.
set -euo pipefail

PACKAGES=(
    git          # the protos' check for breaking changes reads the last release from it
    make         # the commands
    prometheus   # scrapes a run in the tests of dashboards and alert rules
    chromium     # the tests of `tandem view` look at it
    python3-venv # an interpreter with venv, where none is installed otherwise
    redis-server # what Ray's head knows outlives it there: tests/chaos kill it
)

command -v apt-get >/dev/null || { echo "system-deps: this is not Debian; install by hand: ${PACKAGES[*]}" >&2; exit 2; }
missing=()
for package in "${PACKAGES[@]}"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
    echo "system-deps: nothing is missing"
    exit 0
fi
[[ $(id -u) -eq 0 ]] || { echo "system-deps: needs root to install ${missing[*]}: sudo make system-deps" >&2; exit 2; }
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "system-deps: installed ${missing[*]}"
