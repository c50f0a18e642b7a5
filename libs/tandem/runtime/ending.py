"""An end that waits for nobody."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

from tandem.obs import finish, get_logger

log = get_logger(__name__)
EXIT_CODE = 1


def end_process(why: str) -> NoReturn:
    """End this process now, saying why in its last log line; exit code 1.

    For a process whose threads may hang in native code for ever: an orderly end would wait for them.
    """
    log.error("%s", why)
    finish()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(EXIT_CODE)
