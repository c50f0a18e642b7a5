"""Recorded episodes come back as they were, and damage is named."""

import hashlib
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tandem.storage.episode_index import INDEX, Index, Member, read_index
from tandem.storage.episode_lines import Beside, Label
from tandem.storage.episode_pack import PACK, read_image
from tandem.storage.episodes import EPISODES, EpisodeWriter, read_groups, read_line, train_part, write_groups
from tandem.types import (
    DataCorrupt,
    FinishReason,
    NotFound,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
    UserError,
)


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), shade, np.uint8)).save(file, format="PNG")
    return file.getvalue()


def turn(*images: str, reward: float = 0.0, parsed: bool = True) -> Turn:
    finish = FinishReason.STOP if parsed else FinishReason.LENGTH
    text = "('move', 0)" if parsed else "  well, <b>let me think"
    return Turn((1, 2, 2, 3), (7, 8), (-0.125, -1e-9), images, 3, text, "Moved ünd so.", reward, finish, parsed)


def group(seed: int, reward: float = 1.0) -> TrajectoryGroup:
    pictures = {hashlib.sha256(png(shade)).hexdigest(): png(shade) for shade in (seed, seed + 1)}
    first, second = pictures
    later = replace(turn(first, second, reward=reward, parsed=False), prompt_ids=(1, 2, 2, 3, 7, 8, 9))
    solved = Trajectory(0, (turn(first), later), StopReason.TERMINATED, 1.0, metrics={"moves": 2.0})
    failed = Trajectory(1, (), StopReason.ENV_ERROR, 0.0, "ValueError: no")
    return TrajectoryGroup(f"v3-s0-t{seed}", "maze2d:tiny?rooms=5", seed, 3, (solved, failed), pictures, 0.25)


def test_what_is_written_comes_back(tmp_path):
    assert write_groups(tmp_path / "a" / "b", [group(1), group(2)]) == 2
    assert write_groups(tmp_path / "a" / "b", [group(3)]) == 1
    assert list(read_groups(tmp_path / "a" / "b")) == [group(1), group(2), group(3)]
    pack = (tmp_path / "a" / "b" / PACK).read_bytes()
    assert [pack.count(png(shade)) for shade in (1, 2, 3, 4)] == [1, 1, 1, 1], "each distinct image once"
    lines = (tmp_path / "a" / "b" / EPISODES).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [1, 2, 3]
    later = json.loads(lines[0])["trajectories"][0]["turns"][1]
    assert (later["prompt_prefix_length"], later["prompt_suffix_ids"]) == (6, [9]), "shared ids are not written again"


def test_what_is_known_beside_comes_back_and_the_index_says_it_in_short(tmp_path):
    beside = Beside(Label("train", 4, 0.5), {"v3-s0-t1": {0: -1.5}}, lambda ids: [f"<{i}>" for i in ids])
    write_groups(tmp_path, [group(1)], beside)
    (entry,) = read_index(tmp_path)
    assert (entry.label, entry.env, entry.seed, entry.mixed) == (Label("train", 4, 0.5), group(1).env, 1, True)
    first, second = entry.members
    assert first == Member(
        *(0, StopReason.TERMINATED, 1.0, 1.0, 2, 1, 4, 1, -1.5, "('move', 0)", "well, <b>let me think"), first.frame
    )
    assert read_image(tmp_path / PACK, first.frame)[1] == png(2), "the last picture it saw"
    assert (second.stop, second.turns, second.advantage, second.frame) == (StopReason.ENV_ERROR, 0, None, -1)
    line = read_line(tmp_path, entry)
    assert line.trajectories[0].advantage == -1.5
    assert line.trajectories[0].turns[0].pieces == ("<7>", "<8>")


def test_a_reward_that_is_no_number_comes_back_from_valid_json(tmp_path):
    write_groups(tmp_path, [group(1, reward=math.nan)])
    for name in (EPISODES, INDEX):
        json.loads((tmp_path / name).read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (found,) = read_groups(tmp_path)
    assert math.isnan(found.trajectories[0].turns[1].reward)
    assert math.isnan(read_index(tmp_path)[0].members[0].total)


def rewrite(folder, change) -> None:
    line = json.loads((folder / EPISODES).read_text())
    change(line)
    content = json.dumps(line) + "\n"
    (folder / EPISODES).write_text(content)
    entry = json.loads((folder / INDEX).read_text())
    entry["group"]["size"] = len(content)
    (folder / INDEX).write_text(json.dumps(entry, separators=(",", ":")) + "\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.update(colour="red"), "byte 0: colour"),
        (lambda line: line["trajectories"][0].update(mood="good"), "byte 0: trajectories.0.mood"),
        (lambda line: line["trajectories"][0]["turns"][1].update(mood="good"), "trajectories.0.turns.1.mood"),
        (lambda line: line.pop("seed"), "byte 0: seed"),
        (lambda line: line["trajectories"][0].update(stop_reason="bored"), "trajectories.0.stop_reason"),
        (lambda line: line.update(images={}), "member 0 turn 0: image"),
        (lambda line: line.update(seed=-1), "byte 0: seed"),
        (lambda line: line.update(seed=2**80), "byte 0: seed"),
        (lambda line: line.update(seed=2), "another group than index.jsonl says"),
        (lambda line: line["trajectories"][0]["turns"][1].update(prompt_suffix_ids=[-1]), "turn 1: -1 is no token id"),
        (lambda line: line["trajectories"][0]["turns"][1].update(prompt_suffix_ids=[2**40]), "turn 1: 1099511627776 i"),
        (lambda line: line["trajectories"][0]["turns"][1].update(prompt_prefix_length=7), "7 ids with a turn of 6"),
        (lambda line: line["trajectories"][0]["turns"][0].update(rollout_logprobs=[]), "2 completion ids but 0"),
    ],
)
def test_a_line_that_is_no_group_is_named(tmp_path, change, said):
    write_groups(tmp_path, [group(1)])
    rewrite(tmp_path, change)
    with pytest.raises(DataCorrupt, match=said):
        list(read_groups(tmp_path))


