"""What object stores offer instead of links and renames: conditional puts, and uploads that can be given up.

S3 takes a put on condition that the object is not there (If-None-Match) or is the one last read (If-Match). Other
fsspec backends are asked for the former through `mode="create"`, which is as atomic as they make it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Any

from fsspec.spec import AbstractBufferedFile

from tandem.storage.manifest import FileEntry

# Botocore tries again what the network or a busy store (500, 503 SlowDown) refused, waiting longer each time.
S3_RETRIES = {"mode": "standard", "max_attempts": 6}
TRIES = 8  # of a replacement that others were faster with


def options(url: str) -> dict[str, Any]:
    """What to open the file system behind `url` with."""
    if "://" not in url or url.startswith(("file://", "local://")):
        return {}
    # Another process may write what this one lists: never answer from a cache of listings.
    found: dict[str, Any] = {"use_listings_cache": False}
    return found | ({"config_kwargs": {"retries": S3_RETRIES}} if url.startswith(("s3://", "s3a://")) else {})


def create(fs: Any, path: str, data: bytes) -> bool:
    """Put a small object that is not there yet; False where it is."""
    try:
        fs.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    return True


def replace(fs: Any, path: str, data: bytes, fence: Callable[[], None]) -> None:
    """Put a small object or replace it; on S3 only while it is the one that was there when `fence` was last passed.

    Raises:
        TimeoutError: others replace it all the time.
    """
    if not _is_s3(fs):
        fence()
        fs.pipe_file(path, data)
        return
    for _ in range(TRIES):
        before = _etag(fs, path)
        fence()
        try:
            if before is None:
                fs.pipe_file(path, data, mode="create")
            else:
                fs.pipe_file(path, data, IfMatch=before)
            return
        except FileExistsError:
            continue
        except OSError as problem:
            if not (isinstance(problem, FileNotFoundError) or _condition_failed(problem)):
                raise
    raise TimeoutError(f"replaced by others {TRIES} times in a row")


def write(fs: Any, path: str, block_bytes: int, fill: Callable[[Callable[[bytes], object]], FileEntry]) -> FileEntry:
    """Upload a new object in blocks of `block_bytes`, on condition that none is there. `fill` hands over the bytes.

    A failed upload is given up: closing it would make visible what came before the failure.

    Raises:
        FileExistsError: an object is there.
    """
    file = fs.open(path, "xb", block_size=block_bytes)
    try:
        entry = fill(file.write)
        file.close()
    except BaseException:
        if isinstance(file, AbstractBufferedFile):
            file.closed = True  # or it would be uploaded after all once it is garbage
            file.discard()
        raise
    return entry


def give_up_uploads(fs: Any, folder: str) -> int:
    """Give up unfinished uploads below `folder`, which cost money and may yet complete; how many there were."""
    if not _is_s3(fs):
        return 0
    bucket, _, prefix = folder.partition("/")
    return sum(_give_up(fs, bucket, upload) for upload in _uploads(fs, bucket, f"{prefix}/"))


def _uploads(fs: Any, bucket: str, prefix: str) -> Iterable[dict[str, str]]:
    more: dict[str, str] = {}
    while True:
        page = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **more)
        yield from page.get("Uploads", [])
        if not page.get("IsTruncated"):
            return
        more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def _give_up(fs: Any, bucket: str, upload: dict[str, str]) -> bool:
    try:
        fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])
    except FileNotFoundError:
        return False  # it has ended meanwhile
    return True


def _etag(fs: Any, path: str) -> str | None:
    try:
        return fs.info(path)["ETag"]
    except FileNotFoundError:
        return None


def _condition_failed(problem: OSError) -> bool:
    return problem.errno == errno.EINVAL and "pre-condition" in str(problem)


def _is_s3(fs: Any) -> bool:
    return "s3" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)
