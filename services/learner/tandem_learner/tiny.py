"""How the tiny model is made: broad pre-training on the oracle, then a narrow fine-tune on imperfect demonstrations.

Capability comes first and the policy is what RL refines: `pretrain` teaches what is in the image and the way from
every room; `narrow` then teaches a demonstrator's bad habits, which leaves the capability in place and the policy poor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tandem.algo.packing import TrainSequence
from tandem.envs import seeds
from tandem.envs.maze_style import CLASSIC, RANDOM, style_of
from tandem.model.chat import ChatFormat
from tandem.model.loading import load_model, load_processor
from tandem.model.precision import mixed_precision
from tandem.model.sequences import build_sequences, sequence_logprobs
from tandem.model.tiny import build_tiny, copy_assets
from tandem_learner.tiny_data import (
    FEEDBACK,
    FEEDBACK_SHARES,
    PRESET_NAME,
    QUESTIONS,
    Example,
    MazeTable,
    action_example,
    answer,
    demonstrate,
    maze_table,
    tokenizer_texts,
    with_question,
)
from tandem_learner.tiny_eval import Policy, solve_rate

ENV_ID = f"maze2d:{PRESET_NAME}"


@dataclass(frozen=True)
class PretrainConfig:
    """Broad pre-training. `question_shares` says how often each of `QUESTIONS` follows the action."""

    seed: int = 0
    mazes: int = 60_000
    steps: int = 2_400
    warmup: int = 50
    decay: int = 250  # last steps, over which the rate falls linearly to zero
    batch: int = 96
    lr: float = 1.5e-3
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    question_shares: tuple[float, ...] = (0.8, 0.1, 0.1)
    question_weight: float = 1.0
    eval_every: int = 100
    first_seed: int = 1_000_000
    bf16: bool = True
    restyled: float = 0.0  # share of examples in a style of their own instead of the classic one
    fixed: int = 64  # mazes of the final evaluation
    heldout: int = 256


# More of the same in ever new looks, so that what is seen does not hang on one palette.
BROADEN = replace(PretrainConfig(), steps=900, decay=300, lr=1e-3, restyled=0.8, first_seed=5_000_000)


@dataclass(frozen=True)
class NarrowConfig:
    """Narrow fine-tuning on a demonstrator that follows the oracle with probability `skill`, else walks blindly.

    The vision tower stays as it is, the usual choice: what it sees remains true, and RL on the language model alone
    can find its way back to it.
    """

    seed: int = 0
    mazes: int = 3_000
    steps: int = 100
    warmup: int = 5
    decay: int = 30
    batch: int = 128
    lr: float = 8e-4
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    skill: float = 0.0
    freeze_vision: bool = True
    eval_every: int = 25
    first_seed: int = 3_000_000
    bf16: bool = False
    fixed: int = 64
    heldout: int = 256


Log = Callable[[dict[str, Any]], None]


def pretrain(base: Path | None, out: Path, config: PretrainConfig, log: Log) -> dict[str, Any]:
    """Make a tiny model in `out`, from nothing or from the model of `base`; returns its figures."""
    if base is None:
        build_tiny(out, tokenizer_texts(), config.seed)
    else:
        copy_assets(base, out)
    table = maze_table(config.mazes, config.first_seed)
    rng = np.random.default_rng(config.seed)
    policy = open_policy(base or out)

    def batches() -> Iterator[list[Example]]:
        while True:
            question = QUESTIONS[rng.choice(len(QUESTIONS), p=config.question_shares)]
            yield [_oracle_example(policy.chat, table, question, config, rng) for _ in range(config.batch)]

    figures = _fit(policy, batches(), config, out, log)
    return _finish(policy, out, "broaden" if base else "pretrain", config, {}, figures)


def narrow(base: Path, out: Path, config: NarrowConfig, log: Log) -> dict[str, Any]:
    """Fine-tune the model of `base` on imperfect demonstrations into `out`; returns its figures."""
    policy = open_policy(base)
    if config.freeze_vision:
        policy.model.model.visual.requires_grad_(False)
    table = maze_table(config.mazes, config.first_seed)
    rng = np.random.default_rng(config.seed)

    def batches() -> Iterator[list[Example]]:
        while True:
            yield [_demonstration(policy.chat, table, config, rng) for _ in range(config.batch)]

    copy_assets(base, out)
    figures = _fit(policy, batches(), config, out, log)
    return _finish(policy, out, "narrow", config, {"base": base.name}, figures)


def open_policy(path: Path) -> Policy:
    """Model, chat format, processor and forbidden ids of a model folder."""
    model, chat = load_model(path), ChatFormat.load(path)
    return Policy(model, chat, load_processor(path), chat.forbidden_ids(model.lm_head.out_features))


def _fit(
    policy: Policy, batches: Iterator[list[Example]], config: PretrainConfig | NarrowConfig, out: Path, log: Log
) -> dict[str, Any]:
    torch.manual_seed(config.seed)
    model = policy.model
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay, betas=(0.9, 0.98))
    fixed = seeds(ENV_ID, "fixed", config.fixed)
    started = time.monotonic()
    for step in range(1, config.steps + 1):
        rate = config.lr * min(step / config.warmup, 1.0, (config.steps - step + 1) / config.decay)
        for group in optimizer.param_groups:
            group["lr"] = rate
        with mixed_precision(model, config.bf16):
            loss, first = batch_loss(policy, next(batches))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        optimizer.step()
        if step % 20 == 0 or step == config.steps:
            log({"step": step, "loss": loss.item(), "action": first, "lr": rate, "seconds": time.monotonic() - started})
        if step % config.eval_every == 0 and step < config.steps:
            log({"step": step, "greedy": solve_rate(policy, ENV_ID, fixed, 0.0)})
            model.save_pretrained(out)
    return {"seconds": round(time.monotonic() - started, 1)}


def batch_loss(policy: Policy, examples: list[Example]) -> tuple[torch.Tensor, float]:
    """Weighted negative log-likelihood per example, and the mean probability of the action's second token."""
    images = policy.see([example.image for example in examples])
    starts = [len(example.prompt_ids) for example in examples]
    rows = [
        TrainSequence(e.prompt_ids + e.completion_ids, (str(i),), ((start, start + len(e.completion_ids)),))
        for i, (e, start) in enumerate(zip(examples, starts, strict=True))
    ]
    batch = build_sequences(rows, images.grids, images.token_rows, policy.chat.image_id, policy.chat.end_id)
    none = torch.tensor([], dtype=torch.int64)
    logprobs, _ = sequence_logprobs(policy.model, batch, images, temperature=1.0, forbidden=none)  # [K]
    weights = torch.tensor([weight for example in examples for weight in example.weights])  # [K]
    second = batch.columns == torch.tensor(starts)[batch.rows]  # [K]: the column of the first token predicts it
    return -(weights * logprobs).sum() / len(examples), float(logprobs[second].detach().exp().mean())


