"""The few exceptions that cross module walls. `tandem.rpc.errors` maps each to a gRPC status and back."""


class TandemError(Exception):
    """Base of every error Tandem raises on purpose."""


class UserError(TandemError):
    """The caller asked for something impossible. The message is one line: what, where, what to do. Never retried."""


class StaleRequest(TandemError):
    """The request names a policy version the service is not at. The caller must look again before it asks again."""


class NotFound(TandemError):
    """What was asked for by name or version is not there."""


class Forbidden(TandemError):
    """The caller did not prove who it is, or its role may not ask that. Never retried."""


class Unavailable(TandemError):
    """A service or engine is not there right now. Trying again later, or elsewhere, may work."""


class DataCorrupt(TandemError):
    """Bytes do not match their checksum or their description. Names the file; never retried on the same bytes."""


def exit_code(problem: TandemError) -> int:
    """What a command line exits with: 2 where its user must change something first, else 1."""
    return 2 if isinstance(problem, UserError | NotFound | DataCorrupt | Forbidden) else 1
