"""Fused hits as a person reads them: rank, score, engines, title, snippet; and beside them what went wrong.

It decides how a result looks. Whatever an engine put into a hit is shown as text and never obeyed.
"""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from app.cli.terminal import one_line

SNIPPET = 240
"""Characters shown of a hit's text."""
AS_WISHED = frozenset({"not_selected", "disabled"})
"""Reasons for leaving an engine out that somebody decided on purpose."""


def render_hits(result: Mapping[str, Any], console: Console) -> None:
    """Print the hits of a `retrieve` result (RCP §7.7), best first, or that there are none."""
    sent = result.get("hits")
    hits = [hit for hit in sent if isinstance(hit, dict)] if isinstance(sent, list) else []
    if not hits:
        console.print(Text("no hits"))
    width = len(str(len(hits)))
    for rank, hit in enumerate(hits, 1):
        console.print(_headline(rank, width, hit))
        snippet = one_line(_text(hit), SNIPPET)
        if snippet:
            console.print(Padding(Text(snippet, style="dim"), (0, 0, 0, width + 2)))


def render_notes(result: Mapping[str, Any], console: Console, k: int = 0) -> None:
    """Print `usage.notes`, what else kept engines or hits out of an answer to a question for `k` hits (0: no matter).

    The last line names the engines that failed or were never reached, if there are any.
    """
    usage = result.get("usage")
    notes = usage.get("notes") if isinstance(usage, dict) else None
    lines = [one_line(note) for note in notes] if isinstance(notes, list) else []
    for line in [*lines, *_left_out(result, lines), *_cut_short(result, k)]:
        console.print(Text(f"note: {line}", style="yellow"))
    failed = _failed(result)
    if failed:
        console.print(Text(f"failed engines: {', '.join(failed)}", style="red"))


def _headline(rank: int, width: int, hit: Mapping[str, Any]) -> Text:
    score = hit.get("score")
    points = f"{score:.4f}" if isinstance(score, (int, float)) else "-"
    return Text.assemble(
        (f"{rank:>{width}}. ", "dim"),
        (points, "green"),
        "  ",
        (", ".join(_engines(hit)) or "?", "cyan"),
        "  ",
        (_title(hit), "bold"),
    )


def _title(hit: Mapping[str, Any]) -> str:
    citation = hit.get("citation")
    title = one_line(citation.get("title") or "", 160) if isinstance(citation, dict) else ""
    return title or one_line(hit.get("id", "?"), 160)


def _engines(hit: Mapping[str, Any]) -> list[str]:
    """Every engine that returned the hit; the one whose copy was kept comes first."""
    meta = hit.get("meta")
    if not isinstance(meta, dict):
        return []
    kept, listed = meta.get("engine"), meta.get("engines")
    names = [kept] if isinstance(kept, str) else []
    for entry in listed if isinstance(listed, (list, dict)) else []:
        name = (entry.get("id") or entry.get("engine")) if isinstance(entry, dict) else entry
        if isinstance(name, str) and name not in names:
            names.append(name)
    return [one_line(name, 60) for name in names]


def _text(hit: Mapping[str, Any]) -> str:
    text = hit.get("text")
    if isinstance(text, str):
        return text
    content = hit.get("content")
    blocks = content if isinstance(content, list) else [content]
    texts = (block.get("text") if isinstance(block, dict) else block for block in blocks)
    return " ".join(text for text in texts if isinstance(text, str))


def _failed(result: Mapping[str, Any]) -> list[str]:
    lost = [entry for entry in _report(result) if entry.get("status") == "failed" or entry.get("reason") == "unreached"]
    return [f"{one_line(entry.get('id', '?'), 60)} ({one_line(entry.get('reason', 'failed'), 60)})" for entry in lost]


def _left_out(result: Mapping[str, Any], told: list[str]) -> list[str]:
    """A line for each engine that was not asked though nobody said so, unless a line of `told` says why already."""
    lines = []
    for entry in _report(result):
        reason, detail = one_line(entry.get("reason") or "", 60), one_line(entry.get("detail") or "")
        said = detail and any(detail in line for line in told)
        if entry.get("status") == "skipped" and reason not in AS_WISHED and not said:
            why = ": ".join(filter(None, (reason, detail)))
            lines.append(f"{one_line(entry.get('id', '?'), 60)}: not asked: {why or 'no reason given'}")
    return lines


def _cut_short(result: Mapping[str, Any], k: int) -> list[str]:
    """A line if there are more hits to be had and yet fewer than `k` came: the gateway gives no more at once."""
    hits = result.get("hits")
    if not isinstance(hits, list) or len(hits) >= k or not isinstance(result.get("nextCursor"), str):
        return []
    return [f"{k} hits were asked for, and {len(hits)} are the most that this gateway gives in one answer (maxK)"]


def _report(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `_meta["x-gateway"]` says of each engine."""
    meta = result.get("_meta")
    report = meta.get("x-gateway") if isinstance(meta, dict) else None
    entries = report.get("engines") if isinstance(report, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
