"""Spans as a real collector gets them, and what becomes of a process whose collector is away."""

from __future__ import annotations

import asyncio
import logging
import socket
import time

import pytest
from tests.otlp import receiver

from tandem.config import Config
from tandem.obs.exporting import begin
from tandem.obs.process import detail_share
from tandem.obs.tracing import NOTHING, carried, here, inject, sampled, span, trace, under


def config(**obs: object) -> Config:
    return Config.model_validate({"model": {"path": "m"}, "obs": obs})


def test_untraced_nothing_is_made_but_words_travel() -> None:
    assert span("any") is NOTHING and not sampled(1)
    with trace("step", step=7, version=6):
        carrier = inject()
    assert here() == {} and "traceparent" not in carrier
    with under(carrier):
        assert here() == {"step": 7, "version": 6}
    with under({"baggage": "step=7,version=six,password=1"}):  # anybody may have said so
        assert here() == {"step": 7}


def test_a_tree_over_processes_threads_and_tasks() -> None:
    async def played() -> None:
        with span("in a task"):
            pass

    def worked() -> None:
        with span("in a thread", {"rl.turn": 3}):
            pass

    async def run() -> None:
        await asyncio.gather(played(), asyncio.to_thread(worked))
        await asyncio.get_running_loop().run_in_executor(None, carried(worked))

    with receiver() as got:
        finish = begin(got.url, 1.0, {"service.name": "test"})
        with trace("asked") as asked:
            before = asked.carrier()
        with trace("step", step=1) as root:
            root.link(before)
            asyncio.run(run())
            carrier = inject()
        with under(carrier), span("elsewhere"):
            assert here()["step"] == 1 and here()["trace_id"] == carrier["traceparent"].split("-")[1]
        with pytest.raises(ValueError, match="bad"), trace("broken"), span("within"):
            raise ValueError("bad")
        finish()
    [step] = got.roots("step")
    assert step.links == (got.roots("asked")[0].trace,) and step.status == "OK"
    parts = [(one.name, one.parent, one.status) for one in got.of(step.trace) if one.parent]
    names = ["elsewhere", "in a task", "in a thread", "in a thread"]
    assert sorted(parts) == [(name, step.id, "OK") for name in names]
    [broken] = got.roots("broken")
    assert {(one.status, one.why) for one in got.of(broken.trace)} == {("ERROR", "ValueError: bad")}
    assert broken.attributes["error.type"] == "ValueError"


def test_a_share_of_seeds_is_traced_in_detail_the_same_everywhere() -> None:
    finish = begin("http://127.0.0.1:1", 0.25, {"service.name": "test"})
    chosen = [seed for seed in range(4000) if sampled(seed)]
    assert 850 < len(chosen) < 1150 and chosen[:3] == [seed for seed in range(50) if sampled(seed)][:3]
    finish()
    finish = begin("http://127.0.0.1:1", 0.5, {"service.name": "test"})
    assert all(map(sampled, chosen))  # a larger share holds the smaller one
    finish()


def test_the_share_follows_from_the_bound() -> None:
    assert detail_share(config(trace_spans=10**6)) == 1
    assert detail_share(config(trace_spans=10**6, trace_sample=0.1)) == 0.1
    most = 32 * 8 * (1 + 3 * 14)  # of the defaults
    assert detail_share(config()) == pytest.approx(300 / most)


def test_a_collector_that_is_away_is_one_warning_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))  # nobody listens there
        logging.getLogger("tandem").propagate = True
        finish = begin(f"http://127.0.0.1:{listening.getsockname()[1]}", 1.0, {"service.name": "test"})
        for _ in range(20_000):
            with span("one of many"):
                pass
        began = time.monotonic()
        finish()
        assert time.monotonic() - began < 30  # it ends
    told = [record.getMessage() for record in caplog.records if record.name.startswith("tandem")]
    assert len(told) == 1 and told[0].startswith("no traces: the collector at http://127.0.0.1:")
