"""Deadlines name what was waited for; one failure ends its siblings."""

import asyncio

import pytest

from tandem.runtime import deadline, together
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
