"""A tiny untrained model, and rank processes to talk to."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helper modules beside the tests


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an untrained tiny Qwen3-VL."""
    from tandem.model.tiny import build_tiny
    from tandem_learner.tiny_data import tokenizer_texts

    folder = tmp_path_factory.mktemp("model") / "tiny"
    build_tiny(folder, tokenizer_texts(), seed=0)
    return folder


@pytest.fixture
def config(tiny_model: Path, tmp_path: Path) -> Any:
    """Of one rank, and a store. A checkpoint manager that is gone is not tried again."""
    from tandem.config import Config

    return Config.model_validate(
        {
            "model": {"path": str(tiny_model)},
            "rollout": {"group_size": 4},
            "learner": {"lr": 1e-3, "lora": {"rank": 4}},
            "checkpoint": {"url": str(tmp_path / "store")},
            "faults": {"resend_s": 0},
        }
    )


@pytest.fixture
async def client(config: Any) -> AsyncIterator[Any]:
    """Of a learner in this process."""
    from tandem.rpc.clients import LearnerClient
    from tandem_learner.main import start

    running = await start(config)
    client = LearnerClient(running.address)
    yield client
    await client.close()
    await running.stop()


@pytest.fixture(scope="module")
def groups(tiny_model: Path) -> Any:
    """Three groups of four that fit `config`."""
    from episodes import play_groups

    return play_groups(tiny_model, groups=3, group_size=4, window=2, max_turns=4)


@pytest.fixture
def make_core(tiny_model: Path) -> Iterator[Any]:
    """Build cores of one process group of one rank."""
    from tandem.config import Config
    from tandem_learner.comm import close_comm, open_comm, open_store
    from tandem_learner.core import LearnerCore

    base = Config.model_validate({"model": {"path": str(tiny_model)}})
    comm = open_comm(base, 0, 1, open_store(0, 1, "", 30))

    def make(*, learner: dict[str, Any] | None = None, **sections: dict[str, Any]) -> LearnerCore:
        settings = {"lr": 1e-3, "lora": {"rank": 8, "alpha": 16}, **(learner or {})}
        tree = {
            "model": {"path": str(tiny_model)},
            "rollout": {"group_size": 4},
            "learner": settings,
            **sections,
        }
        return LearnerCore(Config.model_validate(tree), comm)

    yield make
    close_comm()
