"""What was played survives a crash at any byte, and nothing else is taken for it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from replicas import episode

from tandem.types import TandemError, TrajectoryGroup, UserError
from tandem_controller.journal import Journal, Position, Step

PNG = b"\x89PNG not looked at here"


def group(seed: int) -> TrajectoryGroup:
    return TrajectoryGroup(f"g{seed}", "maze2d:tiny", seed, 3, (episode(0, True), episode(1, False)), {"ab": PNG}, 0.5)


def filled(folder: Path, *seeds: int) -> Journal:
    journal = Journal(folder, "aa")
    journal.begin(3, [])
    for seed in seeds:
        journal.add(group(seed))
    return journal


def read(folder: Path, settings: str = "aa") -> dict[int, TrajectoryGroup]:
    return {group.seed: group for group in Journal(folder, settings).groups()}


def step(version: int, *seeds: int) -> Step:
    """What `version` learns from; the next one starts with seed 100."""
    return Step(seeds, Position(version + 1, 100, ((90, 91),)))


def test_groups_come_back_as_they_were(tmp_path: Path) -> None:
    filled(tmp_path / "journal", 5, 7)
    assert read(tmp_path / "journal") == {5: group(5), 7: group(7)}
    assert list(Journal(tmp_path / "journal", "aa").groups(lambda seed: seed > 5)) == [group(7)]


def test_a_crash_at_any_byte_costs_the_last_group_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 5)
    (file,) = tmp_path.iterdir()
    first = file.stat().st_size
    filled(tmp_path, 5, 7)
    whole = file.read_bytes()
    with caplog.at_level(logging.ERROR):
        for size in range(first, len(whole)):
            file.write_bytes(whole[:size])
            assert set(read(tmp_path)) == {5}


def test_a_flipped_bit_ends_a_file_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 5, 7)
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert set(read(tmp_path)) == {5}
    assert f"{file}: cut short at byte {len(data) // 2}" in caplog.text


def test_another_seed_in_a_records_head_is_damage(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    assert data[1] == 5
    data[1] = 6
    file.write_bytes(data)
    assert list(Journal(tmp_path, "aa").groups(lambda seed: seed == 6)) == []


def test_a_group_that_is_just_being_written_is_no_damage_to_who_reads_what_was_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = filled(tmp_path, 5, 7)
    journal.add_step(step(3, 5))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:60])
    assert list(journal.learned(3, 4)) == [(step(3, 5), [group(5)])]
    assert "cut short" not in caplog.text
    assert set(read(tmp_path)) == {5, 7}
    assert "cut short" in caplog.text


def test_a_length_beyond_the_file_is_a_cut_one(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:9] + b"\xff" * 8 + file.read_bytes()[17:])
    assert read(tmp_path) == {}


def test_groups_of_other_settings_are_not_read(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    assert read(tmp_path, "bb") == {}


def test_until_a_save_is_done_the_files_before_it_stay(tmp_path: Path) -> None:
    journal = filled(tmp_path, 5, 7)
    journal.begin(4, [group(7)])
    journal.add(group(9))
    assert set(read(tmp_path)) == {5, 7, 9}
    journal.settle()
    assert set(read(tmp_path)) == {7, 9}
    assert [path.name for path in tmp_path.iterdir()] == ["v00000004-aa.journal"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file stands here")
    with pytest.raises(
        UserError, match=r"journal: cannot be written \(.*\); free space there or choose another run.dir"
    ):
        Journal(tmp_path / "journal", "aa").begin(0, [])


def test_what_was_learned_comes_back_in_its_order_also_over_a_save_that_failed(tmp_path: Path) -> None:
    journal = filled(tmp_path, 5, 7, 9)
    journal.add_step(step(3, 7, 5))
    journal.begin(4, [group(9)])  # a save of 4 begins, and fails: 3 is the latest that is saved
    journal.add_step(step(4, 9))
    again = Journal(tmp_path, "aa")
    assert again.steps(3) == (step(3, 7, 5), step(4, 9))
    assert list(again.learned(3, 5)) == [(step(3, 7, 5), [group(7), group(5)]), (step(4, 9), [group(9)])]
    assert list(again.learned(4, 5)) == [(step(4, 9), [group(9)])]
    assert list(again.learned(5, 5)) == []


def test_a_step_that_is_not_whole_or_after_a_gap_was_not_taken(tmp_path: Path) -> None:
    journal = filled(tmp_path, 5, 9)
    journal.add_step(step(3, 5))
    journal.add_step(step(4, 5, 6))  # 6 was never there
    journal.add_step(step(5, 9))
    assert journal.steps(3) == (step(3, 5),)
    assert journal.steps(4) == ()
    with pytest.raises(TandemError, match="does not hold what version 4 learned from"):
        list(journal.learned(3, 6))


def test_of_a_step_that_was_taken_twice_the_later_counts(tmp_path: Path) -> None:
    journal = filled(tmp_path, 5, 7)
    journal.add_step(step(3, 5))
    journal.add_step(step(3, 7))
    assert list(journal.learned(3, 4)) == [(step(3, 7), [group(7)])]


def test_a_journal_begun_anew_with_what_was_learned_holds_it_still(tmp_path: Path) -> None:
    journal = filled(tmp_path, 5, 7, 9)
    journal.add_step(step(3, 5, 7))
    journal.begin(3, [group(9)], journal.learned(3, 4))
    journal.settle()
    assert journal.steps(3) == (step(3, 5, 7),)
    assert set(read(tmp_path)) == {5, 7, 9}


def test_files_that_are_settled_while_they_are_read_are_read_to_their_end(tmp_path: Path) -> None:
    journal = filled(tmp_path, 5, 7)
    journal.add_step(step(3, 5))
    journal.add_step(step(4, 7))
    reading = journal.learned(3, 5)
    assert next(reading) == (step(3, 5), [group(5)])
    journal.begin(5, [])
    journal.settle()
    assert next(reading) == (step(4, 7), [group(7)])
