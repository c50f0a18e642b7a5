"""What the tiny model is shown before RL: mazes with the oracle's answers, or an imperfect demonstrator's.

Every example is one image of a maze with the disc in some room, so one layout gives as many examples as rooms. Only
layouts of the "train" split are used; evaluation layouts are never drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.envs import seeds
from tandem.envs.layout import DIRECTIONS, make_walls
from tandem.envs.maze2d import (
    BRIEF_INSTRUCTION,
    ENDED,
    FULL_INSTRUCTION,
    HIT_WALL,
    MOVED,
    NOT_UNDERSTOOD,
    PRESETS,
    STOP_CLAUSE,
    MazePreset,
    action_text,
    oracle_directions,
)
from tandem.envs.maze_style import CLASSIC, Style, render
from tandem.model.chat import ChatFormat
from tandem.model.tiny import GRID

PRESET_NAME = "tiny"
FEEDBACK = ("", MOVED, HIT_WALL)
FEEDBACK_SHARES = (0.25, 0.65, 0.10)  # how often a prompt starts an episode, follows a move, follows a wall

QUESTIONS = ("Directions?", "Disc?", "Open?")


@dataclass(frozen=True)
class MazeTable:
    """Layouts with their answers, M mazes of R rooms (row-major).

    walls bool [M, 2n+1, 2n+1]; oracle int8 [M, R], the optimal direction, -1 at the goal; open bool [M, R, 4], where
    a move is possible; nearer bool [M, R, 4], where a possible move also shrinks the straight-line distance to the
    goal, whatever walls come later.
    """

    preset: MazePreset
    walls: NDArray[np.bool_]
    oracle: NDArray[np.int8]
    open: NDArray[np.bool_]
    nearer: NDArray[np.bool_]

    def image(self, maze: int, room: int, style: Style) -> NDArray[np.uint8]:
        """The observation with the agent in a room: uint8 [H, W, 3]."""
        return render(self.walls[maze], self.preset.widths_in(style), self.cell(room), self.preset.goal, style)

    def cell(self, room: int) -> tuple[int, int]:
        r, c = divmod(room, self.preset.rooms)
        return 2 * r + 1, 2 * c + 1


def maze_table(count: int, first_seed: int) -> MazeTable:
    """The answers of `count` mazes of the "train" split, from `first_seed` on."""
    preset = PRESETS[PRESET_NAME]
    layouts = [make_walls(s, preset.rooms) for s in seeds(f"maze2d:{PRESET_NAME}", "train", count, first_seed)]
    n = preset.rooms
    oracle = np.full((count, n * n), -1, dtype=np.int8)
    can_go = np.zeros((count, n * n, 4), dtype=bool)
    for m, walls in enumerate(layouts):
        for (r, c), direction in oracle_directions(walls, preset).items():
            oracle[m, r // 2 * n + c // 2] = direction
        for d, (dr, dc) in enumerate(DIRECTIONS):
            can_go[m, :, d] = ~walls[1 + dr : 2 * n + dr : 2, 1 + dc : 2 * n + dc : 2].ravel()
    toward = np.array([direction in (0, 3) for direction in range(4)])  # the goal lies right and down of everything
    return MazeTable(preset, np.stack(layouts), oracle, can_go, can_go & toward)


def demonstrate(table: MazeTable, maze: int, room: int, skill: float, rng: np.random.Generator) -> int:
    """The direction an imperfect demonstrator takes: the oracle's with probability `skill`, else a walker's.

    The walker minds the distance alone and ignores dead ends: it moves right or down where no wall stands in the
    way, else anywhere it can.
    """
    if rng.random() < skill:
        return int(table.oracle[maze, room])
    options = np.nonzero(table.nearer[maze, room])[0]
    if len(options) == 0:
        options = np.nonzero(table.open[maze, room])[0]
    return int(options[rng.integers(len(options))])


def answer(table: MazeTable, question: str, maze: int, room: int) -> str:
    """The answer to a question about what is seen: its walls, the disc, the way from every room."""
    if question == "Directions?":  # from every room but the goal, row by row
        return " ".join(str(d) for d in table.oracle[maze, :-1])
    if question == "Disc?":
        return " ".join(str(x) for x in divmod(room, table.preset.rooms))
    return " ".join(str(d) for d in np.nonzero(table.open[maze, room])[0])


def tokenizer_texts() -> list[str]:
    """Every text of the task: what the tokenizer learns its words from."""
    feedback = [MOVED, HIT_WALL, NOT_UNDERSTOOD, ENDED]
    actions = [action_text(a) for a in (0, 1, 2, 3, "stop")]
    full = [FULL_INSTRUCTION.format(agent="blue disc", walls="grey walls", stop=stop) for stop in ("", STOP_CLAUSE)]
    brief = [BRIEF_INSTRUCTION, *(f"{BRIEF_INSTRUCTION}\n{text}" for text in feedback)]
    roles = ["system\n", "user\n", "assistant\n"]
    return [*brief, *full, *feedback, *actions, *roles, *QUESTIONS, "0 1 2 3", "1 2", "2 1", "3 0", "\n"]


@dataclass(frozen=True)
class Example:
    """One training row: the prompt with its placeholder expanded, what follows, and the loss weight of each token."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    weights: tuple[float, ...]
    image: NDArray[np.uint8]


def action_example(
    chat: ChatFormat, table: MazeTable, maze: int, room: int, direction: int, feedback: str, style: Style = CLASSIC
) -> Example:
    """A prompt of one turn and the action's text, every token of it weighing the same."""
    image, asked = table.image(maze, room, style), chat.first_prompt(BRIEF_INSTRUCTION, feedback, images=1)
    prompt = GRID.expand(asked, [(image.shape[0], image.shape[1])], chat.image_id)
    completion = (*chat.encode(action_text(direction)), chat.end_id)
    weights = (1.0 / len(completion),) * len(completion)
    return Example(prompt, completion, weights, image)


def with_question(chat: ChatFormat, example: Example, question: str, reply: str, weight: float) -> Example:
    """The example with one more exchange: a question about the same image, and its answer."""
    asked = chat.next_turn(example.completion_ids, question, images=0)
    answered = (*chat.encode(reply), chat.end_id)
    return Example(
        example.prompt_ids,
        (*example.completion_ids, *asked, *answered),
        (*example.weights, *(0.0,) * len(asked), *(weight / len(answered),) * len(answered)),
        example.image,
    )
