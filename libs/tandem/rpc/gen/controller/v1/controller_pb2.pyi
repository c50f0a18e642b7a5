from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_CONTROLLER: _ClassVar[Role]
    ROLE_ROLLOUT: _ClassVar[Role]
    ROLE_LEARNER: _ClassVar[Role]
    ROLE_CHECKPOINT_MANAGER: _ClassVar[Role]
    ROLE_OPERATOR: _ClassVar[Role]
ROLE_UNSPECIFIED: Role
ROLE_CONTROLLER: Role
ROLE_ROLLOUT: Role
ROLE_LEARNER: Role
ROLE_CHECKPOINT_MANAGER: Role
ROLE_OPERATOR: Role

class Member(_message.Message):
    __slots__ = ("role", "index", "generation", "address", "node")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    role: Role
    index: int
    generation: int
    address: str
    node: str
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., index: _Optional[int] = ..., generation: _Optional[int] = ..., address: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("member", "state", "version", "since")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    member: Member
    state: str
    version: int
    since: float
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., state: _Optional[str] = ..., version: _Optional[int] = ..., since: _Optional[float] = ...) -> None: ...

class Recovery(_message.Message):
    __slots__ = ("member", "why", "last_lines", "at", "action", "seconds")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    member: Member
    why: str
    last_lines: _containers.RepeatedScalarFieldContainer[str]
    at: float
    action: str
    seconds: float
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., why: _Optional[str] = ..., last_lines: _Optional[_Iterable[str]] = ..., at: _Optional[float] = ..., action: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class PhaseTime(_message.Message):
    __slots__ = ("name", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds: float
    def __init__(self, name: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class StepFigures(_message.Message):
    __slots__ = ("version", "phases", "episodes", "turns", "solve_rate", "reward", "loss", "eval_solve_rate")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    SOLVE_RATE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    EVAL_SOLVE_RATE_FIELD_NUMBER: _ClassVar[int]
    version: int
    phases: _containers.RepeatedCompositeFieldContainer[PhaseTime]
    episodes: int
    turns: int
    solve_rate: float
    reward: float
    loss: float
    eval_solve_rate: float
    def __init__(self, version: _Optional[int] = ..., phases: _Optional[_Iterable[_Union[PhaseTime, _Mapping]]] = ..., episodes: _Optional[int] = ..., turns: _Optional[int] = ..., solve_rate: _Optional[float] = ..., reward: _Optional[float] = ..., loss: _Optional[float] = ..., eval_solve_rate: _Optional[float] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("at", "text")
    AT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    at: float
    text: str
    def __init__(self, at: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("name", "run_id", "started", "version", "steps", "phase", "phase_s", "quiet_s", "members", "waits", "pending", "recoveries", "groups", "groups_wanted", "recent", "problems")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PHASE_S_FIELD_NUMBER: _ClassVar[int]
    QUIET_S_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_WANTED_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    run_id: str
    started: float
    version: int
    steps: int
    phase: str
    phase_s: float
    quiet_s: float
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    waits: _containers.RepeatedScalarFieldContainer[str]
    pending: _containers.RepeatedScalarFieldContainer[str]
    recoveries: _containers.RepeatedCompositeFieldContainer[Recovery]
    groups: int
    groups_wanted: int
    recent: _containers.RepeatedCompositeFieldContainer[StepFigures]
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    def __init__(self, name: _Optional[str] = ..., run_id: _Optional[str] = ..., started: _Optional[float] = ..., version: _Optional[int] = ..., steps: _Optional[int] = ..., phase: _Optional[str] = ..., phase_s: _Optional[float] = ..., quiet_s: _Optional[float] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., waits: _Optional[_Iterable[str]] = ..., pending: _Optional[_Iterable[str]] = ..., recoveries: _Optional[_Iterable[_Union[Recovery, _Mapping]]] = ..., groups: _Optional[int] = ..., groups_wanted: _Optional[int] = ..., recent: _Optional[_Iterable[_Union[StepFigures, _Mapping]]] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("request_id", "rollout", "learner")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    rollout: int
    learner: int
    def __init__(self, request_id: _Optional[str] = ..., rollout: _Optional[int] = ..., learner: _Optional[int] = ...) -> None: ...

class ScaleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("request_id", "node", "why")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    node: str
    why: str
    def __init__(self, request_id: _Optional[str] = ..., node: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
