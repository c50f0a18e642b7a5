"""An engine for tests of how adapters come to an engine, not of the engine: it reads the files and serves nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from safetensors import safe_open

from tandem_rollout.engine import LocalAdapter


class FileEngine:
    """Reads an adapter tensor by tensor, as an engine would; of `tandem_rollout.engine.Engine`, what loading needs."""

    healthy, has_sleep_mode, policy_version = True, False, 0
    folder: Path | None = None

    async def serve(self, adapter: LocalAdapter | None) -> float:
        """The probe's logprob is a number that the file's content decides."""
        self.policy_version, self.folder = (adapter.version, adapter.folder) if adapter else (0, None)
        return await asyncio.to_thread(self._read, adapter) if adapter else 0.0

    def _read(self, adapter: LocalAdapter) -> float:
        with safe_open(adapter.folder / "adapter_model.safetensors", framework="pt") as file:
            return sum(float(file.get_tensor(name).clone().flatten()[0]) for name in file.keys())  # noqa: SIM118

    async def wake(self) -> None:
        """It never sleeps."""

    async def close(self) -> None:
        """Nothing is open."""
