"""The manager's metrics, and its storage's, of a real publication."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.scrape import Scraper

from tandem.obs import instruments as of
from tandem.storage import Retention
from tandem.types import PublishKind
from tandem_checkpoint_manager.core import CheckpointManager

BASE = "a" * 64
CONFIG = json.dumps({"peft_type": "LORA", "r": 5, "lora_alpha": 8, "target_modules": ["q_proj"]})


def test_a_publication_and_what_the_store_did_for_it(
    scraper: Scraper, tmp_path: Path, make_tensors, make_shards
) -> None:
    manager = CheckpointManager(str(tmp_path / "store"), Retention(3))
    for sent in make_shards(make_tensors(), 2, 7):
        manager.put(sent.ref, [sent.data])
    ref = manager.publish(PublishKind.ADAPTER, 7, world_size=2, base_model=BASE, adapter_config_json=CONFIG)
    manager.close()
    found = scraper.values()
    assert found[of.CHECKPOINT_VERSION.name] == {("adapter",): 7}
    assert found[of.CHECKPOINT_BYTES.name] == found[of.PUBLISHED_BYTES.name] == {("adapter",): ref.size}
    assert found[f"{of.PUBLISH_TIME.name}_count"] == {("adapter",): 1}
    assert found[of.STORAGE_BYTES.name]["write", "local"] >= ref.size
    assert found[f"{of.STORAGE_TIME.name}_count"]["fsync", "local"] >= 2


def test_the_next_manager_says_what_is_published_and_since_when(
    scraper: Scraper, tmp_path: Path, make_tensors, make_shards
) -> None:
    first = CheckpointManager(str(tmp_path / "store"), Retention(3))
    for sent in make_shards(make_tensors(), 1, 9):
        first.put(sent.ref, [sent.data])
    first.publish(PublishKind.ADAPTER, 9, world_size=1, base_model=BASE, adapter_config_json=CONFIG)
    first.close()
    for manifest in (tmp_path / "store").rglob("manifest.json"):
        os.utime(manifest, (1_000_000_000, 1_000_000_000))
    CheckpointManager(str(tmp_path / "store"), Retention(3), rewind_to=9).close()
    assert scraper.values()[of.CHECKPOINT_TIMESTAMP.name] == {("adapter",): 1_000_000_000}
