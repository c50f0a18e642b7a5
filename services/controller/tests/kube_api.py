"""A small Kubernetes API over real HTTP: nodes with labels, listed by pages and watched, with all that goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any

from aiohttp import web

LABEL = "sagemaker.amazonaws.com/node-health-status"


class KubeApi:
    """Every change has a version; a watch gets what came after its own. `token` is asked for where it is set."""

    def __init__(self, **nodes: str) -> None:
        self.version, self.oldest = 100, 0
        self.nodes = {name.replace("_", "-"): label for name, label in nodes.items()}
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.changed = asyncio.Condition()
        self.token = ""
        self.refuse: tuple[int, str] | None = None  # a status for every request
        self.page = 500
        self.requests: list[str] = []  # list or watch, with the version asked for
        self.open: set[web.StreamResponse] = set()
        self.end_at_once = False
        self.pieces = 0  # bytes an event is cut into; 0 whole
        self.pause_s = 0.0  # before each piece

    async def label(self, node: str, value: str | None) -> None:
        """Set a node's label; None takes the node away."""
        kind = "DELETED" if value is None else "MODIFIED" if node in self.nodes else "ADDED"
        item = self.item(node, value if value is not None else self.nodes[node])
        if value is None:
            del self.nodes[node]
        else:
            self.nodes[node] = value
        await self.send({"type": kind, "object": item})

    async def bookmark(self) -> None:
        """Say how far the version is."""
        await self.send({"type": "BOOKMARK", "object": {"kind": "Node", "metadata": {}}})

    async def send(self, event: dict[str, Any]) -> None:
        """An event to all that watch."""
        async with self.changed:
            self.version += 1
            if "metadata" in event["object"]:
                event["object"]["metadata"]["resourceVersion"] = str(self.version)
            self.events.append((self.version, event))
            self.changed.notify_all()

    async def forget(self, *, in_stream: bool = False) -> None:
        """No version so far can be watched from any more; those that watch are told, or only cut off."""
        if in_stream:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await self.send({"type": "ERROR", "object": status})
        self.version += 10
        self.oldest = self.version

    def item(self, name: str, value: str) -> dict[str, Any]:
        """A node, with labels that are not its health."""
        labels = {"kubernetes.io/hostname": name, **({LABEL: value} if value else {})}
        return {"kind": "Node", "metadata": {"name": name, "labels": labels, "resourceVersion": str(self.version)}}

    def cut_off(self) -> None:
        """Drop all connections that watch, without a word."""
        for answer in self.open:
            if answer._req and answer._req.transport:
                answer._req.transport.abort()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """GET /api/v1/nodes."""
        watch = request.query.get("watch") == "1"
        asked = f"watch {request.query['resourceVersion']}" if watch else "list"
        self.requests.append(asked)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401, "message": "Unauthorized"}, status=401)
        if self.refuse:
            status, message = self.refuse
            return web.json_response({"kind": "Status", "code": status, "message": message}, status=status)
        if not watch:
            return self._list(request)
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            return web.json_response({"kind": "Status", "code": 410, "message": "too old"}, status=410)
        return await self._watch(request, since)

    def _list(self, request: web.Request) -> web.Response:
        page, start = min(self.page, int(request.query["limit"])), int(request.query.get("continue", 0))
        names = sorted(self.nodes)[start : start + page]
        more = str(start + page) if start + page < len(self.nodes) else ""
        about = {"resourceVersion": str(self.version), "continue": more}
        items = [self.item(name, self.nodes[name]) for name in names]
        return web.json_response({"kind": "NodeList", "metadata": about, "items": items})

    async def _watch(self, request: web.Request, since: int) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        if self.end_at_once:
            return answer
        self.open.add(answer)
        try:
            async with asyncio.timeout(int(request.query["timeoutSeconds"])):
                while True:
                    async with self.changed:
                        await self.changed.wait_for(lambda since=since: any(v > since for v, _ in self.events))
                        due = [event for version, event in self.events if version > since]
                        since = self.version
                    for event in due:
                        await self._send(answer, json.dumps(event).encode() + b"\n")
        except (TimeoutError, ConnectionError):
            return answer
        finally:
            self.open.discard(answer)

    async def _send(self, answer: web.StreamResponse, data: bytes) -> None:
        size = self.pieces or len(data)
        for start in range(0, len(data), size):
            await asyncio.sleep(self.pause_s)
            await answer.write(data[start : start + size])


@asynccontextmanager
async def serving(api: KubeApi, ssl: SSLContext | None = None, port: int = 0) -> AsyncIterator[int]:
    """Serve it on loopback; the port."""
    app = web.Application()
    app.router.add_get("/api/v1/nodes", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=ssl)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