def _oracle_example(
    chat: ChatFormat, table: MazeTable, question: str, config: PretrainConfig, rng: np.random.Generator
) -> Example:
    maze, room = int(rng.integers(len(table.walls))), int(rng.integers(table.oracle.shape[1] - 1))
    style = style_of(RANDOM, int(rng.integers(2**32))) if rng.random() < config.restyled else CLASSIC
    direction = int(table.oracle[maze, room])
    example = action_example(chat, table, maze, room, direction, _feedback(rng), style)
    reply = answer(table, question, maze, room)
    return with_question(chat, example, question, reply, config.question_weight)


def _demonstration(chat: ChatFormat, table: MazeTable, config: NarrowConfig, rng: np.random.Generator) -> Example:
    maze, room = int(rng.integers(len(table.walls))), int(rng.integers(table.oracle.shape[1] - 1))
    direction = demonstrate(table, maze, room, config.skill, rng)
    return action_example(chat, table, maze, room, direction, _feedback(rng))


def _feedback(rng: np.random.Generator) -> str:
    return FEEDBACK[rng.choice(len(FEEDBACK), p=FEEDBACK_SHARES)]


def _finish(
    policy: Policy,
    out: Path,
    kind: str,
    config: PretrainConfig | NarrowConfig,
    more: dict[str, Any],
    figures: dict[str, Any],
) -> dict[str, Any]:
    """Save the model and its record: settings, and solve rates, greedy and sampled, on fixed and held-out mazes."""
    policy.model.save_pretrained(out)
    for split, count in (("fixed", config.fixed), ("heldout", config.heldout)):
        tasks = seeds(ENV_ID, split, count)
        figures[f"{split}_greedy"] = solve_rate(policy, ENV_ID, tasks, 0.0)
        figures[f"{split}_sampled"] = solve_rate(policy, ENV_ID, tasks, 1.0)
    record = {"kind": kind, "config": {**asdict(config), **more}, "figures": figures}
    (out / f"{kind}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return figures
