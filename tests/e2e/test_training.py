"""The whole: real vLLM, Ray and gRPC train, are interrupted, and go on. Through the command line, as a user would."""

import json
import subprocess
from pathlib import Path

import pytest
from peft import PeftModel

from tandem.model.loading import load_model
from tandem.rpc.keyring import Keyring
from tandem.storage.episode_index import read_index
from tandem.storage.episode_lines import TRAIN
from tandem.storage.episodes import read_groups, read_line
from tandem.types import Role
from tests.e2e.runs import MODEL, command, interrupted, rows
from tests.e2e.traces import assert_whole
from tests.otlp import receiver

# The tiny model was made with a window of one turn: with more it answers nonsense and has nothing to learn from, but
# engine and learner must agree on nonsense too, here on whole transcripts of up to 14 images under a trained adapter.
# Another window makes it another run: only --force goes on with it.
WHOLE_TRANSCRIPT = ["env.window=0", "learner.algo.drop_zero_variance=false", "--force"]


def evaluated_against_the_base_model(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    played = ["--suite", "fixed64", "--suite", "styles", "--limit", "3", "--samples", "2"]
    asked = ["--adapter", "3", "--against", "none", "--json", str(figures), "--save", str(tmp_path / "episodes")]
    subprocess.run(command(tmp_path, *played, *asked, verb="eval"), check=True, timeout=180, cwd=tmp_path)
    evaluated = json.loads(figures.read_text())
    assert (evaluated["adapter"], evaluated["against"]["adapter"]) == ("tandem-v00000003", "the base model")
    fixed, styles = evaluated["figures"][:2]
    assert (fixed["suite"], fixed["env"], fixed["episodes"]) == ("fixed64", "maze2d:tiny", 6)
    assert (styles["suite"], styles["env"], styles["tasks"], styles["episodes"]) == ("styles", "", 1, 10)
    assert fixed["failed_episodes"] == styles["failed_episodes"] == 0
    pair = evaluated["paired"][0]
    assert pair["both"] + pair["only_first"] + pair["only_second"] + pair["neither"] == 3
    saved = list(read_groups(tmp_path / "episodes/against"))
    assert [len(group.trajectories) for group in saved] == [2] * 8
    assert all(group.images for group in saved)


def every_step_is_recorded_once(run: Path, steps: int) -> None:
    """With what the learner used, to the last one; the token texts are the model's."""
    recorded = [entry for entry in read_index(run / "episodes") if entry.label.suite == TRAIN]
    assert {entry.label.version for entry in recorded} == set(range(steps))
    assert len({(entry.label.version, entry.seed) for entry in recorded}) == len(recorded)
    mixed = [entry for entry in recorded if entry.mixed]
    assert all(member.advantage for entry in mixed for member in entry.members if not member.stop.failed)
    turn = read_line(run / "episodes", recorded[0]).trajectories[0].turns[0]
    assert "".join(turn.pieces).removesuffix("<|im_end|>") == turn.text


def no_file_holds_a_secret(folder: Path, secret: Path, *printed: str) -> None:
    ring = Keyring("token", secret=secret.read_bytes())
    hidden = [ring.secret, *(ring.token(role).encode() for role in Role)]
    told = [path for path in folder.rglob("*") if path.is_file() and path != secret]
    assert len(told) > 20
    assert not [path for path in told if any(text in path.read_bytes() for text in hidden)]
    assert not [text for text in hidden if text.decode() in "".join(printed)]


@pytest.mark.vllm
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_three_steps_then_an_interrupted_resume(tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("the secret of this run, which nobody else knows")
    with receiver() as traces:
        told = [f"obs.otlp={traces.url}", "obs.trace_spans=2000"]
        locked = command(tmp_path, f"security.secret_file={secret}", *told, "run.steps=3")
        done = subprocess.run(locked, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_whole(traces, steps=3, ranks=2)
    assert "probe" in {span.name for span in traces.of(traces.roots("step")[0].trace)}
    again = [line for line in done.stdout.splitlines() if line.startswith("evaluate it: tandem eval ")]
    assert (
        len(again) == 1 and f" run.dir={tmp_path} " in again[0] and again[0].endswith(" run.steps=3 --adapter latest")
    )
    no_file_holds_a_secret(tmp_path, secret, done.stdout, done.stderr)
    trained = rows(tmp_path)
    assert [row["version"] for row in trained] == [1, 2, 3]
    for row in trained:
        assert row["rollout/failed_episodes"] == 0
        assert row["updates"] == 1
        assert 0 < row["rollout_learner_logprob_gap_max"] < 1e-4
    run = tmp_path / "e2e"
    assert {"config.yaml", "report.json", "eval-before.json", "eval-after.json", "learning-curve.png"} <= {
        p.name for p in run.iterdir()
    }
    assert json.loads((run / "checkpoints/adapters/latest.json").read_text())["version"] == 3
    assert "finished: 3 of 3 steps" in (run / "report.md").read_text() and (run / "report.html").exists()
    third = (run / "checkpoints/adapters/v00000003/adapter_model.safetensors").read_bytes()
    peft_model = PeftModel.from_pretrained(load_model(MODEL), str(run / "checkpoints/adapters/v00000003"))
    weights = {name: value for name, value in peft_model.named_parameters() if "lora_B" in name}
    assert weights and all(bool(value.any()) for value in weights.values())  # B starts at zero: it was trained

    every_step_is_recorded_once(run, 3)
    evaluated_against_the_base_model(tmp_path)

    output = interrupted(tmp_path, "run.steps=50", "--resume", *WHOLE_TRANSCRIPT, after_rows=4)
    versions = [row["version"] for row in rows(tmp_path)]
    for row in rows(tmp_path)[3:]:
        assert 0 < row["rollout_learner_logprob_gap_max"] < 1e-4
    assert versions == list(range(1, len(versions) + 1))
    assert 4 <= versions[-1] < 50
    assert f"stopped and saved at version {versions[-1]}" in output
    every_step_is_recorded_once(run, versions[-1])
    told = (run / "report.md").read_text()
    assert f"stopped: {versions[-1]} of 50 steps" in told and "| finished at step 3 |" in told
    last = run / f"checkpoints/adapters/v{versions[-1]:08d}/adapter_model.safetensors"
    assert last.read_bytes() != third
    assert json.loads((run / "checkpoints/states/latest.json").read_text())["version"] == versions[-1]
