"""What becomes of input that a model has never learned to answer: repetitions, foreign text, and what it copies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from dragoman.data import TokenStore
from dragoman.lens.diagnosis.diagnosis_types import MAX_EXAMPLES, DiagnosisExample, Finding, percentage
from dragoman.run import Run, Translation
from dragoman.text import split_words

TIMES = 20  # that a word is repeated
LOOP = 4  # times that words must come in a row to be a loop
SEEN = 2000  # training pairs that are searched for words that both languages have
INVENTED = 3  # different words that the translation of one repeated word may have

#: by its language; none of it is used where a run was trained on that
FOREIGN = {
    "la": "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
    "hu": "A szomszéd kertjében szép virágok nyílnak.",
    "fi": "Huomenna menemme aamulla metsään kävelylle.",
    "sw": "Mtoto anasoma kitabu kipya shuleni leo.",
    "zh": "今天天气很好，我们去公园散步。",
    "ar": "ذهب الولد إلى المدرسة في الصباح.",
    "ru": "Завтра мы поедем на поезде в город.",
    "xx": "asdf jkl qwer uiop zxcv bnm asdf",
}


def repeated_input(sources: Sequence[str]) -> list[str]:
    """The commonest words of some sentences, each many times over, and two sentences said again and again."""
    counted = Counter(word for source in sources for word in split_words(source) if word.isalpha())
    common = [word for word, _ in counted.most_common(6)]
    whole = [source for source in sources if source.strip()][:2]
    return [" ".join([word] * TIMES) for word in common] + [" ".join([source] * 5) for source in whole]


def foreign_input(pair: str | None) -> list[str]:
    known = (pair or "").split("-")
    return [text for language, text in FOREIGN.items() if language not in known]


def find_loop(text: str) -> str | None:
    """Words that come several times in a row, up to four of them at a time."""
    said = split_words(text)
    for size in range(1, 5):
        for start in range(len(said) - size * LOOP + 1):
            group = said[start : start + size]
            if all(said[start + n * size : start + (n + 1) * size] == group for n in range(1, LOOP)):
                return " ".join(group)
    return None


def hallucination(run: Run, sources: Sequence[str], pair: str | None) -> Finding:
    """The share of odd inputs whose translation does not end, loops, or says much that was never said."""
    odd, foreign = repeated_input(sources), foreign_input(pair)
    found = run.translate([*odd, *foreign], alignment=False)
    remarks = [_of_repetition(source, one) for source, one in zip(odd, found)]
    remarks += [_of_foreign(source, one) for source, one in zip(foreign, found[len(odd) :])]
    bad = [remark for remark in remarks if remark]
    examples = tuple(
        DiagnosisExample(source, one.text, remark)
        for source, one, remark in zip([*odd, *foreign], found, remarks)
        if remark
    )
    numbers = {
        "repeated input": percentage(sum(bool(remark) for remark in remarks[: len(odd)]), len(odd)),
        "foreign input": percentage(sum(bool(remark) for remark in remarks[len(odd) :]), len(foreign)),
        "reached the length limit": percentage(sum(not one.finished for one in found), len(found)),
        "loops": percentage(sum("loop" in remark for remark in bad), len(found)),
    }
    value = percentage(len(bad), len(found))
    why = (
        f"Of {len(found)} inputs that it was never trained on, repetitions and foreign text, {value:.0f} % made it "
        "babble: it did not come to an end, turned in a loop, or said much that was not there."
    )
    return Finding("babbling", "Babbling on odd input", why, value, "%", numbers, _spread(examples))


def _of_repetition(source: str, one: Translation) -> str:
    """What is wrong; words that are repeated in the source may be so in the translation."""
    before, after = split_words(source), split_words(one.text)
    if not one.finished:
        return "reached the length limit"
    if len(after) > 2 * len(before):
        return f"{len(after)} words for {len(before)}"
    invented = len(set(after)) - len(set(before))
    return f"{len(set(after))} different words for {len(set(before))}" if invented > INVENTED else ""


def _of_foreign(source: str, one: Translation) -> str:
    if not one.finished:
        return "reached the length limit"
    if (group := find_loop(one.text)) is not None:
        return f"loop: “{group}”"
    before, after = split_words(source), split_words(one.text)
    return f"{len(after)} words for {len(before)}" if len(after) > 2 * max(4, len(before)) else ""


def words_of_both_languages(run: Run, sources: Sequence[str], references: Sequence[str] | None) -> set[str]:
    """Words of the source language that are words of the target language too, such as “in” in English and German.

    Those that the references and the run's training data have on the target side at least twice, and at least a tenth
    as often as on the source side: a few untranslated sentences in the data do not make a word one of the target's.
    """
    before, after = (
        Counter(word for text in side or () for word in split_words(text)) for side in (sources, references)
    )
    place = run.folder / "data" / "train"
    if place.is_dir():
        store = TokenStore(place)
        for n in range(min(SEEN, len(store))):
            before.update(split_words(run.source_tokenizer.decode(store.source(n).tolist())))
            after.update(split_words(run.target_tokenizer.decode(store.target(n).tolist())))
    return {word for word, count in after.items() if count >= 2 and 10 * count >= before[word]}


def copying(
    sources: Sequence[str],
    found: Sequence[Translation],
    references: Sequence[str] | None,
    shared: Collection[str] = (),
) -> Finding:
    """The share of translated words copied from the source: not in the reference, nor `shared` by both languages."""
    copied = total = whole = 0
    examples = []
    for n, (source, one) in enumerate(zip(sources, found)):
        allowed = Counter(split_words(references[n])) if references is not None else Counter()
        there = {word for word in split_words(source) if re.search(r"\w{2}", word)}
        said = [word for word in split_words(one.text) if re.search(r"\w{2}", word)]
        taken = [word for word in said if word in there and word not in shared and not allowed[word]]
        total, copied = total + len(said), copied + len(taken)
        same = one.text.strip() == source.strip() and (references is None or references[n].strip() != source.strip())
        whole += same
        if taken or same:
            examples.append(DiagnosisExample(source, one.text, "copied: " + ", ".join(dict.fromkeys(taken))))
    value = percentage(copied, total)
    rest = (
        ""
        if references is not None
        else " (names and numbers among them: without references they cannot be told apart)"
    )
    why = f"{value:.1f} % of the words of {len(found)} translations are the source's own and should not be{rest}."
    numbers = {"copied words": value, "whole sentences": percentage(whole, len(found))}
    return Finding("copying", "Copying the source", why, value, "%", numbers, tuple(examples[:MAX_EXAMPLES]))


def _spread(examples: Sequence[DiagnosisExample]) -> tuple[DiagnosisExample, ...]:
    """A few, first and last among them."""
    if len(examples) <= MAX_EXAMPLES:
        return tuple(examples)
    return tuple(examples[round(n * (len(examples) - 1) / (MAX_EXAMPLES - 1))] for n in range(MAX_EXAMPLES))
