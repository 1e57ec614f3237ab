"""Hints about what hits say, as the operator wishes them: the section `screen` of `gateway.yaml`.

It refuses to know what is taken for a hint.
"""

from typing import Literal

from pydantic import Field

from app.settings.section import Section


class ScreenSettings(Section):
    """Hints about what hits say; none of it is a safeguard."""

    injection: Literal["off", "mark", "drop"] = "off"
    """Hits whose text looks like instructions aimed at a model: left alone, marked, or left out."""
    feedback: bool = False
    """Whether hits that a tenant reported as poisoned are marked for that tenant."""
    feedback_ttl_seconds: int = Field(default=86_400, ge=1, le=31_536_000)
    """How long such a report is remembered after the tenant's last."""
    max_reported: int = Field(default=10_000, ge=1, le=1_000_000)
    """Reported ids remembered of one tenant; of more, the oldest are forgotten first."""
