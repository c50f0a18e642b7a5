"""The transcript of one episode as token ids. It grows by concatenation: nothing is ever tokenised twice."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.model.chat import ChatFormat
from tandem.model.frames import Frame


class Transcript:
    """Observations and completions in order of play, and the prompt that they make."""

    def __init__(self, chat: ChatFormat, instruction: str, window: int) -> None:
        self.chat = chat
        self.instruction = instruction
        self.window = window  # turns of context; 0 is all of them
        self._observations: list[tuple[str, int]] = []
        self._frames: list[tuple[Frame, ...]] = []
        self._completions: list[Sequence[int]] = []

    def observe(self, text: str, frames: Sequence[Frame]) -> None:
        """What the environment showed last."""
        self._observations.append((text, len(frames)))
        self._frames.append(tuple(frames))

    def answer(self, completion_ids: Sequence[int]) -> None:
        """What the model answered to it: the ids as the engine returned them."""
        self._completions.append(completion_ids)

    def prompt(self) -> tuple[tuple[int, ...], tuple[Frame, ...]]:
        """Ids of the next prompt, one placeholder per image, and the images. A completion that the token
        limit cut off gets its <|im_end|> here, in the prompt: the model never said it."""
        ids = self.chat.window_prompt(self.instruction, self._observations, self._completions, self.window)
        kept = self._frames[-self.window :] if self.window else self._frames
        return ids, tuple(frame for frames in kept for frame in frames)
