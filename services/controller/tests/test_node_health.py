"""The health of nodes, from a real HTTP API that speaks Kubernetes' protocol, to a drain of the run."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from control_runs import STATUS, Run
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kube_api import LABEL, KubeApi, serving

from tandem.config import HealthConfig
from tandem.runtime import beside, until
from tandem.types import Unavailable
from tandem_controller.node_events import Event, Garbled, Gone, Health, lines, read_event, read_list
from tandem_controller.node_health import Api, NodeHealth, api_of, health_watched

REPLACED = "UnschedulablePendingReplacement"


@asynccontextmanager
async def watched(api: KubeApi, run: Run, url: str, folder: Path, watch_s: int = 60) -> AsyncIterator[None]:
    """The watch runs, and has begun."""
    told = list[BaseException]()
    health = NodeHealth(Api(url, folder), LABEL, run, watch_s=watch_s, pause_s=0.1)
    async with beside(health.watch(), told.append):
        yield
    assert not told


async def happens(what: Callable[[], object]) -> bool:
    """It does, within a time that is never needed."""

    async def seen() -> bool | None:
        return True if what() else None

    return bool(await until(seen, every_s=0.01, for_s=60))


def drains(run: Run) -> list[tuple]:
    """What the run was asked."""
    return [asked[1:] for asked in run.asked]


async def test_a_node_of_ours_that_becomes_unwell_is_drained_once(tmp_path: Path) -> None:
    api, run = KubeApi(node_1="Schedulable", node_2="Schedulable", other="Schedulable", head=""), Run()
    async with serving(api) as port, watched(api, run, f"http://127.0.0.1:{port}", tmp_path):
        assert await happens(lambda: api.open)
        await api.label("other", REPLACED)
        await api.label("node-2", "Unschedulable")
        assert await happens(lambda: run.asked)
        await api.label("node-2", REPLACED)
        await api.bookmark()
        await api.label("node-1", "UnschedulablePendingReboot")
        assert await happens(lambda: len(run.asked) == 2)
        await api.label("node-2", "Schedulable")
        await api.label("node-2", "Unschedulable")
        assert await happens(lambda: len(run.asked) == 3)
    assert drains(run) == [
        ("node-2", "Kubernetes says it is Unschedulable"),
        ("node-1", "Kubernetes says it is UnschedulablePendingReboot"),
        ("node-2", "Kubernetes says it is Unschedulable"),
    ]
    assert [asked.split()[0] for asked in api.requests] == ["list", "watch"]


async def test_a_node_that_is_unwell_from_the_start_and_one_we_come_to_later(tmp_path: Path) -> None:
    api, run = KubeApi(node_2="Unschedulable", node_9=REPLACED), Run()
    async with serving(api) as port, watched(api, run, f"http://127.0.0.1:{port}", tmp_path):
        assert await happens(lambda: run.asked)
        moved = replace(STATUS.members[1].member, node="node-9")
        run.told = replace(STATUS, members=(replace(STATUS.members[1], member=moved),))
        await api.bookmark()
        assert await happens(lambda: len(run.asked) == 2)
    assert [node for node, _ in drains(run)] == ["node-2", "node-9"]


async def test_a_node_that_cannot_be_left_yet_is_tried_again(tmp_path: Path) -> None:
    class Failing(Run):
        failures = 0

        async def drain(self, node: str, why: str) -> None:
            if not self.failures:
                self.failures += 1
                raise Unavailable("Ray is away")
            await super().drain(node, why)

    api, run = KubeApi(node_1="Schedulable", node_2="Unschedulable"), Failing()
    async with serving(api) as port, watched(api, run, f"http://127.0.0.1:{port}", tmp_path, watch_s=1):
        assert await happens(lambda: run.asked and len(api.requests) >= 4)
    assert drains(run) == [("node-2", "Kubernetes says it is Unschedulable")] and run.failures == 1


async def test_many_nodes_come_by_pages(tmp_path: Path) -> None:
    api, run = KubeApi(**{f"n{number:02d}": "Schedulable" for number in range(23)}, node_2="Unschedulable"), Run()
    api.page = 5
    async with serving(api) as port, watched(api, run, f"http://127.0.0.1:{port}", tmp_path):
        assert await happens(lambda: run.asked)
    assert [node for node, _ in drains(run)] == ["node-2"] and api.requests[:5] == ["list"] * 5


async def test_a_watch_that_ends_goes_on_where_it_was(tmp_path: Path) -> None:
    api, run = KubeApi(node_2="Schedulable"), Run()
    async with serving(api) as port, watched(api, run, f"http://127.0.0.1:{port}", tmp_path, watch_s=1):
        assert await happens(lambda: api.open)
        await api.bookmark()
        assert await happens(lambda: len(api.requests) >= 3)
        await api.label("node-2", "Unschedulable")
        assert await happens(lambda: run.asked)
    assert api.requests[:3] == ["list", "watch 100", "watch 101"] and api.requests.count("list") == 1


@pytest.mark.parametrize("in_stream", [True, False])
async def test_a_version_that_is_too_old_is_listed_anew(tmp_path: Path, in_stream: bool) -> None:
    api, run = KubeApi(node_1="Schedulable", node_2="Schedulable"), Run()
    async with serving(api) as port, watched(api, run, f"http://127.0.0.1:{port}", tmp_path):
        assert await happens(lambda: api.open)
        api.nodes["node-2"] = "Unschedulable"  # nobody is told
        await api.forget(in_stream=in_stream)
        if not in_stream:
            api.cut_off()
        assert await happens(lambda: run.asked)
    assert [node for node, _ in drains(run)] == ["node-2"] and api.requests.count("list") == 2


async def test_dropped_connections_and_an_api_that_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api, run = KubeApi(node_1="Schedulable", node_2="Schedulable"), Run()
    async with serving(api) as port:
        watching = watched(api, run, f"http://127.0.0.1:{port}", tmp_path)
        await watching.__aenter__()
        assert await happens(lambda: api.open)
        api.cut_off()
        assert await happens(lambda: api.open and len(api.requests) >= 3)
        await api.label("node-1", "Unschedulable")
        assert await happens(lambda: len(run.asked) == 1)
    api.nodes["node-2"] = "Unschedulable"
    asked = len(api.requests)
    await asyncio.sleep(0.3)  # it is away
    async with serving(api, port=port):
        assert await happens(lambda: len(api.requests) > asked)
        await api.label("node-2", REPLACED)
        assert await happens(lambda: len(run.asked) == 2)
    await watching.__aexit__(None, None, None)
    assert [node for node, _ in drains(run)] == ["node-1", "node-2"]


async def test_pieces_of_an_event_that_come_slowly(tmp_path: Path) -> None:
    api, run = KubeApi(node_2="Schedulable"), Run()
    api.pieces, api.pause_s = 7, 0.002
    async with serving(api) as port, watched(api, run, f"http://127.0.0.1:{port}", tmp_path):
        assert await happens(lambda: api.open)
        await api.label("node-2", "Unschedulable")
        assert await happens(lambda: run.asked)


async def test_who_may_not_look_is_told_once_and_it_is_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api, run = KubeApi(node_2="Unschedulable"), Run()
    api.refuse = (403, 'nodes is forbidden: User "system:serviceaccount:x:default" cannot list')
    async with serving(api) as port:
        url = f"http://127.0.0.1:{port}"
        await asyncio.wait_for(NodeHealth(Api(url, tmp_path), LABEL, run, pause_s=0.1).watch(), 60)
    (record,) = [record for record in caplog.records if record.name == "tandem_controller.node_health"]
    assert record.getMessage().startswith(f"the health of nodes is not watched: {url} answers 403: ")
    assert record.getMessage().endswith("give its service account get, list and watch on nodes")
    assert (api.requests, run.asked) == (["list"], [])


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503, 302])
async def test_any_other_refusal_passes_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    api, run = KubeApi(node_2="Unschedulable"), Run()
    api.refuse = (status, "not now")
    with caplog.at_level("INFO"):
        async with serving(api) as port, watched(api, run, f"http://127.0.0.1:{port}", tmp_path):
            assert await happens(lambda: len(api.requests) >= 4)
            assert run.asked == []
            api.refuse = None
            assert await happens(lambda: run.asked and "the health of nodes is watched again" in caplog.messages)
    texts = [record.getMessage() for record in caplog.records if record.name == "tandem_controller.node_health"]
    told = [text for text in texts if "cannot be watched now" in text]
    assert len(told) == 1 and f"answers {status}" in told[0]


async def test_an_api_that_ends_each_watch_at_once_is_not_stormed(tmp_path: Path) -> None:
    api, run = KubeApi(node_2="Schedulable"), Run()
    api.end_at_once = True
    async with serving(api) as port:
        health = NodeHealth(Api(f"http://127.0.0.1:{port}", tmp_path), LABEL, run, pause_s=1000)
        async with beside(health.watch(), lambda problem: None):
            assert await happens(lambda: len(api.requests) == 2)
            await asyncio.sleep(0.3)
    assert len(api.requests) <= 4


async def test_a_new_token_is_taken_from_its_file(tmp_path: Path) -> None:
    api, run = KubeApi(node_2="Schedulable"), Run()
    api.token = "one"
    (tmp_path / "token").write_text("one\n")
    async with serving(api) as port, watched(api, run, f"http://127.0.0.1:{port}", tmp_path):
        assert await happens(lambda: api.open)
        api.token = "two"
        api.cut_off()
        assert await happens(lambda: len(api.requests) >= 4)  # refused
        (tmp_path / "token").write_text("two\n")
        assert await happens(lambda: api.open)
        await api.label("node-2", "Unschedulable")
        assert await happens(lambda: run.asked)


def authority(folder: Path) -> ssl.SSLContext:
    """A certificate for 127.0.0.1 that vouches for itself: `ca.crt` in the folder, and a server's context."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kube")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
    return context


