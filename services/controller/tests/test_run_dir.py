"""The run directory: nothing overwritten by accident, nothing lost by a crash."""

from pathlib import Path

import pytest

from tandem.config import Config, load_recipe
from tandem.storage import VersionStore
from tandem.types import DataCorrupt, PublishKind, UserError
from tandem_controller import preflight
from tandem_controller.past import Past
from tandem_controller.run_dir import RunDir, find_run_dir, open_run_dir, resolved, unused_store


@pytest.fixture
def config(tmp_path: Path) -> Config:
    settings = {"model": {"path": str(tmp_path)}, "run": {"dir": str(tmp_path / "runs"), "name": "a"}}
    return resolved(Config.model_validate(settings))


def opened(config: Config, version: int = 0) -> RunDir:
    return open_run_dir(find_run_dir(config, resume=version > 0), config, Past(version))


def test_a_second_run_does_not_overwrite_the_first(config: Config) -> None:
    run = opened(config)
    assert load_recipe(run.path / "config.yaml") == config
    with pytest.raises(UserError, match="already holds a run; continue it with --resume"):
        find_run_dir(config, resume=False)
    assert find_run_dir(config, resume=True) == run.path


def test_figures_that_json_has_no_number_for_are_null(config: Config) -> None:
    run = opened(config)
    run.log({"version": 1, "loss": float("nan"), "grad_norm": float("-inf"), "lr": 0.5})
    assert "NaN" not in run.metrics.read_text() and "Infinity" not in run.metrics.read_text()
    assert run.rows() == [{"version": 1, "loss": None, "grad_norm": None, "lr": 0.5}]


def test_there_must_be_something_to_resume(config: Config) -> None:
    with pytest.raises(UserError, match="holds no run to resume"):
        find_run_dir(config, resume=True)


def test_a_resume_forgets_steps_that_it_will_make_again_and_a_torn_line(config: Config) -> None:
    run = opened(config)
    for version in (1, 2, 3):
        run.log({"version": version})
    with run.metrics.open("a") as file:
        file.write('{"version": 4')
    opened(config, version=2)
    run.log({"version": 3, "again": 1})
    assert run.rows() == [{"version": 1}, {"version": 2}, {"version": 3, "again": 1}]


@pytest.mark.parametrize(("line", "said"), [("{]", "no JSON"), ("[1]", "no row of a step"), ("{}", "no row of a step")])
def test_a_damaged_line_of_metrics_is_named(config: Config, line: str, said: str) -> None:
    run = opened(config)
    run.log({"version": 1})
    with run.metrics.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataCorrupt, match=rf"metrics.jsonl line 2: {said}"):
        run.rows()


def test_metrics_that_cannot_be_written_are_one_line(config: Config) -> None:
    run = opened(config)
    run.metrics.unlink()
    run.metrics.mkdir()
    with pytest.raises(UserError, match=r"metrics.jsonl: cannot be written \(Is a directory\); free space there"):
        run.log({"version": 1})


def test_a_folder_that_cannot_be_made_is_named(config: Config, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        opened(config)


def test_paths_become_absolute_and_the_store_defaults_to_the_run_directory(config: Config, tmp_path: Path) -> None:
    assert resolved(config).checkpoint.url == str(tmp_path / "runs/a/checkpoints")
    here = config.model_copy(update={"model": config.model.model_copy(update={"path": "models/x"})})
    assert resolved(here).model.path == str(Path.cwd() / "models/x")


def test_preflight_asks_the_oracle(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config.json there"):
        preflight.check(config)
    (tmp_path / "config.json").write_text("{}")
    assert preflight.check(config) == 1.0
    short = config.model_copy(update={"env": config.env.model_copy(update={"max_turns": 6})})
    with pytest.raises(UserError, match=r"allows only \d+\.\d% of maze2d:tiny's tasks"):
        preflight.check(short)
    allowed = short.model_copy(update={"env": short.env.model_copy(update={"min_solvable": 0.5})})
    # 12-move paths on the 9x9 grid, 6 moves here, are 72.4% of the mazes
    assert preflight.check(allowed) == pytest.approx(0.724, abs=0.06)


def test_preflight_knows_the_environment_s_own_limit_and_a_missing_oracle(config: Config, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    def of(env_id: str) -> Config:
        return config.model_copy(update={"env": config.env.model_copy(update={"id": env_id})})

    with pytest.raises(UserError, match=r"maze2d:tiny\?max_moves=6's own limit of 6 turns allows only"):
        preflight.check(of("maze2d:tiny?max_moves=6"))
    assert preflight.words(of("maze2d:tiny"), 1.0).startswith("maze2d:tiny: 100.0% of tasks can be solved within 14")
    cart = of("gym:CartPole-v1")
    assert preflight.check(cart) is None
    assert preflight.words(cart, None) == "gym:CartPole-v1: no oracle, so whether 14 turns are enough is not known"


def test_a_fresh_run_does_not_write_into_another_runs_store(config: Config) -> None:
    unused_store(config)
    files = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": [b"weights"]}
    VersionStore(config.checkpoint.url).commit(PublishKind.ADAPTER, 4, "abc", files, {})
    with pytest.raises(UserError, match="holds another run's adapter v4; choose another folder"):
        unused_store(config)


def test_a_fresh_run_does_not_mirror_to_another_runs_place(config: Config, tmp_path: Path) -> None:
    def to(url: str) -> Config:
        return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"also_to": url})})

    files = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": [b"weights"]}
    VersionStore(str(tmp_path / "mirror")).commit(PublishKind.ADAPTER, 4, "abc", files, {})
    with pytest.raises(UserError, match=r"checkpoint.also_to .*mirror holds another run's adapter v4"):
        unused_store(to(str(tmp_path / "mirror")))
    unused_store(to(str(tmp_path / "fresh")))
    assert resolved(to("mirror")).checkpoint.also_to == str(Path("mirror").resolve())
    assert resolved(to("s3://bucket/run")).checkpoint.also_to == "s3://bucket/run"
