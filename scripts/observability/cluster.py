"""Cluster: members and their deaths, calls between them, processes, GPUs, and Ray's own view of the nodes."""

from __future__ import annotations

from typing import Any

from scripts.observability.panels import HALF, QUARTER, RAY_UID, choice, lines, note, number, page, times
from scripts.observability.queries import WINDOW, busy, grown, highest, quantile, rate, select, share, so_far, total

from tandem.obs import instruments as of

MINE = 'run="$run",role=~"$role"'
WHO = "{{role}}[{{index}}]"
GPUS = "GPU panels need NVML: a machine with NVIDIA GPUs."
RAY = (
    "From here on the figures are Ray's, of all jobs on the cluster: Prometheus must scrape Ray as well "
    f"(docs/observability.md). More: [Ray's own dashboard](/d/{RAY_UID})."
)


def cluster() -> Any:
    """The page."""
    roles = choice("role", "Role", 'label_values(process_resident_memory_bytes{run="$run"}, role)')
    return page(
        "tandem-cluster",
        "Members, calls, processes, GPUs, nodes.",
        [
            ("", _figures()),
            ("Members", _members()),
            ("Calls", _calls()),
            ("Processes", _processes()),
            ("GPUs", _gpus()),
            ("Ray", [note("", RAY, height=2), *_ray()]),
        ],
        [roles],
    )


def _figures() -> list[Any]:
    missing = f"{total(select(of.MEMBERS_WANTED))} - {total(select(of.MEMBERS))}"
    return [
        number("Members", "That serve.", total(select(of.MEMBERS))),
        number("Missing", "Wanted and not there.", missing, steps=((1, "red"),)),
        number("Deaths", "In the shown time.", grown(of.DEATHS), steps=((1, "yellow"), (10, "red")), curve=False),
        number("Targets scraped", "Of this run.", 'sum(up{run="$run"})'),
        number("GPU hours", "Since start or resume.", f"{so_far(of.GPU_SECONDS)} / 3600"),
        number("Cost", "By the recipe's prices.", so_far(of.COST, "currency"), legend="{{currency}}"),
        number("Memory", "Of all processes.", 'sum(process_resident_memory_bytes{run="$run"})', "bytes"),
        number("Processors", "Busy.", 'sum(rate(process_cpu_seconds_total{run="$run"}[$__rate_interval]))'),
    ]


def _members() -> list[Any]:
    return [
        lines(
            "Members",
            "That serve, and that there should be.",
            [
                (total(select(of.MEMBERS), "member_role"), "{{member_role}}"),
                (total(select(of.MEMBERS_WANTED), "member_role"), "{{member_role}}, wanted"),
            ],
        ),
        lines(
            "Deaths",
            "By role and cause, in the interval that a point stands for.",
            [(grown(of.DEATHS, "member_role", "cause", window=WINDOW), "{{member_role}}: {{cause}}")],
        ),
        times("Recovery", "From a death noticed to its place served again.", of.RECOVERY_TIME, "member_role"),
    ]


def _calls() -> list[Any]:
    return [
        lines(
            "Slowest methods",
            "95th percentile, as the caller saw it; streams last until their end.",
            [(quantile(0.95, of.RPC_TIME, "method", scope=MINE, side="client"), "{{method}}")],
            "s",
            exemplars=True,
        ),
        lines(
            "Calls that failed",
            "A minute, by method and status.",
            [(f"60 * {total(_failed_calls(), 'method', 'code')}", "{{method}}: {{code}}")],
        ),
        lines(
            "Calls at once",
            "By method, on average.",
            [(busy(of.RPC_TIME, "method", scope=MINE, side="server"), "{{method}}")],
        ),
        lines(
            "Bytes of messages",
            "Of all methods.",
            [(rate(of.RPC_BYTES, "direction", scope=MINE), "{{direction}}")],
            "Bps",
            width=HALF,
        ),
        lines(
            "Bytes by method",
            "Received by servers.",
            [(rate(of.RPC_BYTES, "method", scope=MINE, direction="received"), "{{method}}")],
            "Bps",
            width=HALF,
        ),
    ]


def _failed_calls() -> str:
    failed = select(of.RPC_TIME, f'{MINE},code!="OK"', suffix="_count", side="client")
    return f"rate({failed}[$__rate_interval])"


def _processes() -> list[Any]:
    return [
        lines("Memory", "Resident, by process.", [(f"process_resident_memory_bytes{{{MINE}}}", WHO)], "bytes"),
        lines(
            "Processors",
            "Busy, by process.",
            [(f"rate(process_cpu_seconds_total{{{MINE}}}[$__rate_interval])", WHO)],
        ),
        lines("Open files", "By process.", [(f"process_open_fds{{{MINE}}}", WHO)]),
    ]


def _gpus() -> list[Any]:
    by = ("node", "gpu")
    used = share(highest(select(of.GPU_USED), *by), highest(select(of.GPU_MEMORY), *by))
    name = "{{node}} GPU {{gpu}}"
    return [
        lines(
            "GPU busy", GPUS, [(highest(select(of.GPU_BUSY), *by), name)], "percentunit", width=QUARTER, percent=True
        ),
        lines("GPU memory", GPUS, [(used, name)], "percentunit", width=QUARTER, percent=True),
        lines("GPU power", GPUS, [(highest(select(of.GPU_POWER), *by), name)], "watt", width=QUARTER),
        lines("GPU temperature", GPUS, [(highest(select(of.GPU_TEMPERATURE), *by), name)], "celsius", width=QUARTER),
    ]


def _ray() -> list[Any]:
    memory = "sum by (instance) (ray_node_mem_used_host) / sum by (instance) (ray_node_mem_total_host)"
    return [
        lines("Node processors", "Ray: busy, in percent.", [("ray_node_cpu_utilization", "{{instance}}")], "percent"),
        lines("Node memory", "Ray: in use.", [(memory, "{{instance}}")], "percentunit", percent=True),
        lines(
            "Node network",
            "Ray: sent and received.",
            [
                ("ray_node_network_send_speed", "{{instance}} sent"),
                ("ray_node_network_receive_speed", "{{instance}} received"),
            ],
            "Bps",
        ),
    ]
