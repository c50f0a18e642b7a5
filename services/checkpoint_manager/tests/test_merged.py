"""The merged model is the base with the adapter: the same logprobs, the same files, loadable as any model."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from tandem.model.folder import fingerprint
from tandem.storage import Placement, Retention, ShardMeta
from tandem.types import AdapterRef, PublishKind, ShardRef, UserError
from tandem_checkpoint_manager.checkpoints.arrays import from_float32, to_float32
from tandem_checkpoint_manager.checkpoints.export import export_merged
from tandem_checkpoint_manager.checkpoints.find import find, open_store
from tandem_checkpoint_manager.core import CheckpointManager

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
TINY = Path(__file__).parents[3] / "models/tiny-qwen3vl"
TARGETS = r".*(language_model.*\.(q_proj|down_proj)|visual.*\.(qkv|linear_fc1))"


def load(folder: Path, dtype):
    return transformers.Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A base in two files, its published adapter, and the logprobs under it."""
    folder = tmp_path_factory.mktemp("base") / "model"
    shutil.copytree(TINY, folder)
    dtype = getattr(torch, request.param)
    (folder / "model.safetensors").unlink()
    load(TINY, dtype).save_pretrained(folder, max_shard_size="1MB" if dtype is torch.bfloat16 else "2MB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    model = load(folder, dtype)
    settings = peft.LoraConfig(r=4, lora_alpha=6, target_modules=TARGETS, init_lora_weights=False)
    torch.manual_seed(0)
    model = peft.get_peft_model(model, settings)
    state = {name: value.float().numpy() for name, value in peft.get_peft_model_state_dict(model).items()}
    config = {**settings.to_dict(), "peft_type": "LORA"}
    text = json.dumps({key: sorted(v) if isinstance(v, set) else getattr(v, "value", v) for key, v in config.items()})
    url = tmp_path_factory.mktemp("store")
    return folder, publish(url, state, text, fingerprint(folder)), logprobs(model), dtype


def publish(url: Path, state: dict, config: str, base: str) -> AdapterRef:
    manager = CheckpointManager(str(url), Retention(keep=3))
    places = {name: Placement(array.shape, (0,) * array.ndim) for name, array in state.items()}
    data = save(state, metadata=ShardMeta(PublishKind.ADAPTER, 7, 0, 1, base, places).to_metadata())
    ref = ShardRef(PublishKind.ADAPTER, 7, 0, 1, hashlib.sha256(data).hexdigest(), len(data))
    manager.put(ref, [data])
    made = manager.publish(PublishKind.ADAPTER, 7, world_size=1, base_model=base, adapter_config_json=config)
    manager.close()
    return made


@torch.no_grad()
def logprobs(model):
    """Of text and an image, whose features an adapter on the tower changes too."""
    settings = model.config
    ids = torch.tensor([[5, 6, settings.vision_start_token_id, *[settings.image_token_id] * 4, 9, 10, 11]])
    pixels = torch.linspace(-1, 1, 16 * 3 * 2 * 64).reshape(16, -1)
    kinds = (ids == settings.image_token_id).long()
    logits = model(
        input_ids=ids, pixel_values=pixels, image_grid_thw=torch.tensor([[1, 4, 4]]), mm_token_type_ids=kinds
    ).logits
    return torch.log_softmax(logits.float(), -1)


def store_of(ref: AdapterRef) -> str:
    return str(Path(ref.url).parents[1])


def test_merged_logprobs_are_the_adapters(trained, tmp_path: Path) -> None:
    folder, ref, expected, dtype = trained
    target = tmp_path / "merged"
    found = find(open_store(store_of(ref)), PublishKind.ADAPTER, "latest")
    assert export_merged(found, folder, target) == 4 * 2 + 3 + 3 + 2  # text, blocks' qkv and fc1, two mergers
    assert {path.name for path in target.iterdir()} >= {"config.json", "tokenizer.json", "model.safetensors.index.json"}
    merged = load(target, dtype)
    assert merged.dtype == dtype
    plain = (logprobs(load(folder, dtype)) - expected).abs().max().item()
    apart = (logprobs(merged) - expected).abs().max().item()
    assert plain > 0.1, "the adapter acts"
    assert apart < (1e-4 if dtype is torch.float32 else 0.25 * plain)
    assert [p.name for p in tmp_path.iterdir()] == ["merged"]


def test_what_cannot_be_merged_is_refused_and_leaves_nothing(trained, tmp_path: Path) -> None:
    folder, ref, _, _ = trained
    found = find(open_store(store_of(ref)), PublishKind.ADAPTER, "7")
    with pytest.raises(UserError, match="was trained on base model"):
        export_merged(found, TINY, tmp_path / "merged")
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="there exists"):
        export_merged(found, folder, tmp_path / "there")
    foreign = publish(
        tmp_path / "s",
        {
            "base_model.model.no.lora_A.weight": np.ones((2, 3), np.float32),
            "base_model.model.no.lora_B.weight": np.ones((3, 2), np.float32),
        },
        json.dumps({"peft_type": "LORA", "r": 2}),
        fingerprint(folder),
    )
    with pytest.raises(UserError, match=r"adapts no\.weight, which the base model"):
        export_merged(find(open_store(store_of(foreign)), PublishKind.ADAPTER, "7"), folder, tmp_path / "merged")
    dora = publish(
        tmp_path / "d",
        {
            "base_model.model.no.lora_A.weight": np.ones((2, 3), np.float32),
            "base_model.model.no.lora_B.weight": np.ones((3, 2), np.float32),
        },
        json.dumps({"peft_type": "LORA", "r": 2, "use_dora": True}),
        fingerprint(folder),
    )
    with pytest.raises(UserError, match="use_dora is True; merge such an adapter with peft"):
        export_merged(find(open_store(store_of(dora)), PublishKind.ADAPTER, "7"), folder, tmp_path / "merged")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "s", "there"]


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_numbers_round_as_torch_rounds_them(dtype: str) -> None:
    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    values = torch.cat([torch.randn(10_000) * scale for scale in (1e-6, 1.0, 1e4)])
    values = torch.cat([values, torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1.00390625, 1.01171875])])
    expected = values.to(kind)
    ours = to_float32(from_float32(values.numpy(), dtype), dtype, "x")
    assert np.array_equal(ours, expected.float().numpy(), equal_nan=True)


MERGE = """
import resource, sys
from pathlib import Path
from tandem.types import PublishKind
from tandem_checkpoint_manager.checkpoints.export import export_merged
from tandem_checkpoint_manager.checkpoints.find import find, open_store
found = find(open_store(sys.argv[1]), PublishKind.ADAPTER, "latest")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
export_merged(found, Path(sys.argv[2]), Path(sys.argv[3]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(TINY, folder)
    rows, columns = 4096, 4096  # 64 MiB of float32, twice
    weights = {f"w{n}.weight": np.full((rows, columns), n, np.float32) for n in (1, 2)}
    (folder / "model.safetensors").write_bytes(save(weights))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, columns)).astype("f4"), rng.standard_normal((rows, 4)).astype("f4")
    state = {"base_model.model.w1.lora_A.weight": a, "base_model.model.w1.lora_B.weight": b}
    config = json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8})
    ref = publish(tmp_path / "s", state, config, fingerprint(folder))
    arguments = [store_of(ref), str(folder), str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", MERGE, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 48 * 2**10, "KiB"
    from safetensors.numpy import load_file

    merged = load_file(tmp_path / "out/model.safetensors")
    assert np.array_equal(merged["w2.weight"], weights["w2.weight"])
    assert np.allclose(merged["w1.weight"], 1 + 2 * (b @ a), atol=1e-5)
