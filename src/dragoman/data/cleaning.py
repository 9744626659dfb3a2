"""Cleaning of training corpora: pairs are removed before anything is learned from them.

One pass measures every pair: flaws of its own, the ratio of its lengths, the scripts of both sides, and a hash. Then
the usual ratio and the usual scripts of the corpora are known, and with them which pairs are unusual or repeat an
earlier one. The measures are in a temporary file of 13 bytes per pair, or 141 with near duplicates, so that memory does
not grow with the corpora.
"""

from __future__ import annotations

import math
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from itertools import compress, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.config import CleaningConfig
from dragoman.data.corpus import Corpus, SentencePair
from dragoman.data.corpus_passes import Log, PairChunk, ProgressLogger, read_chunks
from dragoman.data.data_formats import DataFormat
from dragoman.data.near_duplicates import BANDS, NO_WORDS, band_hashes
from dragoman.data.text_profile import CONTROL_CHARACTER, RATIO_BINS, count_chunk
from dragoman.errors import UserError
from dragoman.processes import OrderedMap
from dragoman.text.language_identification import identify_language
from dragoman.text.scripts import EAST_ASIAN_SCRIPTS, script_of

SAMPLE_PAIRS = 10_000  # by which filters are chosen
MAX_REMOVED_EXAMPLES = 3  # of each reason
MAX_EXAMPLE_CHARACTERS = 80
BLOCK_PAIRS = 2**18  # that are judged together
MAX_HASHES = 2**22  # distinct ones in memory
MIN_MAIN_SCRIPT_SHARE = 0.8  # of the texts of a side, if it has a usual script
EAST_ASIAN = "Han or kana"

_Measures = NDArray[Any]  # structured, see PAIR_MEASURES
PAIR_MEASURES = np.dtype([("hash", "<u8"), ("ratio", "<i2"), ("scripts", "u1", (2,)), ("reason", "u1")])
NEAR_MEASURES = np.dtype([*PAIR_MEASURES.descr, ("bands", "<u8", (BANDS,))])
KEPT = 0  # reason of pairs that are not removed
NO_RATIO = np.iinfo(np.int16).min


@dataclass(frozen=True)
class RemovedPair:
    """An example of a pair that cleaning removed."""

    location: str  # file and line
    source: str
    target: str | None

    def __str__(self) -> str:
        """Return file, line, source and target (if there is one), long texts shortened."""
        texts = [self.source] if self.target is None else [self.source, self.target]
        return f"{self.location}: {' → '.join(map(_quote, texts))}"


@dataclass
class RemovedPairs:
    """The number of pairs that were removed for one reason, and the first of them."""

    pairs: int = 0
    examples: list[RemovedPair] = field(default_factory=list)


@dataclass(frozen=True)
class CleaningReport:
    """What cleaning removed; `usual` describes the usual lengths and scripts of the corpora."""

    pairs_read: int
    pairs: int  # that were kept
    removed: dict[str, RemovedPairs]  # by reason
    usual: list[str]

    @property
    def summary(self) -> str:
        """The number of removed pairs for each reason, in one line: "12 source empty, 3 source and target equal"."""
        return ", ".join(f"{removed.pairs:,} {reason}" for reason, removed in self.removed.items())

    def lines(self) -> list[str]:
        """Format the report as plain text."""
        out = [f"Cleaning kept {self.pairs:,} of {self.pairs_read:,} pairs"]
        out += [f"  {text}" for text in self.usual]
        for reason, removed in self.removed.items():
            out.append(f"  removed {removed.pairs:,}: {reason}")
            out += [f"    {example}" for example in removed.examples]
        return out


