"""One clear line for what a file system or object store refuses."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.types import NotFound, Unavailable, UserError

_REMEDY = {
    errno.ENOSPC: "free space there or choose another {setting}",
    errno.EDQUOT: "free space there or choose another {setting}",
    errno.EFBIG: "the file system allows no larger file; choose another {setting}",
    errno.EACCES: "allow writing there or choose another {setting}",
    errno.EPERM: "allow writing there or choose another {setting}",
    errno.EROFS: "it is mounted read-only; choose another {setting}",
    errno.ENOTDIR: "a file stands where a folder should; choose another {setting}",
}


@contextmanager
def explained(what: str, *, writing: bool = False, setting: str = "checkpoint.url") -> Iterator[None]:
    """Turn what the store raises into Tandem's exceptions; `what` says what was being done, and where,
    `setting` names the field of the config that says where.

    Raises:
        NotFound: the file to read is not there.
        Unavailable: the connection failed or timed out.
        UserError: anything else the store refuses: no space, no permission, no credentials.
    """
    try:
        yield
    except FileNotFoundError as problem:
        if writing:
            raise UserError(f"{what}: no such folder or bucket; check {setting}") from problem
        raise NotFound(f"{what}: not there") from problem
    except (ConnectionError, TimeoutError) as problem:
        raise Unavailable(f"{what}: {_line(problem)}") from problem
    except OSError as problem:
        remedy = _REMEDY.get(problem.errno or 0, "check {setting}").format(setting=setting)
        raise UserError(f"{what}: {_line(problem)}; {remedy}") from problem
    except _errors("aiohttp.client_exceptions", "ClientError") as problem:
        raise Unavailable(f"{what}: {_line(problem)}") from problem
    except _errors("botocore.exceptions", "ConnectionError", "HTTPClientError") as problem:
        raise Unavailable(f"{what}: {_line(problem)}") from problem
    except _errors("botocore.exceptions", "BotoCoreError", "ClientError") as problem:
        raise UserError(f"{what}: {_line(problem)}; check {setting} and its credentials") from problem


def _line(problem: BaseException) -> str:
    reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    return " ".join(reason.split())


def _errors(module_name: str, *names: str) -> tuple[type[Exception], ...]:
    # s3fs lets some exceptions of its own libraries through, which are no OSErrors; without S3 none is imported.
    module = sys.modules.get(module_name)
    return tuple(getattr(module, name) for name in names) if module else ()
