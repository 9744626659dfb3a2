"""Coverage of the source content: dropped and repeated words, length, quality by length, alignment error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from dragoman.evaluation import Link, alignment_error_rate, score_by_length
from dragoman.lens.diagnosis.diagnosis_types import MAX_EXAMPLES, Finding, TranslatedSet, percentage
from dragoman.run import Alignment, Run
from dragoman.text import alignment_words, split_words

DROPPED_TITLE, REPEATED_TITLE = "Dropped content", "Repeated content"
MIN_GROUP_SENTENCES = 5  # of a group of source lengths whose BLEU is compared


def coverage(run: Run, translated: TranslatedSet) -> list[Finding]:
    """Return two findings: source words that translations drop, and words that they repeat for the same source word.

    Both use the word alignments of the translations; systems without cross-attention have none, and get findings
    without a value.
    """
    alignments = [translation.alignment for translation in translated.translations if translation.alignment is not None]
    if len(alignments) < len(translated.translations):  # some translation has no alignment
        explanation = "Coverage cannot be measured: this system has no cross-attention to align words with."
        return [
            Finding(name="dropped", title=DROPPED_TITLE, explanation=explanation),
            Finding(name="repeated", title=REPEATED_TITLE, explanation=explanation),
        ]
    return [_dropped(run, translated, alignments), _repeated(translated, alignments)]


def _dropped(run: Run, translated: TranslatedSet, alignments: Sequence[Alignment]) -> Finding:
    """Measure the percentage of source words that the translations drop.

    An unaligned word is not always dropped, because attention misses many short words. With references, a word counts
    as dropped if it is unaligned and all reference words aligned to it are missing from the translation. Without, an
    unaligned word counts unless the same word occurs more than once, and is unaligned at least half of the time.

    `alignments` has for each translation pairs (index of a source word, index of a target word).
    """
    sources, references = translated.sources, translated.references
    unaligned = [unaligned_words(source, links) for source, links in zip(sources, alignments)]  # {index: word}
    # number of source words; those of punctuation only are ""
    total = sum(bool(word) for source in sources for word in stripped_words(source))
    metrics = {"not aligned": percentage(sum(map(len, unaligned)), total)}
    reference_alignments = None if references is None else run.align(sources, references)
    if references is not None and reference_alignments is not None:
        dropped = [
            missing_words(words, text, reference, links)
            for words, text, reference, links in zip(unaligned, translated.texts, references, reference_alignments)
        ]
        unaligned_references = sum(len(unaligned_words(*pair)) for pair in zip(sources, reference_alignments))
        metrics["references not aligned"] = percentage(unaligned_references, total)
        description = "are missing from the translation, as are the reference words aligned to them"
    else:
        ignored = _usually_unaligned(sources, unaligned)
        dropped = [[word for word in words.values() if word not in ignored] for words in unaligned]
        description = "have no aligned word in the translation; give references to find out which are missing"
    value = percentage(sum(map(len, dropped)), total)
    worst = sorted((n for n in range(len(sources)) if dropped[n]), key=lambda n: -len(dropped[n]))
    examples = tuple(translated.example(n, "dropped: " + ", ".join(dropped[n])) for n in worst[:MAX_EXAMPLES])
    explanation = f"{value:.1f} % of the source words {description}."
    metrics = {"dropped": value, **metrics}
    return Finding("dropped", DROPPED_TITLE, explanation, value, unit="%", metrics=metrics, examples=examples)


def unaligned_words(source: str, links: Alignment) -> dict[int, str]:
    """Return the source words that no link aligns, without punctuation, by their index in the sentence.

    `links` are pairs (index of a source word, index of a target word).
    """
    aligned = {source_index for source_index, _ in links}
    return {n: word for n, word in enumerate(stripped_words(source)) if word and n not in aligned}


def missing_words(unaligned: dict[int, str], text: str, reference: str, links: Alignment) -> list[str]:
    """Return the unaligned source words whose aligned words in the reference are all missing from the translation.

    A reference word is missing if the translation has it less often than the reference; case is ignored.

    Args:
        unaligned: source words without an aligned word in the translation, by their index in the source.
        text: the translation.
        links: pairs (index of a source word, index of a reference word).
    """
    reference_words = [word.casefold() for word in stripped_words(reference)]
    # words that the reference has more often than the translation
    missing = Counter(reference_words) - Counter(word.casefold() for word in stripped_words(text))
    expected: dict[int, list[str]] = {}  # index of a source word → its words in the reference
    for source_index, reference_index in links:
        if reference_index < len(reference_words) and reference_words[reference_index]:
            expected.setdefault(source_index, []).append(reference_words[reference_index])
    return [word for n, word in unaligned.items() if n in expected and all(missing[other] for other in expected[n])]


def _usually_unaligned(sources: Sequence[str], unaligned: Sequence[dict[int, str]]) -> set[str]:
    """Return the words that occur more than once and are unaligned in at least half of their occurrences.

    `unaligned` has for each source its unaligned words by index.
    """
    occurrences = Counter(word for source in sources for word in stripped_words(source))
    counts = Counter(word for words in unaligned for word in words.values())
    return {word for word, count in counts.items() if occurrences[word] > 1 and 2 * count >= occurrences[word]}


def _repeated(translated: TranslatedSet, alignments: Sequence[Alignment]) -> Finding:
    """Measure the percentage of translations that repeat a word for one source word.

    A word that occurs as often in the reference does not count. `alignments` has for each translation pairs (index of a
    source word, index of a target word).
    """
    examples = []
    for n, (text, links) in enumerate(zip(translated.texts, alignments)):
        reference = translated.references[n] if translated.references is not None else ""
        if repeated := repeated_words(text, links, reference):
            examples.append(translated.example(n, "again: " + ", ".join(repeated)))
    value = percentage(len(examples), len(alignments))
    explanation = f"{value:.1f} % of {len(alignments)} translations repeat a word for the same source word."
    shown = tuple(examples[:MAX_EXAMPLES])
    metrics = {"translations": value}
    return Finding("repeated", REPEATED_TITLE, explanation, value, unit="%", metrics=metrics, examples=shown)


def repeated_words(text: str, links: Alignment, reference: str) -> list[str]:
    """Return the words of the translation `text` that are repeated for one source word.

    A word is repeated if one source word is aligned with several occurrences of it, more than the reference has. A
    reference of "" has none. `links` are pairs (index of a source word, index of a target word).
    """
    words, allowed = stripped_words(text), Counter(stripped_words(reference))
    counts = Counter(  # of (index of the source word, aligned target word)
        (source_index, words[target_index])
        for source_index, target_index in links
        if target_index < len(words) and words[target_index]
    )
    return [word for (_, word), count in counts.items() if count > max(1, allowed[word])]


def stripped_words(text: str) -> list[str]:
    """Return the words of a text without the punctuation around them, numbered as in word alignments.

    A word of punctuation only becomes "".
    """
    return [re.sub(r"^\W+|\W+$", "", word) for word in alignment_words(text)]


def length_ratio(translated: TranslatedSet) -> Finding:
    """Measure the number of translated words per reference word, or per source word without references.

    Outliers are translations that are less than half or more than twice as long.
    """
    references = translated.references
    others, name = (translated.sources, "source") if references is None else (references, "reference")
    # (words of the translation, words of its reference or source)
    lengths = [(len(split_words(text)), len(split_words(other))) for text, other in zip(translated.texts, others)]
    ratio = sum(length for length, _ in lengths) / max(1, sum(expected for _, expected in lengths))
    outliers = [n for n, (length, expected) in enumerate(lengths) if expected and not 0.5 <= length / expected <= 2]
    truncated = sum(not translation.finished for translation in translated.translations)
    explanation = (
        f"Translations have {ratio:.2f} words per {name} word; {len(outliers)} of {len(lengths)} are less than half or "
        f"more than twice as long, and {truncated} reached the length limit."
    )
    examples = [translated.example(n, f"{lengths[n][0]} words for {lengths[n][1]}") for n in outliers[:MAX_EXAMPLES]]
    metrics = {
        "ratio": ratio,
        "outliers": percentage(len(outliers), len(lengths)),
        "reached the limit": percentage(truncated, len(lengths)),
    }
    return Finding("length", "Length", explanation, value=ratio, metrics=metrics, examples=tuple(examples))


def quality_by_length(translated: TranslatedSet) -> Finding:
    """Measure by how much BLEU is lower on the longest than on the shortest sources.

    Sentences are grouped by the number of source words, such as "6 to 10" (`band.words`); groups of fewer than
    MIN_GROUP_SENTENCES sentences are not compared. `Finding.bands` has all groups with their scores, shortest first.
    Without references, or with fewer than two groups to compare, the finding has no value.
    """
    name, title = "quality-by-length", "Quality by sentence length"
    if translated.references is None:
        return Finding(name, title, "Quality is measured against references: give them with --target.")
    bands = tuple(score_by_length(translated.sources, translated.texts, translated.references))
    large = [band for band in bands if band.sentences >= MIN_GROUP_SENTENCES]
    if len(large) < 2:
        explanation = f"Fewer than two groups of lengths have {MIN_GROUP_SENTENCES} sentences: give a larger test set."
        return Finding(name, title, explanation, bands=bands)
    shortest, longest = large[0], large[-1]
    value = shortest.bleu - longest.bleu
    explanation = (
        f"BLEU is {abs(value):.1f} {'lower' if value >= 0 else 'higher'} on sentences of {longest.words} words than on "
        f"those of {shortest.words}: systems that encode a sentence in one vector degrade with length, attention much "
        "less."
    )
    metrics = {band.words: band.bleu for band in bands}
    return Finding(name, title, explanation, value, unit="BLEU", metrics=metrics, bands=bands)


def alignment_error(alignments: Sequence[Collection[Link]] | None, gold: Sequence[Collection[Link]]) -> Finding:
    """Measure the alignment error rate of word alignments by attention, in percent.

    Both arguments have for each sentence pairs (index of a source word, index of a target word); `alignments` is None
    for systems without cross-attention, whose finding has no value.
    """
    name, title = "alignment", "Alignment error"
    if alignments is None:
        return Finding(name, title, "Alignment cannot be measured: this system has no cross-attention.")
    score = alignment_error_rate(alignments, gold)
    value = 100 * score.value
    explanation = (
        f"{value:.1f} % alignment error rate: {100 * score.detail['precision']:.1f} % of the links by attention are "
        f"correct, and {100 * score.detail['recall']:.1f} % of the gold links are found."
    )
    metrics = {key: float(number) for key, number in score.detail.items()}
    return Finding(name, title, explanation, value, unit="%", metrics=metrics)
