"""What a running gateway tells of itself: of answers, of its engines, and never more series than there are engines."""

import asyncio
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.telemetry import overlap
from app.telemetry.series import CHUNK_SAMPLES
from tests.support.log_lines import own_log
from tests.support.ports import free_port
from tests.support.running_gateway import RunningGateway, entry, running
from tests.support.scripted_engine import hit


async def series(gateway: RunningGateway) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """Every series there is now."""
    text = (await gateway.client.get("/metrics")).text
    families = text_string_to_metric_families(text)
    return {(sample.name, frozenset(sample.labels.items())) for family in families for sample in family.samples}


async def test_answers_are_counted_by_what_they_share_and_lack(engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlap by pair in the operator's JSON, the confidence of first hits, and why an engine is missing (B114)."""
    monkeypatch.setattr(overlap, "LOOK_SECONDS", 0.0)  # every answer is sampled
    one, two, sick = await engines(), await engines(), await engines()
    one.answers["retrieve"] = {"hits": [{**hit("x", 0.9), "confidence": 0.85}, hit("y", 0.8)]}
    two.answers["retrieve"] = {"hits": [{**hit("x", 0.7), "confidence": 0.15}, {"id": "no score"}]}
    sick.answers["retrieve"] = {"nothing": 1}
    entries = [entry("one", one), entry("two", two), entry("sick", sick, retries=0)]
    with own_log() as log:
        async with running(entries) as gateway:
            await shared_and_lacking(gateway)
    (line,) = [line for line in log.lines if line["event"] == "hits_dropped"]
    assert (line["engine"], line["malformed"], line["excess"]) == ("two", 1, 0)


async def shared_and_lacking(gateway: RunningGateway) -> None:
    """Ask twice, and look at what was counted."""
    for _ in range(2):
        await gateway.retrieve()
    overlapping = (await gateway.client.get("/admin/overlap", headers={"host": "localhost"})).json()
    assert overlapping["pairs"] == [["one", "two", 2]]
    assert await gateway.metric("rcp_gateway_top_confidence_sum", engine="one") == 1.7
    assert await gateway.metric("rcp_gateway_top_confidence_count", engine="two") == 2
    assert await gateway.metric("rcp_gateway_top_confidence_count", engine="sick") == 0
    assert await gateway.metric("rcp_gateway_degraded_answers_total", reason="protocol") == 2
    assert await gateway.metric("rcp_gateway_hits_dropped_total", engine="two", reason="malformed") == 2
    shaken = await gateway.metric("rcp_gateway_engine_last_handshake_timestamp_seconds", engine="one")
    assert 0 <= time.time() - shaken < 60


async def test_errors_that_are_http_200_are_counted_by_code(engines: Any) -> None:
    """An unknown method, a wrong param and nobody who answers: three codes (B113)."""
    sick = await engines()
    sick.answers["retrieve"] = {"nothing": 1}
    async with running([entry("sick", sick, retries=0)]) as gateway:
        codes = [
            (await gateway.error("nonsense"))["code"],
            (await gateway.error("retrieve", {"query": 1}))["code"],
            (await gateway.error("retrieve", {"query": "q"}))["code"],
        ]
        assert codes == [-32004, -32602, -32010]
        for code in codes:
            assert await gateway.metric("rcp_gateway_errors_total", code=str(code)) == 1


async def test_random_names_add_no_series(engines: Any) -> None:
    """Methods, paths, HTTP methods, keys, engines and tenants that nobody has: thousands of them add nothing (B109)."""
    async with running([entry("e", await engines())]) as gateway:
        await gateway.call("ping")
        before = await series(gateway)
        batch = [{"jsonrpc": "2.0", "id": index, "method": f"m{index}"} for index in range(50)]
        for turn in range(100):
            await gateway.post([{**message, "method": f"{message['method']}-{turn}"} for message in batch])
        for index in range(200):
            await gateway.client.get(f"/path/{index}", headers={"authorization": f"Bearer k{index}"})
            await gateway.client.request(f"M{index}", "/rcp")
            await gateway.post(batch[0], f"/engines/e{index}/rcp")
        assert await series(gateway) == before
        assert await gateway.metric("rcp_gateway_requests_total", method="other", outcome="error") == 5000


async def exemplars(gateway: RunningGateway) -> list[str]:
    """The lines of request durations that have an exemplar."""
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    text = (await gateway.client.get("/metrics", headers=accept)).text
    return [line for line in text.splitlines() if line.startswith("rcp_gateway_request_dur") and " # {" in line]


async def test_a_slow_bucket_leads_to_a_trace(engines: Any) -> None:
    """A request with a sane `traceparent` leaves its id at its bucket; others leave nothing."""
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    async with running([entry("e", await engines())]) as gateway:
        await gateway.post(ping)
        await gateway.post(ping, headers={"traceparent": "00-nonsense"})
        await gateway.post(ping, headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-00"})
        assert await exemplars(gateway) == []
        await gateway.post(ping, headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
        (line,) = await exemplars(gateway)
    assert 'method="ping",outcome="ok"' in line
    assert f'# {{trace_id="{"ab" * 16}"}} ' in line


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
async def test_a_scrape_of_300_engines_is_written_in_slices(engines: Any, accept: str) -> None:
    """No part of the text that is written without a turn of the loop is long, and each engine has at most 60 series."""
    url = f"http://127.0.0.1:{free_port()}/rcp"  # nobody answers there: engines need not be up to have series
    entries = [{"id": f"e{number}", "url": url} for number in range(300)]
    turns = 0

    async with running(entries, reach=False) as gateway:
        scrape = asyncio.create_task(gateway.state.metrics.exposition.text(accept))
        while not scrape.done():
            turns += 1
            await asyncio.sleep(0)
        text = scrape.result()[0].decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len([line for line in lines if 'engine="e7"' in line]) <= 60
    assert len(lines) / turns <= 2 * CHUNK_SAMPLES
    assert len([line for line in text.splitlines() if line.startswith("# TYPE rcp_gateway_legs ")]) <= 1
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "a family has its header once"
    assert text.endswith("# EOF\n") == bool(accept)


async def test_scrapes_that_overlap_share_one_text(engines: Any) -> None:
    """Three scrapers at once get the same bytes, of one and the same writing; one that leaves ends it for nobody."""
    async with running([entry("e", await engines())]) as gateway:
        exposition = gateway.state.metrics.exposition
        asking = [asyncio.create_task(exposition.text("")) for _ in range(3)]
        await asyncio.sleep(0)
        asking[0].cancel()
        (one, _), (two, _) = await asyncio.gather(*asking[1:])
        (later, _) = await exposition.text("")
    assert one is two
    assert later is not one
