"""A URL from the wire is believed only where it lies in the run's own store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.storage import check_place
from tandem.types import UserError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    (folder / "adapters/v1").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (folder / "adapters/link").symlink_to(tmp_path / "secret")
    (folder / "adapters/inner").symlink_to(folder / "adapters/v1")
    return folder


@pytest.mark.parametrize("scheme", ["", "file://", "local://"])
def test_below_a_folder(store: Path, scheme: str) -> None:
    for url in (store, store / "adapters/v1", store / "adapters/not-there", store / "adapters/inner"):
        check_place(str(url), ["s3://other/bucket", f"{scheme}{store}"])


@pytest.mark.parametrize(
    "url",
    [
        "{store}/../secret",
        "{store}/adapters/link",
        "{store}/adapters/link/../../../secret",
        "{store}2",
        "{parent}",
        "/",
        "/etc/passwd",
        "",
        "adapters/v1",
        "file://{store}/adapters/v1",
        "simplecache::{store}/adapters/v1",
        "http://127.0.0.1/v1",
        "memory://v1",
        "{store}/adapters/\0v1",
    ],
)
def test_anywhere_else_is_refused_and_says_so(store: Path, url: str) -> None:
    with pytest.raises(UserError, match="is not in the run's store; weights are read from these alone: /"):
        check_place(url.format(store=store, parent=store.parent), [str(store)])


@pytest.mark.parametrize("url", ["s3://bucket/run", "s3://bucket/run/adapters/v00000001", "s3://bucket/run/a-b_c=1/"])
def test_below_a_url(url: str) -> None:
    check_place(url, ["/folder", "s3://bucket/run/"])


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/runs",
        "s3://bucket",
        "s3://bucket/run/../other",
        "s3://bucket/run/./x",
        "s3://bucket/run//x",
        "s3://bucket/run/.staging/x",
        "s3://bucket/run/x?versionId=1",
        "s3://bucket/run/x::file:///etc",
        "s3://bucket/run/%2e%2e/x",
        "simplecache::s3://bucket/run/x",
        "gs://bucket/run/x",
        "/bucket/run/x",
    ],
)
def test_beside_a_url(url: str) -> None:
    with pytest.raises(UserError, match="not in the run's store"):
        check_place(url, ["s3://bucket/run"])


def test_without_places_nothing_is_read() -> None:
    with pytest.raises(UserError, match="from these alone: none"):
        check_place("/", ["", ""])
