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
        self._observations: list[tuple[str, bool]] = []
        self._frames: list[Frame | None] = []
        self._completions: list[Sequence[int]] = []

    def observe(self, text: str, frame: Frame | None) -> None:
        """What the environment showed last."""
        self._observations.append((text, frame is not None))
        self._frames.append(frame)

    def answer(self, completion_ids: Sequence[int]) -> None:
        """What the model answered to it: the ids as the engine returned them."""
        self._completions.append(completion_ids)

    def prompt(self) -> tuple[tuple[int, ...], tuple[Frame, ...]]:
        """Ids of the next prompt, one placeholder per image, and the images. A completion that the token
        limit cut off gets its <|im_end|> here, in the prompt: the model never said it."""
        ids = self.chat.window_prompt(self.instruction, self._observations, self._completions, self.window)
        kept = self._frames[-self.window :] if self.window else self._frames
        return ids, tuple(frame for frame in kept if frame is not None)
