"""What was played survives a crash at any byte, and nothing else is taken for it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from replicas import episode

from tandem.types import TrajectoryGroup, UserError
from tandem_controller.journal import Journal

PNG = b"\x89PNG not looked at here"


def group(seed: int) -> TrajectoryGroup:
    return TrajectoryGroup(f"g{seed}", "maze2d:tiny", seed, 3, (episode(0, True), episode(1, False)), {"ab": PNG}, 0.5)


def filled(folder: Path, *seeds: int) -> Journal:
    journal = Journal(folder, "aa")
    journal.begin(3, [])
    for seed in seeds:
        journal.add(group(seed))
    return journal


def test_groups_come_back_as_they_were(tmp_path: Path) -> None:
    filled(tmp_path / "journal", 5, 7)
    assert Journal(tmp_path / "journal", "aa").read() == {5: group(5), 7: group(7)}


def test_a_crash_at_any_byte_costs_the_last_group_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 5)
    (file,) = tmp_path.iterdir()
    first = file.stat().st_size
    filled(tmp_path, 5, 7)
    whole = file.read_bytes()
    with caplog.at_level(logging.ERROR):
        for size in range(first, len(whole)):
            file.write_bytes(whole[:size])
            assert set(Journal(tmp_path, "aa").read()) == {5}


def test_a_flipped_bit_ends_a_file_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 5, 7)
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert set(Journal(tmp_path, "aa").read()) == {5}
    assert f"{file}: cut short at byte {len(data) // 2}" in caplog.text


def test_a_length_beyond_the_file_is_a_cut_one(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    assert Journal(tmp_path, "aa").read() == {}


def test_groups_of_other_settings_are_not_read(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    assert Journal(tmp_path, "bb").read() == {}


def test_until_a_save_is_done_the_files_before_it_stay(tmp_path: Path) -> None:
    journal = filled(tmp_path, 5, 7)
    journal.begin(4, [group(7)])
    journal.add(group(9))
    assert set(Journal(tmp_path, "aa").read()) == {5, 7, 9}
    journal.settle()
    assert set(Journal(tmp_path, "aa").read()) == {7, 9}
    assert [path.name for path in tmp_path.iterdir()] == ["v00000004-aa.groups"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file stands here")
    with pytest.raises(
        UserError, match=r"journal: cannot be written \(.*\); free space there or choose another run.dir"
    ):
        Journal(tmp_path / "journal", "aa").begin(0, [])
