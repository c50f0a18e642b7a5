"""The tiny Qwen3-VL: a real `Qwen3VLForConditionalGeneration` small enough to train on one core, made from scratch.

One merged image token (16 x 16 px: patches of 8, merged 2 x 2) is one room of `maze2d:tiny`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from tandem.model import chat
from tandem.model.placeholders import TokenGrid

PATCH, MERGE = 8, 2  # a patch's side in px, and how many patches a merged token has a side
GRID = TokenGrid(PATCH * MERGE, 16 * 16, 512 * 512)  # an image whose sides are multiples of 16 px keeps its size

SPECIAL_TOKENS = (
    chat.END_OF_TEXT,
    chat.IM_START,
    chat.IM_END,
    chat.VISION_START,
    chat.VISION_END,
    chat.VISION_PAD,
    chat.IMAGE_PAD,
    chat.VIDEO_PAD,
)

ASSETS = (
    "chat_template.jinja",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)

# A digit with its space and bracket, or a word with its punctuation: "('move', 3)" is two tokens.
_WORDS = r" ?\d\)?| ?[^\s\d]+\n?|\s"

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' -%}
{{ '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- else -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str], max_vocab: int = 512) -> Tokenizer:
    """A byte-level BPE tokenizer whose words are those of `texts`; any other text falls back to bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=max_vocab,
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def tiny_config(tokenizer: Tokenizer) -> Qwen3VLConfig:
    """Dimensions of the tiny model: about 1.3 M parameters. A 64 x 64 image is 64 patches and 16 image tokens."""
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    text = {
        "vocab_size": tokenizer.get_vocab_size(with_added_tokens=True),
        "hidden_size": 96,
        "intermediate_size": 320,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "initializer_range": 0.1,  # at 0.02 so small a model stands still for the first 150 steps
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [6, 5, 5],  # sums to head_dim / 2
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": ids[chat.IM_END],
        "pad_token_id": ids[chat.END_OF_TEXT],
    }
    vision = {
        "depth": 3,
        "hidden_size": 96,
        "intermediate_size": 384,
        "num_heads": 6,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "spatial_merge_size": MERGE,
        "out_hidden_size": 96,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [1],
        "initializer_range": 0.1,
    }
    settings: dict[str, Any] = {
        "text_config": text,
        "vision_config": vision,
        "image_token_id": ids[chat.IMAGE_PAD],
        "video_token_id": ids[chat.VIDEO_PAD],
        "vision_start_token_id": ids[chat.VISION_START],
        "vision_end_token_id": ids[chat.VISION_END],
        "tie_word_embeddings": False,
        "initializer_range": 0.1,
        "dtype": "float32",
    }
    return Qwen3VLConfig(**settings)


def build_tiny(out: str | Path, texts: Iterable[str], seed: int) -> None:
    """Write an untrained tiny model folder: weights, tokenizer, chat template, processor settings.

    Args:
        texts: what the tokenizer learns its words from.
        seed: of the weights.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(texts)
    config = tiny_config(tokenizer)
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.token_to_id(chat.IM_END)
    model.generation_config.pad_token_id = tokenizer.token_to_id(chat.END_OF_TEXT)
    model.save_pretrained(folder)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=chat.IM_END,
        pad_token=chat.END_OF_TEXT,
        additional_special_tokens=[t for t in SPECIAL_TOKENS if t not in (chat.IM_END, chat.END_OF_TEXT)],
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    for name, settings in _processor_files().items():
        (folder / name).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def copy_assets(source: str | Path, target: str | Path) -> None:
    """Copy everything of a model folder but its weights and records: tokenizer, template, settings."""
    Path(target).mkdir(parents=True, exist_ok=True)
    for name in ASSETS:
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, Path(target) / name)


def _processor_files() -> dict[str, dict[str, object]]:
    """Processor settings, the same for images and video."""
    common: dict[str, object] = {
        "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": GRID.least, "longest_edge": GRID.most},
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    return {
        "preprocessor_config.json": {**common, "image_processor_type": "Qwen2VLImageProcessor"},
        "video_preprocessor_config.json": {**common, "video_processor_type": "Qwen3VLVideoProcessor"},
    }
