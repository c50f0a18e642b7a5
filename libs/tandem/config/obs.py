"""The section on what a run says of itself."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from tandem.config.section import Positive, Section, Share


class ObsConfig(Section):
    """Logs, traces and metrics."""

    log_format: Literal["console", "json"] = Field(
        default="console", description="Log lines for people, or one JSON object each."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="The least told.")
    otlp: str = Field(
        default="",
        description="URL of an OpenTelemetry collector that takes OTLP over gRPC, such as http://127.0.0.1:4317; "
        "empty: no traces, and no metrics are pushed. For one that asks for more, set OTEL_EXPORTER_OTLP_HEADERS or "
        "_CERTIFICATE.",
    )
    trace_sample: Share = Field(
        default=1.0, description="Share of groups, by seed, whose episodes and turns are traced; all else always is."
    )
    trace_spans: Positive = Field(
        default=300, description="About the most spans of episodes and turns in a step: the share is lowered to that."
    )

    prometheus: bool = Field(
        default=False,
        description="Each process serves its metrics at a free port; `prometheus.json` in the run directory names all.",
    )

    @property
    def measured(self) -> bool:
        """Whether metrics are recorded."""
        return bool(self.prometheus or self.otlp)

    @field_validator("otlp")
    @classmethod
    def _is_reachable(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError(f"otlp {url}: give http://HOST:PORT, or https where the collector speaks TLS")
        return url
