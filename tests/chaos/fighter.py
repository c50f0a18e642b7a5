"""A writer that takes a store as soon as it can, publishes version after version, and starts over when refused."""

from __future__ import annotations

import os
import sys

from tandem.storage import VersionStore, acquire
from tandem.types import PublishKind, StaleRequest, Unavailable, UserError

ADAPTER = PublishKind.ADAPTER


def fight(url: str, lifetime_s: float) -> None:
    """Forever; what ends it is its parent."""
    while True:
        try:
            lease = acquire(url, lifetime_s)
        except (UserError, Unavailable):
            continue  # another holds it, or was faster
        try:
            store = VersionStore(url, lease.check)
            store.recover()
            while True:
                found = store.latest(ADAPTER)
                version = found.ref.version + 1 if found else 1
                mark = f"{os.getpid()} {version} ".encode() * 500
                files = {"adapter_config.json": [mark], "adapter_model.safetensors": [mark] * 40}
                store.commit(ADAPTER, version, "b" * 64, files, {})
        except (UserError, StaleRequest, Unavailable) as problem:
            sys.stderr.write(f"{problem}\n")
        lease.release()


if __name__ == "__main__":
    fight(sys.argv[1], float(sys.argv[2]))
