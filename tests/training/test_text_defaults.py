"""Tokenizers and vocabularies that are chosen by the text: characters, whole symbols or subwords, for each side."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dragoman.config import from_dict
from dragoman.data import DATA_FORMATS, SentencePair
from dragoman.data.corpus_passes import CorpusSurvey, HoldoutSampler
from dragoman.data.text_profile import CorpusCounts, count_chunk
from dragoman.errors import UserError
from dragoman.run import read_tokenizers
from dragoman.training.defaults import Defaults
from dragoman.training.prepare import PreparedRun, prepare_run
from dragoman.training.text_defaults import choose_for_pairs, choose_for_text, choose_tokenizers, choose_vocab_sizes

Pairs = list[tuple[str, str | None]]

random = Random(0)
SYLLABLES = ["".join(letters) for letters in product("bdfgklmnprstvz", "aeiou")]
CYRILLIC = str.maketrans("abdefgiklmnoprstuvz", "абдефгиклмнопрстувз")
FEATURES = {"V;PRS": "t", "V;PST": "te", "N;PL": "en", "N;GEN": "es"}
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def word(syllables: int = 3) -> str:
    """Return a word that hardly occurs again."""
    return "".join(random.choices(SYLLABLES, k=syllables))


def sentence(words: int = 8) -> str:
    """Return a sentence of rare and of frequent words, with a full stop."""
    return " ".join(random.choice([word(), *SYLLABLES[:5]]) for _ in range(words)).capitalize() + "."


def unspaced(first: str, count: int, length: int) -> str:
    """Return characters of a script without spaces, from a `count` of them."""
    return "".join(chr(ord(first) + random.randrange(count)) for _ in range(length))


def inflection() -> tuple[str, str]:
    lemma, features = word(), random.choice(list(FEATURES))
    return f"{lemma} {features}", lemma + FEATURES[features]


def date() -> tuple[str, str]:
    day, month, year = random.randint(1, 28), random.randint(1, 8), random.randint(1900, 2099)
    return f"{day} {MONTHS[month - 1]} {year}", f"{year}-{month:02}-{day:02}"


def code() -> tuple[str, str]:
    name, method, argument = word(2), word(2), word(2)
    return f"call the method {method} of {name} with {argument}", f"{name}.{method}({argument}, 0)"


def logical_form() -> tuple[str, str]:
    city, other = random.sample(["ci0", "ci1", "ci2"], 2)
    source = f"flights from {city} to {other}" + (f" by {word()}" if random.random() < 0.2 else "")
    return source, f"( lambda $0 ( and ( from $0 {city} ) ( to $0 {other} ) ) )"


def spelled(text: str) -> tuple[str, str]:
    return text, " ".join(text.upper())


KINDS: dict[str, tuple[Callable[[], tuple[str, str | None]], str, str]] = {
    "pronunciation": (lambda: spelled(word()), "character", "symbol"),
    "spelling of phonemes": (lambda: spelled(word())[::-1], "symbol", "character"),
    "pronunciation of words of several syllables": (
        lambda: (f"{word(1)}{random.choice('nrt')} {word(1)}s", " ".join(random.choices("abcdefg", k=4))),
        *("character", "symbol"),
    ),
    "pronunciation of sentences": (lambda: spelled(sentence()), "character", "symbol"),
    "molecules": (lambda: ("".join(random.choices("CNO()=c1", k=50)),) * 2, "character", "character"),
    "names of molecules": (
        lambda: (sentence(15), "".join(random.choices("CNO()=c1", k=50))),
        *("bpe", "character"),
    ),
    "inflection": (inflection, "character", "character"),
    "transliteration": (lambda: ((name := f"{word()} {word()}"), name.translate(CYRILLIC)), "character", "character"),
    "dates": (date, "character", "character"),
    "names of dates": (lambda: date()[::-1], "character", "character"),
    "commands and actions": (
        lambda: (f"jump {random.choice(['left', 'twice'])} and walk", "I_JUMP I_WALK " * random.randint(1, 3)),
        *("symbol", "symbol"),
    ),
    "sentence and logical form": (logical_form, "bpe", "symbol"),
    "code": (code, "bpe", "bpe"),
    "translation": (lambda: (sentence(), sentence()), "bpe", "bpe"),
    "sentence and label": (lambda: (sentence(), random.choice(["good", "bad"])), "bpe", "symbol"),
    "sentence and word": (lambda: (sentence(), word()), "bpe", "bpe"),
    "word and definition": (lambda: (word(), sentence()), "character", "bpe"),
    "Japanese": (lambda: (sentence(), unspaced("一", 500, 9) + unspaced("あ", 60, 9) + "。"), "bpe", "bpe"),
    "short Chinese sentences": (lambda: (sentence(), unspaced("一", 500, 6) + "。"), "bpe", "bpe"),
    "readings of Chinese words": (
        lambda: (unspaced("一", 400, 2), " ".join(random.choices(["ni3", "hao3", "ma1"], k=2))),
        *("character", "symbol"),
    ),
    "Thai": (lambda: (sentence(), f"{unspaced('ก', 40, 20)} {unspaced('ก', 40, 20)}"), "bpe", "bpe"),
    "Arabic": (lambda: (sentence(), " ".join(unspaced("ب", 20, 4) for _ in range(6))), "bpe", "bpe"),
}


def counts_of(pairs: Pairs) -> CorpusCounts:
    return count_chunk([SentencePair(source, target, "corpus", 1) for source, target in pairs])


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_of_kinds_of_data(kind: str) -> None:
    """With a thousand lines, or with as many as a small task has."""
    generate, *expected = KINDS[kind]
    for lines in (300, 1000):
        profile = counts_of([generate() for _ in range(lines)]).profile()
        assert [choice.kind for choice in choose_for_pairs(profile)] == expected, (lines, profile)


def test_forms_that_occur_often_are_spelled() -> None:
    """There may be other forms than those of 150 lemmas, unlike labels of sentences."""
    lemmas, labels = [word() for _ in range(150)], [word() for _ in range(120)]
    forms: Pairs = [(f"{lemma} {features}", lemma + FEATURES[features]) for lemma in lemmas for features in FEATURES]
    assert [choice.kind for choice in choose_for_pairs(counts_of(forms * 5).profile())] == ["character", "character"]
    intents: Pairs = [(sentence(), random.choice(labels)) for _ in range(1000)]
    assert [choice.kind for choice in choose_for_pairs(counts_of(intents).profile())] == ["bpe", "symbol"]


def test_few_lemmas_are_spelled() -> None:
    """Forms of new lemmas are wanted, even if each of 75 lemmas occurs often enough to be a closed inventory."""
    lemmas = [word() for _ in range(75)]
    forms: Pairs = [(lemma, lemma + ending) for lemma in lemmas for ending in FEATURES.values()]
    assert [choice.kind for choice in choose_for_pairs(counts_of(forms).profile())] == ["character", "character"]


def test_few_words_with_rare_phonemes() -> None:
    """A phoneme that occurs once among 400 does not make other tokens of phonemes, but it does so for other symbols."""
    rare = [*"abcdefg", "ɲ", "ʒ"]
    phonemes = counts_of(
        [(word(), " ".join([*random.choices(rare[:7], k=4), *rare[7:][: line < 1]])) for line in range(100)]
    )
    assert [choice.kind for choice in choose_for_pairs(phonemes.profile())] == ["character", "symbol"]
    actions = counts_of([(word(), "I_RUN " * 4 + "I_TURN" * (line < 1)) for line in range(100)])
    assert [choice.kind for choice in choose_for_pairs(actions.profile())] == ["character", "character"]


def test_sentences_of_a_closed_lexicon_with_punctuation_are_subwords() -> None:
    """A word with a full stop would be another symbol than the word alone."""
    words = [word() for _ in range(20)]
    spaced = counts_of([(" ".join(random.choices(words, k=6)) + " .", None) for _ in range(500)]).profile()
    attached = counts_of([(" ".join(random.choices(words, k=6)) + ".", None) for _ in range(500)]).profile()
    assert [choose_for_text(profile.source).kind for profile in (spaced, attached)] == ["symbol", "bpe"]
    # the last words are others than those before
    last = [word() for _ in range(20)]
    order = counts_of([(" ".join([*random.choices(words, k=6), random.choice(last)]) + ".", None) for _ in range(500)])
    assert choose_for_text(order.profile().source).kind == "bpe"


def test_unknown_symbols_in_validation_text_open_the_inventory() -> None:
    counts = counts_of([("a b c d", None)] * 100)
    unknown = counts.source.symbols.unknown_share(counts_of([("a b c x", None)]).source.symbols)
    assert unknown == 0.25
    assert choose_for_text(counts.profile().source, 0.0).kind == "symbol"
    assert choose_for_text(counts.profile().source, unknown).kind == "bpe"


def chosen(pairs: Pairs, is_decoder_only: bool = False, data_format: str = "pairs", **text: Any) -> Defaults:
    """Return the settings of the text that are chosen for pairs; `text` are those that the user has given."""
    defaults = Defaults(from_dict({"system": {"name": "transformer"}, "text": text}))
    survey = CorpusSurvey(HoldoutSampler(), len(pairs), text_counts=counts_of(pairs))
    survey.source_words, survey.target_words = survey.text_counts.source.words, survey.text_counts.target.words
    choose_tokenizers(defaults, DATA_FORMATS[data_format], survey, None, is_decoder_only)
    choose_vocab_sizes(defaults, DATA_FORMATS[data_format], survey)
    return defaults


@pytest.mark.parametrize(
    ("kind", "is_shared"),
    [
        ("pronunciation", False),
        ("transliteration", False),
        ("Japanese", False),
        ("commands and actions", False),
        ("inflection", True),
        ("translation", True),
        ("code", True),
    ],
)
def test_shared_vocabulary(kind: str, is_shared: bool) -> None:
    pairs = [KINDS[kind][0]() for _ in range(300)]
    assert chosen(pairs).config.text.shared_vocabulary == is_shared
    assert chosen(pairs, shared_vocabulary=False).config.text.shared_vocabulary is False
    assert chosen(pairs, is_decoder_only=True).config.text.shared_vocabulary is True


def test_given_tokenizers_are_kept() -> None:
    pairs: Pairs = [spelled(word()) for _ in range(300)]
    assert chosen(pairs).config.text.tokenizers == ("character", "symbol")
    assert chosen(pairs, tokenizer="word").config.text.tokenizers == ("word", "word")
    assert chosen(pairs, target_tokenizer="bpe").config.text.tokenizers == ("character", "bpe")
    assert chosen(pairs, tokenizer="bpe", source_tokenizer="byte").config.text.tokenizers == ("byte", "bpe")
    assert chosen(pairs, vocab_size=400).config.text.tokenizers == ("bpe", "bpe")
    assert chosen(pairs, shared_vocabulary=True).config.text.tokenizers == ("character", "character")
    assert chosen(pairs, is_decoder_only=True, target_tokenizer="byte").config.text.tokenizers == ("byte", "byte")
    with pytest.raises(UserError, match=r"text.source_tokenizer=bpe and text.target_tokenizer=word"):
        chosen(pairs, shared_vocabulary=True, source_tokenizer="bpe", target_tokenizer="word")


def test_words_with_tags_are_subwords_or_symbols() -> None:
    tags: Pairs = [("house", "NOUN"), ("cat", "NOUN"), (word(), "NOUN")]
    assert chosen(tags, data_format="tags").config.text.source_tokenizer == "bpe"
    assert chosen([("a b", "X Y")] * 9, data_format="tags").config.text.source_tokenizer == "symbol"


def test_vocabulary_size_grows_with_the_alphabet() -> None:
    """7 special tokens, 256 bytes, and as many merges as characters: 8·√words would not even suffice for these."""
    pairs: Pairs = [(sentence(), unspaced("一", 400, 30) + "。") for _ in range(100)]
    defaults = chosen(pairs)
    assert defaults.config.text.vocab_size is None  # another one for each side
    survey = CorpusSurvey(HoldoutSampler(), text_counts=counts_of(pairs), source_words=800, target_words=100)
    source, target = choose_vocab_sizes(defaults, DATA_FORMATS["pairs"], survey)
    assert source.size == 500
    characters = len({letter for _, text in pairs for letter in text or ""})
    assert characters - 2 <= (target.size - 263) / 2 <= characters  # 0.05 % of the text are 1.5 characters


def prepare(folder: Path, pairs: Pairs, **text: Any) -> PreparedRun:
    """Prepare a run on pairs."""
    (folder / "train.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    values = {
        "data": {"source": [str(folder / "train.tsv")]},
        "system": {"name": "bahdanau", "size": "tiny", "settings": {"model_dim": 16}},
        "training": {"device": "cpu"},
        "text": text,
    }
    return prepare_run(folder / "run", from_dict(values), lambda text: None)


def test_choices_are_reported_and_recorded(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [spelled(word()) for _ in range(200)])
    source, target = read_tokenizers(tmp_path / "run")
    assert (source.kind, target.kind) == ("character", "symbol")
    assert prepared.config.text.tokenizers == ("character", "symbol")
    report = json.loads((tmp_path / "run" / "preflight.json").read_text(encoding="utf-8"))
    reported = {choice["setting"]: choice["value"] for choice in report["choices"]}
    assert reported["text.source_tokenizer"] == "character"
    assert reported["text.target_tokenizer"] == "symbol"
    assert reported["text.shared_vocabulary"] is False
    assert report["text"]["source"]["scripts"] == {"Latin": 1}
    assert report["target"]["unknown"] == 0


def test_text_without_spaces_round_trips(tmp_path: Path) -> None:
    pairs: Pairs = [(sentence(), unspaced("一", 500, 12) + unspaced("あ", 60, 12) + "。") for _ in range(100)]
    prepared = prepare(tmp_path, pairs)
    assert [sample.target_decoded for sample in prepared.preflight.samples] == [
        sample.target for sample in prepared.preflight.samples
    ]
    _, target = read_tokenizers(tmp_path / "run")
    assert target.kind == "bpe"
    assert prepared.preflight.target is not None
    assert prepared.preflight.target.tokens.mean < 25  # characters, not bytes
