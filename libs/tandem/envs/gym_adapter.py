"""`gym:<id>`: any gymnasium environment that can be seen (rgb_array) or read (text), with discrete or text actions.

    gym:FrozenLake-v1?is_slippery=false&actions=left|down|right|up    gymnasium's own
    gym:ale_py:ALE/Pong-v5                                            `ale_py` is imported first: it registers the id
    gym:maze_2d/easy                                                  VisGym's, where its fork is what is installed

Options of the adapter: `actions` (names of a discrete space's numbers, joined by |), `instruction`, `size` (a frame's
longest side, in pixels), `solved_at`, `invalid_reward`, `render` (`rgb_array` or `ansi`). All others go to
`gymnasium.make`.

Solved, that is `task_reward` 1.0, means: the environment has ended the episode and paid at least `solved_at` in all, by
default its `reward_threshold`; or, with `solved_at=is_success`, that its info says so. An id for which neither is known
is refused.

Text without an action does not reach the environment, and is paid `invalid_reward`, by default -1: where every step
costs 1, saying nothing of use must not be the best play.
"""

from __future__ import annotations

import ast
import importlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tandem.envs.actions import NOT_UNDERSTOOD
from tandem.envs.gym_import import import_gymnasium
from tandem.envs.ids import Option, check_options
from tandem.envs.protocol import Env, EnvSpec, Observation, StepResult
from tandem.envs.starts import start_digest
from tandem.types import UserError

OWN = {"actions": str, "instruction": str, "size": int, "solved_at": float, "invalid_reward": float, "render": str}
IS_SUCCESS = "is_success"  # of `info`; and `solved_at=is_success`
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
    solved_at: float | None  # a return; None asks the info for IS_SUCCESS
    invalid_reward: float
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
        self._success: bool | None = None  # what the info said last
        self._over = False
        self._seen = seen
        return self._observe("")

    def step(self, completion_text: str) -> StepResult:
        if self._over:
            raise RuntimeError("step() needs a running episode: call reset() first")
        setup = self.setup
        action = setup.actions.read(completion_text)
        self._turns += 1
        if action is None:
            self._invalid += 1
            words, reward, terminated, truncated, info = NOT_UNDERSTOOD, setup.invalid_reward, False, False, {}
        else:
            self._seen, reward, terminated, truncated, info = self._env.step(action)
            self._return += float(reward)
            words = str(info.get("env_feedback") or "")
        late = setup.turn_limit is not None and self._turns >= setup.turn_limit
        self._over = bool(terminated or truncated or late)
        figures = {
            **_numbers(info),
            "moves": float(self._turns - self._invalid),
            "invalid": float(self._invalid),
            "out_of_turns": float(self._over and not terminated),
        }
        solved = float(self._solved(bool(terminated or truncated), info))
        return StepResult(self._observe(words), float(reward), self._over, solved, action is not None, figures)

    def close(self) -> None:
        self._over = True
        self._env.close()

    def _solved(self, ended: bool, info: Mapping[str, Any]) -> bool:
        """`ended`: by the environment. A return so far says nothing: where steps cost, the first one's is the best."""
        if self.setup.solved_at is not None:
            return ended and self._return >= self.setup.solved_at
        if IS_SUCCESS in info:
            self._success = bool(info[IS_SUCCESS])
        if ended and self._success is None:
            raise UserError(
                f"solved_at={IS_SUCCESS}: the environment's info has no {IS_SUCCESS}; name a return instead"
            )
        return bool(self._success)

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
        UserError: gymnasium is not installed, the environment can be neither seen nor read, its actions can be neither
            counted nor written, or nothing tells when it is solved. Beside that, whatever gymnasium or the
            environment raises when it is not there or does not take these options.
    """
    own = {key: value for key, value in options.items() if key in OWN}
    check_options(env_id, {key: value for key, value in own.items() if value != IS_SUCCESS or key != "solved_at"}, OWN)
    setup = _setup(env_id, name, own, {key: value for key, value in options.items() if key not in OWN})

    def make() -> Env:
        return GymEnv(setup)

    return EnvSpec(
        env_id=env_id,
        make=make,
        task_digest=start_digest(make),
        turn_limit=setup.turn_limit,
        actions=setup.actions.texts,
    )


def _setup(env_id: str, name: str, own: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Setup:
    if own.get("size", 0) < 0:
        raise UserError(f"{env_id}: size={own['size']} must be a number of pixels, or 0 to leave frames as they are")
    gymnasium = import_gymnasium(env_id)
    module, colon, registered = name.rpartition(":")
    if colon:
        importlib.import_module(module)
    found = gymnasium.spec(registered)
    render = own.get("render", "rgb_array")
    kwargs, env = _first(gymnasium, found, {**kwargs, "render_mode": render})
    try:
        text_only = isinstance(env.observation_space, gymnasium.spaces.Text)
        modes = env.unwrapped.metadata.get("render_modes") or ()
        if render not in modes and ("render" in own or not text_only):
            raise UserError(f"{env_id}: has no {render} rendering, only {', '.join(modes) or 'none'}")
        actions = _actions(gymnasium, env_id, env, own.get("actions", ""))
        solved_at = own.get("solved_at", VISGYM_SOLVED if is_visgym(env) else found.reward_threshold)
        turn_limit = env.spec.max_episode_steps
    finally:
        env.close()
    if solved_at is None:
        hint = f"add solved_at=RETURN to the id, or solved_at={IS_SUCCESS} where the environment's info has that"
        raise UserError(f"{env_id}: nothing tells when an episode is solved; {hint}")
    if render not in modes:
        kwargs = {key: value for key, value in kwargs.items() if key != "render_mode"}
    return Setup(
        make=lambda: gymnasium.make(found.id, **kwargs),
        actions=actions,
        instruction=own.get("instruction", f"Play {found.name}. {actions.words}"),
        render=render if render in modes else "",
        size=own.get("size", 0),
        solved_at=None if solved_at == IS_SUCCESS else float(solved_at),
        invalid_reward=own.get("invalid_reward", -1.0),
        turn_limit=turn_limit,
    )


def _first(gymnasium: ModuleType, found: Any, kwargs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """One environment, and what it was made with. Some (VisGym's) take no render_mode and draw all the same."""
    try:
        return kwargs, gymnasium.make(found.id, **kwargs)
    except TypeError as problem:
        if "'render_mode'" not in str(problem):
            raise
        kwargs = {key: kwargs[key] for key in kwargs if key != "render_mode"}
        return kwargs, gymnasium.make(found.id, **kwargs)


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


def _numbers(info: Mapping[Any, Any]) -> dict[str, float]:
    """The finite numbers of a step's info."""
    kinds = bool | int | float | np.bool_ | np.integer | np.floating
    numbers = {key: float(value) for key, value in info.items() if isinstance(key, str) and isinstance(value, kinds)}
    return {key: value for key, value in numbers.items() if math.isfinite(value)}
