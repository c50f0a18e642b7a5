"""Every method of every service, asked in ways that no client of ours asks; and ports that are sent anything at all.

Each call ends in time with a status that means something, never INTERNAL or UNKNOWN; then the services still answer,
and neither memory nor open files have grown. `make fuzz` does much more of the same.
"""

from __future__ import annotations

import gc
import random
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.rpc.access import rule_of
from tandem.rpc.fence import CALLER_KEY, encode_identity
from tandem.rpc.interceptor import PROTOCOL, PROTOCOL_KEY
from tandem.rpc.keyring import Keyring
from tandem.types import Identity, Role
from tests.fuzz.messages import messages
from tests.fuzz.services import SERVICES, all_services

CODE = grpc.StatusCode
DEADLINE_S = 30.0
TOLD = {  # whatever was asked
    CODE.OK,
    CODE.INVALID_ARGUMENT,
    CODE.FAILED_PRECONDITION,
    CODE.NOT_FOUND,
    CODE.DATA_LOSS,
    CODE.UNAVAILABLE,
}
SHUT = {CODE.UNAUTHENTICATED, CODE.PERMISSION_DENIED}
METHODS = [(role, method) for role, service in SERVICES.items() for method in service.methods]
MORE_MIB, MORE_FILES = 160, 16  # a large message and its copy stay with the allocator; they would not four times
LARGE = 48 * 2**20
LONG = settings.get_current_profile_name() == "fuzz"
MANY = settings(
    max_examples=settings.get_profile("fuzz").max_examples if LONG else 12,
    derandomize=not LONG,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
Metadata = tuple[tuple[str, str | bytes], ...]


class Services:
    """All services behind one lock, and what a caller of any role says."""

    def __init__(self, addresses: dict[Role, str], keyring: Keyring) -> None:
        self.addresses, self.keyring = addresses, keyring
        self.channels = {role: grpc.insecure_channel(address) for role, address in addresses.items()}

    def metadata(self, role: Role) -> Metadata:
        door = self.keyring.door(Identity(role, 0, 1))
        return ((PROTOCOL_KEY, PROTOCOL), (CALLER_KEY, encode_identity(door.me)), *door.proof())

    def ask(self, role: Role, path: str, parts: Iterable[bytes], metadata: Metadata) -> tuple[grpc.StatusCode, str]:
        """Call a method with bytes; how that ended."""
        call: Any = self.channels[role].stream_stream(path)
        try:
            for _ in call(iter(parts), timeout=DEADLINE_S, metadata=metadata):
                pass
        except grpc.RpcError as problem:
            said: Any = problem
            return said.code(), said.details() or ""
        return CODE.OK, ""

    def all_answer(self) -> None:
        """Who may ask how they fare is told."""
        for role, service in SERVICES.items():
            code, said = self.ask(role, f"/{service.full_name}/GetStatus", [b""], self.metadata(Role.CONTROLLER))
            assert code is CODE.OK, f"{role}: {said}"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    keyring = Keyring("token", secret=b"of this test's services, no others")
    with all_services(tmp_path_factory.mktemp("fuzz"), keyring) as addresses:
        made = Services(addresses, keyring)
        for role, service in SERVICES.items():  # once, for what is only allocated once
            made.ask(role, f"/{service.full_name}/GetStatus", [bytes(LARGE)], made.metadata(Role.CONTROLLER))
        made.all_answer()
        yield made
        for channel in made.channels.values():
            channel.close()


@pytest.fixture
def steady(services: Services) -> Iterator[None]:
    """Afterwards they answer, and hold no more than before."""
    before = _held()
    yield
    services.all_answer()
    if not _within(before, _held()):
        gc.collect()
    now = _held()
    assert _within(before, now), f"(MiB, files): {before} -> {now}"


def _held() -> tuple[int, int]:
    """MiB of memory, and open files."""
    process = psutil.Process()
    return process.memory_info().rss // 2**20, process.num_fds()


def _within(before: tuple[int, int], now: tuple[int, int]) -> bool:
    return now[0] - before[0] <= MORE_MIB and now[1] - before[1] <= MORE_FILES


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def caller_of(method: MethodDescriptor) -> Role:
    rule = rule_of(path_of(method))
    assert rule is not None
    return sorted(rule.callers)[0]


@pytest.mark.parametrize(("role", "method"), METHODS, ids=lambda value: getattr(value, "full_name", str(value)))
def test_any_message_is_answered(services: Services, steady: None, role: Role, method: MethodDescriptor) -> None:
    count = st.lists(messages(method.input_type), min_size=0, max_size=4 if method.client_streaming else 1)

    @MANY
    @given(count)
    def ask(asked: list[Any]) -> None:
        code, said = services.ask(
            role, path_of(method), [part.SerializeToString() for part in asked], services.metadata(caller_of(method))
        )
        assert code in TOLD, f"{code}: {said}"

    ask()


@pytest.mark.parametrize("role", SERVICES)
def test_bytes_that_are_no_message(services: Services, steady: None, role: Role) -> None:
    @MANY
    @given(st.sampled_from(list(SERVICES[role].methods)), st.lists(st.binary(max_size=300), min_size=1, max_size=3))
    def ask(method: MethodDescriptor, parts: list[bytes]) -> None:
        code, said = services.ask(role, path_of(method), parts, services.metadata(caller_of(method)))
        assert code in TOLD, f"{code}: {said}"

    ask()


@pytest.mark.parametrize("role", SERVICES)
def test_metadata_of_any_kind_opens_nothing(services: Services, steady: None, role: Role) -> None:
    text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=100)
    keys = st.sampled_from(["authorization", "tandem-caller", "tandem-callee", "tandem-protocol", "x"])
    pairs = st.lists(st.tuples(keys, text), max_size=5) | st.just([("x-bin", b"\xff" * 100)])

    @MANY
    @given(st.sampled_from(list(SERVICES[role].methods)), pairs)
    def ask(method: MethodDescriptor, metadata: list[tuple[str, str | bytes]]) -> None:
        code, said = services.ask(role, path_of(method), [b""], tuple(metadata))
        assert code in SHUT, f"{code}: {said}"

    ask()
    right = services.metadata(Role.CONTROLLER)
    path = f"/{SERVICES[role].full_name}/GetStatus"
    for wrong in ("king/0/1", "controller/0/-1", "é" * 50, "x" * 5000):
        changed = tuple(
            (key, wrong.encode("ascii", "replace").decode() if key == CALLER_KEY else value) for key, value in right
        )
        assert services.ask(role, path, [b""], changed)[0] is CODE.INVALID_ARGUMENT
    code, said = services.ask(role, path, [b""], (*right, ("x", "y" * 100_000)))
    assert code is CODE.RESOURCE_EXHAUSTED and "metadata" in said
    assert services.ask(role, path[:-1], [b""], right)[0] is CODE.UNIMPLEMENTED


