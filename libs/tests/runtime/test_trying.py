"""A lost peer is tried again with patience that ends; anything else is raised at once."""

from collections.abc import Awaitable, Callable

import pytest

from tandem.runtime import retry
from tandem.types import NotFound, TandemError, Unavailable, UserError


def failing(times: int, kind: type[TandemError] = Unavailable) -> tuple[Callable[[], Awaitable[int]], list[int]]:
    """Work that fails so many times, then answers how often it was tried."""
    tries: list[int] = []

    async def work() -> int:
        tries.append(len(tries) + 1)
        if len(tries) <= times:
            raise kind(f"failure {len(tries)}")
        return len(tries)

    return work, tries


async def test_what_is_unavailable_is_tried_until_it_is_there() -> None:
    work, _ = failing(4)
    assert await retry(work, for_s=60, first_s=0.001) == 5


async def test_what_trying_again_cannot_mend_is_raised_at_once() -> None:
    work, tries = failing(1, UserError)
    with pytest.raises(UserError, match="failure 1"):
        await retry(work, for_s=60)
    assert tries == [1]
    work, _ = failing(2, NotFound)
    assert await retry(work, for_s=60, first_s=0.001, on=(Unavailable, NotFound)) == 3


async def test_attempts_and_time_are_bounded_and_the_last_failure_is_told() -> None:
    work, tries = failing(100)
    with pytest.raises(Unavailable, match="failure 3"):
        await retry(work, for_s=60, attempts=3, first_s=0.001)
    assert len(tries) == 3
    work, tries = failing(10**9)
    with pytest.raises(Unavailable, match=r"failure \d+"):
        await retry(work, for_s=0.05, first_s=0.001, longest_s=0.002)
    assert len(tries) > 1
    work, tries = failing(1)
    with pytest.raises(Unavailable, match="failure 1"):
        await retry(work, for_s=0)
    assert tries == [1]
