"""The mask over the vocabulary, in vLLM's own process."""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

from tandem.runtime import end_with_parent

FORBIDDEN_KEY = "tandem_forbidden_token_ids"


class ForbidTokens(LogitsProcessor):
    """Sets the logits of ids that must never be sampled to -inf, for the whole batch at once.

    It runs before temperature and softmax, so that greedy and sampled draws never pick one and the processed
    logprobs are normalised without them, as the learner's are. It is one index_fill a step, where a logit
    bias costs Python time for each request.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        if (parent := multiprocessing.parent_process()) is not None and parent.pid is not None:
            end_with_parent(parent.pid)  # here, because vLLM builds this in its own process whatever the platform
        forbidden = vllm_config.additional_config[FORBIDDEN_KEY]
        self.forbidden = torch.tensor(forbidden, dtype=torch.int64, device=device)  # [F]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """logits float32 [requests, vocabulary], changed in place."""
        return logits.index_fill_(-1, self.forbidden, float("-inf"))

    def is_argmax_invariant(self) -> bool:
        """A forbidden id may be the argmax: greedy decoding needs this, too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Nothing is kept per request."""
