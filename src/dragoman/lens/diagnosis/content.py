"""Whether a translation says all, and nothing twice: by alignment, by length, and by the length of the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from dragoman.evaluation import Link, alignment_error_rate, by_length
from dragoman.lens.diagnosis.finding import SHOWN, Band, Example, Finding, share
from dragoman.run import Links, Run, Translation
from dragoman.text import words

DROPPED, REPEATED = "dropped", "repeated"
TITLES = {DROPPED: "Dropped content", REPEATED: "Repeated content"}


def coverage(
    run: Run, sources: Sequence[str], found: Sequence[Translation], references: Sequence[str] | None
) -> list[Finding]:
    """Source words that no word of the translation comes from, and words that are said twice for the same one.

    Small words are often left out rightly, so that the same is counted of the references, where there are some.
    """
    links = [one.alignment for one in found]
    if any(one is None for one in links):
        why = "It cannot be told which source words were translated: no part of this system looks at them."
        return [Finding(name, TITLES[name], why) for name in (DROPPED, REPEATED)]
    known = [one or [] for one in links]
    texts = [one.text for one in found]
    gold = run.align(sources, references) if references is not None else None
    value, missing = _dropped(sources, known)
    numbers = {"translations": value}
    beside = ""
    if gold is not None:
        numbers["references"], _ = _dropped(sources, gold)
        beside = f"; of the references {numbers['references']:.1f} % are"
    why = f"{value:.1f} % of the source words are where no word of the translation looks{beside}."
    worst = sorted(range(len(texts)), key=lambda n: -len(missing[n]))
    examples = tuple(
        Example(sources[n], texts[n], "not looked at: " + ", ".join(missing[n])) for n in worst[:SHOWN] if missing[n]
    )
    first = Finding(DROPPED, TITLES[DROPPED], why, value, "%", numbers, examples)
    return [first, _repeated(sources, texts, known, references)]


def _dropped(sources: Sequence[str], links: Sequence[Links]) -> tuple[float, list[list[str]]]:
    """Per cent of all source words, and which they are in each sentence; marks are no words."""
    missing, total = [], 0
    for source, some in zip(sources, links):
        there = {place: word for place, word in enumerate(words(source)) if word.isalnum()}
        total += len(there)
        missing.append([word for place, word in there.items() if place not in {i for i, _ in some}])
    return share(sum(map(len, missing)), total), missing


def _repeated(
    sources: Sequence[str], texts: Sequence[str], links: Sequence[Links], references: Sequence[str] | None
) -> Finding:
    twice, examples = 0, []
    for n, (source, text) in enumerate(zip(sources, texts)):
        said = words(text)
        allowed = Counter(words(references[n])) if references is not None else Counter()
        counted = Counter((i, said[j]) for i, j in links[n] if j < len(said) and said[j].isalnum())
        again = [word for (_, word), count in counted.items() if count > max(1, allowed[word])]
        twice += bool(again)
        if again:
            examples.append(Example(source, text, "again: " + ", ".join(again)))
    value = share(twice, len(texts))
    why = f"{value:.1f} % of {len(texts)} translations say a word more than once for the same source word."
    numbers = {"translations": value}
    return Finding(REPEATED, TITLES[REPEATED], why, value, "%", numbers, tuple(examples[:SHOWN]))


def length_ratio(sources: Sequence[str], found: Sequence[Translation], references: Sequence[str] | None) -> Finding:
    """Words of the translations for each of the references, or of the sources where there are none."""
    others, name = (sources, "source") if references is None else (references, "reference")
    pairs = [(len(words(one.text)), len(words(other))) for one, other in zip(found, others)]
    value = sum(a for a, _ in pairs) / max(1, sum(b for _, b in pairs))
    odd = [n for n, (a, b) in enumerate(pairs) if b and not 0.5 <= a / b <= 2]
    cut = sum(not one.finished for one in found)
    why = (
        f"There are {value:.2f} words to each word of the {name}; {len(odd)} of {len(pairs)} translations are less "
        f"than half or more than twice as long, and {cut} reached the length limit."
    )
    examples = [Example(sources[n], found[n].text, f"{pairs[n][0]} words to {pairs[n][1]}") for n in odd[:SHOWN]]
    numbers = {"ratio": value, "odd ones": share(len(odd), len(pairs)), "reached the limit": share(cut, len(pairs))}
    return Finding("length", "Length", why, value, "", numbers, tuple(examples))


def quality_by_length(
    sources: Sequence[str], found: Sequence[Translation], references: Sequence[str] | None
) -> Finding:
    """What long sentences cost: the difference between the shortest and the longest band, in BLEU."""
    name, title = "by-length", "Quality by sentence length"
    if references is None:
        return Finding(name, title, "Quality is measured against references: name some with --target.")
    bands = by_length(sources, [one.text for one in found], references)
    curve = tuple(Band(*band) for band in bands)
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
