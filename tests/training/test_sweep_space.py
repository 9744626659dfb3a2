"""Search spaces: what is tried, and which mistakes are found before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.errors import UserError
from dragoman.training.sweep_space import SearchSpace, ValueRange, parse_space, read_space, short_names


def has_every_setting(system: str | None, setting: str) -> bool:
    return True


def test_values_are_parsed_by_the_type_of_their_setting() -> None:
    space = parse_space(
        ["training.batch_tokens=1024,4096", "system.name=transformer,bahdanau", "data.corpus_tags=[a, b],[c, d]"]
    )
    assert space == {
        "training.batch_tokens": [1024, 4096],
        "system.name": ["transformer", "bahdanau"],
        "data.corpus_tags": [("a", "b"), ("c", "d")],
    }
    assert parse_space(["training.learning_rate=1e-4..1e-2:log:3", "system.settings.layers=1..4"]) == {
        "training.learning_rate": ValueRange(1e-4, 1e-2, log=True, points=3),
        "system.settings.layers": ValueRange(1, 4),
    }


def test_a_yaml_file_has_dotted_and_nested_names(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        "training:\n  learning_rate: {min: 1e-4, max: 1e-2, scale: log}\nsystem.settings.dropout: [0.1, 0.3]\n"
        "system.size: tiny\n",
        encoding="utf-8",
    )
    assert read_space(path) == {
        "training.learning_rate": ValueRange(1e-4, 1e-2, log=True),
        "system.settings.dropout": [0.1, 0.3],
        "system.size": ["tiny"],
    }


def test_grid_has_all_combinations_and_evenly_spaced_points() -> None:
    values = {"a": ["x", "y"], "rate": ValueRange(1e-4, 1e-2, log=True, points=3), "n": ValueRange(1, 5, points=3)}
    grid = SearchSpace(values).grid()
    assert len(grid) == 2 * 3 * 3
    assert [settings["rate"] for settings in grid[:9:3]] == [1e-4, 1e-3, 1e-2]
    assert [settings["n"] for settings in grid[:3]] == [1, 3, 5]
    with pytest.raises(UserError, match="--random N"):
        SearchSpace({"rate": ValueRange(0.1, 0.5)}).grid()


def test_a_logarithmic_sample_has_a_uniform_logarithm() -> None:
    space = SearchSpace({"rate": ValueRange(1e-4, 1e-2, log=True)})
    configurations = space.configurations(400, 1, has_every_setting)
    rates = [settings["rate"] for settings in configurations if settings]
    assert len(rates) == 400
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    below = sum(rate < 1e-3 for rate in rates)  # half of them; standard deviation √(400 · ¼) = 10
    assert abs(below - 200) < 5 * 10
    assert configurations == space.configurations(400, 1, has_every_setting)
    assert configurations != space.configurations(400, 2, has_every_setting)


def test_settings_that_a_system_lacks_are_left_out_and_no_configuration_is_repeated() -> None:
    space = SearchSpace({"system.name": ["transformer", "bahdanau"], "system.settings.heads": [2, 4]})
    configurations = space.configurations(None, 1, lambda system, setting: system == "transformer")
    assert configurations == [
        {},
        {"system.name": "transformer", "system.settings.heads": 2},
        {"system.name": "transformer", "system.settings.heads": 4},
        {"system.name": "bahdanau"},
    ]
    few = SearchSpace({"system.size": ["tiny", "small"]}).configurations(10, 1, has_every_setting)
    assert len(few) == 3  # there are no ten


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training.batch_tokenz=1,2", "training.batch_tokens"),
        ("training.batch_tokens=1024,many", "must be an integer"),
        ("text.bpe_dropout=0.1,2", "between 0 and 1"),
        ("training.learning_rate=0..1e-2:log", "above 0"),
        ("training.learning_rate=1e-2..1e-4", "from a smaller to a larger"),
        ("training.seed=1,2", "--seeds"),
        ("training.batch_tokens", "NAME=VALUE"),
    ],
)
def test_mistakes_are_found_before_anything_runs(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SearchSpace(parse_space([text])).check()


def test_short_names_are_unambiguous() -> None:
    names = ["system.name", "training.batch_tokens", "search.batch_tokens", "system.settings.dropout"]
    assert list(short_names(names).values()) == ["system.name", *names[1:3], "dropout"]
