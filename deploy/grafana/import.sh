#!/usr/bin/env bash
# Puts data sources and dashboards into a Grafana, such as Amazon Managed Grafana, by its HTTP API; again is harmless.
#   GRAFANA_URL=https://g-....grafana-workspace.REGION.amazonaws.com GRAFANA_TOKEN=... deploy/grafana/import.sh [DATASOURCES.json]
# The token is a service account's, Admin for data sources, Editor for dashboards. ${AWS_REGION}, ${AMP_WORKSPACE} and
# ${TEMPO_URL} in DATASOURCES.json are taken from the environment. Needs curl and python3.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
: "${GRAFANA_URL:?import: set GRAFANA_URL to the address of the Grafana}"
: "${GRAFANA_TOKEN:?import: set GRAFANA_TOKEN to a token of a service account}"

ask() { # METHOD PATH, the body on stdin: prints the status, and what was answered where that is an error
    local answer status
    answer=$(mktemp)
    status=$(curl --silent --show-error --max-time 30 --config <(printf 'header = "Authorization: Bearer %s"\n' "$GRAFANA_TOKEN") \
        --request "$1" --header 'Content-Type: application/json' --data-binary @- --output "$answer" \
        --write-out '%{http_code}' "${GRAFANA_URL%/}$2") || { rm -f "$answer"; return 1; }
    echo "$status"
    if [[ $status != 2* && $status != 404 ]]; then cat "$answer" >&2; echo >&2; fi
    rm -f "$answer"
}

done_or_die() { # STATUS WHAT
    [[ $1 == 2* ]] || { echo "import: $2: the Grafana answers ${1:-nothing}" >&2; exit 1; }
    echo "import: $2"
}

dashboard() { # FILE: prints the body that imports it
    printf '{"folderUid": "tandem", "overwrite": true, "dashboard": %s}' "$(<"$1")"
}

# Prints the data sources, one a line: uid, tab, JSON. A variable that is not set is an error.
datasources() {
    python3 - "$1" <<'PY'
import json, os, re, sys
text = open(sys.argv[1]).read()
names = sorted(set(re.findall(r"\$\{(\w+)\}", text)))
if missing := [name for name in names if not os.environ.get(name)]:
    sys.exit(f"import: set {', '.join(missing)}: {sys.argv[1]} asks for it")
for name in names:
    text = text.replace("${%s}" % name, json.dumps(os.environ[name])[1:-1])
for source in json.loads(text):
    print(source["uid"], json.dumps(source), sep="\t")
PY
}

if [[ $# -gt 0 ]]; then
    sources=$(datasources "$1")
    while IFS=$'\t' read -r uid body; do
        status=$(ask PUT "/api/datasources/uid/$uid" <<<"$body")
        if [[ $status == 404 ]]; then status=$(ask POST /api/datasources <<<"$body"); fi
        done_or_die "$status" "data source $uid"
    done <<<"$sources"
fi

status=$(ask POST /api/folders <<<'{"uid": "tandem", "title": "Tandem"}' 2>/dev/null)
if [[ $status != 409 && $status != 412 ]]; then done_or_die "$status" "folder Tandem"; fi # these: it is there
for file in "$here"/dashboards/*.json; do
    done_or_die "$(dashboard "$file" | ask POST /api/dashboards/db)" "dashboard $(basename "$file" .json)"
done
