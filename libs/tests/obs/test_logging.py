"""Log lines: one per event, readable by people or by machines."""

import json
import logging

import pytest

from tandem.config import ObsConfig
from tandem.obs import get_logger, setup_logging


@pytest.fixture(autouse=True)
def restored():
    logger = logging.getLogger("tandem")
    before = (logger.handlers, logger.propagate, logger.level)
    yield
    logger.handlers, logger.propagate = before[0], before[1]
    logger.setLevel(before[2])


def test_json_lines_carry_service_level_and_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(ObsConfig(log_format="json", log_level="info"), "rollout[7]")
    log = get_logger("tandem.somewhere")
    log.debug("unheard")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it %s", "failed")
    [line] = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert (said["service"], said["level"], said["message"]) == ("rollout[7]", "error", "it failed")
    assert "ValueError: broken" in said["traceback"]


def test_console_lines_name_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(ObsConfig(), "controller")
    get_logger("elsewhere").info("hello")
    assert capsys.readouterr().err.rstrip().endswith("I controller: hello")
