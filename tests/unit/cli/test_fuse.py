"""Fusing lists from standard input."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.__main__ import load
from app.cli.fuse import answer_line

ROOT = Path(__file__).parents[3]


def fused(*lines: Any) -> Result:
    """The command, given these lines: bytes as they are, anything else as JSON."""
    given = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    return CliRunner().invoke(load(), ["fuse"], input=given)


def answers(result: Result) -> list[dict[str, Any]]:
    """The lines of the answer."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def ask(**question: Any) -> dict[str, Any]:
    """The answer to one line."""
    return answer_line(json.dumps({"engines": {}, **question}).encode())


def hits(*ids: Any, **fields: Any) -> dict[str, Any]:
    """An engine that returned these ids."""
    return {"hits": [{"id": key, "score": 9 - place} for place, key in enumerate(ids)], **fields}


def test_lines_are_answered_in_order() -> None:
    """Each question gets one line with its qid, exit code 0; blank lines get none."""
    questions = [{"qid": qid, "engines": {"a": hits(f"d{qid}")}} for qid in ("x", 2, 3.5)]
    result = fused(questions[0], b"", questions[1], b"  \r", questions[2])
    assert result.exit_code == 0
    assert [(answer["qid"], answer["hits"][0]["id"]) for answer in answers(result)] == [
        ("x", "dx"),
        (2, "d2"),
        (3.5, "d3.5"),
    ]


def test_an_answer_holds_the_marks_and_not_the_bodies() -> None:
    """id, score, confidence if there is one, and meta; the text stays with the asker."""
    engines = {
        "a": {"hits": [{"id": 1, "score": 3, "confidence": 0.5, "text": "long", "meta": {"lang": "en"}}]},
        "b": hits("1", "y"),
    }
    first, second = ask(qid="q", engines=engines)["hits"]
    assert list(first) == ["id", "score", "confidence", "meta"]
    assert (first["id"], first["confidence"], first["meta"]["lang"]) == (1, 0.5, "en")
    assert [mark["id"] for mark in first["meta"]["engines"]] == ["a", "b"]
    assert list(second) == ["id", "score", "meta"]


def test_k_cuts_the_answer() -> None:
    """Ten by default; null counts as absent."""
    engines = {"a": hits(*range(30))}
    assert len(ask(engines=engines)["hits"]) == len(ask(engines=engines, k=None)["hits"]) == 10
    assert len(ask(engines=engines, k=3)["hits"]) == 3
    assert len(ask(engines=engines, k=99)["hits"]) == 30


def test_options_reach_the_fusion() -> None:
    """rrfK, method and confidenceWeight change the sums as they say."""
    engines = {"a": {"hits": [{"id": 1, "score": 4, "confidence": 0.5}, {"id": 2, "score": 2, "confidence": 0.1}]}}

    def total(**options: Any) -> float:
        return float(ask(engines=engines, options=options)["hits"][0]["meta"]["fusedScore"])

    assert total(confidenceWeight=0) == pytest.approx(1 / 61)
    assert total(confidenceWeight=1) == pytest.approx(0.5 / 61)
    assert total(confidenceWeight=0, rrfK=1) == pytest.approx(1 / 2)
    assert total(method="weighted") == 1
    assert ask(engines=engines, options=None)["hits"][0]["meta"]["fusedScore"] == pytest.approx(0.6 / 61)


def test_what_an_engine_says_of_itself_reaches_the_fusion() -> None:
    """weight, fetchK and scoreFloor; null counts as absent."""
    engines = {"a": hits(1, weight=3, fetchK=50, scoreFloor=0), "b": hits(2, weight=None, fetchK=None, scoreFloor=0)}
    first, second = ask(engines=engines, options={"method": "convex"})["hits"]
    assert (first["meta"]["fusedScore"], second["meta"]["fusedScore"]) == (3, 1)
    engines["b"]["scoreFloor"] = None
    assert ask(engines=engines, options={"method": "convex"})["notes"] == [
        "fusion: rrf in place of convex, which needs a scoreFloor from b"
    ]


def test_a_namespace_and_an_identity_may_be_given() -> None:
    """As in the registry and per request."""
    engines = {"a": hits(1, idNamespace="docs", confidence="ignore", priority=2), "b": hits(1)}
    assert {hit["id"] for hit in ask(engines=engines)["hits"]} == {"docs:1", 1}
    for engine in engines.values():
        engine["hits"][0]["citation"] = {"uri": "https://x"}
    assert len(ask(engines=engines, options={"identity": "uri"})["hits"]) == 1


def test_malformed_hits_are_dropped_with_a_note() -> None:
    """Later ranks close up; the note names the first of them."""
    engine = {"hits": [7, {"id": True, "score": 1}, {"id": 1}, {"id": 1, "score": "1"}, {"id": "x", "score": 1}]}
    answer = ask(engines={"a": engine})
    (hit,) = answer["hits"]
    assert (hit["id"], hit["meta"]["engineRank"], hit["score"]) == ("x", 1, 1.0)
    assert answer["notes"] == ["engines.a: 4 malformed hit(s) dropped; hits[0] is not an object"]


