"""`gym:<id>`: any gymnasium environment that can be seen (rgb_array) or read (text), with discrete or text actions.

    gym:FrozenLake-v1?is_slippery=false&actions=left|down|right|up    gymnasium's own
    gym:ale_py:ALE/Pong-v5                                            `ale_py` is imported first: it registers the id
    gym:maze_2d/easy                                                  VisGym's, where its fork is what is installed

Options of the adapter: `actions` (names of a discrete space's numbers, joined by |), `instruction`, `size` (a frame's
longest side, in pixels), `solved_at` (the return from which an episode counts as solved), `render` (`rgb_array` or
`ansi`). All others go to `gymnasium.make`.

Solved, that is `task_reward` 1.0, means: a return of at least `solved_at`, where given; else `info["is_success"]`,
where the environment says it; else a return of at least the environment's `reward_threshold`. Where none of the three
is known the episode fails and says so: a solve rate of 0 that means nothing would be worse.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tandem.envs.actions import NOT_UNDERSTOOD
from tandem.envs.ids import Option, check_options
from tandem.envs.protocol import EnvSpec, Observation, StepResult
from tandem.types import UserError

OWN = {"actions": str, "instruction": str, "size": int, "solved_at": float, "render": str}
ANSI_MARKED = re.compile(r"\x1b\[[1-9][0-9;]*m(.*?)\x1b\[0m")  # colour says where the agent is: it becomes [brackets]
ANSI_CODE = re.compile(r"\x1b\[[0-9;]*m")
VISGYM_SOLVED = 1.0  # VisGym pays once, at the end, 1.0 for success


@dataclass(frozen=True, slots=True)
class Actions:
    """How a completion becomes an action: `read` gives it, or None where the text holds none. `words` says how to
    answer; `texts` are all answers that act, where they can be listed."""

    read: Callable[[str], Any]
    words: str
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setup:
    """What of one gymnasium id an episode needs to know."""

    make: Callable[[], Any]
    actions: Actions
    instruction: str
    render: str  # rgb_array, ansi, or empty where the observation is text already
    size: int  # longest side of a frame, 0 leaves it
    solved_at: float | None
    always: bool  # `solved_at` was asked for: it goes before is_success
    turn_limit: int | None


class GymEnv:
    """One gymnasium episode at a time. See `tandem.envs.protocol.Env`."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.instruction = setup.instruction
        self._env = setup.make()
        self._over = True

    def reset(self, seed: int) -> Observation:
        seen, _ = self._env.reset(seed=seed)
        if is_visgym(self._env):
            self.instruction = str(self._env.unwrapped.get_prompt())
        self._turns = self._invalid = 0
        self._return = 0.0
        self._is_success: bool | None = None
        self._over = False
        self._seen = seen
        return self._observe("")

    def step(self, completion_text: str) -> StepResult:
        if self._over:
            raise RuntimeError("step() needs a running episode: call reset() first")
        action = self.setup.actions.read(completion_text)
        self._turns += 1
        if action is None:
            self._invalid += 1
            out_of_turns = self._turns >= (self.setup.turn_limit or self._turns + 1)
            return self._result(NOT_UNDERSTOOD, 0.0, out_of_turns, out_of_turns, parsed=False, info={})
        self._seen, reward, terminated, truncated, info = self._env.step(action)
        self._return += float(reward)
        if "is_success" in info:
            self._is_success = bool(info["is_success"])
        words = info.get("env_feedback") or ""
        out_of_turns = bool(truncated) and not terminated
        return self._result(str(words), float(reward), bool(terminated or truncated), out_of_turns, True, info)

    def close(self) -> None:
        self._over = True
        self._env.close()

    def _result(
        self, words: str, reward: float, over: bool, out_of_turns: bool, parsed: bool, info: Mapping[str, Any]
    ) -> StepResult:
        self._over = over
        numbers = {
            key: float(value) for key, value in info.items() if isinstance(value, bool | int | float | np.number)
        }
        counts = {"moves": float(self._turns - self._invalid), "invalid": float(self._invalid)}
        figures = {**numbers, **counts, "out_of_turns": float(out_of_turns)}
        return StepResult(self._observe(words), reward, over, float(self._solved()), parsed, figures)

    def _solved(self) -> bool:
        setup = self.setup
        if self._is_success is not None and not setup.always:
            return self._is_success
        if setup.solved_at is not None:
            return self._return >= setup.solved_at
        if self._over:
            raise UserError(
                "nothing tells whether the episode was solved: add solved_at=RETURN to the environment's id"
            )
        return False

    def _observe(self, words: str) -> Observation:
        setup = self.setup
        text = self._seen if isinstance(self._seen, str) else ""
        images: tuple[NDArray[np.uint8], ...] = ()
        if setup.render:
            drawn = self._env.render()
            if isinstance(drawn, np.ndarray):
                images = (_fit(drawn, setup.size),)
            else:
                text = ANSI_CODE.sub("", ANSI_MARKED.sub(r"[\1]", str(drawn))).strip("\n")
        return Observation(images, "\n".join(part for part in (words, text) if part))


def is_visgym(env: Any) -> bool:
    """Whether it speaks VisGym's dialect: a prompt of its own, and steps that take the text of a tuple."""
    return callable(getattr(env.unwrapped, "get_prompt", None))


