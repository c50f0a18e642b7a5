"""The parts of what each process, a save and a sync take: bytes, in the worst case. Constants say where from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tandem.config import Config
from tandem.storage.retention import LEAST
from tandem.storage.tensors import ITEM_BYTES, layout
from tandem.types import PublishKind
from tandem_learner.optimizer import MOMENTS
from tandem_learner.plan.hardware import GIB, MB
from tandem_learner.plan.shapes import DTYPES, Shapes
from tandem_learner.plan.workload import Workload, imitates
from tandem_learner.random_state import RANDOM
from tandem_learner.shards import COUNTERS

MIB = 2**20
F32 = 4
CUDA_RANDOM = 16  # bytes of a CUDA generator's state: seed and offset
# Memory of processes that hold nothing yet, measured on x86-64 with Python 3.11: resident, of Ray's the proportional
# share (its processes share most of theirs), dashboard on. `make plan-check` measures manager and learner again.
MANAGER_BASE, CONTROLLER_BASE = 55 * MIB, 165 * MIB
LEARNER_BASE = 395 * MIB
ROLLOUT_BASE, ENGINE_BASE = 600 * MIB, 650 * MIB
RAY_HEAD, RAY_NODE = 600 * MIB, 250 * MIB
# Not measured: no GPU was at hand. A CUDA context and its libraries on the host and on the device.
CUDA_HOST, CUDA_DEVICE = 2 * GIB, 700 * MIB
GRAPHS = 2 * GIB  # of CUDA, where engines do not run eagerly
MANAGER_GROWTH = 64 * MIB  # the manager's own promise, whatever it joins; beside it the largest tensor
PYTHON_INT = 36  # a token id in a tuple: 8 of pointer, 28 of object
PNG = 16 * 1024  # of a frame
GATHERED = 3  # sharded units gathered at a time: the one at work, the next one, and its buffer
MM_CACHES = 2 * 4 * GIB  # vLLM's of processed images, in service and engine, on GPUs
MM_CACHES_CPU = GIB


@dataclass(frozen=True, slots=True)
class Part:
    """One summand, bytes."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Budget:
    """What something takes, bytes; `peak` are parts that come and go in a step."""

    what: str
    parts: tuple[Part, ...]
    peak: tuple[Part, ...] = ()

    @property
    def at_rest(self) -> int:
        """Bytes between steps."""
        return sum(part.bytes for part in self.parts)

    @property
    def total(self) -> int:
        """Bytes at the worst moment."""
        return self.at_rest + sum(part.bytes for part in self.peak)


@dataclass(frozen=True, slots=True)
class Saves:
    """Files as published, bytes: the weights of a version, the training state of one."""

    weights: int
    state: int
    largest_tensor: int


def saves(shapes: Shapes, config: Config) -> Saves:
    """Exact but for manifests and configs, a few kB each: the joined safetensors files, header and data."""
    weights = {name: ("F32", shape) for name, shape in shapes.trained.items()}
    state = {f"{moment}/{name}": entry for moment in MOMENTS for name, entry in weights.items()}
    state |= dict.fromkeys(COUNTERS, ("F32", (1,)))
    for rank in range(config.learner.world_size):
        state[f"{RANDOM}cpu/{rank}"] = ("U8", tuple(torch.get_rng_state().shape))
        if config.cluster.gpus:
            state[f"{RANDOM}cuda/{rank}"] = ("U8", (CUDA_RANDOM,))
    largest = max((math.prod(shape) for shape in shapes.trained.values()), default=0) * F32
    return Saves(_file(weights), _file(state), largest)


def head(config: Config, saved: Saves, work: Workload) -> Budget:
    """The node of checkpoint manager, controller and Ray's head."""
    batches = 1 + config.rollout.max_staleness
    return Budget(
        "head",
        (
            Part("checkpoint manager, idle", MANAGER_BASE),
            Part("controller and Ray's head", CONTROLLER_BASE + RAY_HEAD),
        ),
        (
            Part("checkpoint manager, joining: 64 MiB and the largest tensor", MANAGER_GROWTH + saved.largest_tensor),
            Part("groups of a step in the controller", batches * _groups(work)),
        ),
    )


