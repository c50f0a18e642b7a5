"""What is foreseen from config.json alone against what the learner then really makes and holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from episodes import play_groups
from torch.distributed.tensor import Shard
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3VLConfig

from tandem.config import Config, load_recipe
from tandem.storage import OpenShard, joined_pieces, plan_join, read_shard
from tandem.types import PublishKind, UserError
from tandem_learner.host_copy import ShardFile, shard_file
from tandem_learner.plan import budgets
from tandem_learner.plan.cli import as_dict, foresee
from tandem_learner.plan.shapes import build, describe, step_bytes
from tandem_learner.plan.workload import workload

RECIPES = Path(__file__).parents[3] / "deploy/recipes"
BIG = Path(__file__).parent / "qwen3vl-8b"  # config.json of Qwen3-VL-8B's dimensions, nothing else
GIB = 2**30
LANGUAGE = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
TARGETS = {
    "language": {"rank": 8},
    "odd": {"rank": 5, "target_modules": r".*language_model.*layers\.(0|2)\..*\.(k_proj|down_proj)"},
    "tower": {"rank": 4, "vision": True, "target_modules": LANGUAGE + r"|.*visual\.blocks.*\.(qkv|linear_fc[12])"},
}


def config(model: Path, **sections: dict) -> Config:
    return Config.model_validate({"model": {"path": str(model)}, **sections})


def big(*overrides: str) -> Config:
    return load_recipe(RECIPES / "maze2d-qwen3vl-8b.yaml", [f"model.path={BIG}", *overrides])


def test_a_small_head_is_plenty_for_8b() -> None:
    plan = foresee(big(), None, 60)
    assert plan.shapes.trained_parameters == 87_293_952
    assert plan.shapes.parameters == 8_767_123_696
    assert 0 < plan.saved.weights - 4 * 87_293_952 < 100_000  # the header of 504 tensors
    assert 0 < plan.saved.state - 8 * 87_293_952 < 200_000
    head = plan.budgets[0][1]
    assert head.what == "head" and head.total < 0.2 * 32 * GIB
    fits = {verdict.what: verdict for verdict in plan.verdicts}
    assert fits["ml.g7e.12xlarge"].fits and fits["ml.g7e.12xlarge"].margin > 4 * GIB
    assert not fits["ml.g5.12xlarge"].fits and "GPU" in fits["ml.g5.12xlarge"].why
    assert plan.moved.read == 6 * plan.saved.weights
    assert plan.moved.seconds(1000) == pytest.approx(8 * plan.saved.weights / 1e9)
    assert json.loads(json.dumps(as_dict(plan)))["model"]["kv_cache_bytes_per_token"] == 2 * 36 * 8 * 128 * 2


def test_the_fixture_has_the_published_tower() -> None:
    vision: Any = Qwen3VLConfig.from_pretrained(BIG).vision_config
    stock: Any = Qwen3VLConfig().vision_config
    vision, stock = vision.to_dict(), stock.to_dict()
    assert {name for name in stock if stock[name] != vision[name]} <= {"out_hidden_size", "dtype"}


def test_what_does_not_fit_is_named() -> None:
    huge = ("learner.lora.rank=4096", "rollout.engine.max_lora_rank=4096")
    plan = foresee(big("rollout.engine.gpu_memory_utilization=0.97", *huge), None, 0.5)
    fits = {verdict.what: verdict for verdict in plan.verdicts}
    assert not fits["ml.g7e.12xlarge"].fits and "GPU while" in fits["ml.g7e.12xlarge"].why
    assert plan.moved.needed_mb_s > 1e5 and not plan.verdicts[1].fits


@pytest.mark.parametrize("targets", TARGETS)
def test_files_are_as_large_as_foreseen_to_the_byte(make_core, tiny_model, tmp_path: Path, targets: str) -> None:
    core = make_core(learner={"lora": TARGETS[targets]})
    plan = foresee(core.config, None, 60)
    assert plan.shapes.trained_parameters == core.status().trainable_parameters
    for kind, foreseen in ((PublishKind.ADAPTER, plan.saved.weights), (PublishKind.STATE, plan.saved.state)):
        assert joined_size(shard_file(core.snapshot(kind)), tmp_path) == foreseen
    frozen = sum(p.numel() for p in core.policy.model.parameters() if not p.requires_grad) * 4
    assert plan.shapes.layers + plan.shapes.whole == frozen


def joined_size(file: ShardFile, folder: Path) -> int:
    path = folder / str(file.ref.kind)
    path.write_bytes(b"".join(file.chunks()))
    with open(path, "rb") as opened:
        read = read_shard(opened.fileno(), file.ref, "shard", crc32(path.read_bytes()))
        shard = OpenShard(read, opened.fileno(), str(path))
        return sum(map(len, joined_pieces(plan_join([shard], "file"))))


@pytest.mark.parametrize("world", [1, 2, 3, 6, 64])
def test_a_ranks_part_is_as_torch_splits_it(tiny_model: Path, world: int) -> None:
    made = config(tiny_model, learner={"lora": {"rank": 5}, "world_size": world})
    shapes = describe(build(made), made)
    parts = [Shard.local_shard_size_and_offset(s[0], world, 0)[0] * s[1] for s in shapes.trained.values()]
    assert shapes.per_rank(world) == sum(parts)


@pytest.mark.parametrize("recompute", [False, True])
def test_live_bytes_of_a_step_within_a_tenth(make_core, tiny_model: Path, recompute: bool) -> None:
    """Foreseen on the meta device, measured by torch's allocator in the learner's own step."""
    core = make_core(
        learner={"activation_checkpointing": recompute, "microbatch_tokens": 10**6}, env={"window": 0, "max_turns": 6}
    )
    groups = play_groups(tiny_model, groups=8, group_size=4, window=0, max_turns=6)
    core.train_step(groups)  # what stays for good, the images kept, is there now
    rows = {t.turns[-1].prompt_ids + t.turns[-1].completion_ids: t for g in groups for t in g.trajectories}
    tokens = max(map(len, rows)) - 1  # the last token predicts nothing
    sampled = sum(len(turn.completion_ids) for t in rows.values() for turn in t.turns)
    shapes = describe(network := build(core.config), core.config)
    foreseen = step_bytes(network, len(rows), tokens, sampled, recompute=recompute)
    foreseen += budgets.GATHERED * shapes.largest_unit
    assert foreseen == pytest.approx(live_peak(lambda: core.train_step(groups)), rel=0.1)


def live_peak(work) -> int:
    """Most bytes that were allocated at once beyond those there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events: list[Any] = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def test_a_windowed_and_a_whole_transcript(tiny_model: Path) -> None:
    whole = workload(config(tiny_model, env={"window": 0, "max_turns": 10}), 16)
    one = workload(config(tiny_model, env={"window": 1, "max_turns": 10}), 16)
    assert (whole.image_tokens, one.image_tokens) == (16, 16)
    assert (whole.rows, one.rows) == (1, 10)
    assert whole.tokens > 2 * one.tokens and whole.completion_tokens == 10 * one.completion_tokens


