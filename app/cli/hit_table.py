"""Terminal output of `query`: hits with rank, score, engines, title and snippet; notes; what each engine contributed.

Text of engines is escaped, so that it cannot send commands to the terminal.
"""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from app.cli.terminal import one_line

SNIPPET = 240
"""Characters shown of a hit's text."""
DELIBERATE = frozenset({"not_selected", "disabled"})
"""Reasons of skipped engines that the caller or the operator chose; no note is printed for them."""


def render_hits(result: Mapping[str, Any], console: Console) -> None:
    """Print the hits of a `retrieve` result (RCP §7.7), best first; with an explanation, the parts of each score."""
    sent = result.get("hits")
    hits = [hit for hit in sent if isinstance(hit, dict)] if isinstance(sent, list) else []
    if not hits:
        console.print(Text("no hits"))
    width, explained = len(str(len(hits))), _explained(result)
    for rank, hit in enumerate(hits, 1):
        console.print(_headline(rank, width, hit))
        snippet = one_line(_text(hit), SNIPPET)
        if snippet:
            console.print(Padding(Text(snippet, style="dim"), (0, 0, 0, width + 2)))
        for part in explained.get(str(hit.get("id")), []):
            console.print(Padding(Text(_part_line(part), style="cyan"), (0, 0, 0, width + 2)))


def render_notes(result: Mapping[str, Any], console: Console, k: int = 0) -> None:
    """Print `usage.notes`, engines that were skipped, and whether fewer than `k` hits came (0: do not check).

    The last line names the engines that failed or were never reached, if any.
    """
    usage = result.get("usage")
    notes = usage.get("notes") if isinstance(usage, dict) else None
    lines = [one_line(note) for note in notes] if isinstance(notes, list) else []
    for line in [*lines, *_skipped(result, lines), *_cut_short(result, k)]:
        console.print(Text(f"note: {line}", style="yellow"))
    failed = _failed(result)
    if failed:
        console.print(Text(f"failed engines: {', '.join(failed)}", style="red"))


def render_fusion(result: Mapping[str, Any], console: Console) -> None:
    """Print the fusion that an explained result (`x-gateway.explain`) was made with; nothing without explanation."""
    explanation = _explanation(result)
    plan = explanation.get("plan")
    fusion = plan.get("fusion") if isinstance(plan, dict) else None
    if not explanation:
        return
    settings = fusion if isinstance(fusion, dict) else {}
    values = [one_line(explanation.get("method", settings.get("method", "?")), 20)]
    values += [f"{key} {one_line(settings[key], 20)}" for key in ("rrfK", "confidenceWeight") if key in settings]
    ceiling = explanation.get("ceiling")
    if isinstance(ceiling, (int, float)):
        values.append(f"score = sum of points / {ceiling:.4f}")
    console.print(Text(f"fusion: {', '.join(values)}", style="dim"))


def _explanation(result: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = result.get("_meta")
    report = meta.get("x-gateway") if isinstance(meta, dict) else None
    explanation = report.get("explain") if isinstance(report, dict) else None
    return explanation if isinstance(explanation, dict) else {}


def _explained(result: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Hit id -> what each engine contributed to it, largest first."""
    hits = _explanation(result).get("hits")
    found = {}
    for hit in hits if isinstance(hits, list) else []:
        parts = hit.get("parts") if isinstance(hit, dict) else None
        if isinstance(parts, list):
            found[str(hit.get("id"))] = [part for part in parts if isinstance(part, dict)]
    return found


def _part_line(part: Mapping[str, Any]) -> str:
    """One engine's part of a score: rank in its list, points, share of the sum, and confidence if it stated one."""
    points, share, confidence = part.get("points"), part.get("share"), part.get("confidence")
    words = [f"{one_line(part.get('engine', '?'), 60)}: rank {one_line(part.get('rank', '?'), 10)}"]
    if isinstance(points, (int, float)):
        words.append(f"{points:.4f} points")
    if isinstance(share, (int, float)):
        words.append(f"{share:.0%} of the score")
    if isinstance(confidence, (int, float)):
        words.append(f"confidence {confidence:.2f}")
    return ", ".join(words)


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
    """Every engine that returned the hit, first the one whose copy was kept."""
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


def _skipped(result: Mapping[str, Any], notes: list[str]) -> list[str]:
    """A line for each engine that was skipped, unless that was chosen, or one of `notes` gives the reason already."""
    lines = []
    for entry in _report(result):
        reason, detail = one_line(entry.get("reason") or "", 60), one_line(entry.get("detail") or "")
        noted = detail and any(detail in line for line in notes)
        if entry.get("status") == "skipped" and reason not in DELIBERATE and not noted:
            why = ": ".join(filter(None, (reason, detail)))
            lines.append(f"{one_line(entry.get('id', '?'), 60)}: skipped: {why or 'no reason given'}")
    return lines


def _cut_short(result: Mapping[str, Any], k: int) -> list[str]:
    """A line if more hits exist but fewer than `k` came, because of the limit of the gateway."""
    hits = result.get("hits")
    if not isinstance(hits, list) or len(hits) >= k or not isinstance(result.get("nextCursor"), str):
        return []
    return [f"{k} hits were requested, but this gateway returns at most {len(hits)} in one response (maxK)"]


def _report(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of `_meta["x-gateway"].engines`."""
    meta = result.get("_meta")
    report = meta.get("x-gateway") if isinstance(meta, dict) else None
    entries = report.get("engines") if isinstance(report, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
