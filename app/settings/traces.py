"""Where traces go, as the operator wishes: the section `traces` of `gateway.yaml`.

It refuses to know what a trace is made of.
"""

from pydantic import Field

from app.settings.field_types import CollectorUrl
from app.settings.section import Section


class TracesSettings(Section):
    """Spans for OpenTelemetry; needs the extra `otel`."""

    endpoint: CollectorUrl | None = None
    """A collector of OTLP over HTTP, such as `http://collector:4318/v1/traces`; None: no spans are made."""
    ratio: float = Field(default=1.0, ge=0, le=1)
    """Which share of the traces that begin here is kept; of the others, whoever began them decides."""
