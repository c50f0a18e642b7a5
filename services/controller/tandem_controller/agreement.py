"""Do all replicas serve the same? What is to be thought of those that answer otherwise than most, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tandem.types import AdapterLoaded, AdapterRef, Member, StaleRequest, TandemError, Unavailable

T = TypeVar("T")
GONE = (Unavailable, StaleRequest)  # not there, or not who it was: says nothing of what was asked


def sift(answers: Mapping[Member, T | TandemError]) -> tuple[dict[Member, T], dict[Member, TandemError]]:
    """The answers, and the failures of members that are at fault themselves: most others could do it.

    Raises:
        TandemError: the first failure, where it is not so clear who is at fault.
    """
    failed = {member: said for member, said in answers.items() if isinstance(said, TandemError)}
    good = {member: said for member, said in answers.items() if not isinstance(said, TandemError)}
    refused = [problem for problem in failed.values() if not isinstance(problem, GONE)]
    if refused and len(good) <= len(refused):
        raise refused[0]
    return good, failed


def agreed(
    adapter: AdapterRef, answers: Mapping[Member, AdapterLoaded | TandemError], tolerance: float
) -> tuple[dict[Member, AdapterLoaded], dict[Member, TandemError]]:
    """Those that serve `adapter`, which they have proved by answers that are alike: probes are at most `tolerance`
    nats apart. And why the others do not.

    Raises:
        TandemError: there is no majority that does. As `sift`, too.
    """
    good, failed = sift({member: acknowledged(adapter, member, said) for member, said in answers.items()})
    probes = sorted(answer.probe_logprob for answer in good.values())
    spans = [(least, sum(least <= probe <= least + tolerance for probe in probes)) for least in probes]
    least, most = max(spans, key=lambda span: span[1], default=(0.0, 0))
    if 0 < len(good) < 2 * most or len(good) == most:
        alike = {m: a for m, a in good.items() if least <= a.probe_logprob <= least + tolerance}
        off = {
            member: TandemError(
                f"version {adapter.version}: {member} serves another policy than most: the probe's logprob is "
                f"{answer.probe_logprob:.6f} there and {least:.6f} elsewhere"
            )
            for member, answer in good.items()
            if member not in alike
        }
        return alike, {**failed, **off}
    (one, first), *_, (other, last) = sorted(good.items(), key=lambda item: item[1].probe_logprob)
    raise TandemError(
        f"version {adapter.version}: {one} and {other} serve different policies: the probe's logprob is "
        f"{first.probe_logprob:.6f} and {last.probe_logprob:.6f}"
    )


def acknowledged(adapter: AdapterRef, member: Member, said: AdapterLoaded | TandemError) -> AdapterLoaded | TandemError:
    """What a member said, or a failure where it serves something else than `adapter`."""
    if isinstance(said, TandemError):
        return said
    if said.policy_version != adapter.version or (adapter.url and said.sha256 != adapter.sha256):
        return TandemError(
            f"{member} acknowledged version {said.policy_version} ({said.sha256[:12]}), "
            f"not {adapter.version} ({adapter.sha256[:12]})"
        )
    return said


def proved(adapter: AdapterRef, member: Member, said: AdapterLoaded, probe: float | None, tolerance: float) -> float:
    """A newcomer's probe; `probe` is that of those who serve `adapter` already, where there are any.

    Raises:
        TandemError: it serves something else.
    """
    if isinstance(answer := acknowledged(adapter, member, said), TandemError):
        raise answer
    if probe is not None and abs(answer.probe_logprob - probe) > tolerance:
        raise TandemError(
            f"version {adapter.version}: {member} serves another policy than the others: the probe's logprob is "
            f"{answer.probe_logprob:.6f} there and {probe:.6f} elsewhere"
        )
    return answer.probe_logprob
