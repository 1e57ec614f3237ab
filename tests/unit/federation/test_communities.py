"""Communities side by side: ids that meet, and the order."""

from app.federation.response_merge import EngineResponse, join_communities, join_summaries


def test_a_prefixed_id_that_meets_another() -> None:
    """Where even `<engine>:<id>` is somebody's own id, that one is put behind its engine's name, too."""
    one = EngineResponse("one", {"communities": [{"id": "x"}]})
    two = EngineResponse("two", {"communities": [{"id": "x"}, {"id": "one:x"}]})
    assert [found["id"] for found in join_communities([two, one])] == ["one:x", "two:x", "two:one:x"]


def test_two_engines_of_one_namespace() -> None:
    """Their shared ids are told apart by the engines, behind which the namespace stays."""
    responses = [EngineResponse(name, {"communities": [{"id": 1}]}, namespace="n") for name in ("a", "b")]
    assert [found["id"] for found in join_communities(responses)] == ["a:n:1", "b:n:1"]


def test_an_engine_that_repeats_an_id() -> None:
    """Its first counts."""
    (found,) = join_communities(
        [EngineResponse("a", {"communities": [{"id": 1, "score": 2}, {"id": "1", "score": 3}]})]
    )
    assert found == {"id": 1, "score": 2, "meta": {"engine": "a", "engines": [{"id": "a"}]}}


def test_a_blank_summary_says_nothing() -> None:
    """It neither makes a paragraph nor a name necessary."""
    assert join_summaries([EngineResponse("a", {"summary": " "}), EngineResponse("b", {"summary": "B."})]) == "B."
