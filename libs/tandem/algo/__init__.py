"""What groups become: advantages, losses, filters, packing. Pure functions of tensors and dataclasses, no
I/O.

Nothing here logs; what is worth knowing is returned beside the value: `(value, metrics)`.
"""

from tandem.algo.advantages import group_advantages
from tandem.algo.filtering import select_groups, valid_members
from tandem.algo.loss import clipped_policy_loss
from tandem.algo.packing import (
    Occurrences,
    Packed,
    TrainSequence,
    merge_turns,
    microbatches,
    pack,
    split_contiguous,
)
from tandem.algo.schedule import learning_rate

__all__ = [
    "Occurrences",
    "Packed",
    "TrainSequence",
    "clipped_policy_loss",
    "group_advantages",
    "learning_rate",
    "merge_turns",
    "microbatches",
    "pack",
    "select_groups",
    "split_contiguous",
    "valid_members",
]
