"""Settings: values from options, texts from --set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.config import Config, from_dict, from_yaml, override_settings, parse_settings, replace_settings, to_yaml
from dragoman.errors import UserError

AWKWARD = ["runs/a #2", "null", "yes", "no", "x: y", "[a", "'quoted'", "1e3", "007", "~", "a\\b", "für immer"]


@pytest.mark.parametrize("text", AWKWARD)
def test_a_string_setting_keeps_every_character(text: str) -> None:
    assert replace_settings(Config(), {"training.start_from": text}).training.start_from == text
    assert override_settings(Config(), [f"training.start_from={text}"]).training.start_from == text


@pytest.mark.parametrize("text", AWKWARD)
def test_a_string_setting_survives_the_file_of_the_run(text: str, tmp_path: Path) -> None:
    config = replace_settings(Config(), {"training.start_from": text, "data.source": (text, text)})
    (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert from_yaml(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("training.steps=1000", 1000),
        ("training.steps=null", None),
        ("training.steps=", None),
        ("training.start_from=", None),
        ("training.learning_rate=1e-3", 0.001),
        ("training.minutes=2", 2.0),
        ("training.auto_batch_size=yes", True),
        ("training.auto_batch_size=False", False),
        ("training.compile=null", None),
        ("training.schedule=null", None),
        ("training.schedule=cosine", "cosine"),
        ("data.source_column=0", "0"),
        ("data.source=a: b #1.en", ("a: b #1.en",)),
        ("data.source=[a.en, 'b c.en', no]", ("a.en", "b c.en", "no")),
        ("data.corpus_tags=['',back]", ("", "back")),
        ("data.sampling_weights=[1, 2.5]", (1.0, 2.5)),
        ("data.target=[]", ()),
        ("system.settings.model_dim=64", 64),
        ("system.settings.dropout=1e-1", 0.1),
        ("system.settings.norm=rms", "rms"),
        ("system.settings={model_dim: 64}", {"model_dim": 64}),
        ("text.tokenizer=a=b", "a=b"),
    ],
)
def test_a_text_is_parsed_by_the_type_of_its_setting(setting: str, expected: Any) -> None:
    (value,) = parse_settings([setting]).values()
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.steps=many", "training.steps must be an integer, got 'many'"),
        ("training.steps=1.5", "training.steps must be an integer"),
        ("training.minutes=long", "training.minutes must be a number"),
        ("training.auto_batch_size=perhaps", "training.auto_batch_size must be true or false"),
        ("training.schedule=triangular", "training.schedule"),
        ("data.sampling_weights=[1, x]", "data.sampling_weights must be a number"),
        ("data.sampling_weights=[1", "data.sampling_weights=.1 is not valid YAML"),
        ("system.settings.model_dim=[1", "system.settings.model_dim=.1 is not valid YAML"),
        ("training.step=5", "did you mean 'training.steps'"),
        ("trainig.steps=5", "did you mean 'training'"),
        ("training.steps.more=5", "unknown section 'training.steps'"),
        ("training.lr=1", "did you mean 'training.learning_rate'"),
        ("batch_tokens=9", "did you mean 'training.batch_tokens'"),
        ("system.dropout=0", "did you mean 'system.settings.dropout'"),
        ("nothing", "--set expects NAME=VALUE"),
        ("training=5", "training is a section of settings, not a setting: set its settings one by one"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named(setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        override_settings(Config(), [setting])


def test_a_word_that_yaml_reads_as_a_truth_value_is_explained() -> None:
    with pytest.raises(UserError, match=r"data\.corpus_tags must be text, got False \(in a YAML file"):
        from_dict({"data": {"corpus_tags": [False]}})
