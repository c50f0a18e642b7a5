"""Dashboards and alert rules: as generated, whole, and answered by a real Prometheus that scrapes the instruments."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import pytest
import yaml
from scripts.observability.__main__ import generated
from scripts.observability.queries import UnknownLabel, rate, select
from tests.prometheus import MISSING, ROOT, Prometheus, asked_by_panels, dashboards, filled, prometheus, there

from tandem.config import Config
from tandem.obs import instruments as of
from tandem.obs.metrics import close_metrics, count, gauge, observe, setup_metrics
from tandem.types import Identity, Role

RULES = ROOT / "deploy/prometheus/rules/tandem.yaml"
CONFIG = Config.model_validate({"run": {"name": "test"}, "model": {"path": "m"}, "obs": {"prometheus": True}})
needs_prometheus = pytest.mark.skipif(not there(), reason=MISSING)
OTHERS = re.compile(r"\b(?:process|ray)_\w+")  # metrics that are not ours


def rules() -> list[dict]:
    return yaml.safe_load(RULES.read_text())["groups"][0]["rules"]


def test_what_is_committed_is_what_is_generated() -> None:
    stale = [str(path) for path, text in generated() if (ROOT / path).read_text() != text]
    assert not stale, f"{stale}: make dashboards"
    written = {ROOT / path for path, _ in generated()}
    assert {*ROOT.glob("deploy/grafana/dashboards/*"), *ROOT.glob("deploy/prometheus/rules/*")} == written


def test_every_query_is_promql() -> None:
    queries = [asked.query for asked in asked_by_panels()] + [rule["expr"] for rule in rules()]
    assert len(queries) > 100
    for query in queries:
        promql_parser.parse(filled(query))


def test_every_instrument_is_shown_somewhere() -> None:
    shown = " ".join(asked.query for asked in asked_by_panels())
    assert not [instrument.name for instrument in of.ALL if instrument.name not in shown]


def test_panels_say_what_they_show_and_have_a_place_of_their_own() -> None:
    for page in dashboards():
        panels = [panel for panel in page["panels"] if panel["type"] != "row"]
        assert len({panel["id"] for panel in page["panels"]}) == len(page["panels"])
        assert not [panel["title"] for panel in panels if panel["type"] != "text" and not panel["description"]]
        assert len({(panel["type"], panel["title"]) for panel in panels}) == len(panels)
        taken: set[tuple[int, int]] = set()
        for panel in page["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken and at["x"] + at["w"] <= 24, (page["uid"], panel["title"])
            taken |= cells


def test_the_first_screen_of_the_overview() -> None:
    page = next(page for page in dashboards() if page["uid"] == "tandem-overview")
    first = [panel["title"] for panel in page["panels"] if panel["gridPos"]["y"] + panel["gridPos"]["h"] <= 20]
    assert {"Solve rate", "Does it learn", "Where the time goes", "Speed", "A step", "What went wrong"} <= set(first)


def test_a_renamed_instrument_or_label_breaks_the_generator() -> None:
    with pytest.raises(UnknownLabel, match="tandem_turns_total has no label replica; it has parsed"):
        rate(of.TURNS, "replica")
    with pytest.raises(UnknownLabel):
        select(of.TURNS, stop_reason="deadline")


def test_rays_metrics_are_those_that_rays_own_dashboard_asks_for() -> None:
    import ray

    own = Path(ray.__file__).parent / "dashboard/modules/metrics/dashboards/default_dashboard_panels.py"
    known = set(OTHERS.findall(own.read_text()))
    asked = {name for asked in asked_by_panels() for name in OTHERS.findall(asked.query) if name.startswith("ray_")}
    assert asked and asked <= known
    links = {link.get("url") for page in dashboards() for link in page["links"]}
    assert 'default_uid="rayDefaultDashboard"' in own.read_text() and "/d/rayDefaultDashboard" in links


def test_the_runbook_of_every_rule_is_there() -> None:
    for rule in rules():
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        titles = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
        assert anchor in {title.lower().replace(" ", "-") for title in titles}, rule["alert"]
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]


@needs_prometheus
def test_rules_fire_and_do_not_fire() -> None:
    subprocess.run(["promtool", "check", "rules", RULES], check=True)
    subprocess.run(["promtool", "test", "rules", ROOT / "deploy/prometheus/tests/tandem.yaml"], check=True)
    told = (ROOT / "deploy/prometheus/tests/tandem.yaml").read_text()
    for rule in rules():
        assert told.count(f"alertname: {rule['alert']}") >= 2


def record_everything() -> None:
    """Every instrument, by every value of its labels that a query names."""
    values = {
        "kind": ("adapter", "state"),
        "phase": ("generate", "sync"),
        "operation": ("read", "write"),
        "stop_reason": ("terminated", "deadline"),
        "side": ("client", "server"),
        "code": ("UNAVAILABLE", "OK"),
        "direction": ("received", "sent"),
        "solved": ("true", "false"),
        "sampling": ("greedy", "sampled"),
    }
    for instrument in of.ALL:
        for turn in (0, 1):
            labels = {name: values.get(name, ("a", "b"))[turn] for name in instrument.labels}
            if isinstance(instrument, of.Gauge):
                gauge(instrument, time.time() if "timestamp" in instrument.name else 0.5, **labels)
            elif isinstance(instrument, of.Counter):
                count(instrument, 1, **labels)
            elif isinstance(instrument, of.Histogram):
                observe(instrument, 0.5, **labels)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped every instrument a few times, as three roles of run `test`."""
    folder = tmp_path_factory.mktemp("scraped")
    address = setup_metrics(CONFIG, Identity(Role.CONTROLLER, 0))
    targets = [
        {"targets": [address], "labels": {"run": "test", "role": role, "index": "0", "node": "n", "instance": role}}
        for role in ("controller", "rollout", "learner")
    ]
    (folder / "targets.json").write_text(json.dumps(targets))
    try:
        with prometheus(folder, f"{folder}/targets.json", (RULES,)) as server:
            until = time.monotonic() + 30
            while len(server.ask("count_over_time(up[1m]) >= 4")) < 3:
                record_everything()
                assert time.monotonic() < until
                time.sleep(0.1)
            yield server
    finally:
        close_metrics()


@needs_prometheus
def test_every_query_finds_the_instruments_as_they_are_scraped(scraped: Prometheus) -> None:
    elsewhere = ("ALERTS{", "ray_")  # none fires, and no Ray
    empty = [
        asked
        for asked in asked_by_panels()
        if not asked.query.startswith(elsewhere) and "ray_" not in asked.query and not scraped.ask(filled(asked.query))
    ]
    assert not empty
    assert "TandemNoProgress" in str(scraped.get("rules"))
