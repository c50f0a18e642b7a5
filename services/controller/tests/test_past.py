"""What a run leaves of itself, and what becomes of it when it is resumed, from its folder or from the store alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tandem.config import Config
from tandem.model.folder import fingerprint
from tandem.storage import VersionStore
from tandem.types import DataCorrupt, PublishKind, UserError
from tandem_controller.journal import Journal, Position, Step
from tandem_controller.past import Past, code_version, compare, read_past, with_steps
from tandem_controller.run_dir import RunDir, find_run_dir, open_run_dir, resolved


def base_model(folder: Path, weights: bytes) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def recipe(tmp_path: Path, **sections: Any) -> Config:
    tree = {
        "model": {"path": str(tmp_path / "model")},
        "run": {"dir": str(tmp_path / "runs"), "name": "a"},
        "checkpoint": {"url": str(tmp_path / "store")},
    }
    tree = {name: {**tree.get(name, {}), **sections.get(name, {})} for name in {*tree, *sections}}
    return resolved(Config.model_validate(tree))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    base_model(tmp_path / "model", b"weights")
    return recipe(tmp_path)


def save(config: Config, run: RunDir, version: int) -> None:
    metadata = json.loads(json.dumps({"next_seed": 7, **run.metadata(version)}))
    files = {"training_state.safetensors": [b"moments"]}
    base = fingerprint(config.model.path)
    VersionStore(config.checkpoint.url).commit(PublishKind.STATE, version, base, files, metadata)


def trained(config: Config, steps: int, saved: int) -> RunDir:
    """A run that made some steps and saved the state of one."""
    run = open_run_dir(find_run_dir(config, resume=False), config, Past())
    for version in range(1, steps + 1):
        run.log({"version": version, "loss": 1 / version})
        if version == saved:
            save(config, run, version)
    return run


def test_what_was_saved_comes_back_and_later_metrics_are_made_again(config: Config) -> None:
    run = trained(config, steps=4, saved=3)
    past = read_past(config, find_run_dir(config, resume=True))
    assert (past.version, past.run_id, past.code) == (3, run.facts["run_id"], code_version())
    assert past.config == config.model_dump(mode="json")
    again = open_run_dir(run.path, config, past)
    assert [row["version"] for row in again.rows()] == [1, 2, 3]
    assert again.facts == run.facts


def test_the_store_alone_is_enough(config: Config) -> None:
    run = trained(config, steps=3, saved=3)
    metrics = run.metrics.read_bytes()
    shutil.rmtree(run.path)
    again = open_run_dir(find_run_dir(config, resume=True), config, read_past(config, run.path))
    assert again.metrics.read_bytes() == metrics
    assert again.facts["run_id"] == run.facts["run_id"]


def test_damaged_metrics_of_the_folder_are_replaced_by_those_saved(config: Config) -> None:
    run = trained(config, steps=3, saved=3)
    metrics = run.metrics.read_bytes()
    run.metrics.write_text('{"version": 2}\n{"ver')
    open_run_dir(run.path, config, read_past(config, run.path))
    assert run.metrics.read_bytes() == metrics


def test_a_run_without_a_saved_state_goes_on_from_the_start_as_the_same_run(config: Config) -> None:
    run = trained(config, steps=2, saved=0)
    past = read_past(config, run.path)
    assert (past.version, past.run_id) == (0, run.facts["run_id"])
    assert past.config == config.model_dump(mode="json")
    assert open_run_dir(run.path, config, past).rows() == []


def test_a_state_saved_before_any_of_this_was_goes_on_with_the_folder_s_metrics(config: Config) -> None:
    run = trained(config, steps=3, saved=0)
    files = {"training_state.safetensors": [b"moments"]}
    VersionStore(config.checkpoint.url).commit(PublishKind.STATE, 2, "base", files, {"next_seed": 7})
    past = read_past(config, run.path)
    assert (past.version, past.run_id) == (2, run.facts["run_id"])
    assert [row["version"] for row in open_run_dir(run.path, config, past).rows()] == [1, 2]


def test_a_crash_before_the_pointer_loses_nothing(config: Config) -> None:
    run = trained(config, steps=3, saved=2)
    pointer = Path(config.checkpoint.url) / "states/latest.json"
    before = pointer.read_bytes()
    save(config, run, 3)
    pointer.write_bytes(before)
    assert read_past(config, run.path).version == 3


def test_the_same_recipe_says_nothing(config: Config) -> None:
    run = trained(config, steps=1, saved=1)
    assert compare(read_past(config, run.path), config, force=False) == ()


def test_what_changed_is_told(config: Config, tmp_path: Path) -> None:
    run = trained(config, steps=1, saved=1)
    new = recipe(tmp_path, learner={"lr": 0.01}, eval={"fixed": 3})
    past = read_past(new, run.path)
    assert compare(past, new, force=False) == (
        "learner.lr: 0.0001 -> 0.01 (changes what is learned)",
        "eval.fixed: 64 -> 3",
    )
    older = Past(past.version, config=past.config, code="0.0.9+abc")
    assert compare(older, config, force=False) == (f"code: 0.0.9+abc -> {code_version()}",)


@pytest.mark.parametrize("saved", [0, 1])
def test_another_run_is_refused_unless_forced_and_nothing_changes(config: Config, tmp_path: Path, saved: int) -> None:
    run = trained(config, steps=1, saved=saved)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    new = recipe(tmp_path, env={"id": "sort:7", "max_turns": 3}, learner={"lora": {"rank": 4}})
    past = read_past(new, run.path)
    with pytest.raises(UserError) as refused:
        compare(past, new, force=False)
    assert str(refused.value) == (
        "run a cannot go on with this recipe: env.id: 'maze2d:tiny' -> 'sort:7' (makes it another run); "
        "learner.lora.rank: 32 -> 4 (makes it another run); "
        "give the old values, choose another run.name, or add --force"
    )
    assert len(compare(past, new, force=True)) == 3
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("saved", [0, 1])
def test_the_base_model_may_move_but_not_change(config: Config, tmp_path: Path, saved: int) -> None:
    run = trained(config, steps=1, saved=saved)
    base_model(tmp_path / "moved", b"weights")
    base_model(tmp_path / "other", b"another")
    moved, other = (recipe(tmp_path, model={"path": str(tmp_path / name)}) for name in ("moved", "other"))
    assert compare(read_past(moved, run.path), moved, force=False) == ()
    with pytest.raises(UserError, match=r"model.path: '.*/model' -> '.*/other' \(makes it another run\)"):
        compare(read_past(other, run.path), other, force=False)


@pytest.mark.parametrize("file", ["config.yaml", "run.json"])
def test_a_damaged_file_of_the_run_directory_is_named(config: Config, file: str) -> None:
    run = trained(config, steps=1, saved=0)
    (run.path / file).write_text("{")
    with pytest.raises(DataCorrupt, match=f"{file}: cannot be read"):
        read_past(config, run.path)


def test_metrics_that_are_none_are_named(config: Config) -> None:
    run = trained(config, steps=1, saved=0)
    files = {"training_state.safetensors": [b"moments"]}
    VersionStore(config.checkpoint.url).commit(PublishKind.STATE, 1, "base", files, {"metrics": "eJw="})
    with pytest.raises(DataCorrupt, match="states/v00000001: the metrics saved with it cannot be read"):
        read_past(config, run.path)


def test_a_package_in_a_repository_names_its_commit() -> None:
    assert code_version().startswith("0.1.0")


def stepped(config: Config, steps: int, saved: int, adapters: tuple[int, ...]) -> Journal:
    """A run as `trained`, whose journal holds its steps without their groups, and its store those adapters."""
    run = trained(config, steps, saved)
    journal = Journal(run.path / "journal", "aa")
    journal.begin(saved, [])
    for version in range(saved, steps):
        journal.add_step(Step((), Position(version + 1, 100 + version)))
    for version in adapters:
        files = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": [b"{}"]}
        VersionStore(config.checkpoint.url).commit(PublishKind.ADAPTER, version, "b" * 64, files, {})
    return journal


def resumed(config: Config, journal: Journal) -> Past:
    folder = find_run_dir(config, resume=True)
    return with_steps(read_past(config, folder), config, folder, journal, RunDir(folder).rows())


def test_a_run_goes_on_from_its_last_step_not_from_its_last_save(config: Config) -> None:
    journal = stepped(config, steps=6, saved=3, adapters=(4, 5, 6))
    past = resumed(config, journal)
    assert (past.version, past.reached, past.position) == (3, 6, Position(6, 105))
    run = open_run_dir(find_run_dir(config, resume=True), config, past)
    assert [row["version"] for row in run.rows()] == [1, 2, 3, 4, 5, 6]


def test_a_step_whose_adapter_was_not_published_is_taken_again(config: Config) -> None:
    journal = stepped(config, steps=6, saved=3, adapters=(4, 5))
    past = resumed(config, journal)
    assert (past.reached, past.position) == (5, Position(5, 104))
    run = open_run_dir(find_run_dir(config, resume=True), config, past)
    assert [row["version"] for row in run.rows()] == [1, 2, 3, 4, 5]


def test_a_step_that_is_not_in_the_metrics_is_taken_again(config: Config) -> None:
    journal = stepped(config, steps=4, saved=3, adapters=(4, 5))
    journal.add_step(Step((), Position(5, 104)))
    assert resumed(config, journal).reached == 4


def test_another_recipe_does_not_take_over_steps_made_by_the_one_before(config: Config, tmp_path: Path) -> None:
    journal = stepped(config, steps=6, saved=3, adapters=(4, 5, 6))
    faster = recipe(tmp_path, learner={"lr": 2e-4})
    assert resumed(faster, journal).reached == 3
    open_run_dir(find_run_dir(config, resume=True), faster, Past(version=3))  # it went on with that one
    assert resumed(config, journal).reached == 3  # though this one is that of the saved state
    assert resumed(recipe(tmp_path, eval={"every": 3}), journal).reached == 3


def test_without_a_saved_state_steps_are_learned_again_from_the_start(config: Config) -> None:
    journal = stepped(config, steps=2, saved=0, adapters=(1, 2))
    assert (resumed(config, journal).version, resumed(config, journal).reached) == (0, 2)