def choose_filters(settings: CleaningConfig, data_format: DataFormat, corpora: Sequence[Corpus]) -> CleaningConfig:
    """Return the settings with defaults that suit the corpora in place of None, if cleaning is enabled.

    Numbers and formulas are not removed where most texts of a side are such, judging by the first SAMPLE_PAIRS pairs,
    nor are equal source and target where targets repeat much of their sources by nature, as inflected words do.
    """
    if not settings.enabled or None not in (settings.min_letter_share, settings.reject_identical):
        return settings.with_defaults()
    pairs = list(islice(data_format.read(corpora), SAMPLE_PAIRS))
    usual = settings.with_defaults()
    if settings.min_letter_share is None:
        sides = compress(
            ([pair.source for pair in pairs], [pair.target or "" for pair in pairs]), data_format.text_sides
        )
        for texts in sides:
            shares = [letter_share(text) for text in texts if text.strip()]
            if sum(share < (usual.min_letter_share or 0) for share in shares) > len(shares) / 2:
                settings = replace(settings, min_letter_share=0.0)
    if settings.reject_identical is None:
        has_features = any(pair.feature_symbols for pair in pairs)
        settings = replace(settings, reject_identical=not (has_features or count_chunk(pairs).profile().repeats_words))
    return settings.with_defaults()


