"""bf16 matrix products with fp32 attention on a CPU: faster than fp32 by a third where the CPU has AVX512-BF16.

PyTorch's CPU attention is slower in bf16 than in fp32 (its backward several times), so attention leaves autocast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_NAME = "sdpa_fp32"


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Scaled dot-product attention over [N, heads, tokens, head_dim], in fp32 under CPU autocast."""
    if query.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(query.float(), key.float(), value.float(), scale=scale)
    return F.scaled_dot_product_attention(query, key, value, scale=scale)


def _sdpa_fp32(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    with torch.autocast("cpu", enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask, **kwargs)


AttentionInterface.register(_NAME, _sdpa_fp32)
AttentionMaskInterface.register(_NAME, sdpa_mask)


@contextmanager
def mixed_precision(model: Any, enabled: bool) -> Iterator[None]:
    """Run a CPU model's forward in bf16 with fp32 attention; weights, gradients and losses stay fp32."""
    if not enabled:
        yield
        return
    before = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield
    finally:
        model.set_attn_implementation(before)
