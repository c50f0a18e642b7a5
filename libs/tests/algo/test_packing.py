"""Turns to training sequences, and their split over ranks and microbatches."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from tandem.algo import flatten, merge_turns, microbatches, pack, split_contiguous
from tandem.types import FinishReason, Turn


def _turn(prompt: tuple[int, ...], completion: tuple[int, ...], images: tuple[str, ...] = ()) -> Turn:
    return Turn(
        prompt_ids=prompt,
        completion_ids=completion,
        rollout_logprobs=tuple(-0.1 * token for token in completion),
        images=images,
        policy_version=0,
        text="",
        feedback="",
        reward=0.0,
        finish=FinishReason.STOP,
    )


def test_transcript_that_grows_is_one_sequence() -> None:
    turns = [
        _turn((1, 2), (3, 4), ("a",)),
        _turn((1, 2, 3, 4, 5), (6,), ("a", "b")),
        _turn((1, 2, 3, 4, 5, 6, 7, 8), (9, 9), ("a", "b", "c")),
    ]
    [(sequence, logprobs)] = merge_turns(turns)
    assert sequence.ids == (1, 2, 3, 4, 5, 6, 7, 8, 9, 9)
    assert sequence.images == ("a", "b", "c")
    assert sequence.spans == ((2, 4), (5, 6), (8, 10))
    assert sequence.completion_tokens == 5
    assert logprobs == turns[0].rollout_logprobs + turns[1].rollout_logprobs + turns[2].rollout_logprobs


def test_window_that_slides_starts_a_new_sequence() -> None:
    turns = [_turn((1, 2), (3,)), _turn((1, 2, 3, 4), (5,)), _turn((1, 4, 5, 6), (7,))]
    found = merge_turns(turns)
    assert [sequence.ids for sequence, _ in found] == [(1, 2, 3, 4, 5), (1, 4, 5, 6, 7)]
    assert [sequence.spans for sequence, _ in found] == [((2, 3), (4, 5)), ((4, 5),)]


def test_other_image_under_the_same_ids_is_another_sequence() -> None:
    found = merge_turns([_turn((1, 2), (3,), ("a",)), _turn((1, 2, 3, 4), (5,), ("b",))])
    assert [sequence.images for sequence, _ in found] == [("a",), ("b",)]


def test_retokenised_prompt_is_not_merged() -> None:
    found = merge_turns([_turn((1, 2), (3, 4)), _turn((1, 2, 34, 5), (6,))])
    assert len(found) == 2


def test_turn_without_completion_is_left_out() -> None:
    turns = [_turn((1,), (2,)), _turn((1, 2, 3), ()), _turn((1, 2, 3, 4), (5,))]
    [(sequence, _)] = merge_turns(turns)
    assert sequence.ids == (1, 2, 3, 4, 5)
    assert sequence.spans == ((1, 2), (4, 5))
    assert merge_turns([_turn((1,), ())]) == []


def test_identical_sequences_are_kept_once_with_all_their_occurrences() -> None:
    same, other = _turn((1, 2), (3, 4)), _turn((1, 2), (3, 5))
    again = replace(same, rollout_logprobs=(-0.3, -0.5))  # an engine differs in the last bits
    packed, metrics = pack([[same], [other], [again]])
    assert [sequence.ids for sequence in packed.sequences] == [(1, 2, 3, 4), (1, 2, 3, 5)]
    assert_close(packed.occurrences[0].rollout_logprobs, tensor([[-0.3, -0.4], [-0.3, -0.5]]))
    assert packed.occurrences[0].members.tolist() == [0, 2]
    assert packed.occurrences[1].members.tolist() == [1]
    assert packed.lengths.tolist() == [2, 2, 2]
    assert metrics == {"tokens": 6.0, "rows_total": 3.0, "rows_unique": 2.0, "row_tokens": 8.0}


def test_other_spans_over_the_same_ids_are_another_sequence() -> None:
    packed, _ = pack([[_turn((1, 2), (3, 4))], [_turn((1, 2, 3), (4,))]])
    assert len(packed.sequences) == 2


def test_nothing_sampled_is_nothing_packed() -> None:
    packed, metrics = pack([])
    assert packed.tokens == 0
    assert metrics["rows_unique"] == 0.0


def test_trajectory_without_a_completion_token_keeps_its_place() -> None:
    packed, _ = pack([[_turn((1,), ())], [_turn((1,), (2,))], []])
    assert packed.lengths.tolist() == [0, 1, 0]
    assert packed.occurrences[0].members.tolist() == [1]


def test_flat_tokens_by_hand() -> None:
    """Two occurrences of a row of 2 tokens, then one of 1: distinct tokens 0, 1 and 2, sequences 0, 1 and 2."""
    same, other = _turn((1,), (3, 4)), _turn((1,), (5,))
    flat = flatten(pack([[same], [other], [replace(same, rollout_logprobs=(-7.0, -8.0))]])[0].occurrences)
    assert flat.distinct.tolist() == [0, 1, 0, 1, 2]
    assert flat.sequence.tolist() == [0, 0, 1, 1, 2]
    assert flat.members.tolist() == [0, 0, 2, 2, 1]
    assert_close(flat.rollout_logprobs, tensor([-0.3, -0.4, -7.0, -8.0, -0.5]))


def test_split_is_balanced_by_hand() -> None:
    # 12 in all, 6 a part. Middles: 2, 5, 7, 9, 11 -> the first two fall below 6
    assert split_contiguous([4, 2, 2, 2, 2], 2) == [range(2), range(2, 5)]
    assert split_contiguous([5], 3) == [range(0), range(1), range(1, 1)]
    assert split_contiguous([], 2) == [range(0), range(0)]


@given(st.lists(st.integers(1, 500), max_size=60), st.integers(1, 8))
def test_split_covers_all_and_is_off_by_less_than_one_item(weights: list[int], parts: int) -> None:
    found = split_contiguous(weights, parts)
    assert [index for part in found for index in part] == list(range(len(weights)))
    share = sum(weights) / parts
    for part in found:
        assert sum(weights[i] for i in part) <= share + max(weights, default=0) + 1e-9


def test_microbatches_by_hand() -> None:
    # longest first: 7, 5, 5, 3, 2. Budget 10: [7], then 2 x 5 = 10, then 2 x 3 = 6
    assert microbatches([5, 3, 7, 5, 2], 10) == [[2], [0, 3], [1, 4]]
    assert microbatches([50, 3], 10) == [[0], [1]]


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 300))
def test_microbatches_cover_all_within_budget(lengths: list[int], budget: int) -> None:
    found = microbatches(lengths, budget)
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


def test_merging_keeps_every_sampled_token() -> None:
    """A window of two turns: every prompt holds the completion before it, and slides past the one before that."""
    completions = [(index, index + 10) for index in range(1, 6)]
    prompts = [(0,), *((0, 99, *before, 98) for before in completions[:-1])]
    turns = [_turn(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
    found = merge_turns(turns)
    assert sum(sequence.completion_tokens for sequence, _ in found) == 10
    assert [p for _, logprobs in found for p in logprobs] == [p for turn in turns for p in turn.rollout_logprobs]
    for sequence, _ in found:
        assert all(sequence.ids[start:stop] in completions for start, stop in sequence.spans)
