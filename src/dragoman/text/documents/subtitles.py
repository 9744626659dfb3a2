"""Subtitles (SubRip .srt and WebVTT .vtt): time stamps, numbers, settings and styles are kept.

A sentence that continues in the next subtitles is translated as a whole. The translation is cut where the fewest links
of the word alignment cross the cut.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from dragoman.errors import UserError
from dragoman.text.documents.marked_text import MarkedText, MarkedTextBuilder, Tag
from dragoman.text.documents.tag_projection import CUT
from dragoman.text.documents.text_file import decode_text

_TIME = r"(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}"
_TIMING = re.compile(rf"[ \t]*({_TIME})[ \t]*-->[ \t]*({_TIME})[^\n\r]*")
#: tags such as <i>, times such as <00:03.500>, and positions such as {\an8}
_TAG = re.compile(r"<(?P<closing>/?)(?P<name>[a-zA-Z]\w*)[^<>\n]*>|<[/\d:.]*>|\{\\?[^{}\n]{1,40}\}")
_SENTENCE_END = re.compile(r"(?:[.!?…:;。！？]|\.\.\.|[♪♫\])])[\"'”’»)\]]*\s*$")
_DIALOGUE = re.compile(r"\s*(?:<[^<>]*>)*\s*[-–—]\s?\S")
MAX_PAUSE_SECONDS = 3.0  # within a sentence
MAX_CUES = 6  # that one sentence may span


@dataclass(frozen=True)
class Cue:
    """The text of a subtitle and its times in seconds; `line` is that of its first text line in the file."""

    lines: tuple[str, ...]
    start: float
    end: float
    line: int


@dataclass(frozen=True)
class SubtitleFile:
    """A file of subtitles."""

    lines: list[str]  # all lines, with their line breaks
    groups: list[list[Cue]]  # subtitles that form a sentence or several
    blocks: list[MarkedText]  # the text of each group; a point named `CUT` is between two subtitles
    encoding: str
    is_webvtt: bool  # whether the characters &, < and > are escaped, as in HTML

    @classmethod
    def parse(cls, content: bytes, translate_attributes: bool = False) -> SubtitleFile:
        """Read a file of subtitles; a SubRip file with text but without time stamps is a UserError.

        Subtitles have no attributes to translate: `translate_attributes`, which all formats take, is ignored.
        """
        text, encoding = decode_text(content)
        lines = re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", text)  # with their line breaks
        is_webvtt = text.lstrip("\ufeff").startswith("WEBVTT")
        cues = list(_cues(lines, is_webvtt))
        if not cues and text.strip() and not is_webvtt:
            raise UserError(
                "the file has no subtitles: expected lines such as 00:00:01,000 --> 00:00:02,500 before each text"
            )
        groups = list(_groups(cues))
        unescape = html.unescape if is_webvtt else str
        return cls(lines, groups, [_block(group, unescape) for group in groups], encoding, is_webvtt)

    def render(self, translated: Sequence[MarkedText], language: str = "") -> bytes:
        """Return the file with translated subtitles; `language` is ignored, as the file does not state it."""
        lines: list[str] = [*self.lines]
        escape = partial(html.escape, quote=False) if self.is_webvtt else str
        for group, block in zip(self.groups, translated):
            for cue, text in zip(group, _cut(block, len(group), escape)):
                last_line = cue.line + len(cue.lines) - 1  # of the subtitle
                # its line break; none at the end of the file
                ending = lines[last_line][len(lines[last_line].rstrip("\r\n")) :]
                line_break = lines[cue.line][len(lines[cue.line].rstrip("\r\n")) :]  # of the first of several lines
                wrapped = line_break.join(_wrap(text, len(cue.lines)))
                # all in the first line, so that the numbers of later lines stay the same
                lines[cue.line : last_line + 1] = [wrapped + ending, *[""] * (last_line - cue.line)]
        return "".join(lines).encode(self.encoding)


def _cues(lines: Sequence[str], is_webvtt: bool) -> Iterator[Cue]:
    """Yield the subtitles (cues) with text of a file; if a line begins with a dash (“- Hello.”), each line is one.

    `lines` are those of the file, with their line breaks. Text after an empty line belongs to the last time stamp as
    well (in SubRip); in WebVTT (`is_webvtt`) it is a comment, a style or a name, and is left out.
    """
    number, start, end = 0, -1.0, -1.0  # line, and times of the present subtitle in seconds; −1: there is none
    while number < len(lines):
        if timing := _TIMING.match(lines[number]):
            start, end, number = _seconds(timing[1]), _seconds(timing[2]), number + 1
        first = number
        while number < len(lines) and lines[number].strip() and not (timing := _TIMING.match(lines[number])):
            number += 1
        texts = [line.strip() for line in lines[first:number]]
        if number < len(lines) and timing and texts and texts[-1].isdecimal():
            texts.pop()  # the number of the next subtitle, which no empty line may precede
        if number < len(lines) and not lines[number].strip():
            number += 1
        if start < 0:
            continue
        if any(_DIALOGUE.match(text) for text in texts):
            yield from (Cue((text,), start, end, line=first + n) for n, text in enumerate(texts))
        elif texts:
            yield Cue(tuple(texts), start, end, first)
        if is_webvtt:  # what follows the empty line is no subtitle
            start = -1.0


def _seconds(time: str) -> float:
    """Return a time such as 00:01:02,500 or 01:02.500 in seconds."""
    *hours_and_minutes, seconds = time.replace(",", ".").split(":")
    return float(seconds) + sum(60**power * float(part) for power, part in enumerate(reversed(hours_and_minutes), 1))


def _groups(cues: Sequence[Cue]) -> Iterator[list[Cue]]:
    """Yield groups of subtitles (cues) that are translated together.

    A group ends where a sentence ends, a long pause follows, or another person speaks (a line with a dash), and after
    MAX_CUES subtitles.
    """
    group: list[Cue] = []
    for cue, following in pairwise([*cues, None]):
        assert cue is not None
        group.append(cue)
        text = _TAG.sub("", " ".join(cue.lines)).rstrip()
        is_last = (
            following is None
            or len(group) == MAX_CUES
            or bool(_SENTENCE_END.search(text))
            or following.start - cue.end > MAX_PAUSE_SECONDS
            or any(_DIALOGUE.match(other.lines[0]) for other in (cue, following))
        )
        if is_last:
            yield group
            group = []


def _block(group: Sequence[Cue], unescape: Callable[[str], str]) -> MarkedText:
    """Return the unescaped text of some subtitles with their tags, and a cut (a tag without text) between each two."""
    builder = MarkedTextBuilder(is_collapsed=True)
    for number, cue in enumerate(group):
        if number:
            builder.add_text(" ")
            builder.add_point("", name=CUT)
        _add_cue(builder, " ".join(cue.lines), unescape)
    return builder.build().stripped()


def _add_cue(builder: MarkedTextBuilder, text: str, unescape: Callable[[str], str]) -> None:
    """Append the unescaped text of a subtitle and its tags; a tag without a partner stands at its point."""
    if dash := re.match(r"\s*[-–—]\s*(?=\S)", text):  # who speaks is no part of the sentence
        builder.add_point(dash[0].lstrip())
        text = text[dash.end() :]
    tags, pending = list(_TAG.finditer(text)), list[int]()  # pending: indices of start tags without an end tag so far
    partners: dict[int, int] = {}  # index of the end tag of each start tag, and the reverse
    for number, tag in enumerate(tags):
        if tag["name"] and not tag["closing"]:
            pending.append(number)
        elif tag["name"] and pending and tags[pending[-1]]["name"] == tag["name"]:
            partners |= {pending[-1]: number, number: pending.pop()}
    position = 0
    for number, tag in enumerate(tags):
        builder.add_text(unescape(text[position : tag.start()]))
        position = tag.end()
        if number not in partners:
            builder.add_point(tag[0])
        elif partners[number] > number:
            builder.open(tag[0], tag["name"])
        else:
            builder.close(tag[0])
    builder.add_text(unescape(text[position:]))


def _cut(block: MarkedText, count: int, escape: Callable[[str], str]) -> list[str]:
    """Return the escaped texts of the `count` subtitles of a translated group.

    They are divided at the tags named `CUT`. If some of these are missing, the last subtitles are empty.
    """
    parts = []
    for start, end, tags in _divided(block.tags, 0, len(block.text)):
        text = block.text[start:end].lstrip()
        start = end - len(text)  # without the space after the cut, which tags then do not enclose either
        moved = tuple(tag.clamped(start, end).moved(-start) for tag in tags)
        parts.append(MarkedText(text, moved).render(escape).strip())
    return [*parts, *[""] * (count - len(parts))]


def _divided(tags: Sequence[Tag], start: int, end: int) -> Iterator[tuple[int, int, list[Tag]]]:
    """Divide a text from `start` to `end` (exclusive) at the cuts among its `tags`; yield each part: start, end, tags.

    Cuts are tags with the name CUT, which are between two subtitles.

    A tag across a cut is in both parts, so that it is closed and opened again. Of two tags without text at the place of
    a cut, the one that precedes the cut in `tags` belongs to the part before it, the other one to the part after it.
    """
    part: list[Tag] = []
    for tag in tags:
        if tag.name == CUT:
            yield start, tag.start, part
            start, part = tag.start, []
            continue
        for number, (tag_start, tag_end, children) in enumerate(_divided(tag.children, tag.start, tag.end)):
            if number:  # a cut inside the tag
                yield start, tag_start, part
                start, part = tag_start, []
            if tag_start < tag_end or tag.is_point:  # no tags that a cut has left without text
                part.append(replace(tag, start=tag_start, end=tag_end, children=tuple(children)))
    yield start, end, part


def _wrap(text: str, num_lines: int) -> list[str]:
    """Break a text into at most `num_lines` lines of about equal length, at spaces; tags count as no text.

    A text with fewer words than `num_lines` stays in one line.
    """
    words = re.findall(r"(?:<[^<>]*>|\S|\xa0)+", text)  # \xa0: a no-break space
    lengths = [len(_TAG.sub("", word)) + 1 for word in words]  # with the space after it
    if num_lines < 2 or len(words) < num_lines:
        return [" ".join(words)]
    lines, position, length = [], 0, 0  # `position` words of `length` characters are in lines
    for line in range(1, num_lines + 1):
        begin = position
        limit = sum(lengths) * line / num_lines  # a word goes into the line if at least half of it fits
        while position < len(words) and (line == num_lines or length + lengths[position] / 2 <= limit):
            length += lengths[position]
            position += 1
        lines.append(" ".join(words[begin:position]))
    return [line for line in lines if line]
