"""Every panel's query and every rule, asked of a real Prometheus that scrapes a real run by its prometheus.json."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.runs import command
from tests.prometheus import MISSING, ROOT, Asked, Prometheus, asked_by_panels, filled, prometheus, there

RULES = ROOT / "deploy/prometheus/rules/tandem.yaml"
RUN = [
    "obs.prometheus=true",
    "rollout.engine.kind=simulated",
    "learner.algo.drop_zero_variance=false",
    "run.steps=1000",
    "eval.every=2",
    "cost.per_gpu_hour=1",
]
# Panels that have no data in such a run, by a metric that they ask for, and why
WITHOUT = {
    "tandem_gpu_": "no GPU",
    "ray_node_": "Ray is not scraped",
    "tandem_engine_": "the simulated engine has neither cache nor queue",
    "tandem_deaths_total": "nothing died",
    "tandem_recovery_duration_seconds": "nothing died",
    'stop_reason=~"env_error': "no episode failed",
    "tandem_units_repeated_total": "nothing was late",
    "tandem_mirror_pending": "no mirror",
    "tandem_ref_kl_nats": "learner.algo.kl is off",
    "ALERTS{": "nothing fires",
}


def empty(server: Prometheus) -> list[Asked]:
    """What has no data and should."""
    asked = [asked for asked in asked_by_panels() if not any(name in asked.query for name in WITHOUT)]
    return [one for one in asked if not server.ask(filled(one.query, run="e2e"))]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(not there(), reason=MISSING)
def test_every_panel_has_data_of_a_real_run(tmp_path: Path) -> None:
    (tmp_path / "e2e").mkdir()
    with (
        (tmp_path / "printed").open("w") as printed,
        prometheus(tmp_path, f"{tmp_path}/e2e/prometheus.json", (RULES,)) as server,
    ):
        run = subprocess.Popen(
            command(tmp_path, *RUN), cwd=tmp_path, stdout=printed, stderr=printed, start_new_session=True
        )
        try:
            until = time.monotonic() + 240
            while (missing := empty(server)) and time.monotonic() < until:
                assert run.poll() is None, (tmp_path / "printed").read_text()
                time.sleep(1)
            assert not missing
            rules = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
            assert len(rules) == 6 and {rule["health"] for rule in rules} == {"ok"}
            os.killpg(run.pid, signal.SIGINT)
            assert run.wait(60) == 0
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
