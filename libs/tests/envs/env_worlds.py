"""Small worlds for the tests of adapters: what other people's environments look like."""

from __future__ import annotations

import ast
import string
from asyncio import CancelledError
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tandem.envs import EnvSpec, Observation, StepResult


class Echo(gymnasium.Env[str, str]):
    """Text in, text out, nothing to be seen: say the word."""

    def __init__(self, word: str = "please", success: bool = True) -> None:
        self.word, self.success = word, success
        self.action_space = spaces.Text(16, charset="abcdefghijklmnopqrstuvwxyz")
        self.observation_space = spaces.Text(64, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "Say the word.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        said = action == self.word
        odd = {"words": {"not": "a number"}, "gap": float("nan"), "far": np.float32("-inf"), 5: 5}
        info: dict[Any, Any] = {"is_success": said, **odd} if self.success else {}
        return "Thanks." if said else "No.", -1.0, said, False, info


class Functions(spaces.Space[Any]):
    """The shape of VisGym's action space: function names, each with a space of arguments."""

    def __init__(self, functions: dict[str, spaces.Space[Any]]) -> None:
        self.functions = functions
        super().__init__(None, None)

    def get_function_names(self) -> list[str]:
        return list(self.functions)


class Corridor(gymnasium.Env[Any, str]):
    """VisGym's interface: no render_mode, a tuple's text as action, get_prompt(), env_feedback; pays at the end."""

    metadata = {"render_modes": ["rgb_array", "ansi"]}  # noqa: RUF012 - gymnasium's way

    def __init__(self, length: int = 4) -> None:
        self.length = length
        self.action_space = Functions({"move": spaces.Discrete(2), "stop": spaces.Text(4)})
        self.observation_space = spaces.Box(0, 255, (length,), np.uint8)
        self.env_feedback: str | None = None

    def get_prompt(self, **kwargs: Any) -> str:
        return f"Walk {self.target} steps of a corridor of {self.length} by ('move', 1), then ('stop', 'stop')."

    def reset(self, seed: int | None = None, options: Any = None, init_state: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.target = 1 + int(self.np_random.integers(self.length - 1))
        self.place = 0
        return self.render(), {"env_feedback": self.env_feedback}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        name, value = ast.literal_eval(action)
        self.env_feedback = "Action executed successfully."
        if name == "move" and value in (0, 1):
            self.place = min(max(self.place + (1 if value else -1), 0), self.length - 1)
        elif name != "stop":
            self.env_feedback = f"The action name '{name}' is not recognized in the available action space."
        over = name == "stop"
        reward = float(over and self.place == self.target)
        return self.render(), reward, over, False, {"place": np.int64(self.place), "env_feedback": self.env_feedback}

    def render(self, mode: str = "rgb_array") -> Any:  # type: ignore[override]
        frame = np.zeros((8, 8 * self.length, 3), np.uint8)
        frame[:, 8 * self.target : 8 * self.target + 8, 0] = 255
        frame[:, 8 * self.place : 8 * self.place + 8, 2] = 255
        return frame


class Guess:
    """An environment of the user's own: three methods and an instruction."""

    def __init__(self, highest: int = 9, named: bool = True) -> None:
        self.highest, self.named = highest, named
        self.instruction = ""

    def reset(self, seed: int) -> Observation:
        self.secret = seed % (self.highest + 1)
        self.instruction = f"Guess a number from 0 to {self.highest}." + self.named * f" Seed {seed}."
        return Observation((), "")

    def step(self, completion_text: str) -> StepResult:
        right = completion_text.strip() == str(self.secret)
        return StepResult(Observation((), "Right." if right else "Wrong."), float(right), right, float(right), True)

    def close(self) -> None: ...


class Described(Guess):
    """One that says more of itself."""

    @staticmethod
    def spec(env_id: str, highest: int = 9) -> EnvSpec:
        return EnvSpec(
            env_id,
            lambda: Described(highest),
            lambda seed: f"{seed % (highest + 1):064x}",
            optimal_turns=lambda seed: 1,
        )


class Misdescribed(Guess):
    """One whose description cannot be believed: `what` is answered, or raised, by all functions of its spec."""

    @staticmethod
    def spec(env_id: str, what: str | float | None = None) -> EnvSpec:
        def answer(seed: Any) -> Any:
            if what == "raise":
                raise Speechless
            return what

        return EnvSpec(env_id, Misdescribed, answer, answer, answer, None, answer, ("1",), {}, answer)


class Speechless(Exception):
    """Has no words."""

    def __str__(self) -> str:
        raise ValueError("no words")


class NoClose:
    """Lacks a method."""

    def reset(self, seed: int) -> None: ...

    def step(self, completion_text: str) -> None: ...


class Raises(Guess):
    """Its own description of itself fails."""

    @staticmethod
    def spec(env_id: str) -> EnvSpec:
        raise ZeroDivisionError("of my own")


class Quits(Guess):
    """Raises, when it is reset, what is no Exception."""

    def __init__(self, how: str) -> None:
        self.how = how

    def reset(self, seed: int) -> Observation:
        kinds = (KeyboardInterrupt, GeneratorExit, CancelledError)
        raise next(kind for kind in kinds if kind.__name__ == self.how)
