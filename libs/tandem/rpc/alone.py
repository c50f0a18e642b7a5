"""The command line of a service that runs alone, without Ray: start it, say where it listens, wait, stop it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from tandem.config import Config, load_recipe
from tandem.obs import setup
from tandem.obs.metrics import setup_metrics
from tandem.rpc.door import Door, is_loopback
from tandem.rpc.keyring import open_keyring
from tandem.runtime import until_signal
from tandem.types import Identity, Role, TandemError, exit_code


class Service(Protocol):
    """A running service."""

    @property
    def address(self) -> str:
        """host:port, empty for one that serves nothing."""
        ...

    @property
    def stop(self) -> Callable[[], Awaitable[None]]:
        """End in order."""
        ...


S = TypeVar("S", bound=Service)
Flags = Mapping[str, tuple[int | str, str]]  # name: (default, help)


def run_alone(
    name: str,
    start: Callable[..., Awaitable[S]],
    arguments: Sequence[str] | None = None,
    *,
    flags: Flags | None = None,
    ended: Callable[[S], asyncio.Future[None]] | None = None,
) -> int:
    """python -m tandem_NAME RECIPE [key=value ...] [--host HOST] [--port N]: serve until SIGINT or SIGTERM.

    Once the service is up, one JSON line on stdout says where, and where its metrics are. A signal before that cuts the
    start off; a second signal ends the process at once.

    Args:
        name: the service's role.
        start: called with the config, `host`, `port`, `door` and a keyword for each of `flags`.
        flags: the service's own flags; a default of type int takes integers.
        ended: for a service that may end by itself; what the future raises is raised.
    Returns:
        The exit code: 0, or what `exit_code` says of the one error, told in one line on stderr.
    """
    parser = argparse.ArgumentParser(f"tandem_{name}", description=f"Start the {name} service without Ray.")
    parser.add_argument("recipe", help="recipe YAML")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    for flag, (default, text) in (flags or {}).items():
        parser.add_argument(f"--{flag}", type=type(default), default=default, help=text)
    given = vars(parser.parse_intermixed_args(arguments))
    try:
        config = load_recipe(given.pop("recipe"), given.pop("overrides"))
        me = Identity(Role(name), int(given.get("rank", 0)))
        setup(config, me)
        door = _door(config, me, str(given["host"]))
        metrics = setup_metrics(config, me, str(given["host"]))
        asyncio.run(_run(name, partial(start, door=door), config, given, metrics, ended))
    except TandemError as problem:
        sys.stderr.write(f"tandem_{name}: {problem}\n")
        return exit_code(problem)
    return 0


def _door(config: Config, me: Identity, host: str) -> Door:
    """Of a process that nobody hands keys to. Raises UserError where its port would be open to all."""
    keyring = open_keyring(config.security, loopback=is_loopback(host), draw=False)
    return keyring.door(me)


async def _run(
    name: str,
    start: Callable[..., Awaitable[S]],
    config: Config,
    given: Mapping[str, int | str],
    metrics: str,
    ended: Callable[[S], asyncio.Future[None]] | None,
) -> None:
    def up(service: S) -> None:
        said = {"service": name, "address": service.address, **({"metrics": metrics} if metrics else {})}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    await serve_until_told(start(config, **given), up, ended)


async def serve_until_told(
    start: Awaitable[S], up: Callable[[S], None], ended: Callable[[S], asyncio.Future[None]] | None = None
) -> None:
    """Start a service and say so by `up`; stop it at SIGINT or SIGTERM, or once it has `ended` by itself.

    A signal before it is up cuts the start off. What the start raises, or the end that was its own, is raised.
    """
    signalled = asyncio.ensure_future(until_signal())  # before the start: its handlers are then in place
    starting = asyncio.ensure_future(start)
    await asyncio.wait({signalled, starting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        if starting.cancelled():
            return
    service = starting.result()
    up(service)
    own_end = {ended(service)} if ended else set[asyncio.Future[None]]()
    await asyncio.wait({signalled, *own_end}, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    await service.stop()
    for future in own_end:
        if future.done() and not future.cancelled():
            future.result()
