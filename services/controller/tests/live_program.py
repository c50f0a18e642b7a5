"""A run's table on a terminal, and lines that are logged and printed meanwhile; ends at the first SIGINT."""

import asyncio
import time
from dataclasses import replace

from control_runs import STEPPED
from rich.console import Console, RenderableType

from tandem.config import ObsConfig
from tandem.obs import get_logger
from tandem.obs.logging import setup_logging
from tandem.runtime import pause, until_signal
from tandem_controller.live import view
from tandem_controller.pace import Pace
from tandem_controller.screen import plain, shown

LINES = 30  # more than the screen is high
WIDE = "is logged and is no longer than the screen is wide"


async def main() -> None:
    setup_logging(ObsConfig(), "controller")
    log, console, pace = get_logger("tandem_controller.test"), Console(), Pace()

    def look() -> RenderableType:
        return view(replace(STEPPED, problems=pace.problems), time.time(), console.width, plain(console))

    with pace.listening():
        async with shown(console, look):
            asked = asyncio.create_task(until_signal())
            for number in range(LINES):
                log.warning("line %d %s", number, WIDE)
                await pause(0.02)
            console.print("all is said")
            await asked
            console.print("stopping after this step")
    console.print("the end")


if __name__ == "__main__":
    asyncio.run(main())
