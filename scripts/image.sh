#!/usr/bin/env bash
# Builds one service's container image: scripts/image.sh SERVICE PROFILE [TORCH_INDEX], with docker or, without it, buildah.
set -euo pipefail
cd "$(dirname "$0")/.."
service=$1 profile=$2 torch_index=${3:-}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' libs/pyproject.toml)
arguments=(--file "docker/$service.Dockerfile" --tag "tandem-$service:$version" --build-arg "PROFILE=$profile" --build-arg "TORCH_INDEX=$torch_index" .)

if docker info >/dev/null 2>&1; then
    exec docker build "${arguments[@]}"
elif command -v buildah >/dev/null; then
    exec buildah build "${arguments[@]}"
fi
echo "image: neither a running docker nor buildah here; install one of them to build images" >&2
exit 2