def test_imitation_has_no_engines(tiny_model: Path) -> None:
    plan = foresee(config(tiny_model, learner={"trainable": "full"}, sft={"batch": 16}), None, 60)
    assert [budget.what for _, budget in plan.budgets] == ["head", "learner rank"]
    assert plan.moved.read == 0 and plan.work.episodes == 16 and plan.shapes.layers == plan.shapes.whole == 0
    assert plan.shapes.trained_parameters == plan.shapes.parameters


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.path=/no/such"], "model.path /no/such: no config.json there"),
        (["learner.lora.rank=64"], "rank is 64 but rollout.engine.max_lora_rank is 32"),
        (["learner.lora.target_modules=nothing"], "target_modules 'nothing'"),
        (["learner.lora.target_modules=.*lm_head"], "only linear layers of decoder layers"),
    ],
)
def test_bad_input_is_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as said:
        foresee(big(*overrides), None, 60)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not the config of a model"),
        ('{"model_type": "llama"}', "describes a 'llama' model"),
        ("[]", "not the config of a model"),
        ('{"model_type": "qwen3_vl", "text_config": {"num_attention_heads": "x"}}', "config.json"),
    ],
)
def test_a_config_that_is_none_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=message) as said:
        foresee(config(tmp_path), None, 60)
    assert "\n" not in str(said.value)


def test_an_environment_that_is_not_here_is_guessed_and_said(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_model / "config.json", tmp_path)
    plan = foresee(config(tmp_path, env={"id": "no.such.module:Env"}), None, 60)
    assert "taken for 256 tokens" in plan.work.note and plan.work.image_tokens == 256
