"""Hallucination on inputs unlike the training data (Lee et al. 2018; Raunak et al. 2021), and copied source words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from dragoman.data import TokenStore
from dragoman.lens.axes import evenly_spaced
from dragoman.lens.diagnosis.diagnosis_types import MAX_EXAMPLES, DiagnosisExample, Finding, TranslatedSet, percentage
from dragoman.run import Run, Translation
from dragoman.text import split_words

WORD_REPETITIONS, SENTENCE_REPETITIONS = 20, 5  # in repeated inputs
MIN_LOOP_REPETITIONS = 4  # consecutive repetitions that make a loop
MAX_LOOP_WORDS = 4
MAX_NEW_WORDS = 3  # additional distinct words that the translation of a repeated input may have
MAX_TRAINING_PAIRS = 2000  # that are searched for words of both languages

#: sentences by language; those in the languages of the run are not used
FOREIGN_SENTENCES = {
    "la": "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
    "hu": "A szomszéd kertjében szép virágok nyílnak.",
    "fi": "Huomenna menemme aamulla metsään kävelylle.",
    "sw": "Mtoto anasoma kitabu kipya shuleni leo.",
    "zh": "今天天气很好，我们去公园散步。",
    "ar": "ذهب الولد إلى المدرسة في الصباح.",
    "ru": "Завтра мы поедем на поезде в город.",
    "xx": "asdf jkl qwer uiop zxcv bnm asdf",  # of no language: keys of a keyboard
}


def hallucination(run: Run, sources: Sequence[str], languages: str | None) -> Finding:
    """Measure the percentage of unusual inputs whose translation is unfinished, repetitive or much too long.

    The inputs are repetitions of words and sentences from `sources`, and sentences of other languages than those of the
    run: `languages` is its language pair, such as en-de, or None.
    """
    repeated = repeated_input(sources)
    foreign = [text for code, text in FOREIGN_SENTENCES.items() if code not in (languages or "").split("-")]
    inputs = [*repeated, *foreign]
    translations = run.translate(inputs, alignment=False)
    # what is wrong with each translation, "" if nothing is; the translations of `repeated` come first
    repeated_problems = [_repetition_problem(*pair) for pair in zip(repeated, translations)]
    foreign_problems = [_foreign_problem(*pair) for pair in zip(foreign, translations[len(repeated) :])]
    problems = repeated_problems + foreign_problems
    examples = [
        DiagnosisExample(source, translation.text, remark=problem)
        for source, translation, problem in zip(inputs, translations, problems)
        if problem
    ]
    unfinished = sum(not translation.finished for translation in translations)
    metrics = {
        "repeated input": percentage(sum(map(bool, repeated_problems)), len(repeated)),
        "foreign input": percentage(sum(map(bool, foreign_problems)), len(foreign)),
        "reached the length limit": percentage(unfinished, len(inputs)),
        "loops": percentage(sum("loop" in problem for problem in problems), len(inputs)),
    }
    value = percentage(len(examples), len(inputs))
    explanation = (
        f"{value:.0f} % of {len(inputs)} inputs unlike the training data (repetitions and foreign text) gave a "
        "translation that does not end, repeats itself, or is much longer than the source."
    )
    shown = tuple(evenly_spaced(examples, MAX_EXAMPLES))
    title = "Hallucination on unusual input"
    return Finding("hallucination", title, explanation, value, unit="%", metrics=metrics, examples=shown)


def repeated_input(sources: Sequence[str]) -> list[str]:
    """Return inputs that consist of one word or sentence of `sources`, repeated.

    These are the six most frequent words, WORD_REPETITIONS times each, and the first two sentences,
    SENTENCE_REPETITIONS times each.
    """
    counts = Counter(word for source in sources for word in split_words(source) if word.isalpha())
    sentences = [source for source in sources if source.strip()][:2]
    words = [" ".join([word] * WORD_REPETITIONS) for word, _ in counts.most_common(6)]
    return words + [" ".join([sentence] * SENTENCE_REPETITIONS) for sentence in sentences]


def find_loop(text: str) -> str | None:
    """Return the first phrase of up to MAX_LOOP_WORDS words that occurs MIN_LOOP_REPETITIONS times in a row.

    Shorter phrases are searched first. None if no phrase is repeated like this.
    """
    words = split_words(text)
    for size in range(1, MAX_LOOP_WORDS + 1):
        for start in range(len(words) - size * MIN_LOOP_REPETITIONS + 1):
            phrase = words[start : start + size]
            if words[start : start + size * MIN_LOOP_REPETITIONS] == phrase * MIN_LOOP_REPETITIONS:
                return " ".join(phrase)
    return None


def _repetition_problem(source: str, translation: Translation) -> str:
    """Describe what is wrong with the translation of a source that repeats a word or sentence; "" if nothing is.

    Its translation should repeat itself, too. Wrong are unfinished translations, those of more than twice as many
    words, and those with more than MAX_NEW_WORDS additional different words.
    """
    source_words, words = split_words(source), split_words(translation.text)
    if not translation.finished:
        return "reached the length limit"
    if len(words) > 2 * len(source_words):
        return f"{len(words)} words for {len(source_words)}"
    num_different, num_different_in_source = len(set(words)), len(set(source_words))
    if num_different - num_different_in_source > MAX_NEW_WORDS:
        return f"{num_different} different words for {num_different_in_source}"
    return ""


def _foreign_problem(source: str, translation: Translation) -> str:
    """Describe what is wrong with the translation of a source in a foreign language; "" if nothing is.

    Wrong are unfinished translations, those that repeat a phrase, and those of more than eight words and more than
    twice the number of source words.
    """
    if not translation.finished:
        return "reached the length limit"
    if (phrase := find_loop(translation.text)) is not None:
        return f"loop: “{phrase}”"
    source_length, length = len(split_words(source)), len(split_words(translation.text))
    return f"{length} words for {source_length}" if length > 2 * max(4, source_length) else ""


def words_of_both_languages(run: Run, sources: Sequence[str], references: Sequence[str] | None) -> set[str]:
    """Return words of the target language, which may also be source words, such as “in” in English and German.

    A word is returned if references and training targets have it at least twice, and at least a tenth as often as
    sources and training sources: a few untranslated sentences in the data do not make a word one of the target
    language. Training text is that of the first MAX_TRAINING_PAIRS pairs in the run folder, if it has any.
    """
    source_counts = Counter(word for text in sources for word in split_words(text))
    target_counts = Counter(word for text in references or () for word in split_words(text))
    folder = run.member_folders[0] / "data" / "train"
    if folder.is_dir():
        store = TokenStore(folder)
        for n in range(min(MAX_TRAINING_PAIRS, len(store))):
            source_counts.update(split_words(run.source_tokenizer.decode(store.source(n).tolist())))
            target_counts.update(split_words(run.target_tokenizer.decode(store.target(n).tolist())))
    return {word for word, count in target_counts.items() if count >= 2 and 10 * count >= source_counts[word]}


def copying(translated: TranslatedSet, shared_words: Collection[str] = ()) -> Finding:
    """Measure the percentage of translated words that are copied from the source.

    Words that are also in the reference, and `shared_words`, which exist in both languages, do not count as copied.
    Only words with two consecutive letters or digits are counted. Another metric is the percentage of translations that
    equal their source, while the reference does not.
    """
    num_copied = num_words = num_identical = 0
    examples = []
    for n, (source, text) in enumerate(zip(translated.sources, translated.texts)):
        reference = translated.references[n] if translated.references is not None else ""
        words, copied = content_words(text), copied_words(source, text, reference, shared_words)
        num_words, num_copied = num_words + len(words), num_copied + len(copied)
        identical = text.strip() == source.strip() and reference.strip() != source.strip()
        num_identical += identical
        if copied or identical:
            what = ", ".join(dict.fromkeys(copied)) or "the whole sentence"
            examples.append(translated.example(n, f"copied: {what}"))
    value = percentage(num_copied, num_words)
    has_references = translated.references is not None
    caveat = "" if has_references else " (including names and numbers: give references to exclude them)"
    explanation = (
        f"{value:.1f} % of the words of {len(translated.texts)} translations are copied from the source without being "
        f"in the reference{caveat}."
    )
    metrics = {"copied words": value, "whole sentences": percentage(num_identical, len(translated.texts))}
    shown = tuple(examples[:MAX_EXAMPLES])
    return Finding("copying", "Copied source words", explanation, value, unit="%", metrics=metrics, examples=shown)


def copied_words(source: str, text: str, reference: str, shared_words: Collection[str] = ()) -> list[str]:
    """Return the words of the translation `text` that are also in the source, but not in the reference.

    `shared_words`, which exist in both languages, are not returned either.
    """
    allowed, source_words = {*shared_words, *split_words(reference)}, content_words(source)  # not punctuation
    return [word for word in content_words(text) if word in source_words and word not in allowed]


def content_words(text: str) -> list[str]:
    """Return the words of a text that have at least two consecutive letters or digits, which excludes punctuation."""
    return [word for word in split_words(text) if re.search(r"\w{2}", word)]
