"""A run's status <-> messages of tandem.controller.v1."""

from __future__ import annotations

from typing import Any

from tandem.rpc.gen.controller.v1 import controller_pb2 as pb
from tandem.types import (
    Death,
    Identity,
    Member,
    MemberStatus,
    Problem,
    Recovery,
    Role,
    RunStatus,
    StepFigures,
    UserError,
)

_ROLE: dict[Role, Any] = {role: pb.Role.Value(f"ROLE_{role.name}") for role in Role}
_ROLE_BACK = {value: role for role, value in _ROLE.items()}


def encode_status(status: RunStatus) -> pb.GetStatusResponse:
    """To the wire."""
    return pb.GetStatusResponse(
        name=status.name,
        run_id=status.run_id,
        started=status.started,
        version=status.version,
        steps=status.steps,
        phase=status.phase,
        phase_s=status.phase_s,
        quiet_s=status.quiet_s,
        members=[
            pb.MemberStatus(member=_member(m.member), state=m.state, version=m.version, since=m.since)
            for m in status.members
        ],
        waits=status.waits,
        pending=status.pending,
        recoveries=[_recovery(recovery) for recovery in status.recoveries],
        groups=status.groups,
        groups_wanted=status.groups_wanted,
        recent=[_step(step) for step in status.recent],
        problems=[pb.Problem(at=problem.at, text=problem.text) for problem in status.problems],
    )


def decode_status(message: pb.GetStatusResponse) -> RunStatus:
    """From the wire."""
    return RunStatus(
        name=message.name,
        run_id=message.run_id,
        started=message.started,
        version=message.version,
        steps=message.steps,
        phase=message.phase,
        phase_s=message.phase_s,
        quiet_s=message.quiet_s,
        members=tuple(
            MemberStatus(_member_back(m.member), m.state, m.version if m.HasField("version") else None, m.since)
            for m in message.members
        ),
        waits=tuple(message.waits),
        pending=tuple(message.pending),
        recoveries=tuple(_recovery_back(recovery) for recovery in message.recoveries),
        groups=message.groups,
        groups_wanted=message.groups_wanted,
        recent=tuple(map(_step_back, message.recent)),
        problems=tuple(Problem(problem.at, problem.text) for problem in message.problems),
    )


def _member(member: Member) -> pb.Member:
    who = member.identity
    return pb.Member(
        role=_ROLE[who.role],
        index=who.index,
        generation=who.generation,
        address=member.address,
        node=member.node,
    )


def _member_back(message: pb.Member) -> Member:
    if message.role not in _ROLE_BACK:
        raise UserError(f"role {message.role} is not known here; install the same Tandem release on both sides")
    identity = Identity(_ROLE_BACK[message.role], message.index, message.generation)
    return Member(identity, message.address, message.node)


def _recovery(recovery: Recovery) -> pb.Recovery:
    return pb.Recovery(
        member=_member(recovery.death.member),
        why=recovery.death.why,
        last_lines=recovery.death.last_lines,
        at=recovery.at,
        action=recovery.action,
        seconds=recovery.seconds,
    )


def _recovery_back(message: pb.Recovery) -> Recovery:
    death = Death(_member_back(message.member), message.why, tuple(message.last_lines))
    return Recovery(death, message.at, message.action, message.seconds if message.HasField("seconds") else None)


_OPTIONAL = ("solve_rate", "reward", "loss", "eval_solve_rate")


def _step(step: StepFigures) -> pb.StepFigures:
    return pb.StepFigures(
        version=step.version,
        phases=[pb.PhaseTime(name=name, seconds=seconds) for name, seconds in step.phases],
        episodes=step.episodes,
        turns=step.turns,
        **{name: value for name in _OPTIONAL if (value := getattr(step, name)) is not None},
    )


def _step_back(message: pb.StepFigures) -> StepFigures:
    return StepFigures(
        version=message.version,
        phases=tuple((phase.name, phase.seconds) for phase in message.phases),
        episodes=message.episodes,
        turns=message.turns,
        **{name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)},
    )
