"""The operator endpoints: views of engines, calibration, overlap and settings, plans, fusion, and actions.

All but `/engines` require an operator. No response contains a credential or the text of a hit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.admin_actions import AdminActions
from app.api.admin_views import (
    calibration_view,
    engines_view,
    overlap_view,
    policies_view,
    settings_view,
    shadows_view,
    sources_view,
)
from app.api.auth.principal import AuthError
from app.api.caller import Caller
from app.api.gateway_state import GatewayState
from app.api.health_view import health_view
from app.api.methods import RpcMethods
from app.api.operator_access import (
    READ_METHODS,
    Operator,
    OperatorRefused,
    authorize_operator,
    body_of,
    operator_refusal,
)
from app.api.reload import Reload
from app.engines.engine import RemoteEngine
from app.federation.explain import describe_fusion, describe_plan
from app.federation.planner import plan_retrieve
from app.federation.retrieve import fusion_settings_of
from app.federation.tenants import ADMIN
from app.fusion.calibration import load_calibration
from app.fusion.explanation import shares_of
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from app.protocol import envelope
from app.protocol.content import simplest_params
from app.protocol.errors import NotFound, RcpError, Unauthorized
from app.protocol.fuse_params import Refusion, read_refusion

FUSE = "/admin/fuse"
LISTS_BYTES = 8_388_608
"""Body limit of `/admin/fuse`, if it exceeds that of callers: enough for the lists of 50 engines with 200 hits each."""

Json = dict[str, Any]
View = Callable[[Operator], Json | Awaitable[Json]]
Action = Callable[[Json, Operator], Awaitable[Json]]

SCOPE = "process"
"""The scope of all views: each worker process has its own breakers, limits and replicas."""


def admin(state: GatewayState, environ: Mapping[str, str], reload: Reload | None = None) -> APIRouter:
    """The operator routes of one gateway. `environ` and `reload` show the sources of settings."""
    router = APIRouter()
    answers, actions = RpcMethods(state), AdminActions(state)

    @router.api_route("/engines", methods=READ_METHODS)
    async def engines(request: Request) -> Response:
        seen: Sequence[RemoteEngine] = [one for one in state.engines.engines if one.entry.shadow is None]
        # Open to all callers, who see their own engines only; operators see all of them.
        if state.authenticator is not None:
            try:
                tenant = (await state.authenticator.identify(request.scope)).tenant
            except AuthError as error:
                return refusal(error)
            if ADMIN not in tenant.roles:
                seen = [engine for engine in seen if state.membership.sees(tenant, engine.id)]
        return _json({"engines": [_engine(engine) for engine in seen], "scope": SCOPE})

    async def plan(body: Json, operator: Operator) -> Json:
        # Planned exactly as `retrieve` does it, so that the explanation cannot differ from the real plan.
        body = simplest_params("retrieve", body)
        call = answers.retrieve_call(body, Caller("explain", tenant=operator.tenant))
        members = state.membership.current(operator.tenant)
        now = asyncio.get_running_loop().time()
        blend = fusion_settings_of(call, state.settings)
        return {"plan": describe_plan(plan_retrieve(call, members, now, state.settings.retrieve, blend))}

    async def refuse(body: Json, operator: Operator) -> Json:
        return refused(read_refusion(body))

    async def act(body: Json, operator: Operator) -> Json:
        return {"said": await actions.act(body, operator)}

    views: dict[str, View] = {
        "/admin/session": lambda operator: _session(state, operator),
        "/admin/health": lambda operator: health_view(state),
        "/admin/engines": lambda operator: engines_view(state, actions.drills),
        "/admin/calibration": lambda operator: calibration_view(state),
        "/admin/selection": lambda operator: state.selector.state(state.settings.select),
        "/admin/shadows": lambda operator: shadows_view(state),
        "/admin/cache": lambda operator: state.answers.state(state.settings.cache),
        "/admin/overlap": lambda operator: overlap_view(state.instrumentation.overlap.agreement()),
        "/admin/sources": lambda operator: sources_view(state, reload),
        "/admin/settings": lambda operator: settings_view(state, environ, reload),
    }
    actions_by_path: dict[str, Action] = {"/admin/explain": plan, FUSE: refuse, "/admin/actions": act}
    for path, view in views.items():
        router.add_api_route(path, _view_endpoint(state, view), methods=READ_METHODS)
    for path, action in actions_by_path.items():
        router.add_api_route(path, _action_endpoint(state, action), methods=["POST"])
    return router


def refusal(error: AuthError) -> Response:
    """The response for an authentication error, the same as at the RCP endpoint."""
    return _error_response(operator_refusal(error))


def refused(params: Refusion) -> Json:
    """Fuse the lists of a request with the fusion of `retrieve`: the first `k` documents, and their shares."""
    options = FusionConfig(params.method, params.rrf_k, params.confidence_weight, silent=params.silent)
    lists = [
        RankedList(
            engine=sent.engine,
            # Only what fusion reads. Texts are not sent, so documents are identified by key alone.
            hits=[{"id": hit.key, "score": hit.score, "confidence": hit.confidence} for hit in sent.hits],
            weight=sent.weight,
            fetch_k=sent.asked,
            score_floor=sent.score_floor,
            confidence=sent.confidence,
            silent=sent.silent,
            calibration=None if sent.calibration is None else load_calibration(sent.calibration),
        )
        for sent in params.lists
    ]
    return describe_fusion(shares_of(lists, options, fuse(lists, options).keys(0, params.k)))


def _view_endpoint(state: GatewayState, view: View) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that returns a view to operators."""

    async def endpoint(request: Request) -> Response:
        try:
            body = view(await authorize_operator(request, state))
            return _json(await body if isinstance(body, Awaitable) else body)
        except OperatorRefused as error:
            return _error_response(error)

    return endpoint