def learner(config: Config, shapes: Shapes, work: Workload, step: int) -> tuple[Budget, Budget]:
    """Of one rank: on the device that computes, and on the host beside a GPU (all in the first without one)."""
    world = config.learner.world_size
    mine = shapes.per_rank(world) * F32
    weights = (
        Part("embedding, head and vision tower, whole", shapes.whole),
        Part(f"decoder layers, 1/{world}", -(-shapes.layers // world)),
        Part(f"trained weights, float32, 1/{world}", mine),
        Part("AdamW moments, float32", 2 * mine),
    )
    step_parts = (
        Part(f"{GATHERED} decoder layers gathered", GATHERED * shapes.largest_unit),
        Part("activations, logits and gradients of a microbatch", step),
        Part("images of the update, encoded", _encoded(config, shapes, work)),
        Part("vision tower at work", _tower(config, shapes, work)),
    )
    groups = Part("groups of a step", _groups(work))
    cache = Part("encoded images kept (learner.image_cache_gib)", _cache(config, shapes))
    # an export copies what it sends to host memory and sends it from there
    snapshots = Part("snapshots for adapter and state", 3 * mine)
    if not config.cluster.gpus:
        mapped = Part("decoder layers mapped from the file (reclaimable)", _mapped(config, shapes))
        base = Part("process", LEARNER_BASE)
        return Budget("learner rank", (base, *weights, mapped), (*step_parts, cache, snapshots, groups)), Budget("", ())
    device = Budget("learner rank, GPU", (Part("CUDA", CUDA_DEVICE), *weights), step_parts)
    host = Budget(
        "learner rank, host",
        (Part("process and CUDA", LEARNER_BASE + CUDA_HOST), cache, snapshots),
        (groups, Part("model while it loads", shapes.weights)),
    )
    return device, host


@dataclass(frozen=True, slots=True)
class Engine:
    """Of one replica: on the device that computes, on the host beside a GPU; bytes and tokens of the KV cache."""

    device: Budget
    host: Budget
    cache: int
    cache_tokens: int


def engine(config: Config, shapes: Shapes, gpu_memory: int | None) -> Engine:
    """On a GPU of `gpu_memory` bytes the engine takes its share; on the host (None) a KV cache as configured."""
    settings, item = config.rollout.engine, DTYPES[config.model.dtype].itemsize
    text = shapes.text
    widest = 4 * text.hidden_size + 2 * text.intermediate_size
    parts = [
        Part("weights", shapes.weights),
        Part("room for an adapter", shapes.lora_room * settings.max_lora_rank * item),
        Part("activations", settings.max_num_batched_tokens * widest * item),
        Part("logits", 2 * settings.max_num_seqs * text.vocab_size * F32),
    ]
    if gpu_memory is None:
        cache = int(settings.kv_cache_gib * GIB)
        parts += [Part("KV cache", cache), Part("process and service", ROLLOUT_BASE + ENGINE_BASE)]
        parts.append(Part("processed images", MM_CACHES_CPU))
        return Engine(Budget("rollout replica", tuple(parts)), Budget("", ()), cache, cache // kv_token(config, shapes))
    parts += [] if settings.enforce_eager else [Part("CUDA graphs", GRAPHS)]
    taken = Budget("", tuple(parts)).total
    cache = max(0, int(settings.gpu_memory_utilization * gpu_memory) - taken)
    host = Budget(
        "rollout replica, host",
        (
            Part("service, engine and CUDA", ROLLOUT_BASE + ENGINE_BASE + CUDA_HOST),
            Part("weights while the engine sleeps", shapes.weights),
            Part("processed images", MM_CACHES),
        ),
    )
    made = (*parts, Part("KV cache: the rest of gpu_memory_utilization", cache))
    return Engine(Budget("rollout replica, GPU", made), host, cache, cache // kv_token(config, shapes))


def kv_token(config: Config, shapes: Shapes) -> int:
    """Bytes of a token in the KV cache: a key and a value a layer and KV head."""
    text = shapes.text
    item = DTYPES[config.model.dtype].itemsize
    return 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim * item


@dataclass(frozen=True, slots=True)
class Sync:
    """How a version gets to the replicas. Bytes through the file system: `written`, and `read` by all replicas.

    needed_mb_s: so that every version, and the states' share of it, is through within its interval.
    """

    written: int
    read: int
    needed_mb_s: float

    def seconds(self, mb_s: float) -> float:
        """Of one version at a bandwidth."""
        return (self.written + self.read) / (mb_s * MB)


def sync(config: Config, saved: Saves, interval_s: float) -> Sync:
    """Of one version: shards are spooled and joined in the file system; without a direct path all replicas read it."""
    unread = config.sync.transport == "grpc" or imitates(config)
    written, read = 2 * saved.weights, 0 if unread else config.rollout.replicas * saved.weights
    states = 2 * saved.state / config.checkpoint.state_every
    return Sync(written, read, (written + read + states) / interval_s / MB)


def kept(config: Config, saved: Saves) -> int:
    """Bytes in the store at the end of a run at the most: what retention keeps, and a version on its way."""
    rules = config.checkpoint
    nth = config.run.steps // rules.keep_every if rules.keep_every else 0
    states = min(rules.keep + nth, -(-config.run.steps // rules.state_every))
    weights = max(rules.keep, LEAST[PublishKind.ADAPTER]) + rules.keep_best + nth + states
    return (weights + 2) * saved.weights + (states + 2) * saved.state


def _file(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> int:
    head_bytes, _ = layout(tensors, {"format": "pt"})
    return len(head_bytes) + sum(math.prod(shape) * ITEM_BYTES[dtype] for dtype, shape in tensors.values())


def _groups(work: Workload) -> int:
    """Token ids as Python holds them, and frames."""
    return work.episodes * (work.prompt_tokens * PYTHON_INT + work.images * PNG)


def _images(config: Config, work: Workload) -> int:
    """Distinct images of one rank's share of an update, none seen twice."""
    parts = config.learner.world_size * config.learner.minibatches
    return -(-work.episodes * work.images // parts)


def _encoded(config: Config, shapes: Shapes, work: Workload) -> int:
    vision = shapes.vision
    levels = 1 + len(vision.deepstack_visual_indexes)
    image = work.image_tokens * vision.out_hidden_size * levels * DTYPES[config.model.dtype].itemsize
    return _images(config, work) * image


def _cache(config: Config, shapes: Shapes) -> int:
    return 0 if shapes.trains_vision else int(config.learner.image_cache_gib * GIB)


def _tower(config: Config, shapes: Shapes, work: Workload) -> int:
    """Frozen: one block's activations of a chunk. Trained: all blocks' of all chunks, or of one where recomputed."""
    vision = shapes.vision
    merged = vision.spatial_merge_size**2
    patches = _images(config, work) * work.image_tokens * merged
    chunk = min(config.learner.microbatch_tokens, patches)
    block = (8 * vision.hidden_size + 2 * vision.intermediate_size) * DTYPES[config.model.dtype].itemsize
    if not shapes.trains_vision:
        return chunk * block
    return (chunk if config.learner.activation_checkpointing else patches) * block * vision.depth


def _mapped(config: Config, shapes: Shapes) -> int:
    """safetensors files are mapped; weights of the file's own dtype are used there, and sharding copies the layers."""
    same = shapes.file_dtype == config.model.dtype
    return shapes.layers if same else 0
