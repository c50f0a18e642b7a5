"""One rank of the learner: model, optimizer and policy version. Every rank calls the same methods in the
same order.

groups -> `step.learn` -> version + 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tandem.algo import learning_rate
from tandem.config import Config
from tandem.model.chat import ChatFormat
from tandem.model.folder import fingerprint
from tandem.model.loading import forbidden_token_ids, load_model, load_processor
from tandem.model.lora import adapter_config_json, attach_lora
from tandem.model.sharding import shard_policy
from tandem.model.vision import image_cache, token_grid
from tandem.storage import ShardMeta, check_place
from tandem.types import AdapterRef, LearnerStatus, PublishKind, TrajectoryGroup, Unavailable, UserError
from tandem_learner.comm import Comm
from tandem_learner.forward import ForwardSettings
from tandem_learner.host_copy import HostCopy, HostMemory
from tandem_learner.optimizer import ShardedAdamW
from tandem_learner.random_state import random_states, restore_random, seed_random
from tandem_learner.shards import read_adapter_shard, read_state_shard, shard_tensors
from tandem_learner.step import Advantages, Trainer, learn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LearnerCore:
    """See the module. `version` is that of the policy the adapter makes: 0 is the base model's. `advantages` are those
    of the last step."""

    def __init__(self, config: Config, comm: Comm) -> None:
        self.config, self.comm = config, comm
        self.version = 0
        self.advantages: Advantages = {}
        self.base_model = fingerprint(config.model.path)
        full = config.learner.trainable == "full"
        self.kind = PublishKind.MODEL if full else PublishKind.ADAPTER  # of what it trains
        model: Any = load_model(config.model.path, torch.float32 if full else DTYPES[config.model.dtype])
        chat = ChatFormat.load(config.model.path)
        self.vocab_size: int = model.get_input_embeddings().num_embeddings
        self.forbidden = frozenset(forbidden_token_ids(chat, self.vocab_size))
        self.adapter_config_json = ""
        if not full:
            self.adapter_config_json = adapter_config_json(
                attach_lora(model, config.learner.lora, seed=config.run.seed)
            )
        self.policy = shard_policy(
            model.to(comm.device),
            comm.mesh,
            recompute=config.learner.activation_checkpointing,
            full=DTYPES[config.model.dtype] if full else None,
        )
        self._hand_back_cache()  # the whole model was on the device before it was sharded
        self.optimizer = ShardedAdamW(self.policy.parameters, config.learner, comm)
        self._updates = self.optimizer.updates  # at this version
        self._host_memory = HostMemory(comm.device)
        torch.use_deterministic_algorithms(config.run.deterministic, warn_only=comm.device.type == "cuda")
        self.settings = ForwardSettings(
            processor=load_processor(config.model.path),
            image_id=chat.image_id,
            pad_id=chat.end_id,
            forbidden=torch.tensor(sorted(self.forbidden), device=comm.device),
            # what is imitated was not sampled by this policy, so at no temperature of its
            temperature=1.0 if config.learner.algo.supervised else config.rollout.temperature,
            microbatch_tokens=config.learner.microbatch_tokens,
            # an image alone in its chunk gives the same numbers whatever else is encoded with it
            chunk_patches=1 if config.run.deterministic else config.learner.microbatch_tokens,
            entropy_gradient=config.learner.algo.entropy_coef > 0,
            cache=image_cache(int(config.learner.image_cache_gib * 2**30)),
        )
        self.trainer = Trainer(config, self.policy, self.optimizer, self.settings, comm)
        seed_random(config.run.seed, comm.rank)

    def status(self) -> LearnerStatus:
        """What the learner is."""
        parameters = sum(torch.Size(p.global_shape).numel() for p in self.policy.parameters.values())
        return LearnerStatus(self.version, self.comm.world_size, self.base_model, parameters, self.adapter_config_json)

    def image_tokens(self, png: bytes) -> int:
        """How many placeholders an image takes."""
        height, width = token_grid(self.settings.processor, png)
        return height * width

    def train_step(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Make the next policy version of checked groups (see `validate`). A collective: all ranks, the same
        groups.

        Without a group that has a signal there is nothing to learn: no update is made, the version still
        advances.

        Returns:
            the step's figures by name, the same on every rank but for `seconds/*`.
        """
        self.advantages, figures = learn(self.trainer, groups, self._learning_rate())
        self._updates = self.optimizer.updates
        self.version += 1
        self._hand_back_cache()  # the engine wakes next
        return figures

    def _hand_back_cache(self) -> None:
        """Free the GPU memory that torch keeps but does not use: the engine shares the GPU."""
        if self.comm.device.type == "cuda":
            torch.cuda.empty_cache()

    def _learning_rate(self) -> float:
        learner = self.config.learner
        return learning_rate(
            self.version,
            peak=learner.lr,
            final_share=learner.lr_final,
            warmup_steps=learner.warmup_steps,
            steps=self.config.run.steps,
        )

    def snapshot(self, kind: PublishKind) -> HostCopy:
        """Copy this rank's part of what it trains or of the training state to host memory, over the copy before.

        A training state is what a restore needs beside the adapter: AdamW's moments, how many updates were made and
        skipped, and the random streams. Not the learning rate's schedule, which is a function of the version alone.

        Raises:
            UserError: an adapter is asked of a learner that trains all weights, or the other way round.
            Unavailable: a step failed after it had moved something: this is no version.
        """
        if kind not in (self.kind, PublishKind.STATE):
            raise UserError(f"learner.trainable is {self.config.learner.trainable}: it exports no {kind}")
        if self.optimizer.updates != self._updates:
            raise Unavailable(f"a step failed on its way to version {self.version + 1}; restore a saved version")
        parts = {name: p.local for name, p in self.policy.parameters.items()}
        whole: dict[str, Tensor] = {}
        if kind is PublishKind.STATE:
            parts = self.optimizer.moments()
            whole = random_states(self.comm.device, self.comm.rank)
            whole |= self.optimizer.counters() if self.comm.rank == 0 else {}
        tensors, places = shard_tensors(parts, whole, self.policy.parameters)
        comm, run = self.comm, self.config.run.name
        meta = ShardMeta(kind, self.version, comm.rank, comm.world_size, self.base_model, places, run)
        return self._host_memory.copy(tensors, meta)

    def restore(self, adapter: AdapterRef, state: AdapterRef | None) -> int:
        """Continue from published folders, at whatever world size they were written. Reads all before it
        changes any.

        Raises:
            UserError: of another base model, other LoRA settings, or state and adapter of different versions.
            NotFound, DataCorrupt: the folders are not there or damaged.
        """
        for ref in (adapter, *([state] if state else [])):
            check_place(ref.url, self.config.weight_places)
            if ref.base_model != self.base_model:
                raise UserError(
                    f"{ref.url} is for base model {ref.base_model[:12]}, the learner has "
                    f"{self.base_model[:12]}; use that model"
                )
        if state and state.version != adapter.version:
            raise UserError(
                f"training state is of version {state.version}, adapter of {adapter.version}; restore one version"
            )
        weights = read_adapter_shard(adapter, self.policy.parameters)
        saved = read_state_shard(state, self.policy.parameters) if state else None
        for name, tensor in weights.items():
            self.policy.parameters[name].local.copy_(tensor)
        self.optimizer.reset()
        if saved:
            self.optimizer.load(saved.moments, saved.counters)
            restore_random(saved.random, self.comm.device, self.comm.rank)
        self._updates = self.optimizer.updates
        self.version = adapter.version
        return self.version
