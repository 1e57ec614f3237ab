"""Who belongs to the federation, and that what it advertises is made anew exactly when something changed."""

from app.federation.membership import Membership
from tests.support.fake_engine import FakeEngine, FakeEngines, advertised


def test_members_stay_the_same_until_something_changes() -> None:
    """The same value is handed out until the version grows; then a new one, and the epoch grows with it."""
    late = FakeEngine("late", reached=False)
    engines = FakeEngines(FakeEngine("docs"), late)
    membership = Membership(engines, "us-1234", max_k=200)
    first = membership.current()
    assert membership.current() is first
    assert membership.epoch == 1
    late.advertisement = advertised({"retrieve": {"maxK": 150}})
    assert membership.current() is first
    engines.version += 1
    second = membership.current()
    assert second is not first
    assert membership.current() is second
    assert (first.max_k, second.max_k) == (100, 150)
    assert membership.epoch == 2
    assert repr(membership) == "<Membership us-1234 epoch 2, 2 advertisements, 1 views>"


def test_members_hold_everybody_but_advertise_whom_they_know() -> None:
    """Unreached engines belong, without an advertisement; disabled ones are known by their ids alone."""
    engines = FakeEngines(FakeEngine("a"), FakeEngine("b", reached=False), disabled=["off"])
    members = Membership(engines, "us", max_k=200).current()
    assert [engine.id for engine in members.engines] == ["a", "b"]
    assert [offer.id for offer in members.offers] == ["a"]
    assert members.disabled == ("off",)
    assert members.ids() == {"a", "b", "off"}
    assert members.identity == "us"


def test_health_changes_nothing() -> None:
    """An engine that is down keeps its place in the advertisement (decision 2)."""
    engine = FakeEngine("docs")
    membership = Membership(FakeEngines(engine), "us", max_k=200)
    before = membership.current()
    engine.down_reason = "connect: refused"
    assert membership.current() is before
    assert "retrieve" in before.capabilities


def test_nobody_known_yet() -> None:
    """Before anybody has shaken hands nothing is offered but the catalogue, and `k` is bounded by the setting."""
    members = Membership(FakeEngines(FakeEngine("a", reached=False)), "us", max_k=50).current()
    assert members.capabilities == {"catalog": {"engines": 0}}
    assert members.max_k == 50


def test_only_what_can_be_routed_is_advertised() -> None:
    """Capabilities that this gateway cannot route are not advertised; fusion is what it does itself."""
    capabilities = {
        "retrieve": {"maxK": 500, "modes": ["dense"], "fusion": ["weighted"]},
        "filter": {"fields": {"lang": "keyword"}},
        "citations": {},
        "telepathy": {},
        "index": {"writable": True},
        "streaming": {},
        "x-acme": {},
    }
    members = Membership(FakeEngines(FakeEngine("a", capabilities=capabilities)), "us", max_k=200).current()
    ours = {"catalog", "streaming", "log", "pagination", "session"}
    assert members.capabilities.keys() == {"retrieve", "filter", "citations", "x-acme"} | ours
    assert members.capabilities["session"] == {"dedup": True, "ttlSeconds": 1800}
    assert members.capabilities["retrieve"]["fusion"] == ["rrf", "weighted", "convex"]
    assert members.capabilities["retrieve"]["maxK"] == members.max_k == 200


def test_an_index_is_offered_only_if_it_may_be_written_to() -> None:
    """`index` needs the operator's word and a writable engine."""
    readable = FakeEngine("r", capabilities={"index": {"writable": False, "chunking": True}})
    writable = FakeEngine("w", capabilities={"index": {"writable": True, "contextual": True}})
    both = FakeEngines(readable, writable)
    assert "index" not in Membership(both, "us", max_k=200).current().capabilities
    offered = Membership(both, "us", max_k=200, writing=True).current().capabilities["index"]
    assert offered == {"writable": True, "contextual": True}
    assert "index" not in Membership(FakeEngines(readable), "us", max_k=200, writing=True).current().capabilities


def test_clashing_fields_are_kept_from_the_loser() -> None:
    """An engine whose type for a field lost is known not to be asked for it."""
    engines = FakeEngines(
        FakeEngine("a", priority=1, capabilities={"retrieve": {}, "filter": {"fields": {"year": "int"}}}),
        FakeEngine("b", capabilities={"retrieve": {}, "filter": {"fields": {"year": "keyword"}}}),
    )
    assert Membership(engines, "us", max_k=200).current().excluded_fields == {"b": frozenset({"year"})}
