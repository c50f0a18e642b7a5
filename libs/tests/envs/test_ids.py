"""Ids carry their options, and survive being read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.envs.ids import check_options, format_id, parse_id
from tandem.types import UserError


@pytest.mark.parametrize(
    ("env_id", "name", "options"),
    [
        ("maze2d:tiny", "maze2d:tiny", {}),
        ("maze2d:tiny?style=night&rooms=5", "maze2d:tiny", {"style": "night", "rooms": 5}),
        ("a:b?x=true&y=0.5&z=null&t=", "a:b", {"x": True, "y": 0.5, "z": None, "t": ""}),
        ('a:b?x="5"&y=NaN&l=[1]', "a:b", {"x": "5", "y": "NaN", "l": "[1]"}),
        ("gym:ALE/Pong-v5?names=left|right=up", "gym:ALE/Pong-v5", {"names": "left|right=up"}),
    ],
)
def test_values_are_json_scalars_or_text(env_id, name, options):
    assert parse_id(env_id) == (name, options)
    assert [type(value) for value in parse_id(env_id)[1].values()] == [type(value) for value in options.values()]


texts = st.text(st.characters(blacklist_characters="&", blacklist_categories=["Cs"]))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)


@given(st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), scalars, max_size=4))
def test_what_is_written_is_read_back(options):
    assert parse_id(format_id("kind:name", options)) == ("kind:name", options)


@pytest.mark.parametrize("env_id", ["a:b?", "a:b?x", "a:b?=1", "a:b?x=1&", "a:b?x=1&x=2"])
def test_malformed_options_are_one_clear_line(env_id):
    with pytest.raises(UserError, match="a:b"):
        parse_id(env_id)


def test_options_are_checked_by_name_and_type():
    kinds = {"rooms": int, "share": float}
    check_options("a:b", {"rooms": 3, "share": 1}, kinds)
    for options in ({"room": 3}, {"rooms": True}, {"rooms": 3.0}, {"share": "x"}):
        with pytest.raises(UserError, match=next(iter(options))):
            check_options("a:b", options, kinds)