@pytest.mark.parametrize("role", SERVICES)
def test_a_message_that_is_too_large_is_refused_by_its_size(services: Services, steady: None, role: Role) -> None:
    path = f"/{SERVICES[role].full_name}/GetStatus"
    for size in (8 * 2**10, *[LARGE] * 4):
        code, said = services.ask(role, path, [bytes(size)], services.metadata(Role.CONTROLLER))
        assert code in (CODE.INVALID_ARGUMENT, CODE.RESOURCE_EXHAUSTED), said
        assert str(size) in said
    assert services.ask(role, path, [bytes(LARGE)], ())[0] in SHUT  # a stranger's is not read


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def frame(kind: int, flags: int, stream: int, data: bytes, length: int | None = None) -> bytes:
    """Of HTTP/2; `length` may be a lie."""
    return (
        (len(data) if length is None else length).to_bytes(3, "big")
        + bytes([kind, flags])
        + stream.to_bytes(4, "big")
        + data
    )


def rubbish(seed: int) -> Iterator[bytes]:
    """What is sent by connection."""
    noise = random.Random(seed)
    for size in (0, 1, 9, 1000, 100_000):
        yield noise.randbytes(size)
        yield PREFACE + noise.randbytes(size)
        yield PREFACE + SETTINGS + noise.randbytes(size)
    yield PREFACE[:10]
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise.randbytes(500)  # TLS, where none is spoken
    yield PREFACE + SETTINGS + frame(0, 0, 1, b"", 2**24 - 1)  # a frame that never comes
    yield PREFACE + SETTINGS + frame(1, 4, 1, b"\x82\x86\x84\x41\x8a", 5)[:-2]  # headers cut short
    yield PREFACE + SETTINGS + frame(1, 4, 1, noise.randbytes(200))  # headers that cannot be unpacked
    yield PREFACE + SETTINGS + frame(1, 0, 1, b"") + frame(9, 0, 1, b"x" * 16_000) * 50  # a header without an end
    yield PREFACE + SETTINGS * 2000
    yield PREFACE + SETTINGS + frame(6, 0, 0, bytes(8)) * 2000  # pings
    yield PREFACE + SETTINGS + b"".join(frame(3, 0, 2 * i + 1, bytes(4)) for i in range(500))  # resets of nothing


@pytest.mark.parametrize("role", SERVICES)
def test_anything_at_all_on_a_port(services: Services, steady: None, role: Role) -> None:
    host, _, port = services.addresses[role].rpartition(":")
    with ExitStack() as open_ones:  # half open until the end: they say no more
        for data in (*rubbish(random.getrandbits(32) if LONG else 0), *[b""] * 40, *[PREFACE] * 40):
            connection = open_ones.enter_context(socket.create_connection((host, int(port)), 10))
            connection.settimeout(10)
            try:
                connection.sendall(data)
            except OSError:
                continue  # it was shown out in the middle of a word
        services.all_answer()


def test_a_call_that_never_ends_its_request_keeps_nobody_from_theirs(services: Services, steady: None) -> None:
    """As many as its deadline is patient with: they are held by their callers, and let go with them."""
    path = f"/{SERVICES[Role.CHECKPOINT_MANAGER].full_name}/PutShard"
    with grpc.insecure_channel(services.addresses[Role.CHECKPOINT_MANAGER]) as channel:
        gate = socket.socketpair()

        def never() -> Iterator[bytes]:
            gate[0].recv(1)
            return
            yield b""

        futures = [
            channel.stream_unary(path).future(never(), timeout=DEADLINE_S, metadata=services.metadata(Role.LEARNER))
            for _ in range(50)
        ]
        services.all_answer()
        for future in futures:
            future.cancel()
        gate[1].sendall(b"x" * 50)
        for end in gate:
            end.close()
