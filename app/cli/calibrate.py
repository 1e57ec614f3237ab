"""`rcp-gateway calibrate`: learn what engines' claims are worth, from judged queries or recorded events, or load it.

Prints one JSON object of maps by engine id: `fuse --calibration` applies it, `calibrate --load` gives it to a running
gateway.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import gateway_client
from app.cli.failures import Failure

if TYPE_CHECKING:
    from app.federation.offline_learning import Maps
    from app.fusion.calibration import EngineCalibration

EVENT = ("caller", "engines", "shown", "signals")


def register(app: typer.Typer) -> None:
    """Offer the command."""
    app.command()(calibrate)


def calibrate(
    qrels: Annotated[
        Path | None,
        typer.Option(help="Judgements of the queries on stdin, whose lines are as for `fuse`, each with a qid."),
    ] = None,
    events: Annotated[bool, typer.Option("--events", help="Learn from events on stdin, in their order.")] = False,
    load: Annotated[
        Path | None, typer.Option(help="Give the maps of this file to the gateway at --url; needs an operator's key.")
    ] = None,
    url: gateway_client.UrlOption = gateway_client.DEFAULT_URL,
    tenant: Annotated[str | None, typer.Option(help="With --load: whose calibration it is.")] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for the gateway.")] = 10.0,
) -> None:
    """Learn what each engine's claims are worth, and print it as JSON.

    An event is a line {"caller", "engines": as for fuse, "shown": [ids], "signals": [{"hitId", "reward"}]}.
    """
    if [qrels is not None, events, load is not None].count(True) != 1:
        raise Failure("say what to learn from: --qrels FILE or --events, with lines on stdin; or --load FILE")
    if load is not None:
        _load(load, url, tenant, timeout)
        return
    from app.federation.offline_learning import written

    learned = _from_events() if qrels is None else _from_judgements(qrels)
    typer.echo(json.dumps(written(learned), ensure_ascii=False))


def read_calibrations(path: Path) -> "dict[str, EngineCalibration]":
    """The maps of a file that `calibrate` printed, as fusion applies them. Raises Failure and SettingsError."""
    from app.federation.learned_maps import read_calibration
    from app.protocol.errors import InvalidParams

    try:
        return {engine: read_calibration(stated, engine) for engine, stated in _read_maps(path).items()}
    except InvalidParams as fault:
        raise Failure(f"{path}: {fault.message}") from None


def _read_maps(path: Path) -> Mapping[str, Any]:
    from app.settings.file_syntax import read_json, read_text

    maps: Any = read_json(str(path), read_text(path))
    if type(maps) is not dict:
        raise Failure(f"{path} is no JSON object of maps by engine id; `rcp-gateway calibrate` prints one")
    return maps


def _from_judgements(path: Path) -> "dict[str, Maps]":
    from app.cli.fuse import read_fuse_line
    from app.evaluation.judged_queries import read_judgements
    from app.federation.offline_learning import learned_from_judgements

    judgements = read_judgements(path)
    queries = []
    for number, message in _lines():
        judged = judgements.get(str(message.get("qid")))
        if judged is not None:
            queries.append((_understood(number, lambda m=message: read_fuse_line(m)).lists, judged))
    if not queries:
        raise Failure(f"{path} judges none of the queries on stdin; both must have the same qid")
    return learned_from_judgements(queries)


def _from_events() -> "dict[str, Maps]":
    from app.cli.fuse import read_fuse_line
    from app.federation.methods.feedback import rewards_of
    from app.federation.offline_learning import Recorded
    from app.protocol.method_params import read_feedback
    from app.protocol.param_fields import check_id

    recorded = Recorded()
    for number, message in _lines():
        shown = message.get("shown")
        if type(shown) is not list:
            raise Failure(f"line {number}: 'shown' must be an array of the ids that were shown, best first")
        caller = message.get("caller", "")
        for place, hit_id in enumerate(shown):
            _understood(number, lambda h=hit_id, p=place: check_id(h, f"shown[{p}]"))
        question = _understood(number, lambda m=message: read_fuse_line({"engines": m.get("engines")}))
        signals = _understood(number, lambda m=message: read_feedback({"signals": m.get("signals")})).signals
        recorded.learn(f"{caller}", question.lists, [f"{hit_id}" for hit_id in shown], rewards_of(signals))
    return recorded.learned()


def _understood(number: int, read: Any) -> Any:
    """What `read` makes of a line. Raises Failure naming the line."""
    from app.protocol.errors import InvalidParams

    try:
        return read()
    except InvalidParams as fault:
        raise Failure(f"line {number}: {fault.message}") from None


def _lines() -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects on stdin, with the numbers of their lines. Raises Failure."""
    from app.protocol.envelope import loads
    from app.protocol.errors import ParseError

    if sys.stdin.isatty():
        typer.echo("reading JSON lines from the terminal; Ctrl-D ends", err=True)
    for number, line in enumerate(sys.stdin.buffer, 1):
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not line.strip():
            continue
        try:
            message = loads(line)
        except ParseError as fault:
            raise Failure(f"line {number}: {fault.message.replace('the body', 'the line', 1)}") from None
        if type(message) is not dict:
            raise Failure(f"line {number}: is no JSON object")
        yield number, message


def _load(path: Path, url: str, tenant: str | None, timeout: float) -> None:
    maps = _read_maps(path)
    if not maps:
        raise Failure(f"{path} holds no map")
    for engine, stated in maps.items():
        also = stated.get("also", []) if type(stated) is dict else []
        body = {"action": "load_calibration", "engine": engine, "maps": [stated, *also], "tenant": tenant}
        typer.echo(f"{engine}: {gateway_client.act(url, body, timeout)}")
