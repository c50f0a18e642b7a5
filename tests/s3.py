"""A real S3-speaking server on loopback (moto's), and a proxy before it that fails on demand."""

from __future__ import annotations

import http.client
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from uuid import uuid4

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
ENDPOINT = "AWS_ENDPOINT_URL"
# What the proxy does with a request: one of these, or an HTTP status (500, 503) to answer with; None: pass it on.
DROP, CUT, LOSE = "drop", "cut", "lose"  # close before the body is read, in the middle of it, or keep the answer back
CUT_ANSWER = "cut answer"  # close in the middle of the answer's body
Fault = Callable[[str, str], str | int | None]  # of method and path with query


@contextmanager
def s3_server() -> Iterator[str]:
    """The URL of a running server."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def make_bucket() -> str:
    """A new bucket at the endpoint that the environment names."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    name = f"tandem-{uuid4().hex[:12]}"
    s3fs.S3FileSystem().mkdir(name)
    return name


@dataclass
class FaultyProxy:
    """`fault` decides on each request; `asked` are all requests so far."""

    url: str
    asked: list[tuple[str, str]]
    fault: Fault = lambda method, path: None


@contextmanager
def faulty_proxy(target: str) -> Iterator[FaultyProxy]:
    """A proxy to the server at `target`."""
    proxy = FaultyProxy("", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy, target.removeprefix("http://")))
    server.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()


def _handler(proxy: FaultyProxy, target: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.close_connection = True  # one request a connection: a fault then hits that request alone
            with suppress(OSError):
                self.raw_requestline = self.rfile.readline(65537)
                if self.raw_requestline and self.parse_request():
                    self.close_connection = True
                    self._serve()

        def _serve(self) -> None:
            proxy.asked.append((self.command, self.path))
            fault = proxy.fault(self.command, self.path)
            if fault == DROP:
                return
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.send_response_only(100)
                self.end_headers()
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length // 2 if fault == CUT else length)
            if fault == CUT:
                return
            if isinstance(fault, int):
                self._answer(fault, {"Content-Type": "application/xml"}, _error(fault))
                return
            server = http.client.HTTPConnection(target)
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    server.putheader(name, value)
            server.endheaders(body)
            answer = server.getresponse()
            data = answer.read()
            server.close()
            if fault == CUT_ANSWER:
                self._answer(answer.status, dict(answer.getheaders()), data, keep_back=len(data) // 2)
            elif fault != LOSE:
                self._answer(answer.status, dict(answer.getheaders()), data)

        def _answer(self, status: int, headers: dict[str, str], data: bytes, keep_back: int = 0) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length)
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) - keep_back])

    return Handler


def _error(status: int) -> bytes:
    code, text = {503: ("SlowDown", "Please reduce your request rate.")}.get(status, ("InternalError", "Try again."))
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    return f"{head}<Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()
