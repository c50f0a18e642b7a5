"""What a model is made of, from its config.json alone, and the live bytes of a training step, counted on the meta
device: the learner's own forward, loss and backward run on tensors without data, and what is alive is added up."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from tandem.config import Config
from tandem.model.lora import adapter_parameters, attach_lora
from tandem.model.sequences import SequenceBatch, sequence_logprobs
from tandem.types import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Shapes:
    """A model with its adapter. Bytes are of frozen weights in `model.dtype`; where all weights train, there are none.

    layers: all decoder layers with the last norm, which the ranks share among them. largest_unit: what one sharded
    unit gathers. whole: embedding, head and vision tower, which every rank holds. trained: shapes of what trains, by
    its name in the published file. weights: the base model as an engine loads it. lora_room: one entry of A and of B a
    rank, all modules that the engine may adapt. text, vision: the two parts of the config. file_dtype: of the weights
    in the model's folder.
    """

    parameters: int
    layers: int
    largest_unit: int
    whole: int
    trained: Mapping[str, tuple[int, ...]]
    trains_vision: bool
    weights: int
    lora_room: int
    text: Any
    vision: Any
    file_dtype: str

    @property
    def trained_parameters(self) -> int:
        """How many numbers train."""
        return sum(math.prod(shape) for shape in self.trained.values())

    def per_rank(self, world_size: int) -> int:
        """Numbers that the rank with most of them trains: tensors are split by rows, each rank the ceiling."""
        rows = ((-(-shape[0] // world_size), shape[1:]) for shape in self.trained.values() if shape)
        return sum(first * math.prod(rest) for first, rest in rows)


def read_config(folder: Path) -> Qwen3VLConfig:
    """The model's config. Raises UserError where it is missing, unreadable or of another architecture."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"model.path {folder}: no config.json there; give the folder of the base model with --model")
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        kind = said["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{path}: not the config of a model ({problem!r})") from problem
    if kind != "qwen3_vl":
        raise UserError(f"{path}: describes a {kind!r} model; Tandem trains 'qwen3_vl' models")
    try:
        return Qwen3VLConfig.from_dict(said)
    except (ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as problem:
        raise UserError(f"{path}: transformers cannot read it: {' '.join(str(problem).split())[:200]}") from problem


def build(config: Config) -> Any:
    """The model of a recipe on the meta device, as the learner would have it. Raises UserError as `attach_lora`."""
    settings = read_config(Path(config.model.path))
    settings._attn_implementation = "sdpa"
    full = config.learner.trainable == "full"
    dtype = torch.float32 if full else DTYPES[config.model.dtype]
    try:
        with torch.device("meta"):
            model: Any = Qwen3VLForConditionalGeneration(settings)
            model.to(dtype)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise UserError(f"{config.model.path}/config.json: no model can be built from it: {reason}") from problem
    if not full:
        with torch.device("meta"):
            attach_lora(model, config.learner.lora, seed=config.run.seed)
    return model.eval()


def describe(model: Any, config: Config) -> Shapes:
    """Count what `build` has made."""
    text, tower = model.model.language_model, model.model.visual
    full = config.learner.trainable == "full"
    trained = dict(sorted(model.named_parameters())) if full else adapter_parameters(model)
    trains_vision = any(parameter.requires_grad for parameter in tower.parameters())
    # as `tandem.model.sharding` has it: a tower that trains is a sharded unit too
    sharded = [*text.layers, text.norm, *([tower] if trains_vision else [])]
    whole = [text.embed_tokens, model.lm_head, *([] if trains_vision else [tower])]
    adapted = [text, *([tower] if config.learner.lora.vision else [])]
    linear = [m for part in adapted for name, m in part.named_modules() if isinstance(m, nn.Linear) and _base(name)]
    parameters = sum(parameter.numel() for name, parameter in model.named_parameters() if _base(name))
    return Shapes(
        parameters=parameters,
        layers=_frozen(sharded),
        largest_unit=max(sum(parameter.nbytes for parameter in layer.parameters()) for layer in text.layers),
        whole=_frozen(whole),
        trained={name: tuple(parameter.shape) for name, parameter in trained.items()},
        trains_vision=trains_vision,
        weights=parameters * DTYPES[config.model.dtype].itemsize,
        lora_room=sum(module.in_features + module.out_features for module in linear),
        text=model.config.text_config,
        vision=model.config.vision_config,
        file_dtype=str(model.config.dtype).removeprefix("torch."),
    )


def step_bytes(model: Any, rows: int, tokens: int, completion_tokens: int, *, recompute: bool) -> int:
    """Most live bytes of one microbatch beyond the weights: activations, logits, and gradients as they come.

    Args:
        rows, tokens: the microbatch's shape; completion_tokens: sampled ones, in all rows together.
        recompute: as `learner.activation_checkpointing`.
    """
    text = model.model.language_model
    if recompute:
        text.train()
        text.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with torch.device("meta"):
        one = torch.zeros(completion_tokens, dtype=torch.int64)
        ids, positions = (torch.zeros(*lead, rows, tokens, dtype=torch.int64) for lead in ((), (4,)))
        batch = SequenceBatch(ids, positions, one, one, one, torch.zeros(0, dtype=torch.int64))
        forbidden = torch.zeros(8, dtype=torch.int64)
        counter = _LiveBytes([*model.parameters(), *model.buffers(), *vars(batch).values(), forbidden])
        with _counted_attention(), counter:
            logprobs, _ = sequence_logprobs(model, batch, None, temperature=1.0, forbidden=forbidden)
            logprobs.sum().backward()
    for parameter in model.parameters():
        parameter.grad = None
    return counter.peak


def _frozen(modules: list[nn.Module]) -> int:
    """Bytes of what does not train; an embedding that is the head too counts once."""
    found = {id(p): p.nbytes for module in modules for p in module.parameters() if not p.requires_grad}
    return sum(found.values())


def _base(name: str) -> bool:
    return "lora_" not in name


class _LiveBytes(TorchDispatchMode):
    """Adds up the storages that operators make, while they live."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return True  # transformers asks whether rows are packed; none is: "all positions belong to one sequence"
        out = func(*args, **(kwargs or {}))
        for tensor in _pytree.tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


class _Fused(torch.autograd.Function):
    """Attention as a fused kernel keeps it: its inputs, its output and a float32 number a row."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


@contextmanager
def _counted_attention() -> Iterator[None]:
    """On the meta device torch would choose the plain kernel, which holds all attention weights; devices fuse it."""
    chosen = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = lambda query, key, value, **_: _Fused.apply(query, key, value)  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention = chosen
