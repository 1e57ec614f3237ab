"""The fusion written down literally, step by step as it is defined, with no thought for speed.

The property tests and the cost bench hold the gateway's own fusion against it. It shares no code with it but the types
of its input, and knows only identity by id.
"""

from collections.abc import Sequence
from math import exp, fsum, isfinite, isnan, log, log2, sqrt
from typing import Any

from app.fusion.ranked_lists import FusionConfig, RankedList


def valid(value: Any) -> float | None:
    """A number in [0,1], or nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or isnan(value):
        return None
    return value if 0 <= value <= 1 else None


def deduplicated(ranked: RankedList) -> list[dict[str, Any]]:
    """Entries with key, rank, hit and valid confidence; best rank kept, ranks close up."""
    seen = set()
    entries: list[dict[str, Any]] = []
    for hit in ranked.hits:
        key = str(hit["id"]) if ranked.namespace is None else ranked.namespace + ":" + str(hit["id"])
        if key in seen:
            continue
        seen.add(key)
        confidence = None if ranked.confidence == "ignore" else valid(hit.get("confidence"))
        entries.append({"key": key, "rank": len(entries) + 1, "hit": hit, "confidence": confidence})
    return entries


def filled(confidences: Sequence[float | None]) -> list[float] | None:
    """Step 1: x."""
    known = [c for c in confidences if c is not None]
    if not known:
        return None
    last = known[0]
    x = []
    for confidence in confidences:
        if confidence is not None:
            last = confidence
        x.append(last)
    return x


def projected(x: Sequence[float]) -> list[float]:
    """Step 2: p by pool adjacent violators."""
    blocks: list[list[float]] = []
    for value in x:
        blocks.append([value])
        while len(blocks) > 1 and fsum(blocks[-2]) / len(blocks[-2]) < fsum(blocks[-1]) / len(blocks[-1]):
            last = blocks.pop()
            blocks[-1] = blocks[-1] + last
    return [fsum(block) / len(block) for block in blocks for _ in block]


def coherence(x: Sequence[float], p: Sequence[float]) -> float:
    """Step 3: ρ."""
    mean = fsum(x) / len(x)
    sst = fsum((value - mean) ** 2 for value in x)
    sse = fsum((value - fitted) ** 2 for value, fitted in zip(x, p, strict=True))
    return 1.0 if min(x) == max(x) or sst == 0 else sqrt(max(0.0, 1 - sse / sst))


def resolution(p: Sequence[float], asked: int) -> float:
    """Step 3: τ."""
    return 1.0 if p[0] < 1e-12 else max(0.0, 1 - fsum(p) / (asked * p[0]))


def asked_of(ranked: RankedList, returned: int) -> int:
    """K of step 3: a hit that was not returned is no evidence of modesty."""
    return max(returned, min(ranked.fetch_k, 5))


def standard_scores(entries: Sequence[dict[str, Any]]) -> list[float] | None:
    """z by rank, of a list of at least four finite scores that are not all equal."""
    try:
        scores = [float(entry["hit"]["score"]) for entry in entries]
    except OverflowError:
        return None
    if len(scores) < 4 or not all(isfinite(score) for score in scores) or min(scores) == max(scores):
        return None
    # The shape depends neither on scale nor on offset: brought into [0,1] no square overflows or vanishes.
    low, high = min(scores) / 2, max(scores) / 2
    placed = [(score / 2 - low) / (high - low) for score in scores]
    mean = fsum(placed) / len(placed)
    deviation = sqrt(fsum((value - mean) ** 2 for value in placed) / len(placed))
    return [(value - mean) / deviation for value in placed]


def estimated(entries: Sequence[dict[str, Any]]) -> list[float] | None:
    """x of a list without confidences, by the shape of its scores."""
    z = standard_scores(entries)
    return None if z is None else [1 / (1 + exp(3 - value)) for value in z]


def chances(entries: Sequence[dict[str, Any]], x: Sequence[float] | None, learned: Any) -> list[float] | None:
    """σ(θ·φ) by rank of a learned map; None if the list has no features for it."""
    if x is not None:
        clipped = [min(max(value, 0.01), 0.99) for value in x]
        features: list[tuple[float, ...]] = [(1.0, log(value / (1 - value))) for value in clipped]
    else:
        z = standard_scores(entries)
        if z is None:
            return None
        scores = [float(entry["hit"]["score"]) for entry in entries]
        g = [(score - learned.mean) / learned.sd if learned.sd > 0 else 0.0 for score in scores]
        features = [
            (1.0, max(-4.0, min(4.0, a)), max(-4.0, min(4.0, b)), log2(rank))
            for rank, (a, b) in enumerate(zip(z, g, strict=True), 1)
        ]
    return [1 / (1 + exp(-fsum(t * f for t, f in zip(learned.theta, phi, strict=True)))) for phi in features]


def consensus(testimonies: Sequence[dict[str, Any]], longest: int) -> list[float]:
    """Step 4: c̄."""
    level: list[float] = []
    for position in range(longest):
        reaching = [t for t in testimonies if len(t["p"]) > position]
        if reaching:
            shares = [t["weight"] * max(t["say"], 1e-6) for t in reaching]
            mean = fsum(s * t["p"][position] for s, t in zip(shares, reaching, strict=True)) / fsum(shares)
            level.append(min([*level, mean]))
        else:
            level.append(level[-1])
    return level


def confidence_curve(
    ranked: RankedList,
    found: Sequence[dict[str, Any]],
    claimed: Sequence[float] | None,
    silent: bool,
    options: FusionConfig,
) -> dict[str, Any] | None:
    """Steps 1 to 3 for one engine, and what was learned of it. `silent`: no engine with a weight gives confidences."""
    if not found:
        return None
    independent = claimed is not None and ranked.confidence == "independent"
    x = claimed
    if x is None and silent and (ranked.silent or options.silent) == "scores":
        x = estimated(found)
    said: dict[str, Any] | None = None
    asked = asked_of(ranked, len(found))
    if x is not None:
        p = x if independent else projected(x)
        rho = 1.0 if independent else coherence(x, p)
        said = {"p": p, "rho": rho, "say": rho * resolution(p, asked), "weight": ranked.weight}
    maps = ranked.calibration
    learned = None if maps is None else maps.silent if claimed is None else maps.confident
    if learned is None or learned.n <= 0:
        return said
    q = chances(found, claimed, learned)
    if q is None:
        return said
    q = q if independent else projected(q)
    trust = learned.n / (learned.n + 5)
    worth = resolution(q, asked)
    if said is None:
        return {"p": q, "rho": trust, "say": trust * worth, "weight": ranked.weight}
    return {
        "p": [(1 - trust) * a + trust * b for a, b in zip(said["p"], q, strict=True)],
        "rho": (1 - trust) * said["rho"] + trust,
        "say": (1 - trust) * said["say"] + trust * worth,
        "weight": ranked.weight,
    }


def brackets(
    lists: Sequence[RankedList], entries: dict[str, list[dict[str, Any]]], options: FusionConfig
) -> dict[str, list[float]]:
    """Steps 1 to 5: (1 − β) + β·ĉ by engine and rank."""
    claims = {ranked.engine: filled([entry["confidence"] for entry in entries[ranked.engine]]) for ranked in lists}
    silent = not any(claims[ranked.engine] for ranked in lists if ranked.weight > 0)
    testimonies: dict[str, dict[str, Any]] = {}
    for ranked in lists:
        said = confidence_curve(ranked, entries[ranked.engine], claims[ranked.engine], silent, options)
        if said is not None and ranked.weight > 0:
            testimonies[ranked.engine] = said
    if not testimonies or options.confidence_weight == 0:
        return {ranked.engine: [1.0] * len(entries[ranked.engine]) for ranked in lists}
    level = consensus(list(testimonies.values()), max(len(found) for found in entries.values()))
    beta = options.confidence_weight
    result = {}
    for ranked in lists:
        said = testimonies.get(ranked.engine)
        believed = []
        for entry in entries[ranked.engine]:
            c = level[entry["rank"] - 1]
            if said is not None:
                p_r = said["p"][entry["rank"] - 1]
                believed.append(c + said["say" if p_r > c else "rho"] * (p_r - c))
            else:
                believed.append(c)
        result[ranked.engine] = [(1 - beta) + beta * c for c in believed]
    return result


def normalized(ranked: RankedList, entries: Sequence[dict[str, Any]], method: str) -> list[float]:
    """Scores in [0,1] for the weighted and the convex method."""
    scores = [float(entry["hit"]["score"]) for entry in entries]
    if not scores:
        return []
    high = max(scores)
    if method == "weighted":
        low = min(scores)
        return [1.0 if high == low else (score - low) / (high - low) for score in scores]
    floor = ranked.score_floor or 0.0
    return [0.0 if high <= floor else max(0.0, (score - floor) / (high - floor)) for score in scores]


def richness(copy: dict[str, Any]) -> tuple[int, int, int, int]:
    """What makes one copy's body better than another's, but for the engine id."""
    text, content = copy["hit"].get("text"), copy["hit"].get("content")
    return (
        len(text) if isinstance(text, str) else 0,
        len(content) if isinstance(content, list) else 0,
        -copy["rank"],
        copy["list"].priority,
    )


def merged(key: str, copies: Sequence[dict[str, Any]], total: float, ceiling: float) -> dict[str, Any]:
    """One fused hit of the copies, which are in engine-id order."""
    kept = copies[0]
    for copy in copies[1:]:
        if richness(copy) > richness(kept):
            kept = copy
    meta: dict[str, Any] = {}
    for copy in [kept, *copies]:
        stated = copy["hit"].get("meta")
        for name, value in stated.items() if isinstance(stated, dict) else ():
            meta.setdefault(name, value)
    meta["engine"] = kept["list"].engine
    meta["engineRank"] = kept["rank"]
    meta["engineScore"] = kept["hit"]["score"]
    meta["fusedScore"] = total
    meta["engines"] = []
    for copy in copies:
        mark = {"id": copy["list"].engine, "rank": copy["rank"], "score": copy["hit"]["score"]}
        if copy["confidence"] is not None:
            mark["confidence"] = copy["confidence"]
        meta["engines"].append(mark)
    fused = dict(kept["hit"])
    fused.pop("confidence", None)
    fused["id"] = kept["hit"]["id"] if kept["list"].namespace is None else key
    fused["score"] = min(1.0, total / ceiling) if ceiling > 0 else 0.0
    fused["meta"] = meta
    said = [(copy["list"].weight, copy["confidence"]) for copy in copies if copy["confidence"] is not None]
    if said:
        if fsum(weight for weight, _ in said) == 0:
            said = [(1.0, confidence) for _, confidence in said]
        fused["confidence"] = fsum(w * c for w, c in said) / fsum(w for w, _ in said)
    return fused


def fuse_literally(
    lists: Sequence[RankedList], options: FusionConfig, k: int | None = None
) -> tuple[list[str], list[dict[str, Any]]]:
    """All keys in order, and the first `k` fused hits."""
    lists = sorted(lists, key=lambda ranked: ranked.engine)
    entries = {ranked.engine: deduplicated(ranked) for ranked in lists}
    method = options.method
    if method == "convex" and any(ranked.score_floor is None for ranked in lists):
        method = "rrf"
    bracket = brackets(lists, entries, options) if method == "rrf" and lists else {}
    copies: dict[str, list[dict[str, Any]]] = {}
    for ranked in lists:
        scaled = normalized(ranked, entries[ranked.engine], method) if method != "rrf" else []
        for entry in entries[ranked.engine]:
            at = entry["rank"] - 1
            if method == "rrf":
                point = ranked.weight * bracket[ranked.engine][at] / (options.rrf_k + entry["rank"])
            else:
                point = ranked.weight * scaled[at]
            copies.setdefault(entry["key"], []).append({**entry, "list": ranked, "point": point})
    best = 1 / (options.rrf_k + 1) if method == "rrf" else 1.0
    ceiling = fsum(ranked.weight * best for ranked in lists)
    totals = {key: fsum(copy["point"] for copy in found) for key, found in copies.items()}
    order = sorted(
        copies,
        key=lambda key: (-round(totals[key], 12), -fsum(copy["list"].weight for copy in copies[key]), key),
    )
    return order, [merged(key, copies[key], totals[key], ceiling) for key in order[:k]]
