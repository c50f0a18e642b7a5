"""What the runs that suffer are like: small, deterministic, with a save after each step."""

GROUPS = 8  # a step
SETTINGS = (
    "run.deterministic=true",
    "env.max_turns=40",  # so that even who walks at random gets somewhere, and there is something to learn
    "rollout.replicas=2",
    f"rollout.groups_per_step={GROUPS}",
    "rollout.group_size=4",
    "rollout.engine.kind=simulated",
    "rollout.engine.max_model_len=256",
    "learner.world_size=2",
    "learner.lr_final=1",
    "checkpoint.state_every=1",
    "checkpoint.keep=100000",
    "eval.fixed=4",
    "eval.every=3",
    "eval.styles=0",
    "eval.larger=0",
    "faults.restarts=8",
    "faults.stall_s=20",
    "cluster.start_timeout_s=120",
)
TURNS = ("rollout.engine.simulated.turn_s=0.03", "rollout.engine.simulated.spread=0.5")
VLLM = ("rollout.engine.request_timeout_s=30", "cluster.start_timeout_s=300")  # an engine that hangs is missed in time
