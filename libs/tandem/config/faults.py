"""The section on what a run does when something dies or hangs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tandem.config.section import NonNegative, Section


class FaultsConfig(Section):
    """How long to wait, and how often to try."""

    restarts: NonNegative = Field(
        default=3,
        description="Times that learner or checkpoint manager are started anew at one policy version before the run "
        "ends; a replica is started again and again. 0: nobody is replaced.",
    )
    stall_s: Annotated[float, Field(gt=0, le=1e6)] = Field(
        default=120,
        description="Seconds without any progress after which the log says who waits for whom; later again and again.",
    )
    resend_s: Annotated[float, Field(ge=0, le=1e6)] = Field(
        default=3,
        description="Seconds for which a learner rank goes on trying to send its shard to a checkpoint manager that is "
        "gone: a broken connection is none that died. More where it is started again at the same address.",
    )
