"""An engine that has moved: once asked to, no transport goes on over connections that lead to where it was (B59)."""

from typing import Any

from app.engines.http.resolver import Resolver
from tests.support.raw_peer import Line, RawPeer, http_answer, rpc_answer
from tests.support.transport_kinds import HttpKind, Listen


def answering(name: str) -> Any:
    """A script that says who answers."""

    async def script(line: Line) -> None:
        while request := await line.request():
            line.send(http_answer(rpc_answer(request.id, {"who": name})))

    return script


async def test_renewed_transport_asks_where_the_engine_is_now(client: HttpKind, listen: Listen) -> None:
    """The old address goes on answering; after `renew` the next call looks the name up and goes to the new one."""
    old: RawPeer = await listen(answering("old"))
    addresses = ["127.0.0.1"]
    resolver = Resolver(lookup=lambda host, port, **hints: [(2, 1, 6, "", (addresses[0], 0))])
    url = f"http://engine.invalid:{old.port}/rcp"
    transport = client.to(url, tuned={"resolver": resolver})
    new: RawPeer = await listen(answering("new"), host="127.0.0.2", port=old.port)
    try:
        assert (await transport.call("retrieve", {})).result == {"who": "old"}
        addresses[0] = "127.0.0.2"
        assert (await transport.call("retrieve", {})).result == {"who": "old"}
        transport.renew()
        assert (await transport.call("retrieve", {})).result == {"who": "new"}
        assert (await transport.call("retrieve", {})).result == {"who": "new"}
        assert len(new.lines) == 1
    finally:
        await transport.close()
