"""Watches how Kubernetes says its nodes are, and has the run leave those that are about to be replaced.

    list nodes -> watch from there, bookmarks included -> a node of ours leaves Schedulable -> controls.drain, once
       ^------ too old (410), or anything else: again, after a pause

HyperPod marks a node by the label sagemaker.amazonaws.com/node-health-status: Schedulable, Unschedulable,
UnschedulablePendingReplacement, UnschedulablePendingReboot.
"""

from __future__ import annotations

import logging
import math
import os
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tandem.config import HealthConfig
from tandem.obs import get_logger
from tandem.runtime import beside, retry
from tandem.types import TandemError, Unavailable, UserError
from tandem_controller.control import Controls
from tandem_controller.node_events import Event, Garbled, Gone, Health, Listed, lines, read_event, read_list

log = get_logger(__name__)
NODES = "/api/v1/nodes"
# Names and labels alone: a whole node, with all its images, is a hundred times that.
LIST_AS = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json"
WATCH_AS = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json"
PAGE = 500  # nodes
WATCH_S = 60  # after which the API ends a watch: a connection that died in silence is known by then
GRACE_S = 15.0
AT_ONCE_S = 1.0
PAUSE_S = 30.0  # at most, between two attempts


class Refused(UserError):
    """The service account may not look at nodes."""


@dataclass(frozen=True, slots=True)
class Api:
    """A Kubernetes API at `url`, and the folder of the service account's `token` and `ca.crt`, if it has them."""

    url: str
    folder: Path

    def headers(self, accept: str) -> dict[str, str]:
        """Of one request, with the token as it is now: Kubernetes writes another every hour."""
        try:
            token = (self.folder / "token").read_text().strip()
        except OSError:
            token = ""
        return {"Accept": accept, **({"Authorization": f"Bearer {token}"} if token else {})}

    def trust(self) -> ssl.SSLContext | bool:
        """Whom to believe: the cluster's own authority where it is told. Raises UserError for a file that is none."""
        file = self.folder / "ca.crt"
        if not file.exists():
            return True
        try:
            return ssl.create_default_context(cafile=file)
        except (OSError, ssl.SSLError) as problem:
            raise UserError(f"{file}: no certificates of an authority ({problem}); set health.watch off") from problem


def api_of(config: HealthConfig, environment: Mapping[str, str] = os.environ) -> Api | None:
    """The API to watch; None where there is none, or it is not to be watched."""
    folder = Path(config.folder)
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if config.watch == "off":
        return None
    if config.api_url:
        return Api(config.api_url.rstrip("/"), folder)
    if not host or not (folder / "token").exists():
        return None
    return Api(f"https://{f'[{host}]' if ':' in host else host}:{port}", folder)


@asynccontextmanager
async def health_watched(controls: Controls, config: HealthConfig) -> AsyncIterator[None]:
    """Watch while the body runs, where there is something to watch. Nothing that goes wrong here ends the run."""
    api = api_of(config)
    if api is None:
        yield
        return
    watch = NodeHealth(api, config.label, controls).watch()
    async with beside(watch, lambda problem: log.error("the watch of nodes ended: %s", problem, exc_info=problem)):
        yield


class NodeHealth:
    """Of the nodes of one API by their `label`."""

    def __init__(
        self, api: Api, label: str, controls: Controls, *, watch_s: int = WATCH_S, pause_s: float = PAUSE_S
    ) -> None:
        self._api, self._label, self._controls = api, label, controls
        self._watch_s, self._pause_s = watch_s, pause_s
        self._health = Health()
        self._left: set[str] = set()  # nodes that the run leaves
        self._failed: set[str] = set()  # nodes that it could not leave, this time
        self._version = ""  # where the next watch goes on; "" lists first
        self._troubled = False

    async def watch(self) -> None:
        """Until cancelled, or until it is clear that this may not be watched."""
        first_s, longest_s = self._pause_s / 30, self._pause_s
        try:
            timeout = aiohttp.ClientTimeout(total=None, connect=GRACE_S, sock_read=self._watch_s + GRACE_S)
            connector = aiohttp.TCPConnector(ssl=self._api.trust())
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                while True:
                    await retry(lambda: self._once(session), for_s=math.inf, first_s=first_s, longest_s=longest_s)
        except UserError as problem:
            log.warning("the health of nodes is not watched: %s", problem)

    async def _once(self, session: aiohttp.ClientSession) -> None:
        """List if need be, then watch until the API ends that in order. Raises Unavailable for all that may pass."""
        try:
            if not self._version:
                await self._list(session)
            await self._follow(session)
        except Gone as problem:
            self._version = ""
            raise Unavailable(str(problem)) from problem
        except (Garbled, aiohttp.ClientError, OSError) as problem:
            if isinstance(problem, Garbled):
                self._version = ""
            told = f"{type(problem).__name__}: {problem}".rstrip(": ")
            level = logging.DEBUG if self._troubled else logging.WARNING
            log.log(level, "the health of nodes cannot be watched now, tried again: %s", told)
            self._troubled = True
            raise Unavailable(told) from problem

    async def _list(self, session: aiohttp.ClientSession) -> None:
        labels, page = dict[str, str](), Listed("", {}, "first")
        query = {"limit": str(PAGE)}
        while page.more:
            async with self._get(session, query, LIST_AS) as answer:
                page = read_list(await answer.read(), self._label)
            labels.update(page.labels)
            query["continue"] = page.more
        self._version = page.version
        for change in self._health.listed(labels):
            log.info("%s", change)

    async def _follow(self, session: aiohttp.ClientSession) -> None:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(self._watch_s),
        }
        self._failed.clear()
        await self._leave()
        seen = 0
        async with self._get(session, query, WATCH_AS) as answer:
            if self._troubled:
                log.info("the health of nodes is watched again")
                self._troubled = False
            began = time.monotonic()
            async for line in lines(answer.content.iter_any()):
                seen += 1
                await self._seen(read_event(line, self._label))
        if not seen and time.monotonic() - began < AT_ONCE_S:
            raise Garbled("the API ends each watch at once")

    @asynccontextmanager
    async def _get(
        self, session: aiohttp.ClientSession, query: Mapping[str, str], accept: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer. Raises Refused, Gone, and Garbled for any other that is no success."""
        headers = self._api.headers(accept)
        async with session.get(self._api.url + NODES, params=query, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                text = (await answer.content.read(2000)).decode(errors="replace")
                told = f"{self._api.url} answers {answer.status}: {' '.join(text.split())[:300]}"
                if answer.status == 403:
                    raise Refused(f"{told}; give its service account get, list and watch on nodes")
                raise (Gone if answer.status == 410 else Garbled)(told)
            yield answer

    async def _seen(self, event: Event) -> None:
        self._version = event.version or self._version
        if event.node and (change := self._health.seen(event.node, event.label)):
            log.info("%s", change)
        await self._leave()  # at each event: the run may have come to an unwell node since

    async def _leave(self) -> None:
        self._left &= self._health.unwell.keys()
        ours = {status.member.node for status in self._controls.status().members}
        for node in sorted((ours & self._health.unwell.keys()) - self._left - self._failed):
            try:
                await self._controls.drain(node, f"Kubernetes says it is {self._health.unwell[node]}")
                self._left.add(node)
            except TandemError as problem:
                self._failed.add(node)
                log.warning("node %s cannot be left now, tried again with the next watch: %s", node, problem)
