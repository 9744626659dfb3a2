"""One description of a search: written as JSON and read back exactly, refused alike whoever gives it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.config import Config, override_settings
from dragoman.errors import UserError
from dragoman.search import (
    Beam,
    ExactSearch,
    LengthLimit,
    MinimumBayesRisk,
    Rerank,
    RerankWeights,
    Sample,
    SearchConfig,
    Speculative,
    read_search_config,
    search_from_dict,
    search_to_dict,
)
from dragoman.search.config_json import CONFIG_KINDS, SEARCHES

EVERY = [
    Beam(),
    Beam(6, 0.6, False, 3, 2, LengthLimit(1.5, 3, 40, 2), "gnmt", 0.2, "by_score", 3),
    Beam(6, num_groups=3, diversity_penalty=0.25),
    Sample(),
    Sample(0.7, 40, 0.9, 3, 2**40, LengthLimit(), 0.05, 0.8, 2),
    MinimumBayesRisk(Sample(n_best=4)),
    MinimumBayesRisk(Sample(n_best=4), Beam(4, n_best=3), "bleu", 0.3, True, 2),
    Rerank(Beam(4, n_best=4), RerankWeights(0.1, -2.0, 1 / 3), "runs/de-en", "runs/news", 2),
    Rerank(Sample(n_best=4), RerankWeights(length=0.5)),
    ExactSearch(),
    ExactSearch(7, 0.3, LengthLimit(0, 9), 2),
    Speculative("runs/small", 3, Sample(seed=5)),
]


@pytest.mark.parametrize("search", EVERY, ids=lambda search: type(search).__name__)
def test_json_and_back(search: SearchConfig) -> None:
    assert search_from_dict(json.loads(json.dumps(search_to_dict(search)))) == search


def test_every_kind_is_among_them() -> None:
    assert {type(search).__name__ for search in EVERY} == set(SEARCHES)


def test_what_is_left_out_is_as_in_python() -> None:
    assert search_from_dict({"kind": "Beam"}) == Beam()
    short = {"kind": "Length", "most": 7}
    assert search_from_dict({"kind": "Sample", "top_k": 3, "length": short}) == Sample(
        top_k=3, length_limit=LengthLimit(max=7)
    )


def test_a_run_that_is_open_is_named_by_its_folder() -> None:
    run = cast(Any, SimpleNamespace(folder=Path("runs/back")))
    assert search_to_dict(Rerank(Beam(2, n_best=2), RerankWeights(1.0), run))["channel_model"] == "runs/back"


def test_from_a_file_or_as_text(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    path.write_text(json.dumps(search_to_dict(Beam(3))), encoding="utf-8")
    assert read_search_config(str(path)) == read_search_config(' {"kind": "Beam", "size": 3}') == Beam(3)
    path.write_bytes(b"\xff")
    for text, expected in [
        (str(path), "cannot read .*: it is not UTF-8"),
        (str(tmp_path / "nowhere"), "cannot read .*: No such file"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "cannot read"),
        ('{"kind":' * 100_000, "is not valid JSON"),
    ]:
        with pytest.raises(UserError, match=expected):
            read_search_config(text)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([], "must be a JSON object"),
        ({}, "kind"),
        ({"kind": "Beem"}, "unknown search 'Beem': did you mean 'Beam'"),
        ({"kind": "Length"}, "LengthLimit is a setting of a search, not a search: use one of Beam"),
        ({"kind": "Spec"}, "unknown search 'Spec'"),
        ({"kind": "Beam", "widht": 3}, "unknown field of Beam 'widht'"),
        ({"kind": "Beam", "size": "5"}, "a search: 'size' of Beam must be int, but is '5'"),
        ({"kind": "Beam", "size": True}, "'size' of Beam must be int"),
        ({"kind": "Beam", "early_stopping": "soon"}, "'early_stopping' of Beam must be"),
        ({"kind": "Beam", "length": {"kind": "Beam"}}, "'length_limit' of Beam must be LengthLimit"),
        ({"kind": "MinimumBayesRisk"}, "MinimumBayesRisk lacks the fields candidates"),
        (
            {"kind": "MinimumRisk", "candidates": {"kind": "Exact"}},
            "'candidates' of .* must be Beam or Sample",
        ),
        ({"kind": "Speculative", "draft": 3}, "'draft_model' of Speculative must be str"),
        ({"kind": "Beam", "size": 2, "best": 3}, "a beam of 2 hypotheses cannot return the 3 best"),
        ({"kind": "Beam", "size": 4, "groups": 3}, "'num_groups' of Beam is 3, which does not divide a beam of 4"),
        ({"kind": "Length", "least": 9, "most": 3}, "'min' of LengthLimit is 9"),
        ({"kind": "Sample", "temperature": math.nan}, "'temperature' of Sample must be above 0"),
        ({"kind": "Exact", "most": 0}, "must be at least 1"),
    ],
)
def test_what_is_refused(data: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        search_from_dict(data)


@pytest.mark.parametrize(
    ("weights", "more", "expected"),
    [
        (RerankWeights(0.5), {}, "reranking has weights.channel = 0.5, but no channel model"),
        (
            RerankWeights(language=1.0),
            {"channel_model": "runs/x"},
            "reranking has a channel model, but its weight is 0",
        ),
        (RerankWeights(), {}, "all weights of reranking are 0"),
        (RerankWeights(length=1.0), {"n_best": 5}, "cannot return the 5 best of 4 candidates"),
        (RerankWeights(length=1.0), {"n_best": 0}, "at least 1"),
    ],
)
def test_rerankings_that_contradict_themselves(weights: RerankWeights, more: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        Rerank(Beam(4, n_best=4), weights, **more)


def test_a_reranking_needs_something_to_choose_from() -> None:
    with pytest.raises(UserError, match="the search for candidates returns only 1"):
        Rerank(Beam(4), RerankWeights(length=1.0))


def test_only_what_is_known_can_be_made() -> None:
    assert set(CONFIG_KINDS) == {*SEARCHES, "LengthLimit", "RerankWeights"}
    assert replace(Beam(), size=2) != Beam()


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        ({"stop": "complete", "complete": None}, Beam(early_stopping=True)),
        ({"stop": "hopeless", "complete": None}, Beam(early_stopping=False)),
        ({"stop": "steps", "complete": None}, Beam(early_stopping="steps")),
        ({"stop": "complete", "complete": 3}, Beam(early_stopping=True, num_finished=3)),
        ({"complete": 3}, Beam(early_stopping=True, num_finished=3)),
        ({"stop": "hopeless"}, Beam(early_stopping=False)),
        ({"unfinished": "beside", "no_repeat": 2}, Beam(rank_unfinished="by_score", no_repeat_ngram_size=2)),
    ],
)
def test_descriptions_of_earlier_versions_still_open(old: dict[str, Any], expected: Beam) -> None:
    assert search_from_dict({"kind": "Beam", **old}) == expected
    nested = {"kind": "MinimumRisk", "candidates": {"kind": "Beam", "best": 2, **old}}
    assert search_from_dict(nested) == MinimumBayesRisk(replace(expected, n_best=2))


def test_a_former_name_beside_its_new_one_is_answered_with_the_new_one() -> None:
    with pytest.raises(UserError, match=r"Beam\.stop is now called early_stopping \(stop=complete is .*=true"):
        search_from_dict({"kind": "Beam", "stop": "complete", "early_stopping": True})
    with pytest.raises(UserError, match=r"search\.stop is now called early_stopping"):
        override_settings(Config(), ["search.stop=complete"])
    with pytest.raises(UserError, match="stop, which is now early_stopping: 'soon'"):
        search_from_dict({"kind": "Beam", "stop": "soon"})
    assert override_settings(Config(), ["search.early_stopping=true"]).search.early_stopping is True
    with pytest.raises(UserError, match=r"search\.early_stopping '1'"):
        override_settings(Config(), ["search.early_stopping=1"])
