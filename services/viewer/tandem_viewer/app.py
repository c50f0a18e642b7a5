"""The page and what it asks for, over HTTP on loopback. It only ever reads.

Whatever a model wrote is data: JSON here, text nodes there, and a policy that lets no script run but the page's own.
The Host header must name this machine, so that no page elsewhere can read through a name of its own (DNS rebinding).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tandem.types import DataCorrupt, NotFound, UserError
from tandem_viewer import shown
from tandem_viewer.library import Library, Place

_IN_ORDER = ("base", "data", "chart", "overview", "groups", "player", "compare", "failures", "main")
SCRIPTS = tuple(f"{name}.js" for name in _IN_ORDER)  # in this order, in one scope
PAGE = "index.html"
STYLE = "style.css"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
NAMES = ("127.0.0.1", "localhost", "[::1]")


def page_file(name: str) -> str:
    """The text of one of the page's files."""
    return (files("tandem_viewer") / "page" / name).read_text(encoding="utf-8")


def build_app(library: Library, compare: int | None = None) -> Starlette:
    """The application. `compare`: the version that the page opens the comparison with."""

    def answer_facts(request: Request) -> Response:
        return _json({**library.facts(), "compare": compare})

    def answer_rows(request: Request) -> Response:
        page = library.page(request.query_params.get("edition", ""), _int(request, "from"))
        rows = [shown.row(source, entry) for source, entry in page.entries]
        return _json({"edition": page.edition, "from": page.start, "total": page.total, "rows": rows})

    def answer_group(request: Request) -> Response:
        entry, line = library.group(_place(request))
        return _json(shown.group(entry, line))

    def answer_image(request: Request) -> Response:
        digest, png = library.image(_place(request))
        if not digest.startswith(request.query_params.get("v", "")):
            raise NotFound("another image stands there now")
        return Response(png, media_type="image/png", headers={"cache-control": "private, max-age=86400"})

    def answer_file(request: Request) -> Response:
        name = request.path_params.get("name") or PAGE
        if name not in (PAGE, STYLE, *SCRIPTS):
            raise NotFound("no such page")
        kind = KINDS[name[name.rindex(".") :]]
        return Response(page_file(name), media_type=f"{kind}; charset=utf-8", headers={"cache-control": "no-cache"})

    routes = [
        Route("/api/facts", answer_facts),
        Route("/api/rows", answer_rows),
        Route("/api/group", answer_group),
        Route("/api/image", answer_image),
        Route("/", answer_file),
        Route("/{name}", answer_file),
    ]
    told: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        NotFound: _failed(404),
        DataCorrupt: _failed(409),
        UserError: _failed(400),
    }
    return Starlette(routes=routes, middleware=[Middleware(Guard)], exception_handlers=told)


class Guard:
    """Refuses what does not ask for this machine by name, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not {hosts[0], hosts[0].rpartition(":")[0]} & set(NAMES):
            refusal = PlainTextResponse("this page is only for the machine it runs on", status_code=403)
            await refusal(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)


def _failed(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, problem: Exception) -> Response:
        return _json({"problem": str(problem)}, status)

    return answer


def _json(content: Any, status: int = 200) -> Response:
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(
        data.encode("utf-8", "replace"),
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


def _place(request: Request) -> Place:
    return Place(_int(request, "source"), request.query_params.get("part", ""), _int(request, "at"))


def _int(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise UserError(f"{name}: no number")
    return int(text)
