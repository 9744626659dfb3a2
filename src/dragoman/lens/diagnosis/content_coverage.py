"""Whether a translation says all, and nothing twice: by alignment, by length, and by the length of the source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from dragoman.evaluation import Link, alignment_error_rate, score_by_length
from dragoman.lens.diagnosis.diagnosis_types import MAX_EXAMPLES, DiagnosisExample, Finding, LengthQuality, percentage
from dragoman.run import Alignment, Run, Translation
from dragoman.text import alignment_words, split_words

DROPPED, REPEATED = "dropped", "repeated"
TITLES = {DROPPED: "Dropped content", REPEATED: "Repeated content"}


def coverage(
    run: Run, sources: Sequence[str], found: Sequence[Translation], references: Sequence[str] | None
) -> list[Finding]:
    """Source words whose content the translation lacks, and words that are said twice for the same one."""
    links = [one.alignment for one in found]
    if any(one is None for one in links):
        why = "It cannot be told which source words were translated: no part of this system looks at them."
        return [Finding(name, TITLES[name], why) for name in (DROPPED, REPEATED)]
    known = [one or [] for one in links]
    texts = [one.text for one in found]
    gold = run.align(sources, references) if references is not None else None
    return [_dropped(sources, texts, known, references, gold), _repeated(sources, texts, known, references)]


def _dropped(
    sources: Sequence[str],
    texts: Sequence[str],
    links: Sequence[Alignment],
    references: Sequence[str] | None,
    gold: Sequence[Alignment] | None,
) -> Finding:
    """Dropped source words. A source word without a link is not enough: attention rarely links every small word.

    With references, a word is dropped if it has no link in the translation, and the reference words linked to it are
    missing from the translation. Without, words that are left without a link in half of their sentences do not count.
    """
    unaligned = [_unaligned(source, some) for source, some in zip(sources, links)]
    total = max(1, sum(bool(word) for source in sources for word in _bare(source)))
    numbers = {"not aligned": percentage(sum(map(len, unaligned)), total)}
    if references is not None and gold is not None:
        lost = [_lost(*one) for one in zip(unaligned, texts, references, gold)]
        numbers["references not aligned"] = percentage(sum(len(_unaligned(*one)) for one in zip(sources, gold)), total)
        beside = "are missing from the translation, with the reference words aligned to them"
    else:
        usual = _usually_unaligned(sources, unaligned)
        lost = [[word for word in some.values() if word not in usual] for some in unaligned]
        beside = "have no aligned word in the translation; give references to tell which are really missing"
    value = percentage(sum(map(len, lost)), total)
    worst = sorted((n for n in range(len(texts)) if lost[n]), key=lambda n: -len(lost[n]))
    examples = tuple(
        DiagnosisExample(sources[n], texts[n], "dropped: " + ", ".join(lost[n])) for n in worst[:MAX_EXAMPLES]
    )
    why = f"{value:.1f} % of the source words {beside}."
    return Finding(DROPPED, TITLES[DROPPED], why, value, "%", {"dropped": value, **numbers}, examples)


def _unaligned(source: str, links: Alignment) -> dict[int, str]:
    """Source words without a link, by place; punctuation marks do not count."""
    linked = {i for i, _ in links}
    return {n: word for n, word in enumerate(_bare(source)) if word and n not in linked}


def _lost(unaligned: dict[int, str], text: str, reference: str, links: Alignment) -> list[str]:
    """Unaligned source words whose words in the reference are all missing from the translation."""
    wanted = [word.casefold() for word in _bare(reference)]
    missing = Counter(wanted) - Counter(word.casefold() for word in _bare(text))
    expected: dict[int, list[str]] = {}
    for i, j in links:
        if j < len(wanted) and wanted[j]:
            expected.setdefault(i, []).append(wanted[j])
    return [word for n, word in unaligned.items() if n in expected and all(missing[one] > 0 for one in expected[n])]


def _usually_unaligned(sources: Sequence[str], unaligned: Sequence[dict[int, str]]) -> set[str]:
    """Words that occur more than once and have no link in at least half of their occurrences."""
    occurrences = Counter(word for source in sources for word in _bare(source))
    without = Counter(word for some in unaligned for word in some.values())
    return {word for word, count in without.items() if occurrences[word] > 1 and 2 * count >= occurrences[word]}


def _repeated(
    sources: Sequence[str], texts: Sequence[str], links: Sequence[Alignment], references: Sequence[str] | None
) -> Finding:
    twice, examples = 0, []
    for n, (source, text) in enumerate(zip(sources, texts)):
        said = _bare(text)
        allowed = Counter(_bare(references[n])) if references is not None else Counter()
        counted = Counter((i, said[j]) for i, j in links[n] if j < len(said) and said[j])
        again = [word for (_, word), count in counted.items() if count > max(1, allowed[word])]
        twice += bool(again)
        if again:
            examples.append(DiagnosisExample(source, text, "again: " + ", ".join(again)))
    value = percentage(twice, len(texts))
    why = f"{value:.1f} % of {len(texts)} translations say a word more than once for the same source word."
    numbers = {"translations": value}
    return Finding(REPEATED, TITLES[REPEATED], why, value, "%", numbers, tuple(examples[:MAX_EXAMPLES]))


def _bare(text: str) -> list[str]:
    """The words that alignments count, without the punctuation around them: nothing is left of a mark alone."""
    return [re.sub(r"^\W+|\W+$", "", word) for word in alignment_words(text)]


def length_ratio(sources: Sequence[str], found: Sequence[Translation], references: Sequence[str] | None) -> Finding:
    """Words of the translations for each of the references, or of the sources where there are none."""
    others, name = (sources, "source") if references is None else (references, "reference")
    pairs = [(len(split_words(one.text)), len(split_words(other))) for one, other in zip(found, others)]
    value = sum(a for a, _ in pairs) / max(1, sum(b for _, b in pairs))
    odd = [n for n, (a, b) in enumerate(pairs) if b and not 0.5 <= a / b <= 2]
    cut = sum(not one.finished for one in found)
    why = (
        f"There are {value:.2f} words to each word of the {name}; {len(odd)} of {len(pairs)} translations are less "
        f"than half or more than twice as long, and {cut} reached the length limit."
    )
    examples = [
        DiagnosisExample(sources[n], found[n].text, f"{pairs[n][0]} words to {pairs[n][1]}") for n in odd[:MAX_EXAMPLES]
    ]
    numbers = {
        "ratio": value,
        "odd ones": percentage(len(odd), len(pairs)),
        "reached the limit": percentage(cut, len(pairs)),
    }
    return Finding("length", "Length", why, value, "", numbers, tuple(examples))


def quality_by_length(
    sources: Sequence[str], found: Sequence[Translation], references: Sequence[str] | None
) -> Finding:
    """What long sentences cost: the difference between the shortest and the longest band, in BLEU."""
    name, title = "by-length", "Quality by sentence length"
    if references is None:
        return Finding(name, title, "Quality is measured against references: name some with --target.")
    bands = score_by_length(sources, [one.text for one in found], references)
    curve = tuple(LengthQuality(*band) for band in bands)
    solid = [band for band in curve if band.sentences >= 5]
    if len(solid) < 2:
        return Finding(name, title, "Too few lengths have five sentences: give a larger test set.", bands=curve)
    first, last = solid[0], solid[-1]
    value = first.bleu - last.bleu
    what = "lower" if value >= 0 else "higher"
    why = (
        f"BLEU is {abs(value):.1f} {what} on sentences of {last.words} words than on those of {first.words}: a model "
        "that reads a sentence into one vector of fixed size falls with length, attention does so much less."
    )
    return Finding(name, title, why, value, "BLEU", {band.words: band.bleu for band in curve}, bands=curve)


def alignment_error(found: Sequence[Collection[Link]] | None, gold: Sequence[Collection[Link]]) -> Finding:
    """How far the looks at reference translations are from the alignments of a human."""
    name, title = "alignment", "Alignment error"
    if found is None:
        return Finding(name, title, "Nothing is aligned: no part of this system looks at the source.")
    score = alignment_error_rate(found, gold)
    value = 100 * score.value
    why = (
        f"{value:.1f} % alignment error against gold links: {100 * score.detail['precision']:.1f} % of the links by "
        f"attention are right, and {100 * score.detail['recall']:.1f} % of the gold ones are found."
    )
    return Finding(name, title, why, value, "%", {key: float(number) for key, number in score.detail.items()})
