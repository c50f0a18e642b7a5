"""What groups become. Pure functions of tensors and dataclasses, no I/O; one page for each link of the chain:

    filtering    which groups and trajectories, in which order; their returns
    advantages   returns -> advantages                                       by name: ADVANTAGES
    packing      trajectories -> training sequences, each distinct one once
    losses       advantages, logprobs -> loss of a token                     by name: POLICY_LOSSES
    correction   importance weights between engine and learner               by name: CORRECTIONS
    kl           distance to the base model                                  by name: KL_ESTIMATORS
    aggregation  weights of the tokens                                       by name: AGGREGATIONS
    objective    all of it, assembled into one loss

Nothing here logs; what is worth knowing is returned beside the value: `(value, metrics)`.
"""

from tandem.algo.advantages import ADVANTAGES, group_advantages
from tandem.algo.aggregation import AGGREGATIONS, token_weights
from tandem.algo.correction import CORRECTIONS, importance_weights
from tandem.algo.filtering import in_order, overlong, return_table, select_groups
from tandem.algo.kl import KL_ESTIMATORS
from tandem.algo.losses import POLICY_LOSSES, Tokens
from tandem.algo.objective import Evidence, figure_names, objective
from tandem.algo.packing import (
    Flat,
    Occurrences,
    Packed,
    TrainSequence,
    flatten,
    merge_turns,
    microbatches,
    pack,
    split_contiguous,
)
from tandem.algo.schedule import learning_rate

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "CORRECTIONS",
    "KL_ESTIMATORS",
    "POLICY_LOSSES",
    "Evidence",
    "Flat",
    "Occurrences",
    "Packed",
    "Tokens",
    "TrainSequence",
    "figure_names",
    "flatten",
    "group_advantages",
    "importance_weights",
    "in_order",
    "learning_rate",
    "merge_turns",
    "microbatches",
    "objective",
    "overlong",
    "pack",
    "return_table",
    "select_groups",
    "split_contiguous",
    "token_weights",
]