async def test_tls_with_the_clusters_own_authority(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api, run = KubeApi(node_2="Unschedulable"), Run()
    async with serving(api, authority(tmp_path)) as port:
        url = f"https://127.0.0.1:{port}"
        (empty := tmp_path / "empty").mkdir()
        async with watched(api, run, url, empty):
            assert await happens(lambda: any("certificate verify failed" in text for text in caplog.messages))
        assert (api.requests, run.asked) == ([], [])
        async with watched(api, run, url, tmp_path):
            assert await happens(lambda: run.asked)


async def test_no_certificates_is_one_line_and_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ca.crt").write_text("none")
    await NodeHealth(Api("https://127.0.0.1:1", tmp_path), LABEL, Run()).watch()
    assert "ca.crt: no certificates of an authority" in caplog.messages[0]


def test_where_the_api_is(tmp_path: Path) -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    config = HealthConfig(folder=str(tmp_path))
    assert api_of(config, inside) is None  # no service account
    (tmp_path / "token").write_text("t")
    assert api_of(config, {}) is None
    assert api_of(config, inside) == Api("https://10.0.0.1:6443", tmp_path)
    assert api_of(config, {"KUBERNETES_SERVICE_HOST": "fd00::1"}) == Api("https://[fd00::1]:443", tmp_path)
    named = HealthConfig(folder=str(tmp_path), api_url="http://127.0.0.1:8001/")
    assert api_of(named, inside) == Api("http://127.0.0.1:8001", tmp_path)
    assert api_of(named.model_copy(update={"watch": "off"}), inside) is None


@pytest.mark.parametrize("url", ["http://10.0.0.1:8001", "http://kubernetes.default", "ftp://127.0.0.1", "10.0.0.1"])
def test_a_token_goes_nowhere_in_the_clear(url: str) -> None:
    with pytest.raises(ValueError, match="https, or http on loopback"):
        HealthConfig(api_url=url)
    for fine in ("https://10.0.0.1", "http://[::1]:8001", "http://localhost:8001", "http://127.0.0.1:8001"):
        HealthConfig(api_url=fine)


async def test_the_config_says_where(tmp_path: Path) -> None:
    api, run = KubeApi(node_2="Unschedulable"), Run()
    async with serving(api) as port:
        config = HealthConfig(api_url=f"http://127.0.0.1:{port}", folder=str(tmp_path))
        async with health_watched(run, config):
            assert await happens(lambda: run.asked)
        async with health_watched(run, config.model_copy(update={"watch": "off"})):
            assert len(api.requests) <= 2


def test_health_is_what_changed() -> None:
    health = Health()
    assert health.listed({"a": "", "b": "Schedulable"}) == ()
    assert [str(change) for change in health.listed({"a": "Unschedulable", "b": REPLACED})] == [
        "node a is Unschedulable",
        f"node b is {REPLACED}",
    ]
    assert health.seen("a", "Unschedulable") is None
    assert str(health.seen("a", "")) == "node a is Schedulable, it was Unschedulable"
    assert health.seen("b", None) is None and health.unwell == {}
    health.seen("c", REPLACED)
    assert health.listed({"a": ""}) == () and health.unwell == {}


async def test_answers_that_are_none() -> None:
    for body in (
        b"",
        b"[]",
        b"{}",
        b'{"metadata": {}}',
        b'{"metadata": {}, "items": [{}]}',
        b'{"metadata":{},"items":[5]}',
    ):
        with pytest.raises(Garbled):
            read_list(body, LABEL)
    for line in (b"x", b"{}", b'{"type":"ADDED","object":{"metadata":{}}}', b'{"type":"ERROR","object":{"code":500}}'):
        with pytest.raises(Garbled):
            read_event(line, LABEL)
    with pytest.raises(Gone):
        read_event(b'{"type":"ERROR","object":{"code":410}}', LABEL)
    odd = b'{"type":"MODIFIED","object":{"metadata":{"name":"a","labels":{"%s":5}}}}' % LABEL.encode()
    assert read_event(odd, LABEL) == Event("", "a", "")

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 2**20

    with pytest.raises(Garbled, match="longer than"):
        [line async for line in lines(endless())]
