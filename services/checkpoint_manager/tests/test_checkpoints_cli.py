"""`tandem checkpoints` on real stores: look, verify, compare, export, prune."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from tandem.storage import Retention, acquire, read_adapter
from tandem.types import AdapterRef, DataCorrupt, NotFound, PublishKind, UserError
from tandem_checkpoint_manager.checkpoints.cli import app
from tandem_checkpoint_manager.core import CheckpointManager

ADAPTER, STATE = PublishKind.ADAPTER, PublishKind.STATE
BASE = "a" * 64
CONFIG = {"peft_type": "LORA", "r": 5, "lora_alpha": 10, "target_modules": ["q_proj"]}
MODULE = "base_model.model.layers.0.q_proj"


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid4().hex}"


@pytest.fixture
def store(url: str, make_tensors, make_shards) -> Iterator[str]:
    """Adapters 1 .. 4, of which 4 changes one tensor of 3 alone, and states 2 and 4."""
    manager = CheckpointManager(url, Retention(keep=10))
    for version in (1, 2, 3):
        publish(manager, make_shards(make_tensors(version), 2, version), version)
    changed = make_tensors(3)
    changed[f"{MODULE}.lora_B.weight"] = changed[f"{MODULE}.lora_B.weight"] + np.float32(1)
    publish(manager, make_shards(changed, 2, 4), 4, {**CONFIG, "lora_alpha": 20})
    for version in (2, 4):
        parts = make_shards({"step/updates": np.array([version], np.float32)}, 1, version, kind=STATE)
        publish(manager, parts, version, kind=STATE)
    manager.score(ADAPTER, 2, {"eval_solve_rate": 0.75})
    manager.close()
    yield url


def publish(
    manager: CheckpointManager, shards, version: int, config: dict | None = None, kind: PublishKind = ADAPTER
) -> AdapterRef:
    for sent in shards:
        manager.put(sent.ref, [sent.data])
    text = json.dumps(config or CONFIG) if kind is ADAPTER else ""
    return manager.publish(kind, version, world_size=len(shards), base_model=BASE, adapter_config_json=text)


def run(*arguments: object) -> str:
    """What a command prints; a refusal is the exception that the command line makes one line of."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_says_what_there_is(store: str) -> None:
    rows = json.loads(run("list", store, "--json"))
    assert [(row["kind"], row["version"]) for row in rows if row["kind"] == "adapter"] == [
        ("adapter", version) for version in (1, 2, 3, 4)
    ]
    assert [row["version"] for row in rows if row["kind"] == "state"] == [2, 4]
    by = {(row["kind"], row["version"]): row for row in rows}
    assert by["adapter", 2]["scores"] == {"eval_solve_rate": 0.75} and by["adapter", 4]["marks"] == ["latest"]
    assert by["adapter", 1]["base_model"] == BASE and by["adapter", 1]["size"] > 400
    assert by["adapter", 1]["published"][:2] == "20"
    text = run("list", store)
    assert "eval_solve_rate 0.75" in text and text.count("latest") == 2


def test_show_has_files_settings_and_norms(store: str, make_tensors) -> None:
    told = json.loads(run("show", store, "4", "--norms", "--json"))
    assert told["version"] == 4 and told["adapter_config"]["lora_alpha"] == 20
    assert set(told["files"]) == {"adapter_config.json", "adapter_model.safetensors"}
    whole = make_tensors(3)
    a, b = whole[f"{MODULE}.lora_A.weight"], whole[f"{MODULE}.lora_B.weight"] + 1
    (first, _) = told["modules"]
    assert first["module"] == "layers.0.q_proj"
    assert first["a"] == pytest.approx(np.linalg.norm(a), rel=1e-5)
    assert first["update"] == pytest.approx(20 / 5 * np.linalg.norm(b @ a), rel=1e-5)
    assert "layers.1.q_proj" in run("show", store, "--norms") and "step/" not in run("show", store, "--kind", "state")


def test_diff_names_what_changed_and_by_how_much(store: str) -> None:
    found = json.loads(run("diff", store, "3", "latest", "--json"))
    (change,) = found["changes"]
    assert change["name"] == f"{MODULE}.lora_B.weight" and found["equal"] == 3
    assert change["difference"] == pytest.approx(np.sqrt(30), rel=1e-5)  # 6 x 5 elements, each by 1
    assert found["settings"] == {"lora_alpha": [10, 20]}
    assert "tensors that differ: 1, equal: 3" in run("diff", store, "3", "4")
    assert "tensors that differ: 0, equal: 4" in run("diff", store, "2", f"{store}/adapters/v00000002")


