"""What Ray's GCS knows: nodes, the names of actors, placement groups. It may be away for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ray.exceptions import RayError

from tandem.types import Unavailable


@contextmanager
def asked(what: str) -> Iterator[None]:
    """Something is asked of Ray's GCS. While that is away calls wait for it, some of them 60 s
    (RAY_gcs_server_request_timeout_seconds) and then fail, others until this process is ended by Ray.

    Raises:
        Unavailable: it does not answer, or cannot do it now.
    """
    try:
        yield
    except RayError as problem:
        raise Unavailable(f"{what}: Ray's head does not do it now ({' '.join(str(problem).split())})") from problem
