"""Which engines may answer a call of a method other than `retrieve`, in order, and why the others may not. Pure.

An engine is selected by what it advertises, never by its health, and every engine left out has a reason.
"""

from collections.abc import Callable
from typing import NamedTuple

from app.federation.calls import Call
from app.federation.engine_interface import Engine
from app.federation.membership import Members
from app.federation.outcome import Outcome, never_reached, no_engine_answered, skipped
from app.federation.request_options import closes_cycle, loop_reason, requested_engines
from app.protocol.advertisement import Advertisement
from app.protocol.errors import (
    BackendUnavailable,
    CapabilityMissing,
    InvalidParams,
    OptionUnsupported,
    RcpError,
)
from app.protocol.retrieve_params import GatewayOptions


class UnfitEngine(NamedTuple):
    """Why an engine cannot take this call: an option it does not advertise, more than it takes, or what it is."""

    detail: str
    option: str | None = None
    """Named in the error if no engine fits: -32005."""
    field: str | None = None
    """Named in the error if no engine fits, with precedence over any option: -32602."""
    most: int = 0
    """The limit that the engine has for the field."""

    @property
    def kind(self) -> str:
        """The reason in the report."""
        return "limit" if self.field is not None else "option" if self.option is not None else "unfit"


Fit = Callable[[Engine, Advertisement], UnfitEngine | None]
"""Whether an engine that advertises the capability can take this call."""


def any_fits(engine: Engine, advertisement: Advertisement) -> UnfitEngine | None:
    """Every engine that advertises the capability can take the call."""
    return None


class Candidates(NamedTuple):
    """The engines that may be asked, by priority (highest first), then by id."""

    capability: str
    engines: tuple[Engine, ...]
    skipped: tuple[Outcome, ...] = ()
    lost: tuple[Outcome, ...] = ()
    """Engines that the request names and that have never been reached: they count as failed."""
    misfits: tuple[UnfitEngine, ...] = ()

    def no_candidate_error(self) -> RcpError:
        """The error of a call that no engine can take."""
        reasons = "; ".join(f"{outcome.engine}: {outcome.detail}" for outcome in (*self.skipped, *self.lost))
        too_much = [misfit for misfit in self.misfits if misfit.field is not None]
        if too_much:
            # The error names the largest limit: a request within it would have been accepted.
            widest = max(too_much, key=lambda misfit: misfit.most)
            return InvalidParams(widest.detail, field=widest.field, detail=reasons)
        option = next((misfit.option for misfit in self.misfits if misfit.option is not None), None)
        if option is not None:
            return OptionUnsupported(
                f"no available engine supports '{option}' as requested", option=option, detail=reasons
            )
        if self.lost:
            return no_engine_answered(self.lost, out_of_time=False)
        # No engine was lost or unfit, so the reason is in the request or in the registry.
        kinds = {outcome.kind for outcome in self.skipped}
        if "loop" in kinds:
            return BackendUnavailable(
                "every engine that could answer is already in the federation path", retryable=False, detail=reasons
            )
        if "not_selected" in kinds:
            return BackendUnavailable(
                f"none of the requested engines offers '{self.capability}'", retryable=False, detail=reasons
            )
        return CapabilityMissing(f"no engine behind this gateway offers '{self.capability}'", detail=reasons)


def candidates_for(
    call: Call, members: Members, capability: str, gateway: GatewayOptions, fit: Fit = any_fits
) -> Candidates:
    """The engines that may be asked. Raises InvalidParams if the call names an engine that is not configured."""
    named = requested_engines(gateway, members)
    fitting: list[Engine] = []
    left_out = [skipped(name, "disabled", "disabled") for name in members.disabled]
    lost: list[Outcome] = []
    misfits: list[UnfitEngine] = []
    for engine in members.engines:
        advertisement = engine.advertisement
        # The order of these conditions is the order of reasons in the report.
        if named is not None and engine.id not in named:
            left_out.append(skipped(engine.id, "not_selected", "the request names other engines"))
        elif advertisement is None:
            # Unknown capabilities: skipped silently unless the request names the engine.
            why = engine.down_reason or "not connected yet"
            if named is None:
                left_out.append(skipped(engine.id, "unreached", why))
            else:
                lost.append(never_reached(engine.id, why))
        elif not advertisement.offers(capability):
            left_out.append(skipped(engine.id, "capability", f"does not advertise {capability}"))
        elif closes_cycle(advertisement, call, members):
            detail = f"its gateway ({advertisement.gateway_id}) is already in the federation path"
            left_out.append(skipped(engine.id, "loop", detail))
        elif (misfit := fit(engine, advertisement)) is not None:
            misfits.append(misfit)
            left_out.append(skipped(engine.id, misfit.kind, misfit.detail))
        else:
            fitting.append(engine)
    return Candidates(capability, tuple(fitting), tuple(left_out), tuple(lost), tuple(misfits))


def check_route(call: Call, members: Members) -> None:
    """Raises BackendUnavailable (-32010) for a call that must not be forwarded at all (RCP §16).

    Unlike for `retrieve`, an empty result would be wrong here.
    """
    stop = loop_reason(call, members)
    if stop is not None:
        raise BackendUnavailable(f"no engine was asked: {stop[1]}", retryable=False)