@pytest.mark.parametrize("name", [INDEX, EPISODES, PACK])
def test_what_a_crash_cuts_short_is_taken_off_before_more_is_written(tmp_path, name):
    write_groups(tmp_path, [group(1)])
    whole = {each: (tmp_path / each).read_bytes() for each in (INDEX, EPISODES, PACK)}
    write_groups(tmp_path, [group(2)])
    for each in (INDEX, EPISODES, PACK)[: (INDEX, EPISODES, PACK).index(name)]:
        (tmp_path / each).write_bytes(whole[each])  # what is written later was not begun
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    assert list(read_groups(tmp_path)) == [group(1)]
    write_groups(tmp_path, [group(2), group(3)])
    assert list(read_groups(tmp_path)) == [group(1), group(2), group(3)]


def test_images_are_checked(tmp_path):
    write_groups(tmp_path, [group(1)])
    pack = bytearray((tmp_path / PACK).read_bytes())
    pack[-3] ^= 1
    (tmp_path / PACK).write_bytes(pack)
    with pytest.raises(DataCorrupt, match="no whole image at byte"):
        list(read_groups(tmp_path))
    for at in (1, len(pack), 2**70, -1):
        with pytest.raises(DataCorrupt):
            read_image(tmp_path / PACK, at)
    (tmp_path / PACK).unlink()
    with pytest.raises(DataCorrupt, match=f"{PACK}: cannot be read"):
        list(read_groups(tmp_path))


def test_folders_that_cannot_be(tmp_path):
    with pytest.raises(NotFound, match="none"):
        list(read_groups(tmp_path / "none"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_groups(tmp_path / "file", [group(1)])


def at(version: int, suite: str = "train") -> Beside:
    return Beside(Label(suite, version, 1.0))


def seen(folder: Path) -> list[tuple[str, int, int]]:
    return [(entry.label.suite, entry.label.version, entry.seed) for entry in read_index(folder)]


def test_a_run_that_goes_back_shows_nothing_twice(tmp_path):
    writer = EpisodeWriter(tmp_path)
    for version in range(4):
        writer.write([group(version)], at(version), train_part(version))
        writer.write([group(90)], at(version + 1, "fixed64"), "eval")
    watching = Index(tmp_path)
    assert watching.poll() and not watching.poll() and len(watching.entries) == 8
    writer = EpisodeWriter(tmp_path)  # another process
    writer.go_back(2)
    assert seen(tmp_path) == [("train", 0, 0), ("fixed64", 1, 90), ("train", 1, 1), ("fixed64", 2, 90)]
    writer.write([group(7)], at(2), train_part(2))
    writer.anew(Label("fixed64", 2, 1.0), group(90).env)
    writer.write([group(91)], at(2, "fixed64"), "eval")
    after = [("train", 0, 0), ("fixed64", 1, 90), ("train", 1, 1), ("train", 2, 7), ("fixed64", 2, 91)]
    assert seen(tmp_path) == after
    edition = watching.edition
    assert watching.poll() and watching.edition > edition
    assert [entry.seed for entry in watching.entries] == [seed for *_, seed in after]
    assert [found.seed for found in read_groups(tmp_path)] == [0, 90, 1, 7, 91]


def test_room_is_made_by_thinning_the_older_half(tmp_path):
    writer = EpisodeWriter(tmp_path)
    for version in range(8):
        writer.write([group(version)], at(version), train_part(version))
    writer.write([group(90)], at(8, "fixed64"), "eval")
    each = writer.sizes[train_part(0)]
    EpisodeWriter(tmp_path).make_room(6.5 * each)
    gone = [entry.label.version for entry in read_index(tmp_path) if entry.gone]
    assert gone == [1, 3]
    assert [found.seed for found in read_groups(tmp_path)] == [0, 2, 4, 5, 6, 7, 90], "evaluations stay"
    writer = EpisodeWriter(tmp_path)
    writer.make_room(0)
    assert list(writer.sizes) == [train_part(7)], "the newest stays"
    assert len(read_index(tmp_path)) == 9, "and so do the figures of all"


def test_a_folder_that_grows_is_read_on_and_damage_passed_over(tmp_path):
    write_groups(tmp_path, [group(1)])
    index = Index(tmp_path)
    assert index.poll()
    once = index.bytes_read
    with open(tmp_path / INDEX, "ab") as file:
        file.write(b'{"group":{"part":"../../etc"}}\nno json\n{"group":{"pa')
    assert index.poll() and (len(index.entries), index.damaged) == (1, 2)
    write_groups(tmp_path, [group(2)])
    assert index.poll() and [entry.seed for entry in index.entries] == [1, 2]
    assert index.bytes_read == (tmp_path / INDEX).stat().st_size and index.bytes_read > 2 * once
    (tmp_path / INDEX).unlink()
    write_groups(tmp_path, [group(5)])
    assert index.poll() and [entry.seed for entry in index.entries] == [5], "another file is read anew"


def test_a_part_never_leads_elsewhere(tmp_path):
    write_groups(tmp_path, [group(1)])
    entry = json.loads((tmp_path / INDEX).read_text())
    for part in ("..", "a/b", "/etc", ".", "eval\n", "a.b"):
        entry["group"]["part"] = part
        (tmp_path / INDEX).write_text(json.dumps(entry, separators=(",", ":")) + "\n")
        assert read_index(tmp_path) == []
