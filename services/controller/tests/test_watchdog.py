"""When nothing goes on, one line says who waits for whom; while something does, none."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from replicas import Replica

from tandem.rpc.clients import RolloutClient
from tandem.rpc.gen.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from tandem.rpc.server import serve
from tandem.runtime import Wait, Waits, together
from tandem.types import Activity, CheckpointStatus, LearnerStatus, PublishKind, Role
from tandem_controller import watchdog
from tandem_controller.watchdog import Said, Watchdog, asked, described


class Scene:
    """A clock, those who wait by it, what the services say by address, and the lines that were told."""

    def __init__(self, stall_s: float = 60.0) -> None:
        self.now = 0.0
        self.waits = Waits(lambda: self.now)
        self.says: dict[str, Said] = {}
        self.asked: list[str] = []
        self.during: Callable[[], None] = lambda: None
        self.told: list[str] = []
        self.dog = Watchdog(self.waits, stall_s, self._ask, self.told.append)

    async def _ask(self, wait: Wait) -> Said:
        self.asked.append(wait.address)
        self.during()
        return self.says.get(wait.address, Said("it does not answer within 5 s"))

    async def pass_by(self, seconds: int) -> None:
        """Seconds go by, with a look at each."""
        for _ in range(seconds):
            self.now += 1
            await self.dog.look()


async def test_one_line_names_who_waits_for_whom_and_again_at_growing_intervals() -> None:
    scene = Scene()
    with scene.waits.on("learner 0 (generation 1) at h:1", "TrainStep v12", Role.LEARNER, "h:1"):
        await scene.pass_by(59)
        assert scene.told == []
        await scene.pass_by(1)
        assert scene.told == [
            "nothing has gone on for 60 s: the controller waits for learner 0 (generation 1) at h:1: TrainStep v12, "
            "for 60 s (it does not answer within 5 s)"
        ]
        await scene.pass_by(440)
    assert [text.split(":")[0] for text in scene.told] == [
        f"nothing has gone on for {seconds} s" for seconds in (60, 120, 240, 480)
    ]
    assert set(scene.asked) == {"h:1"} and len(scene.asked) <= 500 / 15


async def test_what_goes_on_is_no_alarm_and_ends_one() -> None:
    scene = Scene()
    with scene.waits.on("rollout 0", "Rollout v3", Role.ROLLOUT, "h:1") as moved:
        for _ in range(20):
            await scene.pass_by(14)
            moved()
        assert (scene.told, scene.asked) == ([], [])
        for _ in range(20):
            await scene.pass_by(59)
            moved()
        assert scene.told == []
        await scene.pass_by(60)
        assert len(scene.told) == 1
        moved()
        await scene.pass_by(59)
        assert len(scene.told) == 1
        await scene.pass_by(1)
        assert len(scene.told) == 2


async def test_a_service_that_works_is_no_alarm_however_long_its_answer_takes() -> None:
    scene = Scene()
    with scene.waits.on("rollout 0", "Rollout v3", Role.ROLLOUT, "h:1"):
        for second in range(1000):
            scene.says["h:1"] = Said("it says: 8 episodes running", work=second // 58)
            await scene.pass_by(1)
        assert scene.told == []
        await scene.pass_by(100)
        assert len(scene.told) == 1 and scene.told[0].endswith("(it says: 8 episodes running)")


async def test_one_hangs_beside_others_that_wait() -> None:
    scene = Scene()
    scene.says["h:2"] = Said("it says: adapter v2 published", 2)
    with scene.waits.on("rollout 1", "Rollout v3", Role.ROLLOUT, "h:1"):
        await scene.pass_by(10)
        with (
            scene.waits.on("checkpoint manager", "Publish v3", Role.CHECKPOINT_MANAGER, "h:2"),
            scene.waits.on("Ray", "start of rollout 2"),
        ):
            await scene.pass_by(50)
    assert scene.told == [
        "nothing has gone on for 60 s: the controller waits for rollout 1: Rollout v3, for 60 s "
        "(it does not answer within 5 s); for checkpoint manager: Publish v3, for 50 s "
        "(it says: adapter v2 published); for Ray: start of rollout 2, for 50 s"
    ]


async def test_what_moves_while_it_asks_is_no_alarm() -> None:
    scene = Scene()
    with scene.waits.on("rollout 1", "Rollout v3", Role.ROLLOUT, "h:1") as moved:
        await scene.pass_by(40)
        scene.during = moved
        await scene.pass_by(60)
    assert scene.told == []


async def test_many_are_counted_and_nobody_is_said() -> None:
    scene = Scene()
    await scene.pass_by(60)
    assert scene.told == [
        "nothing has gone on for 60 s, and the controller waits for nobody: it is at work of its own, or hangs"
    ]
    with ExitStack() as open_waits:
        for number in range(7):
            open_waits.enter_context(scene.waits.on(f"rollout {number}", "Rollout"))
        await scene.pass_by(60)
    assert scene.told[1].endswith("for rollout 3: Rollout, for 60 s; and for 3 more")


class Hanging(Replica):
    """Says how it is, and plays for ever."""

    async def Rollout(self, request, context):
        await asyncio.Event().wait()
        yield

    async def GetStatus(self, request, context):
        return rollout_pb2.GetStatusResponse(healthy=True, policy_version=4, episodes_running=8, turns_done=5)


class Lines(logging.Handler):
    """Messages, and an event once there are two."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.two = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if len(self.lines) == 2:
            self.two.set()


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What the watchdog logs."""
    handler, level = Lines(), watchdog.log.level
    watchdog.log.addHandler(handler)
    watchdog.log.setLevel(logging.DEBUG)
    yield handler
    watchdog.log.removeHandler(handler)
    watchdog.log.setLevel(level)


async def test_a_real_call_that_hangs_is_told_with_what_the_replica_says(lines: Lines) -> None:
    running = await serve(lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(Hanging(), server), [])
    client = RolloutClient(running.address)

    async def play() -> None:
        request = rollout_pb2.RolloutRequest(policy_version=4)
        await together(anext(client.peer.stream(client.stub.Rollout, request, 60)))

    waiting = asyncio.create_task(play(), name="waits for ever")
    async with watchdog.watching(0.2):
        await asyncio.wait_for(lines.two.wait(), 60)
    waiting.cancel()
    await asyncio.wait({waiting})
    await client.close()
    await running.stop(0)
    told, tasks = lines.lines[:2]
    assert f"the controller waits for rollout at {running.address}: Rollout v4, for" in told
    assert told.endswith("(it says: version 4, healthy, 8 episodes running)")
    assert re.search(r"waits for ever at \S+play:\d+ > together:\d+", tasks)


async def test_who_does_not_answer_or_is_not_there() -> None:
    class Mute(Replica):
        async def GetStatus(self, request, context):
            await asyncio.Event().wait()

    running = await serve(lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(Mute(), server), [])
    wait = Wait("rollout 0", "Rollout", 0.0, Role.ROLLOUT, running.address)
    assert (await asked(wait, timeout_s=0.1)).words == "it does not answer within 0.1 s"
    await running.stop(0)
    assert (await asked(wait)).words == "it cannot be reached"
    assert await asked(Wait("Ray", "start", 0.0)) == Said("")


def test_services_in_words() -> None:
    busy = Activity(7, ("learner rank 1: Train, for 300 s", "checkpoint manager: PutShard, for 2 s"))
    assert described(LearnerStatus(3, 2, "b", 10, "{}", busy)) == Said(
        "it says: version 3, 2 ranks, waiting for learner rank 1: Train, for 300 s", 7
    )
    status = CheckpointStatus("u", {PublishKind.ADAPTER: 3, PublishKind.STATE: 1}, 0, 0.0, "the disk is full", None)
    assert described(status) == Said("it says: adapter v3, state v1 published, the disk is full", 0)
    nothing = CheckpointStatus("u", {}, 0, 0.0, "", None, Activity(5))
    assert described(nothing) == Said("it says: nothing published", 5)
