"""The sections `log`, `traces` and `admin` of `gateway.yaml`: what operators see and may do."""

from typing import Literal

from pydantic import Field

from app.settings.fields import CollectorUrl, LinkUrl, Section


class LogSettings(Section):
    """Logging on stderr."""

    format: Literal["json", "console"] = "json"
    """JSON lines, or text for a terminal."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    bodies: bool = False
    """Whether the log line of a request contains its query. Hits are never logged."""
    max_per_kind: int = Field(default=100, ge=0, le=1_000_000)
    """Maximum lines of one kind of event in `per_kind_seconds`; `suppressed` counts the rest
    (docs/reference/signals.md). 0: no limit."""
    per_kind_seconds: float = Field(default=10.0, ge=0.1, le=3600)
    """Period of `max_per_kind`, and interval at which `suppressed` is logged."""


class TracesSettings(Section):
    """OpenTelemetry tracing. Needs the extra `otel`."""

    endpoint: CollectorUrl | None = None
    """OTLP/HTTP collector, such as `http://collector:4318/v1/traces`. Without it no spans are created."""
    ratio: float = Field(default=1.0, ge=0, le=1)
    """Sampling ratio of traces that start here. For other traces the caller's decision is kept."""


class AdminSettings(Section):
    """Operator functions."""

    drills: bool = False
    """Whether operators may inject faults into engines (docs/guides/console.md)."""
    dashboard_url: LinkUrl | None = None
    """Link of the console to a dashboard, such as Grafana's."""
    runbook_url: LinkUrl | None = None
    """Link of the console to the runbook, such as docs/guides/runbook.md on your own site."""
    logs_url: LinkUrl | None = None
    """Link of the console to the logs. `{request_id}` is replaced by the id of a request."""
