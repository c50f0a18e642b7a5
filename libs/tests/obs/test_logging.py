"""Log lines: one per event, readable by people or by machines, and once where many say the same."""

import json
import logging
from collections.abc import Iterator

import pytest

from tandem.config import ObsConfig
from tandem.obs import get_logger
from tandem.obs.logging import setup_logging
from tandem.obs.tracing import knowing


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger("tandem")
    before = (logger.handlers, logger.propagate, logger.level)
    yield
    logger.handlers, logger.propagate = before[0], before[1]
    logger.setLevel(before[2])


def test_json_lines_carry_service_run_step_level_and_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(ObsConfig(log_format="json", log_level="info"), "rollout[7]", "mazes")
    log = get_logger("tandem.somewhere")
    log.debug("unheard")
    try:
        raise ValueError("broken")
    except ValueError:
        with knowing(step=12, version=11):
            log.exception("it %s", "failed")
    [line] = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert (said["service"], said["level"], said["message"]) == ("rollout[7]", "error", "it failed")
    assert (said["run"], said["step"], said["version"]) == ("mazes", 12, 11)
    assert "trace_id" not in said  # nothing is traced
    assert "ValueError: broken" in said["traceback"]


def test_console_lines_name_the_service_and_warnings_their_step(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(ObsConfig(), "controller")
    with knowing(step=3):
        get_logger("elsewhere").info("hello")
        get_logger("elsewhere").warning("look")
    hello, look = capsys.readouterr().err.splitlines()
    assert hello.endswith("I controller: hello")
    assert look.endswith("W controller: look (step 3)")


def test_a_thousand_equal_warnings_are_one_line_and_how_many(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("tandem.obs.logging.time.monotonic", lambda: now)
    setup_logging(ObsConfig(), "controller")
    log = get_logger("elsewhere")
    for _ in range(1000):
        log.warning("the %s is down", "collector")
        log.warning("of another kind")
    assert len(capsys.readouterr().err.splitlines()) == 2
    log.info("as often")
    log.info("as it is told")
    assert len(capsys.readouterr().err.splitlines()) == 2
    now = 161.0
    log.info("later")
    told = [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == ["the collector is down (999 more times since)", "of another kind (999 more times since)", "later"]
    log.warning("the %s is down", "collector")
    assert capsys.readouterr().err.count("the collector is down\n") == 1
    log.warning("the %s is down", "collector")
    logging.getLogger("tandem").handlers[0].close()
    assert "the collector is down (1 more times since)" in capsys.readouterr().err
