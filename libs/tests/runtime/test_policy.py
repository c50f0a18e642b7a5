"""Deadlines name what was waited for; one failure ends its siblings."""

import asyncio

import pytest

from tandem.runtime import beside, deadline, together
from tandem.types import Unavailable, UserError


async def test_a_deadline_names_what_was_waited_for() -> None:
    with pytest.raises(Unavailable, match=r"engine request 7: no answer within 0\.01 s"):
        async with deadline(0.01, "engine request 7"):
            await asyncio.Event().wait()


async def test_a_timeout_inside_the_body_is_not_taken_for_the_deadline() -> None:
    with pytest.raises(TimeoutError):
        async with deadline(60, "outer"):
            raise TimeoutError


async def test_together_keeps_order_and_one_failure_cancels_the_rest() -> None:
    async def value(number: int, wait: float) -> int:
        await asyncio.sleep(wait)
        return number

    assert await together(value(1, 0.01), value(2, 0)) == [1, 2]
    cancelled = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def failing() -> None:
        raise UserError("mine")

    with pytest.raises(UserError, match="mine"):
        await together(endless(), failing())
    assert cancelled.is_set()


async def test_work_beside_ends_with_the_body_and_tells_of_its_own_end() -> None:
    ended, told, failed = asyncio.Event(), list[BaseException](), asyncio.Event()

    def tell(problem: BaseException) -> None:
        told.append(problem)
        failed.set()

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fails() -> None:
        raise ValueError("in the middle")

    async with beside(for_ever(), tell), beside(fails(), tell):
        await failed.wait()
        assert not ended.is_set()
    assert ended.is_set() and [str(problem) for problem in told] == ["in the middle"]
