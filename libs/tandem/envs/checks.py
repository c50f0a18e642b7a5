"""What an environment hands out is looked at before it is believed: other people's environments answer all sorts."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from tandem.envs.protocol import EnvSpec, Observation, StepResult
from tandem.types import UserError

LONGEST_ERROR = 500  # characters of an environment's own words
LONGEST_SIDE = 8192  # pixels
LONGEST_TEXT = 100_000  # characters


class BadOutput(ValueError):
    """An environment's answer is not what `tandem.envs.protocol` says. The message names the part and what it was."""


def in_words(problem: BaseException) -> str:
    """What an environment raised, in a line of bounded length: the class and its words, where it has any."""
    try:
        words = f": {problem}"
    except BaseException:  # noqa: BLE001 - the boundary: an exception's words are other people's code, too
        words = ""
    line = " ".join(f"{type(problem).__name__}{words}".split())
    return line if len(line) <= LONGEST_ERROR else line[:LONGEST_ERROR] + "..."


@contextmanager
def blaming(whom: str) -> Iterator[None]:
    """Around other people's code: whatever it raises is a UserError of one line, which names them.

    A KeyboardInterrupt in the main thread goes on: it is the user's Ctrl-C.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as problem:  # the boundary: other people's code
        if isinstance(problem, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        raise UserError(f"{whom}: {in_words(problem)}") from problem


def checked_spec(env_id: str, spec: EnvSpec) -> EnvSpec:
    """The spec, its functions such that whatever they raise, or answer wrongly, is a UserError that names them."""

    def checked(name: str, check: Callable[[str, object], Any]) -> Callable[[Any], Any]:
        call = getattr(spec, name)

        def ask(about: Any) -> Any:
            with blaming(f"{env_id}: {name}"):
                return check("the answer", call(about))

        return ask

    checks = {"task_digest": _digest, "optimal_turns": _count, "shortest": _count, "expert": _text, "describe": _text}
    there = {name: check for name, check in checks.items() if getattr(spec, name) is not None}
    return replace(spec, **{name: checked(name, check) for name, check in there.items()})


def checked_instruction(words: object) -> str:
    """The instruction, if it is text. Raises BadOutput."""
    return _text("instruction", words)


def checked_observation(seen: object) -> Observation:
    """The observation, if images are uint8 [H, W, 3] and the text is text, neither beyond all measure.

    Raises:
        BadOutput: it is not.
    """
    if not isinstance(seen, Observation):
        raise BadOutput(f"an observation must be an Observation, not {_kind(seen)}")
    if not isinstance(seen.images, tuple | list):
        raise BadOutput(f"observation.images must be a tuple of arrays, not {_kind(seen.images)}")
    for place, image in enumerate(seen.images):
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise BadOutput(f"observation.images[{place}] must be uint8 [H, W, 3], not {_kind(image)}")
        if not 0 < min(image.shape) <= max(image.shape) <= LONGEST_SIDE:
            raise BadOutput(f"observation.images[{place}] has sides of 1 to {LONGEST_SIDE} pixels, not {_kind(image)}")
    return Observation(tuple(seen.images), _text("observation.text", seen.text))


def checked_result(result: object) -> StepResult:
    """The result, if its rewards and `info` are finite numbers, its flags truth values, its observation sound.

    Raises:
        BadOutput: it is not.
    """
    if not isinstance(result, StepResult):
        raise BadOutput(f"step() must return a StepResult, not {_kind(result)}")
    if not isinstance(result.info, Mapping):
        raise BadOutput(f"info must map names to numbers, not be {_kind(result.info)}")
    return StepResult(
        observation=checked_observation(result.observation),
        reward=_number("reward", result.reward),
        terminated=_flag("terminated", result.terminated),
        task_reward=_number("task_reward", result.task_reward),
        parsed=_flag("parsed", result.parsed),
        info={_text("a name in info", key): _number(f"info[{key!r}]", value) for key, value in result.info.items()},
    )


def _number(what: str, value: object) -> float:
    if not isinstance(value, int | float | np.number | np.bool_) or isinstance(value, np.complexfloating):
        raise BadOutput(f"{what} must be a number, not {_kind(value)}")
    number = float(value)
    if not math.isfinite(number):
        raise BadOutput(f"{what} must be finite, not {number}")
    return number


def _count(what: str, value: object) -> int:
    if not isinstance(value, int | np.integer) or value < 0:
        raise BadOutput(f"{what} must be a whole number from 0 on, not {_kind(value)}")
    return int(value)


def _digest(what: str, value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-fA-F]{16,}", value):
        raise BadOutput(f"{what} must be 16 or more hexadecimal digits, not {_kind(value)}")
    return value


def _flag(what: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise BadOutput(f"{what} must be True or False, not {_kind(value)}")
    return bool(value)


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadOutput(f"{what} must be text, not {_kind(value)}")
    if len(value) > LONGEST_TEXT:
        raise BadOutput(f"{what} has {len(value)} characters, more than {LONGEST_TEXT}")
    try:
        value.encode()
    except UnicodeEncodeError as problem:
        raise BadOutput(f"{what} is not Unicode text: {problem.reason}") from problem
    return value


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__
