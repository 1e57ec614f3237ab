"""The metrics of callers: who asked, who was turned away, and which hits were looked at askance for whom.

Label values are declared tenants and the words below, so that no caller can add a series.
"""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter

from app.telemetry.plain_metrics import counter

NOBODY = "-"
"""The tenant of a caller that nobody knows; no tenant can be called that."""
REFUSALS = ("unauthenticated", "forbidden", "requests", "concurrent", "hits")
"""Why a caller is turned away: nobody knows it, it lacks a role, or a limit of its tenant is reached."""
SCREENED = ("marked", "dropped", "reported")
"""What a screen does with a hit: marks it, leaves it out, or marks it because its tenant reported it."""


class CallerMetrics:
    """Who asks, who is turned away, and which hits were looked at askance."""

    def __init__(self, registry: CollectorRegistry, outcomes: Sequence[str]) -> None:
        """`outcomes`: how a request can end."""
        self._outcomes = outcomes
        self._requests = counter(
            "rcp_gateway_tenant_requests", "Requests answered to a tenant.", ["tenant", "outcome"], registry
        )
        self._refusals = Counter(
            "rcp_gateway_refusals", "Callers turned away, and why.", ["tenant", "reason"], registry=registry
        )
        self._screened = Counter(
            "rcp_gateway_hits_screened", "Hits that a screen marked or left out.", ["action"], registry=registry
        )
        self._refusals.labels(NOBODY, "unauthenticated")
        for action in SCREENED:
            self._screened.labels(action)

    def declare(self, tenants: Iterable[str]) -> None:
        """Let every series of these tenants exist with 0."""
        for tenant in tenants:
            for outcome in self._outcomes:
                self._requests.labels(tenant, outcome)
            for reason in REFUSALS[1:]:
                self._refusals.labels(tenant, reason)

    def request(self, tenant: str, outcome: str) -> None:
        """One request of this tenant answered; `outcome` is how it ended."""
        self._requests.labels(tenant, outcome).inc()

    def refusal(self, tenant: str | None, reason: str) -> None:
        """A caller was turned away; `reason` is one of REFUSALS, `tenant` None for somebody that nobody knows."""
        self._refusals.labels(NOBODY if tenant is None else tenant, reason).inc()

    def screened(self, action: str, hits: int) -> None:
        """A screen marked or left out so many hits; `action` is one of SCREENED."""
        self._screened.labels(action).inc(hits)