def spec(env_id: str, name: str, options: Mapping[str, Option]) -> EnvSpec:
    """The spec of `gym:NAME?OPTIONS`. The environment is made once, to look at its spaces.

    Raises:
        UserError: gymnasium or the environment is not installed, does not take these options, can be neither seen nor
            read, or its actions can be neither counted nor written.
    """
    own = {key: value for key, value in options.items() if key in OWN}
    check_options(env_id, own, OWN)
    setup = _setup(env_id, name, own, {key: value for key, value in options.items() if key not in OWN})
    return EnvSpec(
        env_id=env_id,
        make=lambda: GymEnv(setup),
        task_digest=lambda seed: hashlib.sha256(f"gym:{name} {seed}".encode()).hexdigest(),
        turn_limit=setup.turn_limit,
        actions=setup.actions.texts,
    )


def _setup(env_id: str, name: str, own: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Setup:
    gymnasium = _gymnasium(env_id)
    found = _find(gymnasium, env_id, name)
    render = own.get("render", "rgb_array")
    kwargs, env = _first(gymnasium, env_id, found, {**kwargs, "render_mode": render})
    try:
        text_only = isinstance(env.observation_space, gymnasium.spaces.Text)
        modes = env.unwrapped.metadata.get("render_modes") or ()
        if render not in modes and ("render" in own or not text_only):
            raise UserError(f"{env_id}: has no {render} rendering, only {', '.join(modes) or 'none'}")
        actions = _actions(gymnasium, env_id, env, own.get("actions", ""))
        threshold = VISGYM_SOLVED if is_visgym(env) else found.reward_threshold
        turn_limit = env.spec.max_episode_steps
    finally:
        env.close()
    if render not in modes:
        kwargs = {key: value for key, value in kwargs.items() if key != "render_mode"}
    return Setup(
        make=lambda: gymnasium.make(found.id, **kwargs),
        actions=actions,
        instruction=own.get("instruction", f"Play {found.name}. {actions.words}"),
        render=render if render in modes else "",
        size=own.get("size", 0),
        solved_at=own.get("solved_at", threshold),
        always="solved_at" in own,
        turn_limit=turn_limit,
    )


def _gymnasium(env_id: str) -> ModuleType:
    for name, value in (
        ("SDL_VIDEODRIVER", "dummy"),
        ("SDL_AUDIODRIVER", "dummy"),
        ("PYGAME_HIDE_SUPPORT_PROMPT", "1"),
    ):
        os.environ.setdefault(name, value)  # pygame draws without a display, and is silent
    try:
        return importlib.import_module("gymnasium")
    except ImportError as problem:
        raise UserError(f"{env_id}: gymnasium is not installed; install tandem[gym]") from problem


def _find(gymnasium: ModuleType, env_id: str, name: str) -> Any:
    module, colon, rest = name.rpartition(":")
    try:
        if colon:
            importlib.import_module(module)
        return gymnasium.spec(rest)
    except (ImportError, gymnasium.error.Error) as problem:
        raise UserError(f"{env_id}: {_line(problem)}") from problem


def _first(gymnasium: ModuleType, env_id: str, found: Any, kwargs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """One environment, and what it was made with. Some (VisGym's) take no render_mode and draw all the same."""
    try:
        return kwargs, gymnasium.make(found.id, **kwargs)
    except (TypeError, ValueError, AttributeError, ImportError, gymnasium.error.Error) as problem:
        if isinstance(problem, TypeError) and "'render_mode'" in str(problem) and "render_mode" in kwargs:
            return _first(gymnasium, env_id, found, {key: kwargs[key] for key in kwargs if key != "render_mode"})
        raise UserError(f"{env_id}: {_line(problem)}") from problem


def _actions(gymnasium: ModuleType, env_id: str, env: Any, names: str) -> Actions:
    space = env.action_space
    if is_visgym(env):
        return Actions(read_tuple, "")
    if isinstance(space, gymnasium.spaces.Text):
        return Actions(lambda text: text if space.contains(text) else None, "Answer with text.")
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise UserError(f"{env_id}: its actions are {space}; the adapter takes Discrete and Text, so wrap it first")
    first, count = int(space.start), int(space.n)
    listed = tuple(names.split("|")) if names else tuple(map(str, range(first, first + count)))
    if len(listed) != count or len({name.lower() for name in listed}) != count or "" in listed:
        raise UserError(f"{env_id}: actions={names} must name each of its {count} actions once, joined by |")
    word = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, listed))})(?!\w)", re.IGNORECASE)
    numbers = {name.lower(): first + place for place, name in enumerate(listed)}

    def read(text: str) -> int | None:
        match = word.search(text)
        return None if match is None else numbers[match[0].lower()]

    shown = ", ".join(listed) if names or count <= 4 else f"{listed[0]} to {listed[-1]}"
    return Actions(read, f"Answer with one action a turn: {shown}.", listed)


def read_tuple(text: str) -> str | None:
    """The first `('name', value)` in a text, as text: what VisGym's environments take. None if there is none."""
    for start in (place for place, letter in enumerate(text) if letter == "("):
        try:
            value = ast.literal_eval(_balanced(text, start))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
            return repr(value)
    return None


def _balanced(text: str, start: int) -> str:
    """From an opening bracket to the one that closes it, or to the end."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return text[start : place + 1]
    return text[start:]


def _fit(frame: NDArray[Any], size: int) -> NDArray[np.uint8]:
    """The frame, shrunk until its longest side is `size` pixels (0 leaves it); an alpha channel is dropped."""
    if frame.ndim == 3 and frame.shape[2] == 4:
        frame = frame[..., :3]
    longest = max(frame.shape[:2], default=0)
    if size and longest > size:
        side = [max(1, round(pixels * size / longest)) for pixels in frame.shape[:2]]
        return np.asarray(Image.fromarray(frame).resize((side[1], side[0]), Image.Resampling.BOX))
    return np.ascontiguousarray(frame)


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__
