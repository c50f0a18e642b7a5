"""Prompts as token ids, built by concatenation and never re-tokenised. No torch: the rollout core uses this too.

An episode is a chat. The first user turn is the instruction and an image, every later one is feedback and an image
(or several, or none):

    <|im_start|>user\\n INSTRUCTION <|vision_start|><|image_pad|><|vision_end|> <|im_end|>\\n<|im_start|>assistant\\n
    COMPLETION
    <|im_end|>\\n <|im_start|>user\\n FEEDBACK <|vision_start|>... <|im_end|>\\n<|im_start|>assistant\\n

This is the Qwen chat template. One <|image_pad|> stands for one image: the engine expands it. With a window of the last
k turns the instruction moves to the oldest user turn that is kept, before its feedback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from tandem.types import UserError

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
VISION_START, VISION_END, VISION_PAD = "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
VISION_TOKENS = (VISION_START, VISION_END, VISION_PAD, IMAGE_PAD, VIDEO_PAD)
_MOST_BYTES = 4  # of a character, and so the tokens it may be spread over


@dataclass(frozen=True)
class ChatFormat:
    """The Qwen chat format over one tokenizer."""

    tokenizer: Tokenizer

    @staticmethod
    def load(model_dir: str | Path) -> ChatFormat:
        """Read `tokenizer.json` of a model folder. Raises UserError where it is missing."""
        path = Path(model_dir) / "tokenizer.json"
        if not path.is_file():
            raise UserError(f"no tokenizer.json in model folder {model_dir}: give the folder of a model")
        return ChatFormat(Tokenizer.from_file(str(path)))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, special tokens recognised, none added."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a completion, special tokens left out: what the environment is given."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, special ones by name. Where a character takes several tokens, the last has it."""
        found, open_ids = list[str](), list[int]()
        for at, token in enumerate(ids, start=1):
            open_ids.append(token)
            text = _text(self.tokenizer, tuple(open_ids))
            whole = not text.endswith("\ufffd") or len(open_ids) == _MOST_BYTES or at == len(ids)
            found.append(text if whole else "")
            open_ids = [] if whole else open_ids
        return found

    def token_id(self, token: str) -> int:
        """The id of a special token. Raises UserError where the tokenizer has no such token."""
        found = self.tokenizer.token_to_id(token)
        if found is None:
            raise UserError(f"the tokenizer has no {token} token: this is not a Qwen-VL model")
        return found

    @cached_property
    def end_id(self) -> int:
        """The id that ends a completion, <|im_end|>: a stop token of the engine."""
        return self.token_id(IM_END)

    @cached_property
    def image_id(self) -> int:
        """The id of <|image_pad|>."""
        return self.token_id(IMAGE_PAD)

    @cached_property
    def _words(self) -> Tokenizer:
        """The same tokenizer, to which special tokens are words like others: an environment may say <|image_pad|>,
        and that must not become a placeholder."""
        words = Tokenizer.from_str(self.tokenizer.to_str())
        words.encode_special_tokens = True
        return words

    def forbidden_ids(self, vocab_size: int) -> tuple[int, ...]:
        """Ids that must never be sampled: vision tokens, and the rows of the embedding beyond the tokenizer."""
        vision = {self.tokenizer.token_to_id(token) for token in VISION_TOKENS} - {None}
        beyond = range(self.tokenizer.get_vocab_size(with_added_tokens=True), vocab_size)
        return tuple(sorted({i for i in vision if i is not None} | set(beyond)))

    def user_ids(self, text: str, images: int) -> tuple[int, ...]:
        """One user turn and the header of the assistant's answer; after the text one <|image_pad|> per image."""
        return _user_ids(self.tokenizer, self._words, text, images)

    def first_prompt(self, instruction: str, text: str, images: int) -> tuple[int, ...]:
        """The first prompt of an episode, or of a window of it: the instruction, then what was observed."""
        return self.user_ids(f"{instruction}\n{text}" if text else instruction, images)

    def closing_ids(self, completion: Sequence[int]) -> tuple[int, ...]:
        """What closes an assistant turn: <|im_end|> unless the completion sampled it, and the newline."""
        ended = len(completion) > 0 and completion[-1] == self.end_id
        return (() if ended else (self.end_id,)) + tuple(_encode(self.tokenizer, "\n"))

    def next_turn(self, completion: Sequence[int], text: str, images: int) -> tuple[int, ...]:
        """What follows a completion in a transcript: its closing and the next user turn with the feedback."""
        return self.closing_ids(completion) + self.user_ids(text, images)

    def window_prompt(
        self,
        instruction: str,
        observations: Sequence[tuple[str, int]],
        completions: Sequence[Sequence[int]],
        window: int = 0,
    ) -> tuple[int, ...]:
        """The prompt of the newest turn.

        Args:
            observations: (text, number of images) of every turn so far, the newest one last.
            completions: the token ids of every completion so far: one fewer than observations.
            window: how many of the last turns to keep, the newest included; 0 keeps them all.
        Returns:
            token ids with one <|image_pad|> per image of the turns kept.
        """
        if len(completions) != len(observations) - 1:
            raise ValueError(f"{len(observations)} observations need {len(observations) - 1} completions")
        first = max(0, len(observations) - window) if window else 0
        ids = self.first_prompt(instruction, *observations[first])
        for turn in range(first + 1, len(observations)):
            completion = tuple(completions[turn - 1])
            ids = ids + completion + self.next_turn(completion, *observations[turn])
        return ids


@lru_cache(maxsize=2**16)
def _text(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False)


@lru_cache(maxsize=1024)
def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@lru_cache(maxsize=1024)  # feedback is one of a few texts: an episode's prompts are dictionary look-ups
def _user_ids(tokenizer: Tokenizer, words: Tokenizer, text: str, images: int) -> tuple[int, ...]:
    said = words.encode(f"user\n{text}", add_special_tokens=False).ids
    rest = f"{VISION_START}{IMAGE_PAD}{VISION_END}" * images + f"{IM_END}\n{IM_START}assistant\n"
    return (*_encode(tokenizer, IM_START), *said, *_encode(tokenizer, rest))
