"""`retrieve` (RCP §7.7): plan, fan out, fuse, cut the page, report. Read this first.

Each step makes one value from the one before: call, plan, outcomes, result set, page, response. Hits kept from an
earlier answer are served without asking engines. Separate because it is the outline of the whole request.
"""

from time import perf_counter

from app.federation.calls import LEAST_SECONDS, RetrieveCall, time_left, time_waited
from app.federation.execution import RetrieveExecution
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.federation.pagination import Pages
from app.federation.progress import ProgressListener
from app.federation.response import ON_ITS_OWN, build_result, note
from app.protocol.errors import DeadlineExceeded
from app.settings.schema import GatewaySettings

Result = dict[str, object]


async def retrieve(
    call: RetrieveCall,
    members: Members,
    settings: GatewaySettings,
    instrumentation: RetrieveInstrumentation,
    listener: ProgressListener | None = None,
    pages: Pages | None = None,
) -> Result:
    """Answer one `retrieve` for the whole federation (RCP §7.7, §16), telling `listener` (§9). Raises RcpError.

    Without `pages` nothing outlives the answer, and its `nextCursor` leads nowhere.
    """
    began = perf_counter() - time_waited(call)  # `usage.latencyMs` counts from the arrival
    if time_left(call) < LEAST_SECONDS:
        raise DeadlineExceeded("the deadline leaves no time to ask any engine", retryable=True)
    pages = pages or Pages.kept(settings.state)
    if call.tenant is not None:
        pages = pages.within(call.tenant)
    execution = RetrieveExecution(call, members, settings, instrumentation, listener, pages)
    answer = await execution.answer()
    execution.observe(answer)
    result = build_result(call.params, members, answer, perf_counter() - began, execution.spent)
    cursor = await execution.leave_behind(answer)
    if cursor is not None:
        result["nextCursor"] = cursor
    if pages.degraded and (cursor is not None or call.params.options.session_id is not None):
        note(result, ON_ITS_OWN)
    execution.ended(answer, perf_counter() - began)
    return result
