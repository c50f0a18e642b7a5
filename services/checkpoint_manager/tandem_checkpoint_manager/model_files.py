"""What a published model holds beside its weights: the base model's own config, tokenizer and processor files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tandem.types import UserError

NEEDED = ("config.json", "preprocessor_config.json", "tokenizer.json")
OPTIONAL = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "processor_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
    "vocab.json",
)


def base_files(folder: Path) -> dict[str, Iterable[bytes]]:
    """The files of the base model in `folder` that are not weights, by name.

    Raises:
        UserError: one that a model folder needs cannot be read.
    """
    found: dict[str, Iterable[bytes]] = {}
    for name in (*NEEDED, *OPTIONAL):
        try:
            found[name] = [(folder / name).read_bytes()]
        except OSError as problem:
            if name in NEEDED:
                raise UserError(
                    f"model.path {folder}: {name} cannot be read ({problem.strerror}); "
                    "the checkpoint manager needs the base model's folder to publish a model"
                ) from problem
    return found
