"""What a process sets up once, so that people see what it does."""

from __future__ import annotations

import atexit
import socket
from collections.abc import Callable
from importlib.metadata import version

from tandem.config import Config
from tandem.obs.logging import setup_logging
from tandem.types import Identity, Role

SPANS_A_TURN = 3  # the turn, its completion, its step
MANY = (Role.ROLLOUT, Role.LEARNER)

_ends: list[Callable[[], None]] = []


def setup(config: Config, me: Identity, node: str = "") -> None:
    """Logs, and traces where `obs.otlp` names a collector, of this process on a node. Once, before all else."""
    setup_logging(config.obs, service_name(me), config.run.name)
    if config.obs.otlp:
        from tandem.obs.exporting import begin  # noqa: PLC0415 - most processes need no SDK

        _ends.append(begin(config.obs.otlp, detail_share(config), resource(config, me, node)))


def at_end(call: Callable[[], None]) -> None:
    """Have `finish` call it."""
    _ends.append(call)


def finish() -> None:
    """Send what is left to be sent, within seconds. The interpreter's end does so by itself."""
    while _ends:
        _ends.pop()()


atexit.register(finish)


def service_name(me: Identity) -> str:
    """As log lines name it: `rollout[2]`, `controller`."""
    return f"{me.role}[{me.index}]" if me.role in MANY else str(me.role)


def resource(config: Config, me: Identity, node: str) -> dict[str, str]:
    """Who speaks, as OpenTelemetry's conventions call it."""
    said = {
        "service.namespace": "tandem",
        "service.name": f"tandem-{me.role.replace('_', '-')}",
        "service.instance.id": f"{config.run.name}/{me.role}-{me.index}-g{me.generation}",
        "service.version": version("tandem"),
        "host.name": socket.gethostname(),
        "tandem.node": node,
        "tandem.run.name": config.run.name,
    }
    return {name: value for name, value in said.items() if value}


def detail_share(config: Config) -> float:
    """The share of groups traced turn by turn, so that a step has about `obs.trace_spans` of them."""
    rollout = config.rollout
    longest = rollout.groups_per_step * rollout.group_size * (1 + SPANS_A_TURN * config.env.max_turns)
    return min(config.obs.trace_sample, config.obs.trace_spans / longest)
