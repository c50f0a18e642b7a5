"""Plays side by side, a rest alone."""

import asyncio

from tandem_controller.quiet import Quiet


async def test_a_rest_waits_for_plays_and_later_plays_wait_for_it() -> None:
    quiet, said, ends = Quiet(), list[str](), [asyncio.Event() for _ in range(3)]

    async def play(name: str, end: asyncio.Event) -> None:
        async with quiet.playing():
            said.append(f"{name} plays")
            await end.wait()

    async def rest() -> None:
        async with quiet.resting():
            said.append("rest")
            await ends[2].wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(play("a", ends[0]))
        tasks.create_task(play("b", ends[1]))
        await settled()
        tasks.create_task(rest())
        await settled()
        tasks.create_task(play("c", ends[0]))
        ends[0].set()
        await settled()
        assert said == ["a plays", "b plays"]
        ends[1].set()
        await settled()
        assert said == ["a plays", "b plays", "rest"]
        ends[2].set()
    assert said == ["a plays", "b plays", "rest", "c plays"]


async def test_of_rests_and_plays_that_wait_for_one_rest_only_one_kind_goes_on() -> None:
    quiet, now, met, ends = Quiet(), list[str](), list[list[str]](), [asyncio.Event() for _ in range(4)]

    async def go(name: str, end: asyncio.Event) -> None:
        async with quiet.resting() if name.startswith("rest") else quiet.playing():
            now.append(name)
            met.append(list(now))
            await end.wait()
            now.remove(name)

    async with asyncio.TaskGroup() as tasks:
        for name, end in zip(("rest a", "rest b", "play c", "rest d"), ends, strict=True):
            tasks.create_task(go(name, end))
            await settled()
        assert now == ["rest a"]
        for end in ends:
            end.set()
            await settled()
    assert sorted(met) == [["play c"], ["rest a"], ["rest b"], ["rest d"]]


async def settled() -> None:
    """Let every task go on as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)
