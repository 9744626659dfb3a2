"""Sentence splitting; translations are joined with the white space of the original text between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dragoman.text.untranslatable import ADDRESS, PLACEHOLDER

_OPENING = "\"'„“‚‘«»‹¿¡([{"
_CLOSING = "\"'”’“»«›)\\]}"
# A mark ends a sentence if white space follows; the marks of scripts that are written without spaces always do.
_SENTENCE_END = re.compile(rf"[.!?…؟۔।॥።։။។]+[{_CLOSING}]*(?=\s)|[。！？｡]+[」』”’）】》{_CLOSING}]*")
_PARAGRAPH_END = re.compile(r"\s*[\n\r\t\v\f\x85\u2028\u2029]\s*")
_ABBREVIATION = re.compile(
    "allg|approx|bspw|bzgl|bzw|ca|cf|dr|ehem|eigtl|einschl|entspr|etc|evtl|excl|exkl|gegr|gen|ggf|hr|inc|incl|inkl"
    "|insbes|jr|ltd|mme|mr|mrs|ms|nr|prof|sen|sog|sr|sra|st|str|urspr|usw|versch|vgl|vol|vs|zzgl",
    re.IGNORECASE,
)
#: abbreviations only before a lower-case letter, a number or a placeholder: “It takes a min. Then …”
_INNER_ABBREVIATION = re.compile("al|dept|engl|est|frz|geb|lat|max|min|resp|tsd", re.IGNORECASE)
#: abbreviations only before a number or a placeholder: “I ate a fig. Then …”
_NUMBERED = re.compile("abb|abs|art|bd|chap|eq|eqs|fig|figs|kap|no|nos|pp|sec|tab|tel", re.IGNORECASE)
_LITERAL = re.compile(rf"{PLACEHOLDER.pattern}|{ADDRESS.pattern}", re.IGNORECASE)
_MIN_UNCASED_WORDS = 2  # of a sentence before one that begins with a lower-case letter
#: control characters count as spaces
_CONTROLS = {code: " " for code in (*range(0x00, 0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r"}
_FULL_WIDTH_ENDS = frozenset("。！？｡」』）】》")
_UNSPACED_LANGUAGES = frozenset({"zh", "ja", "th", "lo", "km", "my"})


@dataclass
class SplitText:
    """The sentences of a text, and its `gaps`: the white space before each sentence and after the last one."""

    sentences: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=lambda: [""])

    def gaps_for_language(self, language: str) -> list[str]:
        """Return the gaps (white space before, between and after the sentences) for translations into a language.

        `language` is a code such as `de` or `zh-Hant`. An empty gap between two sentences becomes a space if the
        language is written with spaces, which Chinese, for example, is not.
        """
        space = "" if language.split("-")[0] in _UNSPACED_LANGUAGES else " "  # without a script, such as Hant
        between_sentences = range(1, len(self.gaps) - 1)
        return [gap or space if index in between_sentences else gap for index, gap in enumerate(self.gaps)]

    def gaps_between(self, translations: Sequence[str]) -> list[str]:
        """Return the gaps (white space before, between and after) for translations into an unknown language.

        An empty gap between two sentences becomes a space, unless the translation before it ends with a mark such as 。
        """
        last_characters = ["", *(text[-1:] for text in translations)]  # before each gap
        between_sentences = range(1, len(self.gaps) - 1)
        spaced = {index for index in between_sentences if last_characters[index] not in _FULL_WIDTH_ENDS}
        return [gap or " " * (index in spaced) for index, gap in enumerate(self.gaps)]

    def join(self, translations: Sequence[str], language: str | None = None) -> str:
        """Return the text with translations in place of its sentences, and with the white space between them.

        `language` (a code such as `de`) is that of the translations, which decides where spaces are needed; None: it is
        unknown, and the marks at the ends of the translations decide.
        """
        # white space before, between and after the translations
        gaps = self.gaps_between(translations) if language is None else self.gaps_for_language(language)
        return gaps[0] + "".join(text + gap for text, gap in zip(translations, gaps[1:], strict=True))

    def _add(self, sentence: str, gap: str) -> None:
        """Append a sentence and the white space after it (`gap`).

        White space around the sentence itself becomes a part of the gaps before and after it. A sentence of white space
        only becomes a part of the gap before it. Control characters in a sentence become spaces, and count as such.
        """
        clean = sentence.translate(_CONTROLS)  # control characters become spaces
        stripped = clean.strip()
        if not stripped:
            self.gaps[-1] += sentence + gap
            return
        begin = len(clean) - len(clean.lstrip())
        self.gaps[-1] += sentence[:begin]
        self.sentences.append(stripped)
        self.gaps.append(sentence[begin + len(stripped) :] + gap)


def split_sentences(text: str, count_tokens: Callable[[str], int], max_tokens: int) -> SplitText:
    """Split a text into sentences, and the white space before, between and after them.

    Line breaks and tabs end a sentence. A sentence-final mark does, unless a word in lower case follows and the
    paragraph has capital letters elsewhere; placeholders, URLs and names such as iPhone are no such words. A full stop
    does not after a single letter, one or two digits or a common abbreviation (some count only before a number or a
    word in lower case). A sentence with more than `max_tokens` tokens, as counted by `count_tokens`, is split again
    near its middle: at a comma, a space, or anywhere.
    """
    split, start = SplitText(), 0
    for line_break in [*_PARAGRAPH_END.finditer(text), None]:  # or tab; None: the end of the text
        paragraph = text[start : line_break.start() if line_break else len(text)]
        for sentence, space in _split_paragraph(paragraph):
            for short_sentence, following_space in _split_long(sentence, space, count_tokens, max_tokens):
                split._add(short_sentence, following_space)
        if line_break:
            split.gaps[-1] += line_break.group()
            start = line_break.end()
    return split


def single_sentence(text: str) -> SplitText:
    """Return a text as one sentence, without the white space around it, which becomes the gaps."""
    split = SplitText()
    split._add(text, gap="")  # no white space after it but its own
    return split


def _split_paragraph(paragraph: str) -> list[tuple[str, str]]:
    """Split a paragraph after marks that end a sentence; return the sentences, each with the white space after it."""
    sentences, start = list[tuple[str, str]](), 0  # start: of the present sentence
    # without capital letters, apart from placeholders, URLs and e-mail addresses
    is_uncased = not any(letter.isupper() for letter in _LITERAL.sub("", paragraph))
    for mark in _SENTENCE_END.finditer(paragraph):
        rest = paragraph[mark.end() : mark.end() + 200]  # enough to see the next word
        space = rest[: len(rest) - len(rest.lstrip())]
        before = paragraph[start : mark.start()]
        if mark.end() >= len(paragraph):
            continue  # the last sentence, which is added at the end
        if space and _is_inside_sentence(before, mark.group(), rest, is_uncased):
            continue
        sentences.append((paragraph[start : mark.end()], space))
        start = mark.end() + len(space)
    return [*sentences, (paragraph[start:], "")]


def _is_inside_sentence(before: str, mark: str, after: str, is_uncased: bool) -> bool:
    """Whether a sentence continues after a mark such as a full stop: before a word in lower case, or after A., 12., Dr.

    `before` is the sentence up to the mark, `after` the text after it. In a text without capital letters
    (`is_uncased`), a sentence of several words may end before a lower-case letter.
    """
    following = after.lstrip()
    is_literal = bool(_LITERAL.match(following))  # a placeholder, URL or e-mail address
    next_word = (following.lstrip(_OPENING).split(None, 1) or [""])[0]  # without quotation marks and brackets before it
    begins_lower = next_word[:1].islower() and not is_literal
    if begins_lower and next_word.islower():  # not iPhone
        may_end = mark == "." or {*mark} <= {"!", "?"}  # not after … or a quotation mark
        if not (is_uncased and may_end and len(before[:200].split()) >= _MIN_UNCASED_WORDS):
            return True
    if mark != ".":
        return False
    # the word before the mark: of “(e.g.” it is g
    word = (before.rsplit(None, 1) or [""])[-1].lstrip(_OPENING).rsplit(".", 1)[-1]
    if len(word) == 1 or (word.isdigit() and len(word) <= 2) or _ABBREVIATION.fullmatch(word):
        return True
    is_number = is_literal or next_word[:1].isdigit()  # a number, or what counts as one
    if begins_lower or is_number:
        return bool(_INNER_ABBREVIATION.fullmatch(word) or (is_number and _NUMBERED.fullmatch(word)))
    return False


def _split_long(
    sentence: str, space: str, count_tokens: Callable[[str], int], max_tokens: int
) -> list[tuple[str, str]]:
    """Halve a sentence until no part has more than `max_tokens` tokens; each part comes with the space after it.

    It is cut after the comma (or semicolon, colon) nearest to its middle if that is in the middle half, else after the
    nearest white space, or without any, in the middle. `space` is the white space after the whole sentence.
    """
    if len(sentence) < 2 or count_tokens(sentence) <= max_tokens:
        return [(sentence, space)]
    middle = len(sentence) // 2
    cuts = [match.end() for match in re.finditer(r"[,;:،；：，、](?!\d)", sentence)]
    cuts = [cut for cut in cuts if abs(cut - middle) <= len(sentence) // 4]  # in the middle half
    cuts = cuts or [match.start() + 1 for match in re.finditer(r"\s", sentence[1:-1])]  # + 1: the slice begins at 1
    cut = min(cuts, key=lambda cut: abs(cut - middle), default=middle)
    cut = cut if 0 < cut < len(sentence) else middle
    second = sentence[cut:].lstrip()
    if not second:
        return [(sentence, space)]
    between = sentence[cut : len(sentence) - len(second)]  # white space
    first_parts = _split_long(sentence[:cut], between, count_tokens, max_tokens)
    return first_parts + _split_long(second, space, count_tokens, max_tokens)
