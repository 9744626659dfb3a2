"""What is said of the choices is what is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.config import from_dict
from dragoman.data import DATA_FORMATS, DataFormat
from dragoman.data.corpus_passes import CorpusSurvey, HoldoutSampler
from dragoman.data.text_profile import CorpusProfile
from dragoman.run import read_tokenizers
from dragoman.systems import SYSTEMS
from dragoman.training.defaults import Defaults, _choose_system, choose_copy_mechanism, configured_recipe
from dragoman.training.prepare import prepare_run
from dragoman.training.text_defaults import choose_tokenizers, choose_vocab_sizes


def test_reports_the_learned_vocabulary_size(tmp_path: Path) -> None:
    """Eight different words have fewer pieces than the 500 that are allowed at least."""
    for name in ("source", "target"):
        (tmp_path / name).write_text("one two three four\nfive six seven eight\n" * 30, encoding="utf-8")
    values = {
        "data": {"source": [str(tmp_path / "source")], "target": [str(tmp_path / "target")], "validation_size": 1},
        "system": {"name": "bahdanau", "size": "tiny", "settings": {"model_dim": 16}},
        "text": {"tokenizer": "bpe"},
        "training": {"device": "cpu"},
    }
    prepared = prepare_run(tmp_path / "run", from_dict(values), lambda text: None)
    (choice,) = (choice for choice in prepared.choices if choice.setting == "text.vocab_size")
    size = read_tokenizers(tmp_path / "run")[0].vocab_size
    assert size < 500
    assert str(choice).startswith(f"text.vocab_size={size}  (the tokens that were learned; ")
    assert "the limit is 500, " in choice.reason


def chosen_tokenizer(system: str, recipe: str, **text: object) -> tuple[str | None, int | None]:
    defaults = Defaults(from_dict({"system": {"name": system}, "training": {"recipe": recipe}, "text": text}))
    survey = CorpusSurvey(HoldoutSampler(), source_words=5000, target_words=5000)
    choose_tokenizers(defaults, DATA_FORMATS["pairs"], survey, None, is_decoder_only=False)
    choose_vocab_sizes(defaults, DATA_FORMATS["pairs"], survey)
    return defaults.config.text.tokenizer, defaults.config.text.vocab_size


def test_the_textbook_has_the_tokenizer_of_the_paper() -> None:
    """GPT-2, GPT-3, RoBERTa and BART learn byte-level BPE; other recipes and systems do not."""
    textbook = {system for system in SYSTEMS if chosen_tokenizer(system, "textbook")[0] == "byte-bpe"}
    assert textbook == {"gpt", "gpt3", "roberta", "bart"}
    assert {chosen_tokenizer(system, "auto")[0] for system in SYSTEMS} == {"bpe"}
    assert chosen_tokenizer("gpt", "textbook", tokenizer="unigram")[0] == "unigram"


def test_a_compression_ratio_replaces_the_default_vocabulary_size() -> None:
    assert chosen_tokenizer("gpt", "plain") == ("bpe", 800)  # 8 · √10,000
    assert chosen_tokenizer("gpt", "plain", compression_ratio=3) == ("bpe", 32_000)
    assert chosen_tokenizer("gpt", "plain", compression_ratio=3, vocab_size=500) == ("bpe", 500)


@pytest.mark.parametrize(
    ("copied", "rare", "pairs", "recipe", "settings", "expected"),
    [
        (0.61, 0.56, 8000, "auto", {}, True),  # one-line summaries of package descriptions
        (0.10, 0.95, 24_155, "auto", {}, True),  # logical forms with the words of the sentence
        (0.05, 0.14, 8000, "auto", {}, None),  # translation
        (0.33, None, 8000, "auto", {}, None),  # no rare words at all
        (0.61, 0.56, 100, "auto", {}, None),  # too few pairs to know
        (0.61, 0.56, 8000, "textbook", {}, None),
        (0.61, 0.56, 8000, "auto", {"copying": False}, False),
    ],
)
def test_systems_copy_if_most_rare_target_words_occur_in_the_source(
    copied: float, rare: float | None, pairs: int, recipe: str, settings: dict[str, object], expected: bool | None
) -> None:
    values = {"system": {"name": "transformer", "settings": settings}, "training": {"recipe": recipe}}
    defaults = Defaults(from_dict(values | {"objective": {"name": "translation"}}))
    profile = CorpusProfile(None, None, copied_share=copied, rare_copied_share=rare)
    choose_copy_mechanism(defaults, DataFormat(), pairs, profile)
    assert defaults.config.system.settings.get("copying") is expected
    assert [choice.setting for choice in defaults.choices] == ["system.settings.copying"] * (expected is True)


@pytest.mark.parametrize(
    ("system", "pairs", "given", "dropout", "rdrop_alpha"),
    [
        ("transformer", 29_000, {}, 0.3, None),
        ("transformer", 165_000, {}, 0.2, None),
        ("transformer", 900_000, {}, None, None),
        ("transformer", 900, {}, None, None),  # of size tiny
        ("hard-monotonic", 8_000, {}, 0.4, 3.0),  # more than others, as in its paper
        ("hard-monotonic", 8_000, {"rdrop_alpha": 0.5}, 0.4, 0.5),
        ("hard-monotonic", 120_000, {}, 0.4, None),
    ],
)
def test_small_corpora_are_regularized(
    system: str, pairs: int, given: dict[str, float], dropout: float | None, rdrop_alpha: float | None
) -> None:
    objective = {"name": "translation", "settings": given}
    defaults = Defaults(from_dict({"system": {"name": system}, "objective": objective}))
    _, recipe = configured_recipe(defaults.config)
    _choose_system(defaults, recipe, pairs, device="cuda")
    assert defaults.config.system.settings.get("dropout") == dropout
    assert defaults.config.objective.settings.get("rdrop_alpha") == rdrop_alpha
