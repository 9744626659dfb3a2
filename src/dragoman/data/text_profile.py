"""Statistics of the text of a corpus that automatic settings are derived from: inventory, scripts, lengths, copying.

They are counted in the survey, the first pass over the corpus. Chunks of it are counted one by one (`count_chunk`) and
added up in their order, so that the result does not depend on the number of worker processes. Memory is bounded: once
there are more than `MAX_COUNTED_SYMBOLS` different symbols, an inventory is open, and is not counted any further.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from math import log2

from dragoman.data.corpus import SentencePair
from dragoman.text.scripts import has_no_spaces, script_shares

MAX_COUNTED_SYMBOLS = 100_000
FIRST_CHUNKS, CHUNK_INTERVAL = 16, 16  # the first chunks are counted, and of the others every 16th
COVERED_SYMBOLS = (100, 1000)  # how much of the text the most frequent symbols cover
ALPHABET_COVERAGE = 0.9995  # share of the text in characters that get a token; others are encoded as bytes
MAX_RARE_COUNT = 5  # occurrences of a rare word
MIN_CORE_LENGTH = 3  # letters of a word that may occur with and without punctuation marks
MIN_UNSPACED_LENGTH = 7  # characters between spaces: shorter ones are words, also in scripts that need no spaces
MAX_SPACED_LENGTH = 25  # longer ones are no words in any script
RATIO_BINS = 32  # per factor of two
MAX_COPIED_TRANSLATION = 0.5  # share of the words; more are copied in corrections, normalization and simplification

#: control characters except tab, line feed and carriage return; the replacement character U+FFFD; noncharacters
CONTROL_CHARACTER = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd\ufdd0-\ufdef\ufffe\uffff]")
_SENTENCE_END = re.compile(r"[.!?…。！？؟।။៕][\"'”’»“)\]」』]*$")
_COPIED_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class TextProfile:
    """Statistics of the source or the target; a symbol is what stands between two spaces.

    Attributes:
        lines: lines that were counted; empty ones are not.
        words_per_line, characters_per_word, characters_per_line: means; spaces are not counted.
        single_word_lines: share of the lines with one word.
        sentence_lines: share of the lines that end with a full stop, a question mark or the like.
        attached_stops: share of the lines in which this mark is attached to the last word.
        symbols: number of different symbols.
        is_counted: whether all symbols were counted; otherwise there are more than `symbols`.
        unseen_share: estimated share of unknown symbols in further text: n₁ / n, where n₁ symbols occur in only one
            line and the text has n symbols (Good 1953, The population frequencies of species, eq. 9).
        coverage: share of the text that the N most frequent symbols cover, by N.
        attached_punctuation: share of the text in words of at least three letters that occur both with and without
            punctuation marks (house, house.), or with different ones.
        punctuation: share of the characters that are punctuation marks or other signs, as in code.
        numerals: share of the different symbols that are numbers of several digits.
        alphabet: number of different characters.
        unseen_characters: estimated share of unknown characters in further text: of those that occur once.
        unseen_letters: the same after the characters are decomposed into letters and marks (Unicode NFD).
        is_composed: whether composing the decomposed text (NFC) gives the same text.
        control_characters: number of control characters, and of U+FFFD, which replaces wrongly decoded characters.
        scripts: share of each script in the letters.
        writes_spaces: whether spaces separate words.
    """

    lines: int
    words_per_line: float
    characters_per_word: float
    characters_per_line: float
    single_word_lines: float
    sentence_lines: float
    attached_stops: float
    symbols: int
    is_counted: bool
    unseen_share: float
    coverage: dict[int, float]
    attached_punctuation: float
    punctuation: float
    numerals: float
    alphabet: int
    unseen_characters: float
    unseen_letters: float
    is_composed: bool
    control_characters: int
    scripts: dict[str, float]
    writes_spaces: bool

    @property
    def has_unspaced_script(self) -> bool:
        """Whether most letters belong to scripts that are written without spaces between words."""
        return has_no_spaces(self.scripts)

    def __str__(self) -> str:
        """Describe the main script, the number of different words and the share of unknown ones in a few words."""
        script, share = next(iter(self.scripts.items()), ("", 0.0))  # the most frequent one, which is the first
        letters = f"{100 * share:.0f} % {script}, " if script else ""
        spaces = "" if self.writes_spaces else "no spaces between words, "
        words = f"{'' if self.is_counted else 'more than '}{self.symbols:,} different words"
        return f"{letters}{spaces}{words}, about {100 * self.unseen_share:.1f} % unknown words in further text"


@dataclass(frozen=True)
class CorpusProfile:
    """Statistics of a corpus.

    Attributes:
        source, target: None if the corpus has none, or none that is text.
        copied_share: share of the target's words that also occur in their source; None without source and target text.
        rare_copied_share: the same for words that occur in the target at most five times; None if there are none.
        length_ratios: target characters per source character that 1 %, 50 % and 99 % of the pairs do not exceed.
        symbol_overlap: share of the target's different symbols that also occur in the source.
        equal_lengths: share of the pairs whose source and target have as many words.
    """

    source: TextProfile | None
    target: TextProfile | None
    copied_share: float | None = None
    rare_copied_share: float | None = None
    length_ratios: tuple[float, float, float] | None = None
    symbol_overlap: float = 0.0
    equal_lengths: float = 0.0

    @property
    def script_overlap(self) -> float:
        """Share of the letters that source and target have in common scripts; 1 if one of them has no letters.

        Of each script, the smaller of its two shares counts.
        """
        source, target = (text.scripts if text else {} for text in (self.source, self.target))
        if not source or not target:
            return 1.0
        return sum(min(share, target.get(script, 0.0)) for script, share in source.items())

    @property
    def repeats_words(self) -> bool:
        """Whether targets repeat much of their sources by nature.

        That is so if most lines of source and target are single words in common scripts, which are corrected, inflected
        or spelled, or if targets copy more of their words (`copied_share`, None: unknown) than translations do.
        """
        texts = [text for text in (self.source, self.target) if text]
        are_words = all(text.single_word_lines > 0.5 for text in texts)
        return (are_words and self.script_overlap > 0.5) or (self.copied_share or 0.0) > MAX_COPIED_TRANSLATION

    def lines(self) -> list[str]:
        """Format the statistics for the preflight report; rare words occur at most five times in the target."""
        lines = [f"  {name}: {text}" for name, text in (("source", self.source), ("target", self.target)) if text]
        if self.copied_share is not None:
            rare = "" if self.rare_copied_share is None else f", {100 * self.rare_copied_share:.0f} % of the rare ones"
            lines.append(f"  {100 * self.copied_share:.0f} % of the target words also occur in their source{rare}")
        return lines


@dataclass
class SymbolCounts:
    """How often each symbol occurs, and in how many lines, as long as there are not too many."""

    occurrences: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    is_complete: bool = True

    @classmethod
    def from_lines(cls, lines: Sequence[Sequence[str]]) -> SymbolCounts:
        """Count the symbols of lines: how often each occurs, and in how many lines; a line is a list of symbols."""
        in_lines = Counter(chain.from_iterable(map(set, lines)))
        return cls(occurrences=Counter(chain.from_iterable(lines)), lines=in_lines)

    def merge(self, later: SymbolCounts) -> None:
        """Add the counts of later text, unless there are more than MAX_COUNTED_SYMBOLS already (not `is_complete`)."""
        if self.is_complete:
            self.occurrences.update(later.occurrences)
            self.lines.update(later.lines)
            self.is_complete = len(self.occurrences) <= MAX_COUNTED_SYMBOLS

    def unknown_share(self, text: SymbolCounts) -> float:
        """Return the share of another text that is in symbols which do not occur here."""
        unknown = sum(count for symbol, count in text.occurrences.items() if symbol not in self.occurrences)
        return unknown / max(1, text.occurrences.total())


@dataclass
class TextCounts:
    """Counts over the lines of the source or the target; picklable, so that worker processes can return them."""

    lines: int = 0
    words: int = 0
    single_word_lines: int = 0
    sentence_lines: int = 0
    attached_stops: int = 0
    characters: Counter[str] = field(default_factory=Counter)  # without spaces
    symbols: SymbolCounts = field(default_factory=SymbolCounts)

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> TextCounts:
        """Count the lines, words and characters of texts, each one a line; blank ones are left out.

        Words, or symbols, stand between spaces. `sentence_lines` is the number of lines that end with a full stop, a
        question mark or the like, `attached_stops` that of lines whose last word has letters before this mark. Spaces
        are not counted as characters.
        """
        lines = [words for text in texts if (words := text.split())]
        stops = [match for words in lines if (match := _SENTENCE_END.search(words[-1]))]
        return cls(
            lines=len(lines),
            words=sum(map(len, lines)),
            single_word_lines=sum(len(words) == 1 for words in lines),
            sentence_lines=len(stops),
            attached_stops=sum(stop.start() > 0 for stop in stops),
            characters=Counter("".join(chain.from_iterable(lines))),
            symbols=SymbolCounts.from_lines(lines),
        )

    def merge(self, later: TextCounts) -> None:
        """Add the counts of later lines."""
        self.lines += later.lines
        self.words += later.words
        self.single_word_lines += later.single_word_lines
        self.sentence_lines += later.sentence_lines
        self.attached_stops += later.attached_stops
        self.characters.update(later.characters)
        self.symbols.merge(later.symbols)

    def profile(self) -> TextProfile | None:
        """Return the statistics of the counted text, or None if nothing was counted.

        Symbols are what stands between spaces; `coverage` is the share of the text in the N most frequent ones, by N.
        """
        if not self.lines:
            return None
        occurrences, in_lines = self.symbols.occurrences, self.symbols.lines  # by symbol, which stands between spaces
        counted, characters = occurrences.total(), self.characters.total()
        by_frequency = sorted(occurrences.values(), reverse=True)
        scripts = script_shares(self.characters)
        # In scripts without spaces, words may be separated all the same, for example by a word segmenter: then they
        # are short, and most lines have several.
        has_short_words = characters <= MIN_UNSPACED_LENGTH * self.words
        is_segmented = has_short_words and self.words > self.lines + self.single_word_lines
        # punctuation marks and other signs, by their Unicode category
        signs = sum(count for sign, count in self.characters.items() if unicodedata.category(sign)[0] in "PS")
        numerals = sum(symbol.isdecimal() and len(symbol) > 1 for symbol in occurrences)
        return TextProfile(
            lines=self.lines,
            words_per_line=self.words / self.lines,
            characters_per_word=characters / self.words,
            characters_per_line=characters / self.lines,
            single_word_lines=self.single_word_lines / self.lines,
            sentence_lines=self.sentence_lines / self.lines,
            attached_stops=self.attached_stops / self.lines,
            symbols=len(occurrences),
            is_counted=self.symbols.is_complete,
            unseen_share=sum(count == 1 for count in in_lines.values()) / counted,  # Good–Turing estimate
            coverage={number: sum(by_frequency[:number]) / counted for number in COVERED_SYMBOLS},
            attached_punctuation=_attached_punctuation(occurrences),
            punctuation=signs / characters,
            numerals=numerals / len(occurrences),
            alphabet=len(self.characters),
            unseen_characters=_share_of_singletons(self.characters),
            unseen_letters=_share_of_singletons(_decompose(self.characters)),
            is_composed=all(_is_composed(character) for character in self.characters),
            control_characters=sum(count for sign, count in self.characters.items() if CONTROL_CHARACTER.match(sign)),
            scripts=scripts,
            writes_spaces=is_segmented or (not has_no_spaces(scripts) and characters <= MAX_SPACED_LENGTH * self.words),
        )


@dataclass
class CorpusCounts:
    """Counts over the pairs of a corpus; picklable.

    Attributes:
        target_words, copied_words: how often each word of the target occurs, and how often it occurs in its source too.
        ratios: pairs by the binary logarithm of target per source characters, in steps of 1 / `RATIO_BINS`.
        equal_lengths: pairs whose source and target have as many words.
    """

    source: TextCounts = field(default_factory=TextCounts)
    target: TextCounts = field(default_factory=TextCounts)
    target_words: SymbolCounts = field(default_factory=SymbolCounts)
    copied_words: Counter[str] = field(default_factory=Counter)
    ratios: Counter[int] = field(default_factory=Counter)
    equal_lengths: int = 0

    def merge(self, later: CorpusCounts) -> None:
        """Add the counts of later pairs."""
        self.source.merge(later.source)
        self.target.merge(later.target)
        if self.target_words.is_complete:  # otherwise words are not counted any further
            self.copied_words.update(later.copied_words)
        self.target_words.merge(later.target_words)
        self.ratios.update(later.ratios)
        self.equal_lengths += later.equal_lengths

    def profile(self) -> CorpusProfile:
        """Return the statistics of the counted text: source, target, and what targets copy from their sources."""
        source, target = self.source.profile(), self.target.profile()
        if source is None or target is None:
            return CorpusProfile(source, target)
        counts, copied = self.target_words.occurrences, self.copied_words
        rare = [word for word, count in counts.items() if count <= MAX_RARE_COUNT]
        # by symbol, which stands between spaces
        source_symbols, target_symbols = self.source.symbols.occurrences, self.target.symbols.occurrences
        return CorpusProfile(
            source,
            target,
            copied_share=copied.total() / counts.total() if counts else 0.0,
            rare_copied_share=sum(copied[word] for word in rare) / sum(counts[word] for word in rare) if rare else None,
            length_ratios=_ratio_quantiles(self.ratios),
            symbol_overlap=len(source_symbols.keys() & target_symbols.keys()) / len(target_symbols),
            equal_lengths=self.equal_lengths / max(1, self.ratios.total()),
        )


def count_chunk(pairs: Sequence[SentencePair]) -> CorpusCounts:
    """Count the text of some pairs: source, target, the words that targets copy, and the ratios of lengths.

    A source of feature vectors (`pair.features`) is not text. The ratio is that of target to source characters; its
    binary logarithm is counted in steps of 1 / RATIO_BINS. Copied words and ratios need both texts.
    """
    sources = [pair.source for pair in pairs if pair.features is None]
    targets = [pair.target or "" for pair in pairs]
    counts = CorpusCounts(source=TextCounts.from_texts(sources), target=TextCounts.from_texts(targets))
    texts = [(pair.source, pair.target) for pair in pairs if pair.target and pair.source and pair.features is None]
    words = [(set(_COPIED_WORD.findall(source)), _COPIED_WORD.findall(target)) for source, target in texts]
    counts.target_words = SymbolCounts.from_lines([target_words for _, target_words in words])
    for source_words, target_words in words:
        counts.copied_words.update(word for word in target_words if word in source_words)
    counts.ratios.update(round(RATIO_BINS * log2(len(target) / len(source))) for source, target in texts)
    counts.equal_lengths = sum(len(source.split()) == len(target.split()) for source, target in texts)
    return counts


def alphabet_size(texts: Iterable[TextCounts]) -> int:
    """Return how many of the most frequent characters make up the share ALPHABET_COVERAGE (99.95 %) of some texts."""
    counts = sum((text.characters for text in texts), Counter[str]())
    covered = accumulate(sorted(counts.values(), reverse=True))  # occurrences of the most frequent 1, 2, … characters
    num_too_few = sum(occurrences < ALPHABET_COVERAGE * counts.total() for occurrences in covered)
    return 1 + num_too_few


def is_profiled(chunk: int) -> bool:
    """Whether the text of the chunk with this number is counted: the first FIRST_CHUNKS, then one in CHUNK_INTERVAL.

    Of a large corpus a sample is enough.
    """
    return chunk < FIRST_CHUNKS or chunk % CHUNK_INTERVAL == 0


def _decompose(characters: Counter[str]) -> Counter[str]:
    """Return how often each letter and mark occurs in a text after it is decomposed (Unicode NFD).

    `characters` says how often each character occurs in the text.
    """
    letters: Counter[str] = Counter()
    for character, count in characters.items():
        letters.update(dict.fromkeys(unicodedata.normalize("NFD", character), count))
    return letters


def _share_of_singletons(counts: Counter[str]) -> float:
    """Return the share of a text in characters that occur once, an estimate of unknown characters in further text.

    `counts` says how often each character occurs.
    """
    return sum(count == 1 for count in counts.values()) / max(1, counts.total())


def _is_composed(character: str) -> bool:
    """Whether composition (Unicode NFC) keeps a character in any text.

    It does not keep combining marks, and jamo (Korean letters) that continue a syllable, which join what precedes them.
    """
    is_jamo = "\u1160" <= character <= "\u11ff"  # vowels and final consonants
    is_unchanged = unicodedata.normalize("NFC", character) == character
    return is_unchanged and not unicodedata.combining(character) and not is_jamo


def _attached_punctuation(occurrences: Counter[str]) -> float:
    """Return the share of the text in words that occur with different punctuation marks before or after them.

    `occurrences` counts the symbols between spaces, such as “house” and “house.”, whose core is the word “house”. Cores
    of fewer than MIN_CORE_LENGTH characters do not count.
    """
    cores = {symbol: core for symbol in occurrences if len(core := _strip_punctuation(symbol)) >= MIN_CORE_LENGTH}
    num_symbols = Counter(cores.values())  # by core
    attached = sum(occurrences[symbol] for symbol, core in cores.items() if symbol != core and num_symbols[core] > 1)
    return attached / max(1, occurrences.total())


def _strip_punctuation(symbol: str) -> str:
    """Return a symbol without the punctuation marks at its beginning and end."""
    begin, end = 0, len(symbol)
    while begin < end and unicodedata.category(symbol[begin])[0] == "P":
        begin += 1
    while begin < end and unicodedata.category(symbol[end - 1])[0] == "P":
        end -= 1
    return symbol[begin:end]


def _ratio_quantiles(ratios: Counter[int]) -> tuple[float, float, float] | None:
    """Return the ratios of lengths that 1 %, 50 % and 99 % of the pairs do not exceed; None without pairs.

    `ratios` has the number of pairs by the binary logarithm of the ratio, in steps of 1 / RATIO_BINS.
    """
    total, below, quantiles = ratios.total(), 0, list[float]()
    for logarithm, count in sorted(ratios.items()):
        below += count
        while len(quantiles) < 3 and below >= (0.01, 0.5, 0.99)[len(quantiles)] * total:
            quantiles.append(2 ** (logarithm / RATIO_BINS))
    return (quantiles[0], quantiles[1], quantiles[2]) if quantiles else None
