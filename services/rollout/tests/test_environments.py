"""Whatever an environment does, its episode ends with a reason, the others go on, and generation does too."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rollout_stub_engine import StubEngine
from rollout_worlds import ABSURD, FINE, Trouble

from tandem import envs
from tandem.envs import Observation, StepResult
from tandem.model.chat import ChatFormat
from tandem.types import ContextPolicy, RolloutTask, Sampling, StopReason, TrajectoryGroup, UserError
from tandem_rollout.core import Limits, Player
from tandem_rollout.env_processes import EnvProcesses
from tandem_rollout.environments import EnvFailed, Environments, EnvThreads

TROUBLE = "rollout_worlds:Trouble"
TASK = RolloutTask(TROUBLE, (1,), 2, 0, Sampling(max_tokens=8), ContextPolicy(1), 5, 7)
LIMITS = Limits(max_concurrent_episodes=256, episode_timeout_s=120, max_images=5)


@pytest.fixture(scope="module")
def chat(model_dir: Path) -> ChatFormat:
    return ChatFormat.load(model_dir)


@pytest.fixture(params=["threads", "processes"])
def workers(request: pytest.FixtureRequest) -> Callable[[float], Environments]:
    """Either way to run environments, given the deadline of a step."""
    return (lambda timeout: EnvThreads(envs.make, timeout)) if request.param == "threads" else EnvProcesses


async def play(
    chat: ChatFormat, environments: Environments, answer: Callable[[int], str], task: RolloutTask = TASK
) -> list[TrajectoryGroup]:
    player = Player(StubEngine(chat, answer=answer), chat, environments, LIMITS)
    try:
        return [group async for group in player.play(task)]
    finally:
        await player.close()


def once(word: str, at: int = 3) -> Callable[[int], str]:
    """That word as the answer to one request, which is not the first of an episode of two."""
    return lambda number: word if number == at else "go"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("raise", "step: ZeroDivisionError: physics physics"),
        ("speechless", "step: Speechless"),
        ("stop", "step: StopIteration"),
        ("exit", "step: SystemExit: 3"),
        ("nan reward", "reward must be finite, not nan"),
        ("text reward", "reward must be a number, not str"),
        ("infinite task", "task_reward must be finite"),
        ("number ends", "terminated must be True or False, not int"),
        ("text info", "info['where'] must be a number, not str"),
        ("list info", "info must map names to numbers"),
        ("float image", "images[0] must be uint8 [H, W, 3], not float32 [4, 4, 3]"),
        ("flat image", "not uint8 [4, 4]"),
        ("huge image", "8192 pixels, not uint8 [1, 9000, 3]"),
        ("empty image", "pixels, not uint8 [0, 4, 3]"),
        ("one image", "must be a tuple of arrays"),
        ("many images", "9 images; env.images_per_turn is 1"),
        ("no text", "observation.text must be text, not NoneType"),
        ("much text", "more than 100000"),
        ("broken text", "not Unicode text"),
        ("nothing", "must return a StepResult, not NoneType"),
    ],
)
async def test_trouble_ends_one_episode_with_a_clear_reason(
    chat: ChatFormat, workers: Callable[[float], Environments], word: str, message: str
) -> None:
    assert word in (*ABSURD, "raise", "speechless", "stop", "exit")
    (group,) = await play(chat, workers(60), once(word))
    failed, whole = sorted(group.trajectories, key=lambda trajectory: trajectory.stop_reason)
    assert failed.stop_reason is StopReason.ENV_ERROR and failed.stop_reason.failed and message in failed.error
    assert "\n" not in failed.error and len(failed.error) < 600
    assert whole.stop_reason is StopReason.TERMINATED and whole.solved and whole.error == ""


async def test_a_hanging_step_ends_its_episode_alone(
    chat: ChatFormat, workers: Callable[[float], Environments]
) -> None:
    (group,) = await play(chat, workers(3), once("hang"))
    failed, whole = sorted(group.trajectories, key=lambda trajectory: trajectory.stop_reason)
    assert (failed.stop_reason, failed.error) == (StopReason.ENV_ERROR, "step: no answer within 3 s")
    assert whole.solved


async def test_an_instruction_that_is_no_text(chat: ChatFormat, workers: Callable[[float], Environments]) -> None:
    (group,) = await play(chat, workers(60), lambda number: "go", replace(TASK, seeds=(2000,)))
    assert {t.error for t in group.trajectories} == {"reset: BadOutput: instruction must be text, not int"}


async def test_one_that_cannot_be_described_is_the_user_s_to_mend(chat: ChatFormat) -> None:
    environments = EnvThreads(envs.make, 60)
    with pytest.raises(UserError, match="rollout_worlds:Undescribed: ZeroDivisionError"):
        await play(chat, environments, lambda number: "go", replace(TASK, env="rollout_worlds:Undescribed"))


async def test_many_hanging_episodes_hold_up_no_healthy_one(chat: ChatFormat) -> None:
    """More episodes hang than any pool would have threads; the healthy ones are done before the first deadline."""
    hanging, healthy = tuple(range(1000, 1040)), tuple(range(1, 9))
    task = replace(TASK, seeds=(*hanging, *healthy))
    groups = await play(chat, EnvThreads(envs.make, 8), lambda number: "go", task)
    assert {group.seed for group in groups[: len(healthy)]} == set(healthy)
    for group in groups:
        wanted = StopReason.TERMINATED if group.seed in healthy else StopReason.ENV_ERROR
        assert {trajectory.stop_reason for trajectory in group.trajectories} == {wanted}


async def test_generation_goes_on_while_environments_are_slow(chat: ChatFormat) -> None:
    """Eight episodes wait inside their first step until the engine has served twenty requests of the others."""
    served, enough = 0, threading.Event()

    class Slow(Trouble):
        def step(self, completion_text: str) -> StepResult:
            if completion_text == "slow":
                assert enough.wait(60)
            return super().step(completion_text)

    def answer(number: int) -> str:
        nonlocal served
        served += 1
        if served >= 28:
            enough.set()
        return "slow" if number < 8 else "go"

    task = replace(TASK, env="maze2d:tiny", group_size=16)
    (group,) = await play(chat, EnvThreads(lambda env_id: Slow(), 90), answer, task)
    assert all(trajectory.solved for trajectory in group.trajectories)


class Jealous(Trouble):
    """Keeps who called it, and whether two did at once. The step "slow" waits until it may go on."""

    def __init__(self, may_go_on: threading.Event) -> None:
        super().__init__()
        self.may_go_on = may_go_on
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self._inside = threading.Lock()

    def called(self, what: str) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append(what if self._inside.acquire(blocking=False) else f"{what} during another call")
        if what == "slow":
            assert self.may_go_on.wait(60)
        if self.calls[-1] == what:
            self._inside.release()

    def reset(self, seed: int) -> Observation:
        self.called("reset")
        return super().reset(seed)

    def step(self, completion_text: str) -> StepResult:
        self.called(completion_text)
        return super().step(completion_text)

    def close(self) -> None:
        self.called("close")


async def test_an_environment_is_closed_on_its_own_thread_after_the_call_that_hangs() -> None:
    may_go_on = threading.Event()
    made = [Jealous(may_go_on), Jealous(may_go_on)]
    left = iter(made)
    environments = EnvThreads(lambda env_id: next(left), 1)
    hanging, other = environments.open("one"), environments.open("other")
    await hanging.reset(1)
    with pytest.raises(EnvFailed, match="no answer within 1 s"):
        await hanging.step("slow")
    hanging.close()
    await other.reset(1)
    other.close()
    await asyncio.to_thread(until, lambda: made[1].calls == ["reset", "close"])
    assert made[0].calls == ["reset", "slow"]
    may_go_on.set()
    await asyncio.to_thread(until, lambda: made[0].calls == ["reset", "slow", "close"])
    assert [len(env.threads) for env in made] == [1, 1]
    await environments.close()


async def test_an_environment_made_too_late_is_closed_all_the_same() -> None:
    may_go_on = threading.Event()
    env = Jealous(may_go_on)

    def make(env_id: str) -> Jealous:
        assert may_go_on.wait(60)
        return env

    environments = EnvThreads(make, 1)
    episode = environments.open("late")
    with pytest.raises(EnvFailed, match="reset: no answer"):
        await episode.reset(1)
    episode.close()
    await environments.close()
    may_go_on.set()
    await asyncio.to_thread(until, lambda: env.calls[-1:] == ["close"])


async def test_a_crash_takes_only_its_own_process(chat: ChatFormat) -> None:
    (group,) = await play(chat, EnvProcesses(60), once("crash"))
    failed, whole = sorted(group.trajectories, key=lambda trajectory: trajectory.stop_reason)
    assert failed.error == "the environment's process ended with code 7" and whole.solved


async def test_what_an_environment_prints_disturbs_nothing(chat: ChatFormat) -> None:
    (group,) = await play(chat, EnvProcesses(60), lambda number: "print")
    assert all(trajectory.solved for trajectory in group.trajectories)


async def test_a_copy_that_an_environment_makes_of_its_process_answers_nothing(chat: ChatFormat) -> None:
    (group,) = await play(chat, EnvProcesses(60), lambda number: "fork")
    assert all(trajectory.solved for trajectory in group.trajectories), [t.error for t in group.trajectories]


async def test_an_answer_that_cannot_be_read_ends_its_episode_and_its_process() -> None:
    environments = EnvProcesses(60)
    episode = environments.open(TROUBLE)
    await episode.reset(1)
    pid = int((await episode.step("go")).info["pid"])
    with pytest.raises(EnvFailed, match="an answer that cannot be read: UnicodeDecodeError"):
        await episode.step("babble")
    episode.close()
    await asyncio.to_thread(until, lambda: gone(pid))
    assert not environments._idle
    await environments.close()


async def test_processes_serve_one_episode_after_another_and_a_hung_one_is_killed(chat: ChatFormat) -> None:
    environments = EnvProcesses(5)
    pids = []
    for _ in range(2):
        episode = environments.open(TROUBLE)
        await episode.reset(1)
        pids.append(int((await episode.step("go")).info["pid"]))
        episode.close()
        await asyncio.to_thread(until, lambda: bool(environments._idle))
    assert pids[0] == pids[1] != FINE.info["pid"]
    hung = environments.open(TROUBLE)
    await hung.reset(1)
    with pytest.raises(Exception, match="no answer within 5 s"):
        await hung.step("hang")
    hung.close()
    await asyncio.to_thread(until, lambda: gone(pids[0]))
    await environments.close()


async def test_a_process_that_died_idle_is_replaced() -> None:
    environments = EnvProcesses(60)
    first = environments.open(TROUBLE)
    await first.reset(1)
    pid = int((await first.step("go")).info["pid"])
    first.close()
    await asyncio.to_thread(until, lambda: bool(environments._idle))
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(until, lambda: environments._idle[0].ended)
    second = environments.open(TROUBLE)
    await second.reset(1)
    assert int((await second.step("go")).info["pid"]) != pid
    await environments.close()


async def test_closing_ends_processes_that_are_still_starting() -> None:
    environments = EnvProcesses(60)
    starting = asyncio.create_task(environments.open(TROUBLE).reset(1))
    await asyncio.sleep(0)  # until it waits for the first time
    (worker,) = environments._all
    await environments.close()
    assert gone(worker._process.pid)
    with pytest.raises(EnvFailed, match="ended with code -9"):
        await starting


@pytest.mark.parametrize(("starts", "lives_on"), [("child", False), ("daemon", True)])
async def test_what_a_crashed_environment_started_is_killed_or_at_least_not_waited_for(
    starts: str, lives_on: bool
) -> None:
    environments = EnvProcesses(60)
    episode = environments.open(TROUBLE)
    await episode.reset(1)
    child = int((await episode.step(starts)).info["child"])
    try:
        with pytest.raises(EnvFailed, match="ended with code 7"):
            await episode.step("crash")
        episode.close()
        await environments.close()
        if lives_on:
            assert not gone(child)
        else:
            await asyncio.to_thread(until, lambda: gone(child))
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_processes_start_beside_grpc_on_ray_s_event_loop() -> None:
    """uvloop's own way to start a process forks, and gRPC's fork handlers kill 1 in 16 children."""
    script = (
        "import asyncio, grpc, uvloop\n"
        "from tandem_rollout.env_processes import EnvProcesses\n"
        "async def main():\n"
        "    server = grpc.aio.server()\n"
        "    port = server.add_insecure_port('127.0.0.1:0')\n"
        "    await server.start()\n"
        "    async with grpc.aio.insecure_channel(f'127.0.0.1:{port}') as channel:\n"
        "        await channel.channel_ready()\n"
        "        environments = EnvProcesses(60)\n"
        "        episodes = [environments.open('maze2d:tiny') for _ in range(16)]\n"
        "        await asyncio.gather(*(episode.reset(1) for episode in episodes))\n"
        "        await environments.close()\n"
        "    await server.stop(None)\n"
        "uvloop.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


async def test_threads_and_processes_play_the_same_episodes(chat: ChatFormat) -> None:
    task = replace(TASK, env="maze2d:tiny?style=random", seeds=(3, 4), group_size=2)

    def answer(number: int) -> str:
        return "('move', 3)"

    one, other = [
        {group.seed: replace(group, seconds=0.0) for group in await play(chat, environments, answer, task)}
        for environments in (EnvThreads(envs.make, 60), EnvProcesses(60))
    ]
    assert one == other and one[3].images


def test_a_hung_process_does_not_outlive_a_killed_service() -> None:
    script = (
        "import asyncio, sys\n"
        "from tandem_rollout.env_processes import EnvProcesses\n"
        "async def main():\n"
        f"    episode = EnvProcesses(600).open({TROUBLE!r})\n"
        "    await episode.reset(1)\n"
        "    print(int((await episode.step('go')).info['pid']), flush=True)\n"
        "    await episode.step('hang')\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as service:
        assert service.stdout is not None
        pid = int(service.stdout.readline())
        assert not gone(pid)
        service.send_signal(signal.SIGKILL)
    until(lambda: gone(pid))


def gone(pid: int) -> bool:
    """Whether a process has ended: it is not there, or a zombie that nobody has asked for."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
