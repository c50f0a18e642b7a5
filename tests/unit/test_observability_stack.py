"""deploy/observability and deploy/grafana/import.sh, as far as they can be tried without docker and without AWS."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jsonschema
import promql_parser
import pytest
import yaml
from tests.prometheus import MISSING, ROOT, dashboards, there

from tandem.obs.instruments import ALL

STACK = ROOT / "deploy/observability"
COMPOSE = yaml.safe_load((STACK / "compose.yaml").read_text())
NAMES = {instrument.name for instrument in ALL}
# of the compose specification, the part that we use
SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["image", "network_mode", "restart", "volumes"],
    "properties": {
        "image": {"type": "string", "pattern": r"^[a-z/-]+:v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?$"},
        "command": {"type": "array", "items": {"type": "string"}},
        "entrypoint": {"type": "array", "items": {"type": "string"}},
        "environment": {"type": "object", "additionalProperties": {"type": "string"}},
        "user": {"type": "string"},
        "network_mode": {"enum": ["host", "none"]},
        "restart": {"const": "unless-stopped"},
        "depends_on": {"type": "array", "items": {"enum": list(COMPOSE["services"])}},
        "volumes": {"type": "array", "items": {"type": "string", "pattern": r"^(\.[^:]*|\$\{TANDEM_.*\}|[a-z]+):/"}},
    },
}


def mounts() -> Iterator[tuple[str, str, str]]:
    for name, service in COMPOSE["services"].items():
        for volume in service["volumes"]:
            source, _, target = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume).partition(":")
            yield name, source, target.removesuffix(":ro")


def test_compose_is_pinned_and_all_it_mounts_is_there() -> None:
    schema = {"type": "object", "additionalProperties": SERVICE}
    jsonschema.validate(COMPOSE["services"], schema)
    assert set(COMPOSE) == {"name", "services", "volumes"}
    mounted = {source for _, source, _ in mounts()}
    assert {source for source in mounted if source.isalpha()} == set(COMPOSE["volumes"])
    ours = {source for source in mounted if source.startswith(".") and source != "../../runs"}
    assert ours and not [source for source in ours if not (STACK / source).exists()]


def test_the_parts_listen_on_loopback_and_find_each_other() -> None:
    collector, tempo, sources = (
        yaml.safe_load((STACK / name).read_text())
        for name in ("collector.yaml", "tempo.yaml", "grafana/datasources/tandem.yaml")
    )
    prometheus = COMPOSE["services"]["prometheus"]["command"]
    assert collector["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"] == "127.0.0.1:4317"
    tempo_otlp = tempo["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    assert collector["exporters"]["otlp/tempo"]["endpoint"] == tempo_otlp == "127.0.0.1:4319"
    by_uid = {source["uid"]: source for source in sources["datasources"]}
    assert by_uid["tempo"]["url"] == f"http://{tempo['server']['http_listen_address']}:3200"
    assert f"--web.listen-address={by_uid['prometheus']['url'].removeprefix('http://')}" in prometheus
    everything = "".join(path.read_text() for path in STACK.rglob("*.yaml") if "aws" not in path.parts)
    assert "0.0.0.0" not in everything
    home = COMPOSE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (ROOT / "deploy/grafana/dashboards" / Path(home).name).exists()
    provider = yaml.safe_load((STACK / "grafana/dashboards/tandem.yaml").read_text())["providers"][0]
    targets = {target: source for name, source, target in mounts() if name == "grafana"}
    assert targets[provider["options"]["path"]] == "../grafana/dashboards"


@pytest.mark.parametrize("name", ["collector.yaml", "aws/collector.yaml"])
def test_collectors_use_what_they_define(name: str) -> None:
    config = yaml.safe_load((STACK / name).read_text())
    service = config.pop("service")
    used = {"extensions": set(service.get("extensions", ()))}
    for pipeline in service["pipelines"].values():
        for kind, names in pipeline.items():
            used.setdefault(kind, set()).update(names)
    assert {kind: set(parts) for kind, parts in config.items()} == {
        kind: names for kind, names in used.items() if names
    }


def trace_queries(sources: list[dict]) -> list[str]:
    return [
        query["query"]
        for source in sources
        for query in source["jsonData"].get("tracesToMetrics", {}).get("queries", ())
    ]


def test_traces_lead_to_metrics_that_there_are() -> None:
    local = yaml.safe_load((STACK / "grafana/datasources/tandem.yaml").read_text())["datasources"]
    managed = json.loads((STACK / "aws/datasources.json").read_text())
    for sources in (local, managed):
        queries = trace_queries(sources)
        assert queries
        for query in queries:
            promql_parser.parse(re.sub(r"\$+__tags", 'run="r"', query))
            assert set(re.findall(r"tandem_\w+", query)) <= NAMES
        uids = {source["uid"] for source in sources}
        named = re.findall(r"'datasourceUid': '([\w-]+)'", str(sources))
        assert named and set(named) <= uids


@pytest.mark.skipif(not there(), reason=MISSING)
def test_prometheus_takes_the_config(tmp_path: Path) -> None:
    subprocess.run(["promtool", "check", "config", "--syntax-only", STACK / "prometheus.yaml"], check=True)
    collector = yaml.safe_load((STACK / "aws/collector.yaml").read_text())["receivers"]["prometheus"]["config"]
    del collector["global"]["scrape_protocols"]  # of Prometheus 2.49 and later, which the collector is
    del collector["scrape_configs"][1]["kubernetes_sd_configs"]  # Debian's is built without
    scraped = tmp_path / "scraped.yaml"
    scraped.write_text(yaml.safe_dump(collector).replace("${env:TANDEM_TARGETS}", "/targets"))
    subprocess.run(["promtool", "check", "config", "--syntax-only", scraped], check=True)


def test_targets_are_gathered_and_forgotten(tmp_path: Path) -> None:
    runs, targets = tmp_path / "runs", tmp_path / "targets"
    targets.mkdir()

    def gather() -> dict[str, str]:
        where = {"RUNS": str(runs), "TARGETS": str(targets), "EVERY": "0"}
        subprocess.run(["sh", STACK / "targets.sh"], env={**os.environ, **where}, check=True, timeout=30)
        return {path.name: path.read_text() for path in targets.iterdir()}

    assert gather() == {}
    for name in ("one", "two words"):
        (runs / name).mkdir(parents=True)
        (runs / name / "prometheus.json").write_text("[]")
    (runs / "three").mkdir()
    assert gather() == {"one.json": "[]", "two words.json": "[]"}
    (runs / "one/prometheus.json").write_text("[1]")
    (runs / "two words/prometheus.json").unlink()
    assert gather() == {"one.json": "[1]"}


class GrafanaApi(BaseHTTPRequestHandler):
    """What import.sh asks of Grafana: its HTTP API's answers, as documented, over what it has been given."""

    server: "Grafana"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != "Bearer s3cret":
            return self._say(401, {"message": "Invalid API key"})
        if self.command == "PUT":
            uid = self.path.removeprefix("/api/datasources/uid/")
            if uid not in self.server.sources:
                return self._say(404, {"message": "Data source not found"})
            self.server.sources[uid] = body
        elif self.path == "/api/datasources":
            self.server.sources[body["uid"]] = body
        elif self.path == "/api/folders":
            if body["uid"] in self.server.folders:
                return self._say(409, {"message": "a folder with that uid exists already"})
            self.server.folders[body["uid"]] = body["title"]
        elif self.path == "/api/dashboards/db":
            if body["folderUid"] not in self.server.folders:
                return self._say(400, {"message": "folder not found"})
            uid = body["dashboard"]["uid"]
            if uid in self.server.dashboards and not body["overwrite"]:
                return self._say(412, {"message": "The dashboard has been changed by someone else"})
            self.server.dashboards[uid] = body["dashboard"]
        else:
            return self._say(404, {"message": "Not found"})
        return self._say(200, {"status": "success"})

    do_PUT = do_POST

    def _say(self, status: int, answer: Mapping[str, str]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...


class Grafana(ThreadingHTTPServer):
    """Listens on loopback, and keeps what it is given."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), GrafanaApi)
        self.sources: dict[str, dict] = {}
        self.folders: dict[str, str] = {}
        self.dashboards: dict[str, dict] = {}


@pytest.fixture
def grafana() -> Iterator[Grafana]:
    server = Grafana()
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def imported(grafana: Grafana, **words: str) -> subprocess.CompletedProcess[str]:
    where = {
        "GRAFANA_URL": f"http://127.0.0.1:{grafana.server_port}/",
        "GRAFANA_TOKEN": "s3cret",
        "AWS_REGION": "eu-west-1",
    }
    command = [str(ROOT / "deploy/grafana/import.sh"), str(STACK / "aws/datasources.json")]
    environment = {**os.environ, **where, **words}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_import_puts_data_sources_and_dashboards_into_a_grafana_and_again(grafana: Grafana) -> None:
    words = {"AMP_WORKSPACE": "ws-1", "TEMPO_URL": "http://tempo:3200"}
    for _ in range(2):
        done = imported(grafana, **words)
        assert done.returncode == 0, done.stderr
        assert grafana.dashboards == {page["uid"]: page for page in dashboards()}
        assert grafana.folders == {"tandem": "Tandem"}
        workspace = "https://aps-workspaces.eu-west-1.amazonaws.com/workspaces/ws-1/"
        assert grafana.sources["tandem-amp"]["url"] == workspace
        assert set(grafana.sources) == {"tandem-amp", "tandem-tempo"}


def test_import_says_what_is_wrong(grafana: Grafana) -> None:
    missing = imported(grafana, AMP_WORKSPACE="ws-1")
    assert missing.returncode == 1 and "import: set TEMPO_URL: " in missing.stderr
    words = {"AMP_WORKSPACE": "ws-1", "TEMPO_URL": "http://tempo:3200"}
    refused = imported(grafana, GRAFANA_TOKEN="no", **words)
    assert refused.returncode == 1 and "Invalid API key" in refused.stderr and "answers 401" in refused.stderr
    assert not grafana.dashboards and not grafana.sources
    away = imported(grafana, GRAFANA_URL="http://127.0.0.1:9", **words)
    assert away.returncode == 1 and "127.0.0.1" in away.stderr
