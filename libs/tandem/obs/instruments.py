"""Every instrument there is, in one table: what a process records, a scrape shows, and dashboards and alerts ask for.

A name here is the name in Prometheus, to the letter: base units, `_total` for what only grows, no suffix that an
exporter adds. Of a histogram there are `NAME_bucket`, `NAME_sum` and `NAME_count`. A unit is UCUM; in braces it only
says what is counted, so that a collector, which appends units to what comes by OTLP, has nothing to append.

`run`, `role` (of `tandem.types.Role`), `index` (replica or rank) and `node` are labels of the target, on every series;
what is in `labels` comes on top. A gauge that no process has set yet is absent, not 0.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Instrument:
    """`description` ends with the role that records it, where that is not all of them."""

    name: str
    unit: str
    description: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Counter(Instrument):
    """Only grows, until its process is replaced: ask for `rate` or `increase`."""


@dataclass(frozen=True, slots=True, eq=False)
class Gauge(Instrument):
    """Is now."""


@dataclass(frozen=True, slots=True, eq=False)
class Histogram(Instrument):
    """A distribution, counted in `buckets`: upper bounds, in the unit."""

    buckets: tuple[float, ...] = ()


FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)  # calls, file operations
TURN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
LONG = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)  # episodes, steps, saves
WIDE = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)  # RPCs, stalls

# Does it learn: the controller, of the last step
POLICY_VERSION = Gauge("tandem_policy_version", "{version}", "Policy version that the process is at or serves.")
STEPS = Counter("tandem_steps_total", "{step}", "Optimizer steps made since the start or resume. Controller.")
STEPS_PLANNED = Gauge("tandem_steps_planned", "{step}", "Version at which the run is done: run.steps. Controller.")
SOLVE = Gauge("tandem_solve_ratio", "1", "Share of the step's episodes that solved their task, sampled. Controller.")
EVAL_SOLVE = Gauge(
    "tandem_eval_solve_ratio",
    "1",
    "Share of a suite's episodes that solved their task; sampling is greedy or sampled. Controller.",
    ("suite", "sampling"),
)
RETURN = Gauge("tandem_return_mean", "{reward}", "Mean return of the step's episodes. Controller.")
PARSE_FAILURES = Gauge("tandem_parse_failure_ratio", "1", "Share of the step's turns without an action. Controller.")
SIGNAL = Gauge("tandem_groups_with_signal_ratio", "1", "Share of the step's groups with unlike members. Controller.")
STALENESS_MEAN = Gauge("tandem_staleness_mean_versions", "{version}", "Mean age of the groups learned. Controller.")
STALENESS_MAX = Gauge("tandem_staleness_max_versions", "{version}", "Age of the oldest group learned. Controller.")

# How the update went: the learner's rank 0, of the last step
LOSS = Gauge("tandem_loss", "{loss}", "Loss, mean over the step's updates. Learner.")
GRADIENT_NORM = Gauge("tandem_gradient_norm", "{norm}", "Norm of the gradient before it is clipped. Learner.")
LEARNING_RATE = Gauge("tandem_learning_rate", "{rate}", "Learning rate. Learner.")
ADVANTAGE_STD = Gauge("tandem_advantage_std", "{reward}", "Standard deviation of the advantages. Learner.")
ADVANTAGE_MAX = Gauge("tandem_advantage_max", "{reward}", "Largest advantage. Learner.")
ADVANTAGE_MIN = Gauge("tandem_advantage_min", "{reward}", "Smallest advantage. Learner.")
ENTROPY = Gauge("tandem_entropy_nats", "{nat}", "Mean entropy of a token's distribution. Learner.")
KL = Gauge("tandem_kl_nats", "{nat}", "Mean KL of the step's start to the learner, by token (k3). Learner.")
REF_KL = Gauge("tandem_ref_kl_nats", "{nat}", "Mean KL to the base model, where learner.algo.kl asks. Learner.")
CLIPPED = Gauge("tandem_clip_ratio", "1", "Share of tokens whose gradient a clip stops. Learner.")
GAP_MEAN = Gauge("tandem_logprob_gap_mean_nats", "{nat}", "Mean gap of engine and learner, by token. Learner.")
GAP_MAX = Gauge("tandem_logprob_gap_max_nats", "{nat}", "Largest gap of engine and learner of a token. Learner.")
UPDATES = Counter("tandem_updates_total", "{update}", "Optimizer updates, skipped ones too. Learner.")
UPDATES_SKIPPED = Counter("tandem_updates_skipped_total", "{update}", "Updates that were not finite. Learner.")
TOKENS_LEARNED = Counter("tandem_tokens_learned_total", "{token}", "Sampled tokens learned from. Learner.")
LEARNER_PHASE = Counter(
    "tandem_learner_phase_seconds_total",
    "s",
    "Seconds of steps by phase: pack, logprobs, vision, forward_backward, reduce, optimizer. Learner.",
    ("phase",),
)

# Where time goes: the controller
PHASE = Counter(
    "tandem_phase_seconds_total",
    "s",
    "Wall seconds by what the run waits for: generate, train, sync, eval, save, idle, data. Controller.",
    ("phase",),
)
STEP_TIME = Histogram("tandem_step_duration_seconds", "s", "A step, from first prompt to load. Controller.", (), LONG)
QUIET = Gauge("tandem_quiet_seconds", "s", "Seconds since anything at all made progress. Controller.")
UNITS_WAITING = Gauge("tandem_units_waiting", "{unit}", "Units of rollout work that no replica has yet. Controller.")
UNITS_PLAYING = Gauge("tandem_units_playing", "{unit}", "Units of rollout work that replicas have. Controller.")
UNITS_TWICE = Counter("tandem_units_repeated_total", "{unit}", "Late units begun elsewhere as well. Controller.")
JOURNAL_BACKLOG = Gauge("tandem_journal_backlog_groups", "{group}", "Groups not in the journal yet. Controller.")
GROUPS_AHEAD = Gauge("tandem_groups_ahead", "{group}", "Groups played and not learned from yet. Controller.")

# Who is there, and what failed
MEMBERS = Gauge("tandem_members", "{member}", "Members that serve, by member_role. Controller.", ("member_role",))
MEMBERS_WANTED = Gauge("tandem_members_wanted", "{member}", "Members there should be. Controller.", ("member_role",))
DEATHS = Counter(
    "tandem_deaths_total",
    "{death}",
    "Members lost; cause is out_of_memory, node_lost, killed, exited, hung, unreachable or other. Controller.",
    ("member_role", "cause"),
)
RECOVERY_TIME = Histogram(
    "tandem_recovery_duration_seconds",
    "s",
    "From a death noticed to its place served again. Controller.",
    ("member_role",),
    LONG,
)

# Playing: rollout replicas
EPISODES = Counter(
    "tandem_episodes_total",
    "{episode}",
    "Episodes ended; stop_reason is terminated, turn_limit, context_limit, or of failed ones env_error, engine_error, "
    "deadline; solved is true or false. Rollout.",
    ("stop_reason", "solved"),
)
EPISODES_RUNNING = Gauge("tandem_episodes_running", "{episode}", "Episodes being played. Rollout.")
EPISODE_TIME = Histogram("tandem_episode_duration_seconds", "s", "An episode, reset to last reply. Rollout.", (), LONG)
GROUP_TIME = Histogram("tandem_group_duration_seconds", "s", "A group, first to last member. Rollout.", (), LONG)
TURNS = Counter("tandem_turns_total", "{turn}", "Turns played; parsed is true or false. Rollout.", ("parsed",))
TURN_TIME = Histogram("tandem_turn_duration_seconds", "s", "A turn: completion and reply. Rollout.", (), TURN)
GENERATE_TIME = Histogram("tandem_generate_duration_seconds", "s", "A completion, queue and all. Rollout.", (), TURN)
ENV_TIME = Histogram(
    "tandem_env_duration_seconds",
    "s",
    "A call of an environment, waiting for a worker included; call is reset or step. Rollout.",
    ("call",),
    TURN,
)
TOKENS_GENERATED = Counter("tandem_tokens_generated_total", "{token}", "Tokens sampled. Rollout.")
TOKENS_PROMPT = Counter("tandem_tokens_prompt_total", "{token}", "Tokens of prompts, cached ones too. Rollout.")
ENGINE_RUNNING = Gauge("tandem_engine_requests_running", "{request}", "Requests the engine computes. Rollout.")
ENGINE_WAITING = Gauge("tandem_engine_requests_waiting", "{request}", "Requests the engine has queued. Rollout.")
ENGINE_KV = Gauge("tandem_engine_kv_cache_usage_ratio", "1", "Share of the KV cache in use. Rollout.")
ENGINE_PREFIX_QUERIES = Counter(
    "tandem_engine_prefix_cache_queries_total", "{token}", "Tokens looked up in the prefix cache. Rollout."
)
ENGINE_PREFIX_HITS = Counter("tandem_engine_prefix_cache_hits_total", "{token}", "Tokens found there. Rollout.")
ENGINE_PREEMPTIONS = Counter("tandem_engine_preemptions_total", "{request}", "Requests set back. Rollout.")

# Adapters and checkpoints
ADAPTER_LOAD = Histogram(
    "tandem_adapter_load_duration_seconds",
    "s",
    "An adapter read or received, checked and proved by the probe; source is store or pushed. Rollout.",
    ("source",),
    LONG,
)
PUBLISH_TO_LOAD = Histogram(
    "tandem_adapter_publish_to_load_seconds",
    "s",
    "From the learner's export to the last replica serving the version. Controller.",
    (),
    LONG,
)
SAVE_STALL = Histogram(
    "tandem_checkpoint_stall_seconds", "s", "Training held up for a save, each time. Controller.", (), WIDE
)
SAVE_TIME = Histogram(
    "tandem_checkpoint_duration_seconds", "s", "A save of the state, from copy to publication. Controller.", (), LONG
)
SAVE_FAILURES = Counter("tandem_checkpoint_failures_total", "{save}", "Saves that failed. Controller.")
PUBLISH_TIME = Histogram(
    "tandem_publish_duration_seconds",
    "s",
    "A publication; kind is adapter, model or state. Checkpoint manager.",
    ("kind",),
    LONG,
)
PUBLISHED_BYTES = Counter("tandem_published_bytes_total", "By", "Bytes published. Checkpoint manager.", ("kind",))
CHECKPOINT_BYTES = Gauge("tandem_checkpoint_bytes", "By", "Size of the latest. Checkpoint manager.", ("kind",))
CHECKPOINT_VERSION = Gauge(
    "tandem_checkpoint_version", "{version}", "Version of the latest. Checkpoint manager.", ("kind",)
)
CHECKPOINT_TIMESTAMP = Gauge(
    "tandem_checkpoint_timestamp_seconds",
    "s",
    "When the latest was published, Unix time: its age is time() - this. Checkpoint manager.",
    ("kind",),
)
MIRROR_PENDING = Gauge("tandem_mirror_pending", "{version}", "Versions yet to be copied. Checkpoint manager.")

# Storage and network, as the process sees them
STORAGE_TIME = Histogram(
    "tandem_storage_operation_duration_seconds",
    "s",
    "Of a file: reading or writing a piece, or fsync of a file or folder; store is local or object. Bytes over these "
    "seconds are the throughput of one stream.",
    ("operation", "store"),
    FAST,
)
STORAGE_BYTES = Counter(
    "tandem_storage_bytes_total", "By", "Bytes of files; operation is read or write.", ("operation", "store")
)
RPC_TIME = Histogram(
    "tandem_rpc_duration_seconds",
    "s",
    "A call as its side saw it: side is client or server, method Service/Method, code gRPC's status (OK, ...); a "
    "stream lasts until its end.",
    ("side", "method", "code"),
    WIDE,
)
RPC_BYTES = Counter(
    "tandem_rpc_bytes_total",
    "By",
    "Bytes of messages; direction is sent or received. Server.",
    ("method", "direction"),
)

# GPUs (NVML) and what it all costs
GPU_BUSY = Gauge("tandem_gpu_utilization_ratio", "1", "Share of time that a kernel ran. Rollout, learner.", ("gpu",))
GPU_USED = Gauge("tandem_gpu_memory_used_bytes", "By", "Memory in use, by whomever. Rollout, learner.", ("gpu",))
GPU_MEMORY = Gauge("tandem_gpu_memory_total_bytes", "By", "Memory there is. Rollout, learner.", ("gpu",))
GPU_POWER = Gauge("tandem_gpu_power_watts", "W", "Power drawn. Rollout, learner.", ("gpu",))
GPU_TEMPERATURE = Gauge("tandem_gpu_temperature_celsius", "Cel", "Temperature. Rollout, learner.", ("gpu",))
GPU_SECONDS = Counter("tandem_gpu_seconds_total", "s", "Seconds times GPUs that the run held. Controller.")
COST = Counter("tandem_cost_total", "{money}", "What the run cost by the recipe's prices. Controller.", ("currency",))

ALL: tuple[Instrument, ...] = tuple(found for found in list(globals().values()) if isinstance(found, Instrument))
