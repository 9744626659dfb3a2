"""The length limit that is derived from the lengths of the training pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest_training import small_config

from dragoman.config import Config, from_yaml, to_yaml
from dragoman.data import TokenStore
from dragoman.data.token_store import LengthCounts
from dragoman.run import Run, Translation
from dragoman.run_files import CONFIG_FILE
from dragoman.search import Beam, LengthLimit
from dragoman.text import Framing
from dragoman.training.defaults import Defaults
from dragoman.training.display import Display
from dragoman.training.length_limits import choose_length_limit, length_limit
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer

SOURCE = np.tile(np.arange(2.0, 42.0), 50)  # 2,000 pairs
ONES = np.ones(len(SOURCE), np.int64)


@pytest.mark.parametrize(
    ("ratio", "constant", "expected"),
    [
        (3.0, 0.0, (6.0, 5)),  # twice the line, and five tokens
        (0.0, 10.0, (0.0, 25)),  # summaries
        (2.0, 4.0, (4.0, 13)),
        (0.5, 6.0, (1.0, 17)),
    ],
)
def test_limit_is_twice_the_fitted_line(ratio: float, constant: float, expected: tuple[float, int]) -> None:
    found = length_limit(SOURCE, ratio * SOURCE + constant, ONES)
    assert found == pytest.approx(expected, abs=0.35)  # slopes are tried on a grid
    limits = np.floor(found[0] * SOURCE) + found[1]
    assert (limits >= 1.9 * (ratio * SOURCE + constant)).all()


def test_few_misaligned_pairs_do_not_raise_the_limit() -> None:
    target = SOURCE.copy()
    target[::200] = 250.0  # one in 200
    ratio, extra = length_limit(SOURCE, target, ONES)
    assert ratio == pytest.approx(2.0, abs=0.1)
    assert extra <= 20  # the default, as more than one in 1,000 are beyond the limit


def test_counts_equal_repeated_pairs() -> None:
    chance = np.random.default_rng(1)
    target = np.round(SOURCE * chance.uniform(0.5, 2.5, len(SOURCE)))
    (source_of, target_of), counts = np.unique(np.stack((SOURCE, target)), axis=1, return_counts=True)
    assert length_limit(source_of, target_of, counts) == length_limit(SOURCE, target, ONES)


def lengths(source: np.ndarray, target: np.ndarray) -> LengthCounts:
    return LengthCounts(source.astype(np.int64), target.astype(np.int64), np.ones(len(source), np.int64))


def test_explicit_settings_are_kept() -> None:
    some = lengths(SOURCE - 1, 3 * SOURCE - 1)  # END is counted on both sides
    search = Config().search
    for given in ({"length_ratio": 6.0}, {"length_offset": 5}, {"length_ratio": 6.0, "length_offset": 5}):
        config = replace(Config(), search=replace(search, **given))  # type: ignore[arg-type]
        defaults = Defaults(config)
        choose_length_limit(defaults, some, Framing())
        chosen, choices = defaults.config, defaults.choices
        assert (chosen.search.length_ratio, chosen.search.length_offset) == (6.0, 5)
        assert not {choice.setting.removeprefix("search.") for choice in choices} & given.keys()
        assert len(choices) == 2 - len(given)


def chosen_limit(
    train: LengthCounts | None, valid: LengthCounts | None = None, **given: float
) -> tuple[float | None, int | None]:
    """Ratio and offset of the limit that is chosen with the settings of a user."""
    defaults = Defaults(replace(Config(), search=replace(Config().search, **given)))  # type: ignore[arg-type]
    choose_length_limit(defaults, train, Framing(), valid)
    return defaults.config.search.length_ratio, defaults.config.search.length_offset


def test_few_pairs_give_the_default_limit_unless_they_are_longer() -> None:
    """9·41 tokens and EOS exceed twice 41 tokens and EOS by 370 − 84 = 286."""
    assert chosen_limit(None) == (2.0, 20)
    assert chosen_limit(lengths(SOURCE[:99], SOURCE[:99])) == (2.0, 20)
    assert chosen_limit(lengths(SOURCE[:99], 9 * SOURCE[:99])) == (2.0, 286)


def test_no_validation_pair_is_cut() -> None:
    """Of 2,000 pairs with |y| = |x|, the line |x| is doubled: 2|x| + 5. A validation pair of 10 and 99 tokens needs
    100 − 22 = 78 more."""
    train, valid = lengths(SOURCE - 1, SOURCE - 1), lengths(np.array([20, 10]), np.array([20, 99]))
    ratio, offset = chosen_limit(train)
    assert (ratio, offset) == (2.0, 5)
    assert chosen_limit(train, valid) == (2.0, 78)
    assert chosen_limit(train, valid, length_offset=7)[1] == 7  # set by the user


def compose(phrases: list[tuple[int, int]], both: int) -> list[tuple[int, int]]:
    """Lengths of commands and actions: single phrases, and two of them joined by a word ("and", "after")."""
    pairs = [(x + y + 1, a + b) for x, a in phrases for y, b in phrases]
    return [*phrases, *(pair for pair in pairs if pair[1] <= both)]


def test_targets_longer_than_all_training_targets_are_not_cut() -> None:
    """The length split of SCAN (Lake & Baroni 2018): trained on up to 22 actions, tested on 24 to 48.

    A phrase is a verb (1 word, 1 action), optionally with a direction (+1 word, 2 actions), "opposite" (+2, 3) or
    "around" (+2, 8), and "twice" or "thrice" (+1 word, 2 or 3 times the actions): 4 words and 24 actions at most, and
    twice that for two phrases. Sources have at most 9 words in both parts.
    """
    verbs = [(1, 1), (2, 2), (3, 3), (3, 8)]
    phrases = [*verbs, *((x + 1, times * a) for x, a in verbs for times in (2, 3))]
    every = compose(phrases, both=48)
    assert max(every) == (9, 48)
    assert max(actions for _, actions in every) == 48
    train, test = ([pair for pair in every if (pair[1] <= 22) == is_train] for is_train in (True, False))
    source, target = np.array(train * 2).T  # more than 100 pairs
    ratio, offset = chosen_limit(lengths(source, target))
    assert ratio is not None
    assert offset is not None
    assert all(actions + 1 <= int(ratio * (words + 1)) + offset for words, actions in test)


def test_training_pairs_are_within_the_limit(corpus: Path, tmp_path: Path) -> None:
    prepared = prepare_run(tmp_path / "run", small_config(corpus), lambda line: None)
    search = from_yaml(tmp_path / "run" / CONFIG_FILE).search
    assert search == prepared.config.search
    assert search.length_ratio is not None
    assert search.length_offset is not None
    assert {"search.length_ratio", "search.length_offset"} <= {choice.setting for choice in prepared.choices}
    store = TokenStore(tmp_path / "run" / "data" / "train")
    source, target = (np.asarray(side.lengths[:]) + 1 for side in store.columns)
    assert (target <= np.floor(source * search.length_ratio) + search.length_offset).all()


def test_validation_uses_the_length_limit(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = replace(Config().search, length_ratio=0.0, length_offset=9, min_length=9)
    prepare_run(tmp_path / "run", replace(small_config(corpus), search=limited), lambda line: None)
    validator = Trainer(tmp_path / "run", Display()).validator
    lengths = []

    def translate(run: Run, texts: list[str], search: Beam, **more: object) -> list[Translation]:
        lengths.append(search.length_limit)
        return Run.translate(run, texts, search=search, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(validator.run, "translate", translate.__get__(validator.run), raising=False)
    validator.validate()
    assert lengths == [LengthLimit(0.0, 9, 1024, 9)]


def test_settings_of_earlier_runs_are_read(tmp_path: Path) -> None:
    text = to_yaml(Config())
    assert "early_stopping: never\n" in text
    for old, new in (("complete", True), ("hopeless", False), ("steps", "steps")):
        path = tmp_path / f"{old}.yaml"
        path.write_text(text.replace("early_stopping: never", f"stop: {old}"), encoding="utf-8")
        assert from_yaml(path).search == replace(Config().search, early_stopping=new)  # type: ignore[arg-type]