def test_verify_names_the_damaged_file(tmp_path: Path, make_tensors, make_shards) -> None:
    url = tmp_path / "store"
    manager = CheckpointManager(str(url), Retention(keep=10))
    for version in (1, 2, 3):
        publish(manager, make_shards(make_tensors(version), 1, version), version)
    assert run("verify", url).count("ok adapter") == 3
    file = url / "adapters/v00000002/adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    (url / "adapters/v00000001/adapter_config.json").unlink()
    result = CliRunner().invoke(app, ["verify", str(url)])
    assert result.exit_code == 1
    assert f"DAMAGED adapter v2: {file}: sha256" in result.output
    assert "v00000001/adapter_config.json: missing" in result.output and "ok adapter v3" in result.output
    assert "ok adapter v3" in run("verify", url, "latest")
    (url / "adapters/v00000003/manifest.json").write_text("{}")
    result = CliRunner().invoke(app, ["verify", str(url), "3"])
    assert result.exit_code == 1 and "DAMAGED adapter v3" in result.output
    with pytest.raises(NotFound, match="no version 9"):
        run("verify", url, "9")


def test_export_is_the_published_folder(store: str, tmp_path: Path, make_tensors) -> None:
    target = tmp_path / "out" / "peft"
    run("export", store, target, "--version", "3")
    whole = load_file(target / "adapter_model.safetensors")
    assert all(np.array_equal(whole[name], value) for name, value in make_tensors(3).items())
    assert json.loads((target / "adapter_config.json").read_text()) == CONFIG
    assert read_adapter(str(target)) == target, "it can be read, verified, as any published folder"
    with pytest.raises(UserError, match="exists; choose another folder"):
        run("export", store, target)
    assert os.listdir(target.parent) == ["peft"]


def test_export_of_a_damaged_version_leaves_nothing(tmp_path: Path, make_tensors, make_shards) -> None:
    manager = CheckpointManager(str(tmp_path / "store"), Retention(keep=10))
    publish(manager, make_shards(make_tensors(), 1), 1)
    file = tmp_path / "store/adapters/v00000001/adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(DataCorrupt, match=r"adapter_model\.safetensors: \d+ bytes, the manifest says"):
        run("export", tmp_path / "store", tmp_path / "out")
    file.unlink()
    with pytest.raises(DataCorrupt, match="missing"):
        run("export", tmp_path / "store", tmp_path / "out")
    assert os.listdir(tmp_path) == ["store"]


def test_prune_lists_first_and_spares_what_counts(store: str) -> None:
    run("pin", store, "1")
    said = run("prune", store, "--keep", "1")
    assert "would remove state v2" in said and "would remove adapter v2" in said and "without --yes" in said
    assert len(json.loads(run("list", store, "--json"))) == 6, "a dry run removes nothing"
    run("prune", store, "--keep", "1", "--keep-best", "1", "--best-metric", "eval_solve_rate", "--yes")
    left = {(row["kind"], row["version"]) for row in json.loads(run("list", store, "--json"))}
    # 1 is pinned, 2 the best, 4 the latest, 3 the one before it
    assert left == {("adapter", 1), ("adapter", 2), ("adapter", 3), ("adapter", 4), ("state", 4)}
    run("pin", store, "1", "--undo")
    run("prune", store, "--keep", "1", "--yes")
    left = {(row["kind"], row["version"]) for row in json.loads(run("list", store, "--json"))}
    assert left == {("adapter", 3), ("adapter", 4), ("state", 4)}


def test_prune_stands_back_while_a_manager_writes(store: str) -> None:
    lease = acquire(store, 0.5)
    try:
        with pytest.raises(UserError, match="writes it; stop that manager"):
            run("prune", store, "--keep", "1", "--yes")
    finally:
        lease.release()
    assert len(json.loads(run("list", store, "--json"))) == 6
    run("prune", store, "--keep", "1", "--yes")
    assert len(json.loads(run("list", store, "--json"))) == 3


def test_what_is_not_there_is_one_line(store: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no adapter 9 is published; the newest are: 1, 2, 3, 4"):
        run("show", store, "9")
    with pytest.raises(UserError, match="version 'newest': give a number"):
        run("show", store, "newest")
    with pytest.raises(NotFound, match="nothing is published there"):
        run("list", tmp_path / "nowhere")
    with pytest.raises(UserError, match="only adapters have such norms"):
        run("show", store, "4", "--kind", "state", "--norms")
    with pytest.raises(UserError, match="go together"):
        run("export", store, tmp_path / "out", "--merged")


def test_as_a_command_without_torch(tmp_path: Path, make_tensors, make_shards) -> None:
    manager = CheckpointManager(str(tmp_path / "store"), Retention(keep=10))
    publish(manager, make_shards(make_tensors(), 1), 1)
    manager.close()
    code = (
        "import sys; from tandem_checkpoint_manager.checkpoints.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    )
    arguments = ["show", str(tmp_path / "store"), "--norms"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "layers.0.q_proj" in done.stdout, done.stderr
