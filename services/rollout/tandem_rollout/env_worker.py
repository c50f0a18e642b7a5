"""One environment in a process of its own: `python -m tandem_rollout.env_worker PARENT_PID`; `env_processes` starts it.

Standard input is a socket: requests come and answers go there. A message is a line of JSON, an answer's images follow
as raw bytes:

    {"do": "reset", "env": "maze2d:tiny", "seed": 3}  ->  {"instruction": .., "text": .., "images": [[64, 64]]} + bytes
    {"do": "step", "text": "('move', 0)"}             ->  {"text": .., "images": .., "reward": .., ...} + bytes
    {"do": "close"}                                   ->  {}
    whatever goes wrong                               ->  {"error": "ZeroDivisionError: physics"}
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any, BinaryIO

from tandem.envs.checks import checked_instruction, checked_observation, checked_result, in_words
from tandem.envs.protocol import Env, Observation
from tandem.envs.registry import make
from tandem.runtime import end_with_parent


class Worker:
    """Answers one request after another."""

    def __init__(self) -> None:
        self.env: Env | None = None

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], Observation]:
        """Head and observation of the answer."""
        if request["do"] == "reset":
            self.env = make(request["env"])
            seen = checked_observation(self.env.reset(request["seed"]))
            return {"instruction": checked_instruction(self.env.instruction)}, seen
        assert self.env is not None, "reset comes first"
        if request["do"] == "close":
            self.env.close()
            self.env = None
            return {}, Observation((), "")
        result = checked_result(self.env.step(request["text"]))
        head = {
            "reward": result.reward,
            "terminated": result.terminated,
            "task_reward": result.task_reward,
            "parsed": result.parsed,
            "info": dict(result.info),
        }
        return head, result.observation


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the requests end."""
    worker, process = Worker(), os.getpid()
    _send(answers, {"ready": True}, Observation((), ""))
    for line in requests:
        try:
            head, seen = worker.answer(json.loads(line))
        except BaseException as problem:  # noqa: BLE001 - the boundary: whatever leaves an environment is data
            head, seen = {"error": in_words(problem)}, Observation((), "")
        if os.getpid() != process:
            os._exit(0)  # a copy that the environment has forked and let go on: one answer is enough
        _send(answers, head, seen)


def _send(answers: BinaryIO, head: dict[str, Any], seen: Observation) -> None:
    head = {**head, "text": seen.text, "images": [image.shape[:2] for image in seen.images]}
    answers.write(json.dumps(head).encode() + b"\n")
    for image in seen.images:
        answers.write(image.tobytes())
    answers.flush()


def main() -> None:
    """Answer over the socket that standard input is; the environment gets an empty one."""
    end_with_parent(int(sys.argv[1]))
    with socket.socket(fileno=os.dup(0)) as connection:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        serve(connection.makefile("rb"), connection.makefile("wb"))


if __name__ == "__main__":
    main()
