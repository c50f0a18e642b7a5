"""What the page's server gives out, and to whom; and that 100,000 episodes cost an index."""

from __future__ import annotations

import http.client
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
from typer.testing import CliRunner
from view_recordings import Run, Said, group, learned_run, mixed
from view_serving import served

from tandem.storage.episode_index import INDEX, entry_line, read_index
from tandem.storage.episode_pack import PACK
from tandem.storage.episodes import EPISODES
from tandem.types import NotFound, UserError
from tandem_viewer.cli import view
from tandem_viewer.library import Library, Place
from tandem_viewer.shown import new_images


def ask(url: str, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Without a library that would tidy the path up first."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.putrequest("GET", path, skip_host="host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}


def asked(url: str, path: str) -> Any:
    status, content, _ = ask(url, path)
    assert status == 200, content
    return json.loads(content)


def test_rows_groups_and_images_are_those_recorded(url: str, run: Run) -> None:
    rows = asked(url, "/api/rows")
    assert (rows["from"], rows["total"], len(rows["rows"])) == (0, 22, 22)
    source, part, at, env, seed, suite, version, *_, members = rows["rows"][7]
    assert (env, seed, suite, version, len(members)) == ("maze2d:tiny", 101, "train", 0, 4)
    place = f"source={source}&part={part}&at={at}"
    found = asked(url, f"/api/group?{place}")
    first = found["members"][0]["turns"][1]
    assert (first["text"], first["pieces"]) == ("down now please", ["down", " now", " please"])
    assert found["members"][3]["advantage"] == -0.9
    at, digest = first["images"][0]
    status, png, headers = ask(url, f"/api/image?source={source}&part={part}&at={at}&v={digest}")
    assert status == 200 and headers["content-type"] == "image/png" and png.startswith(b"\x89PNG")
    assert asked(url, f"/api/rows?edition={rows['edition']}&from=20")["from"] == 20
    assert asked(url, "/api/rows?edition=of-another-process&from=20")["from"] == 0


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example:80", ""]
)
def test_a_page_elsewhere_cannot_read_by_a_name_of_its_own(url: str, host: str) -> None:
    status, content, _ = ask(url, "/api/rows", host=host)
    assert status in (400, 403) and b"maze2d" not in content


def test_every_answer_lets_no_foreign_script_run(url: str) -> None:
    for path in ("/", "/api/facts", "/main.js", "/nothing.js", "/api/group?at=999"):
        _, _, headers = ask(url, path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "path",
    [
        *("/../pyproject.toml", "/%2e%2e/app.py", "/..%2fapp.py", "/app.py", "//etc/passwd", "/page/main.js"),
        "/api/image?source=0&part=../train-00000000&at=0",
        "/api/image?source=0&part=/etc&at=0",
        "/api/image?source=9&part=eval&at=0",
        "/api/image?source=0&part=eval&at=1",
        "/api/image?source=0&part=eval&at=0&v=00000000",
        "/api/image?source=0&part=eval&at=999999999999",
        "/api/group?source=0&part=eval&at=1",
        *("/api/group?at=-1", "/api/group?at=1e3", "/api/group?at=%00", "/api/rows?from=9" + "9" * 30),
    ],
)
def test_nothing_but_the_recording_is_given_out(url: str, path: str) -> None:
    status, content, _ = ask(url, path)
    assert status in (400, 404, 409)
    assert b"Traceback" not in content and b"root:" not in content


def test_there_is_no_way_to_write(url: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request("POST", "/api/rows", b"{}")
    assert connection.getresponse().status == 405


def test_a_group_that_was_removed_or_damaged_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.step(0, [mixed(1, 0)])
    run.step(1, [mixed(2, 1)])
    library = Library(tmp_path)
    with pytest.raises(NotFound, match="no such group"):
        library.group(Place(0, "train-00000005", 0))
    run.writer.make_room(0)
    library.page("", 0)
    with pytest.raises(NotFound, match="removed to make room"):
        library.group(Place(0, "train-00000000", 0))
    (tmp_path / "episodes" / "train-00000001" / EPISODES).write_bytes(b"{\n")
    with served(tmp_path) as url:
        status, content, _ = ask(url, "/api/group?part=train-00000001")
        assert status == 409 and b"episodes.jsonl at byte 0" in content


def test_folders_of_several_recordings_and_of_none(tmp_path: Path) -> None:
    for name in ("adapter", "against"):
        Run(tmp_path / name).step(0, [mixed(1, 0)])
        (tmp_path / name / "episodes").rename(tmp_path / f"{name}-moved")
    assert [source.name for source in Library(tmp_path).sources] == ["adapter-moved", "against-moved"]
    assert len(Library(tmp_path).entries()) == 2
    with pytest.raises(UserError, match="no such folder"):
        Library(tmp_path / "none")
    with pytest.raises(UserError, match="no recorded episodes"):
        Library(tmp_path / "adapter")


def test_new_images_are_those_that_the_turn_before_did_not_have() -> None:
    assert new_images([["a"], ["a", "b"], ["a", "b", "b"]]) == [["a"], ["b"], ["b"]], "the whole transcript"
    assert new_images([["a"], ["b"], ["b"]]) == [["a"], ["b"], ["b"]], "the last turn alone"
    assert new_images([["a", "x"], ["a", "x", "b", "y"], ["b", "y", "c", "z"]])[2] == ["c", "z"], "two a turn"
    assert new_images([[], []]) == [[], []]


def test_numbers_that_are_none_arrive(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writer.write([group(1, 0, [Said(["x"], True)])])
    entry = read_index(tmp_path / "episodes")[0]
    odd = entry.members[0]._replace(total=float("nan"), advantage=float("-inf"))
    with (tmp_path / "episodes" / INDEX).open("ab") as file:
        file.write(entry_line(replace(entry, members=(odd,))))
    with served(tmp_path) as url:
        member = asked(url, "/api/rows")["rows"][1][-1][0]
        assert (member[3], member[8]) == ("NaN", "-Infinity")


def test_listing_100_000_episodes_reads_the_index_once_and_nothing_else(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.step(0, [mixed(seed, 0) for seed in range(2)])
    index = tmp_path / "episodes" / INDEX
    lines = index.read_bytes()
    index.write_bytes(lines * 12_500)
    for name in (EPISODES, PACK):
        (tmp_path / "episodes" / "train-00000000" / name).unlink()  # whoever opens them fails
    library = Library(tmp_path)
    assert sum(len(entry.members) for _, entry in library.entries()) == 100_000
    assert library.bytes_read == index.stat().st_size
    with index.open("ab") as file:
        file.write(lines)
    page = library.page(library.page("", 0).edition, 25_000)
    assert (page.start, len(page.entries)) == (25_000, 2)
    assert library.bytes_read == index.stat().st_size, "growth is read, not what was there"


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    learned_run(tmp_path / "run")
    app = typer.Typer()
    app.command()(view)
    for arguments, said in (
        ([str(tmp_path / "none")], "no such folder"),
        ([str(tmp_path / "run"), "--compare", "7"], "--compare 7: nothing is recorded of that version; there are 0-3"),
        ([str(tmp_path / "run"), "--export", str(tmp_path / "no/run.html")], "cannot be written"),
    ):
        done = CliRunner().invoke(app, arguments)
        assert isinstance(done.exception, UserError) and said in str(done.exception)
    done = CliRunner().invoke(app, [str(tmp_path / "run"), "--export", str(tmp_path / "run.html")])
    assert done.exit_code == 0 and "50 of 50 episodes" in done.output