def _action_endpoint(state: GatewayState, action: Action) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that performs an action for operators."""

    async def endpoint(request: Request) -> Response:
        try:
            operator = await authorize_operator(request, state)
            most = state.settings.server.max_body_bytes
            body = await body_of(request, max(most, LISTS_BYTES) if request.url.path == FUSE else most)
            return _json(await action(body, operator))
        except OperatorRefused as error:
            return _error_response(error)
        except RcpError as fault:
            status = 404 if isinstance(fault, NotFound) else 403 if isinstance(fault, Unauthorized) else 400
            return _error_response(OperatorRefused(status, fault))

    return endpoint


def _session(state: GatewayState, operator: Operator) -> Json:
    """The operator, this gateway, and the engines that its requests reach."""
    members = state.membership.current(operator.tenant)
    fusion = (operator.tenant and operator.tenant.fusion) or state.settings.fusion
    return {
        "tenant": operator.tenant.id if operator.tenant else None,
        "sees": sorted(engine.id for engine in members.engines),
        "identity": members.identity,
        "version": state.version,
        "drills": state.settings.admin.drills,
        "fusion": {"method": fusion.method, "rrfK": fusion.rrf_k, "confidenceWeight": fusion.confidence_weight},
        "scope": SCOPE,
    }


def _engine(engine: RemoteEngine) -> Json:
    advertisement = engine.advertisement
    view = {
        "id": engine.id,
        "up": engine.up,
        "version": advertisement.server["version"] if advertisement else None,
        "server": advertisement.server["name"] if advertisement else None,
        "capabilities": sorted(advertisement.capabilities) if advertisement else [],
        "latencyMs": None if engine.last_latency_ms is None else round(engine.last_latency_ms, 2),
        "reason": engine.down_reason,
        **policies_view(engine),
    }
    # For operators only; this view is open to all callers.
    del view["limit"]
    if not view["replicas"]:
        del view["replicas"]
    return view


def _json(body: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # Views change at any time and depend on the caller.
    more = {"cache-control": "no-store", **(headers or {})}
    return Response(envelope.dumps(body), status, more, media_type="application/json")


def _error_response(error: OperatorRefused) -> Response:
    """The response to a refused request: a JSON-RPC error."""
    headers = {"cache-control": "no-store", **error.headers}
    return Response(envelope.failure(None, error.fault), error.status, headers, media_type="application/json")
