#!/bin/sh
# Keeps, for each RUNS/NAME/prometheus.json, a TARGETS/NAME.json: Prometheus's file_sd takes no * in a folder's name.
# RUNS, TARGETS: folders; EVERY: seconds, 0 for once.
set -eu
while :; do
    for kept in "$TARGETS"/*.json; do
        name=$(basename "$kept" .json)
        [ -e "$RUNS/$name/prometheus.json" ] || rm -f "$kept"
    done
    for said in "$RUNS"/*/prometheus.json; do
        [ -e "$said" ] || continue
        kept="$TARGETS/$(basename "$(dirname "$said")").json"
        if ! cmp -s "$said" "$kept"; then
            cp "$said" "$kept.new" && mv "$kept.new" "$kept" # whole, whenever it is read
        fi
    done
    [ "${EVERY:-5}" != 0 ] || exit 0
    sleep "${EVERY:-5}"
done