class KeptPairs:
    """Which pairs of a corpus were kept, in the order in which they are read."""

    def __init__(self, measures: _Measures) -> None:
        """Keep the pairs whose field `reason` in `measures` (an array with a record for each pair) is KEPT."""
        self.measures = measures

    def __repr__(self) -> str:
        """Return the class and the number of pairs (kept or not), without the contents."""
        return f"KeptPairs of {len(self.measures)}"

    def flags(self) -> Iterator[bool]:
        """Yield whether each pair was kept, in the order of the corpus."""
        for start in range(0, len(self.measures), BLOCK_PAIRS):  # block by block: the measures are on disk
            yield from (self.measures["reason"][start : start + BLOCK_PAIRS] == KEPT).tolist()

    def select(self, pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
        """Yield the pairs that were kept."""
        return compress(pairs, self.flags())


class CleanedCorpora(NamedTuple):
    """Corpora that are read without the removed pairs, and what was removed."""

    corpora: list[Corpus]
    report: CleaningReport


@dataclass(frozen=True)
class PairFilter:
    """Measures pairs, and finds flaws that a pair has on its own."""

    settings: CleaningConfig
    sides: tuple[bool, bool]  # which sides have text to examine: source, target or both
    languages: tuple[str, str] = ("", "")  # expected languages of the sides, for identification; "" if it is not used

    def __call__(self, chunk: PairChunk) -> MeasuredChunk:
        """Measure the pairs of a chunk: a hash, the ratio of target to source characters, both scripts, and a flaw.

        Of the ratio, the binary logarithm is stored as an integer with RATIO_BINS steps per doubling (NO_RATIO without
        two texts). Scripts and flaws (reasons to remove a pair) are numbers: indices into lists of the chunk.
        """
        reason_numbers, script_numbers = {"": KEPT}, {"": 0}
        script_counts = Counter[str](), Counter[str]()  # texts of the source and of the target by main script
        rows, joined_texts = [], []
        for pair in map(SentencePair._make, chunk.pairs):  # from plain tuples
            # None for sides without text to examine, such as labels
            texts = [text if used else None for text, used in zip((pair.source, pair.target), self.sides)]
            # feature_symbols: features of the source, such as V;PST
            key = f"{pair.source}\n{pair.feature_symbols}\n{pair.target}".encode()
            digest = int.from_bytes(blake2b(key, digest_size=8).digest(), "little")
            source, target = texts
            ratio = round(RATIO_BINS * math.log2(len(target) / len(source))) if source and target else NO_RATIO
            reason = self.find_flaw(texts)
            # pairs that are removed already do not count in what is the usual script
            scripts = [main_script(text) if text and not reason else "" for text in texts]
            for side_counts, script in zip(script_counts, scripts):
                if script:
                    side_counts[script] += 1
            pair_scripts = tuple(script_numbers.setdefault(script, len(script_numbers)) for script in scripts)
            joined_texts.append("\n".join(text for text in texts if text))
            rows.append((digest, ratio, pair_scripts, reason_numbers.setdefault(reason, len(reason_numbers))))
        measures = np.array(rows, PAIR_MEASURES)
        if self.settings.deduplicate_similar:
            with_bands = np.zeros(len(measures), NEAR_MEASURES)  # also with MinHash bands, which similar pairs share
            for name in PAIR_MEASURES.names or ():
                with_bands[name] = measures[name]
            with_bands["bands"] = band_hashes(joined_texts)
            measures = with_bands
        return MeasuredChunk(
            chunk.corpus,
            measures=measures,
            reasons=list(reason_numbers),
            scripts=list(script_numbers),
            script_counts=script_counts,
        )

    def find_flaw(self, texts: Sequence[str | None]) -> str:
        """Return the first reason to remove a pair, "" if there is none.

        `texts` are source and target; a text is None where the corpus has none to examine. A minimum or maximum of 0 is
        not checked, and neither is the language of a side whose expected language is "".
        """
        settings = self.settings
        for side, text in zip(("source", "target"), texts):
            if text is None:
                continue
            if not text.strip():
                return f"{side} empty"
            if settings.reject_control_characters and CONTROL_CHARACTER.search(text):
                return f"{side} with control characters"
            if settings.min_characters and len(text) < settings.min_characters:
                return f"{side} shorter than {settings.min_characters:,} characters"
            if settings.max_characters and len(text) > settings.max_characters:
                return f"{side} longer than {settings.max_characters:,} characters"
            if settings.min_letter_share and letter_share(text) < settings.min_letter_share:
                return f"{side} with less than {100 * settings.min_letter_share:.0f} % letters"
        if settings.reject_identical and texts[0] is not None and texts[0] == texts[1]:
            return "source and target equal"
        for side, text, language in zip(("source", "target"), texts, self.languages):
            if text and language and identify_language(text) not in ("", language):  # "": not certain
                return f"{side} not in {language}, as identified by lingua"
        return ""


class MeasuredChunk(NamedTuple):
    """The measures of a chunk, whose reasons and scripts are numbers in lists of its own."""

    corpus: int
    measures: _Measures
    reasons: list[str]  # of the numbers in `measures`; "" is 0
    scripts: list[str]  # of the numbers in `measures`; "" is 0
    script_counts: tuple[Counter[str], Counter[str]]  # texts of the source and of the target by main script


def clean_corpora(
    data_format: DataFormat,
    corpora: Sequence[Corpus],
    settings: CleaningConfig,
    folder: Path,
    parallel: OrderedMap,
    log: Log,
    languages: tuple[str, str] = ("", ""),
) -> CleanedCorpora:
    """Find the pairs of corpora that cleaning removes.

    Args:
        data_format: reads the corpora.
        corpora: files to clean; the returned corpora skip the removed pairs.
        settings: what is removed.
        folder: for a temporary file with the measures of all pairs.
        parallel: maps a function over chunks of pairs in worker processes, in order.
        log: prints progress.
        languages: expected languages of source and target; "": texts in any language are kept.

    That no pair is left is a UserError.
    """
    pair_filter = PairFilter(settings, sides=data_format.text_sides, languages=languages)
    measured = _measure(pair_filter, data_format, corpora, folder, parallel, log)
    # sentences for the report about the usual lengths and scripts of the corpora
    usual = measured.reject_unusual_lengths(max_ratio=settings.max_length_ratio or 0)
    usual += measured.reject_other_scripts() if settings.match_script else []
    if settings.deduplicate:
        measured.reject_duplicates()
    if settings.deduplicate_similar:
        measured.reject_near_duplicates()
    cleaned = [
        replace(corpus, kept=KeptPairs(measured.measures[start:end]))
        for corpus, start, end in zip(corpora, measured.starts, measured.starts[1:])
    ]
    report = measured.report(data_format, corpora, usual)
    if not report.pairs:
        raise UserError(
            f"cleaning removed all {report.pairs_read:,} pairs ({report.summary}): check the files, or relax the "
            "limits in the section cleaning of the settings (dragoman settings cleaning), such as "
            "cleaning.min_letter_share, or set cleaning.enabled=false"
        )
    return CleanedCorpora(cleaned, report)


def _measure(
    pair_filter: PairFilter,
    data_format: DataFormat,
    corpora: Sequence[Corpus],
    folder: Path,
    parallel: OrderedMap,
    log: Log,
) -> MeasuredPairs:
    """Measure all pairs of corpora, and return the measures, which are in a temporary file in `folder`.

    `pair_filter` measures a chunk of pairs: hashes, ratio of lengths, scripts and a reason to remove a pair, if any;
    `parallel` maps it over the chunks in worker processes, in order.
    """
    reasons: dict[str, int] = {"": KEPT}  # numbers by reason
    scripts: dict[str, int] = {"": 0}  # numbers by script
    script_counts = Counter[str](), Counter[str]()  # texts of the source and of the target by main script
    pairs = [0] * len(corpora)  # number of pairs per corpus
    progress = ProgressLogger(done="examined", log=log)
    with tempfile.TemporaryFile(dir=folder) as file:
        for chunk in parallel(pair_filter, read_chunks(data_format, corpora)):
            # each chunk has its own numbers: translate them to those of all chunks
            new_reasons = [reasons.setdefault(reason, len(reasons)) for reason in chunk.reasons]
            new_scripts = [scripts.setdefault(script, len(scripts)) for script in chunk.scripts]
            measures = chunk.measures.copy()  # the original may be in memory shared with other processes
            measures["reason"] = np.array(new_reasons, np.uint8)[measures["reason"]]
            measures["scripts"] = np.array(new_scripts, np.uint8)[measures["scripts"]]
            for total, counts in zip(script_counts, chunk.script_counts):
                total.update(counts)
            file.write(measures.tobytes())
            pairs[chunk.corpus] += len(measures)
            progress(sum(pairs))
        file.flush()
        dtype = NEAR_MEASURES if pair_filter.settings.deduplicate_similar else PAIR_MEASURES
        measures = np.memmap(file, dtype, mode="r+") if sum(pairs) else np.zeros(0, dtype)
    starts = np.cumsum([0, *pairs]).tolist()
    return MeasuredPairs(measures, starts, list(reasons), list(scripts), script_counts)


@dataclass
class MeasuredPairs:
    """The measures of all pairs, in a file, and which of them are removed."""

    measures: _Measures
    starts: list[int]  # index of the first pair of each corpus, and the number of all pairs
    reasons: list[str]  # reason of each number in `measures`; the first is that of kept pairs
    scripts: list[str]  # script of each number in `measures`
    script_counts: tuple[Counter[str], Counter[str]]  # texts of the source and of the target by main script

    def reject_unusual_lengths(self, max_ratio: float) -> list[str]:
        """Mark pairs as removed whose ratio of target to source characters differs too much from the median.

        Comparing with the median fits texts whose target is always longer, and scripts of different density.
        `max_ratio` is the largest factor; 0: no limit, and nothing to report. Returns a sentence about the median.
        """
        bins = np.zeros(2**16, np.int64)  # pairs by logarithm of the ratio, a 16-bit integer
        for block in self._blocks():
            # NO_RATIO is the smallest 16-bit number, so that the difference is an index from 0
            bins += np.bincount(block["ratio"].astype(np.int64) - NO_RATIO, minlength=2**16)
        bins[0] = 0  # pairs without a ratio
        if not max_ratio or not bins.sum():
            return []
        # binary logarithm of the ratio, times RATIO_BINS
        median = int(np.searchsorted(np.cumsum(bins), bins.sum() / 2)) + NO_RATIO
        usual = f"{2 ** (median / RATIO_BINS):.2f}"
        reason = self._new_reason(f"lengths differ more than {max_ratio:g}-fold from {usual} to 1")
        for block in self._blocks():
            deviation = np.abs(block["ratio"].astype(np.int64) - median)
            is_unusual = (deviation > RATIO_BINS * math.log2(max_ratio)) & (block["ratio"] != NO_RATIO)
            block["reason"][is_unusual & (block["reason"] == KEPT)] = reason
        return [f"usual: {usual} target characters per source character"]

    def reject_other_scripts(self) -> list[str]:
        """Mark pairs as removed that have a side in another script than most texts of it; return a note on each side.

        A side is filtered only if one script is the main script of a share of MIN_MAIN_SCRIPT_SHARE of its texts. Texts
        without letters are kept.
        """
        notes = []
        for side, (name, counts) in enumerate(zip(("source", "target"), self.script_counts)):
            if not counts.total():  # this side is not text, or has no letters
                continue
            script, count = counts.most_common(1)[0]
            if count < MIN_MAIN_SCRIPT_SHARE * counts.total():
                notes.append(f"the {name} is written in several scripts, which are all kept")
                continue
            notes.append(f"usual: {name} in {script} script")
            reason = self._new_reason(f"{name} not in {script} script")
            for block in self._blocks():
                # numbers of scripts; 0: without letters
                is_other = ~np.isin(block["scripts"][:, side], (0, self.scripts.index(script)))
                block["reason"][is_other & (block["reason"] == KEPT)] = reason
        return notes

    def reject_duplicates(self) -> None:
        """Mark pairs as removed that are equal to an earlier one that is kept: those with equal hashes."""
        self._reject_repeated(self.measures["hash"], reason=self._new_reason("duplicate of an earlier pair"))

    def reject_near_duplicates(self) -> None:
        """Mark pairs as removed that have nearly the words of an earlier one that is kept: an equal MinHash band.

        A pair has BANDS hashes (bands), each of which is equal for two pairs if they have most words in common. A text
        without words has the band NO_WORDS, which is not compared.
        """
        reason = self._new_reason("nearly the same words as an earlier pair")
        for band in range(BANDS):
            self._reject_repeated(self.measures["bands"][:, band], reason=reason, ignored=NO_WORDS)

    def _reject_repeated(self, all_hashes: NDArray[Any], reason: int, ignored: int | None = None) -> None:
        """Mark pairs as removed that have the hash of an earlier one that is kept, unless it is the hash `ignored`.

        `all_hashes` has one hash per pair, `reason` is the number with which pairs are marked. So that at most about
        MAX_HASHES are in memory, each pass over the pairs compares only hashes with the same remainder.
        """
        num_passes = max(1, math.ceil(len(self.measures) / MAX_HASHES))
        for remainder in range(num_passes):
            seen = np.empty(0, np.uint64)  # in earlier blocks
            for start, block in zip(range(0, len(self.measures), BLOCK_PAIRS), self._blocks()):
                block_hashes = all_hashes[start : start + BLOCK_PAIRS]
                compared = (block_hashes % np.uint64(num_passes) == remainder) & (block["reason"] == KEPT)
                if ignored is not None:
                    compared &= block_hashes != ignored
                rows = np.flatnonzero(compared)  # of the block
                hashes = block_hashes[rows]
                distinct, first = np.unique(hashes, return_index=True)
                is_first = np.zeros(len(rows), bool)  # within the block
                is_first[first] = True
                block["reason"][rows[~is_first | np.isin(hashes, seen)]] = reason
                seen = np.union1d(seen, distinct)

    def report(self, data_format: DataFormat, corpora: Sequence[Corpus], usual: list[str]) -> CleaningReport:
        """Count the removed pairs by reason, and read the first MAX_REMOVED_EXAMPLES of each again as examples.

        `usual` are sentences about the usual lengths and scripts of the corpora. Reasons without pairs are left out.
        """
        counts = np.zeros(256, np.int64)  # pairs by number of the reason, which is a byte
        examples: dict[int, list[int]] = {}  # indices of the first pairs by number of the reason
        start = 0
        for block in self._blocks():
            counts += np.bincount(block["reason"], minlength=256)
            for number in np.unique(block["reason"]).tolist():
                indices = examples.setdefault(number, [])
                if number != KEPT and len(indices) < MAX_REMOVED_EXAMPLES:  # KEPT: the pair was not removed
                    rows = np.flatnonzero(block["reason"] == number)[: MAX_REMOVED_EXAMPLES - len(indices)]
                    indices += (rows + start).tolist()
            start += len(block)
        pairs = _read_pairs(data_format, corpora, sorted(index for indices in examples.values() for index in indices))
        removed = {
            reason: RemovedPairs(int(counts[number]), [pairs[index] for index in examples.get(number, [])])
            for number, reason in enumerate(self.reasons)
            if number != KEPT and counts[number]
        }
        return CleaningReport(pairs_read=len(self.measures), pairs=int(counts[KEPT]), removed=removed, usual=usual)

    def _blocks(self) -> Iterator[_Measures]:
        """Yield the measures in blocks of BLOCK_PAIRS pairs; changes of a block change the memory-mapped file."""
        for start in range(0, len(self.measures), BLOCK_PAIRS):
            yield self.measures[start : start + BLOCK_PAIRS]

    def _new_reason(self, reason: str) -> int:
        """Add a reason why pairs are removed, and return its number in `reasons`."""
        self.reasons.append(reason)
        return len(self.reasons) - 1


def _read_pairs(data_format: DataFormat, corpora: Sequence[Corpus], indices: list[int]) -> dict[int, RemovedPair]:
    """Return pairs by their indices over all corpora, which are in ascending order; reading stops after the last."""
    removed: dict[int, RemovedPair] = {}
    remaining = set(indices)
    if remaining:
        for index, pair in enumerate(data_format.read(corpora)):
            if index in remaining:
                removed[index] = RemovedPair(f"{pair.corpus}:{pair.line}", pair.source, pair.target)
            if index == indices[-1]:
                break
    return removed


def main_script(text: str) -> str:
    """Return the script of most letters of a text, such as Latin; Han and kana count as one; "" without letters."""
    if text.isascii():  # for speed
        return "Latin" if any(map(str.isalpha, text)) else ""
    counts: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if script := _script(character):
            counts[script] += count
    return counts.most_common(1)[0][0] if counts else ""


def letter_share(text: str) -> float:
    """Return the share of letters and combining marks (Unicode) in the characters of a text, spaces left out."""
    characters = "".join(text.split())
    if characters.isascii():  # for speed
        return sum(map(str.isalpha, characters)) / max(1, len(characters))
    letters = sum(count for character, count in Counter(characters).items() if _is_letter_or_mark(character))
    return letters / max(1, len(characters))


@cache
def _script(character: str) -> str:
    """Return the script of a letter, such as Latin; Han and kana count as one, "" if the character is no letter."""
    script = script_of(character) or ""
    return EAST_ASIAN if script in EAST_ASIAN_SCRIPTS else script


@cache
def _is_letter_or_mark(character: str) -> bool:
    """Whether a character is a letter or a combining mark, such as a vowel sign, by its Unicode category."""
    return unicodedata.category(character)[0] in "LM"


def _quote(text: str) -> str:
    """Return a text in quotation marks, on one line, cut to MAX_EXAMPLE_CHARACTERS."""
    text = " ".join(text.split())
    return f"“{text if len(text) <= MAX_EXAMPLE_CHARACTERS else text[: MAX_EXAMPLE_CHARACTERS - 1] + '…'}”"