def test_unknown_keys_are_noted_with_a_suggestion() -> None:
    """A misspelt wish is not silently ignored."""
    answer = ask(engines={"a": hits(1, wieght=2)}, options={"rrf_k": 1, "zzz": 1})
    assert answer["notes"] == [
        "options.rrf_k: unknown, ignored; did you mean 'rrfK'?",
        "options.zzz: unknown, ignored; allowed: rrfK, method, confidenceWeight, identity",
        "engines.a.wieght: unknown, ignored; did you mean 'weight'?",
    ]


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"engines": None}, "engines", "nothing"),
    ({"engines": []}, "engines", "an array"),
    ({"engines": {"a": []}}, "engines.a", "an array"),
    ({"engines": {"a": {}}}, "engines.a.hits", "nothing"),
    ({"engines": {"a": {"hits": {}}}}, "engines.a.hits", "an object"),
    ({"engines": {"a": hits(weight=-1)}}, "engines.a.weight", "-1"),
    ({"engines": {"a": hits(weight=1e7)}}, "engines.a.weight", "10000000.0"),
    ({"engines": {"a": hits(weight=True)}}, "engines.a.weight", "true"),
    ({"engines": {"a": hits(fetchK=1.5)}}, "engines.a.fetchK", "1.5"),
    ({"engines": {"a": hits(scoreFloor="0")}}, "engines.a.scoreFloor", '"0"'),
    ({"engines": {"a": hits(confidence="maybe")}}, "engines.a.confidence", '"maybe"'),
    ({"engines": {"a": hits(idNamespace="")}}, "engines.a.idNamespace", '""'),
    ({"k": 0}, "k", "0"),
    ({"k": "ten"}, "k", '"ten"'),
    ({"k": True}, "k", "true"),
    ({"options": []}, "options", "an array"),
    ({"options": {"rrfK": 0}}, "options.rrfK", "0"),
    ({"options": {"method": "max"}}, "options.method", '"max"'),
    ({"options": {"confidenceWeight": 1.5}}, "options.confidenceWeight", "1.5"),
    ({"options": {"identity": ["id"]}}, "options.identity", "an array"),
]


@pytest.mark.parametrize(("fault", "field", "found"), FAULTS)
def test_a_fault_is_named_with_what_was_expected(fault: dict[str, Any], field: str, found: str) -> None:
    """The error names the field, what it must be and what was found, and carries the qid."""
    answer = ask(qid="q", **fault)
    assert answer["qid"] == "q"
    assert answer["error"]["code"] == -32602
    assert answer["error"]["data"] == {"field": field, "line": 1}
    assert answer["error"]["message"].startswith(f"'{field}' must be ")
    assert answer["error"]["message"].endswith(f", not {found}")


def test_a_bad_line_is_answered_and_the_rest_goes_on() -> None:
    """Errors stand in their places with the number of the line; the exit code is 1."""
    result = fused(b"{nope", [], {"qid": {}, "engines": {}}, b"", {"qid": "ok", "engines": {"a": hits(1)}}, b"\xff")
    assert result.exit_code == 1
    not_json, no_object, bad_qid, sound, not_text = answers(result)
    assert not_json["error"]["code"] == not_text["error"]["code"] == -32700
    assert [line["error"]["data"]["line"] for line in (not_json, no_object, bad_qid, not_text)] == [1, 2, 3, 6]
    assert bad_qid["error"]["data"]["field"] == "qid"
    assert sound["hits"][0]["id"] == 1


def test_what_is_too_deep_to_be_written_is_an_error() -> None:
    """A meta that can be read but not written does not end the run."""
    deep: Any = {}
    for _ in range(300):
        deep = {"m": deep}
    line = {"qid": 1, "engines": {"a": {"hits": [{"id": 1, "score": 1, "meta": deep}]}}}
    result = fused(line, {"qid": 2, "engines": {}})
    first, second = answers(result)
    assert result.exit_code == 1
    assert (first["qid"], first["error"]["data"]["field"]) == (1, "engines")
    assert second == {"qid": 2, "hits": []}


def test_a_byte_order_mark_is_forgiven() -> None:
    """Files of some editors begin with one."""
    assert fused(b'\xef\xbb\xbf{"engines": {}}').exit_code == 0


def test_nothing_in_nothing_out() -> None:
    """Empty input is no error."""
    result = fused()
    assert (result.exit_code, result.stdout) == (0, "")


def test_each_answer_is_written_at_once_and_a_reader_may_leave() -> None:
    """As a pipe: the answer comes before the next question, and nobody complains when the reader goes."""
    line = json.dumps({"qid": 1, "engines": {"a": hits(1)}}).encode() + b"\n"
    with subprocess.Popen(
        [sys.executable, "-m", "app", "fuse"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(line)
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["qid"] == 1
        process.stdout.close()
        process.stdin.write(line)
        process.stdin.close()
        process.stdin = None
        assert process.stderr.read() == b""
        process.wait(timeout=60)
