"""Documents: markup is read, tags are placed by a given alignment, and everything else is kept."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.text.documents.block_translation import SplitBlock
from dragoman.text.documents.document import Document, parse_document
from dragoman.text.documents.html_document import HtmlDocument
from dragoman.text.documents.marked_text import MarkedText, Tag, resolve_overlaps
from dragoman.text.documents.preserved_text import Preserve, find_literals, missing_literals, restore_literals
from dragoman.text.documents.tag_projection import CUT, AlignedSentence
from dragoman.text.sentences import split_sentences
from dragoman.text.word_splitting import alignment_words

#: sentences, their translations and alignments, as a model would return them
SENTENCES = {
    "Anna opened the red door today.": ("Anna hat heute die rote Tür geöffnet.", "0-0 1-1 1-6 2-3 3-4 4-5 5-2"),
    "The man, who sleeps, dreams.": ("Der Mann, der schläft, träumt.", "0-0 1-1 2-2 3-3 4-4"),
    "We see the garden house.": ("Wir sehen das Gartenhaus.", "0-0 1-1 2-2 3-3 4-3"),
    "Use print(x) here.": ("Benutze hier druck(x).", "0-0 1-2 2-1"),
    "The dog that sees the cat sleeps in the garden.": (
        "Der Hund, der die Katze sieht, schläft im Garten.",
        "0-0 1-1 2-2 3-5 4-3 5-4 6-6 7-7 8-7 9-8",
    ),
    "H2O is water.": ("H2O ist Wasser.", "0-0 1-1 2-2"),
    "The man laughs.": ("Der Mann lacht.", "0-0 1-1 2-2"),
    "The woman sleeps.": ("Die Frau schläft.", "0-0 1-1 2-2"),
}


def translate(blocks: Sequence[MarkedText], preserve: Preserve = Preserve.PLACEHOLDERS) -> list[MarkedText]:
    """Translate blocks with the sentences above; unknown ones become upper case."""
    results = []
    for block in blocks:
        split = SplitBlock.create(block, split_sentences(block.text, len, 10_000), preserve)
        targets, alignments = [], []
        for sentence in split.sentences:
            identity = " ".join(f"{n}-{n}" for n in range(len(alignment_words(sentence))))
            target, links = SENTENCES.get(sentence, (sentence.upper(), identity))
            targets.append(target)
            alignments.append([(int(s), int(t)) for s, t in (link.split("-") for link in links.split())])
        needed = split.needs_alignment(targets)
        used = [alignment if need else None for need, alignment in zip(needed, alignments)]
        results.append(split.join(targets, used, "de"))
    return results


def translate_html(text: str, attributes: bool = False) -> str:
    document = HtmlDocument.parse(text, attributes)
    return document.render(translate(document.blocks), "de")


def translate_file(content: bytes, name: str) -> bytes:
    document: Document = parse_document(content, name)
    return document.render(translate(document.blocks), "de")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("<b>Anna</b> opened the red door today.", "<b>Anna</b> hat heute die rote Tür geöffnet."),
        ("Anna opened <a href='x'>the red door</a> today.", "Anna hat heute <a href='x'>die rote Tür</a> geöffnet."),
        ("Anna opened the red door <i>today</i>.", "Anna hat <i>heute</i> die rote Tür geöffnet."),
        ("Anna opened the red door <i>today.</i>", "Anna hat <i>heute</i> die rote Tür geöffnet."),
        ("<p><b>Anna opened the red door today.</b></p>", "<p><b>Anna hat heute die rote Tür geöffnet.</b></p>"),
        # of two separate parts the longer one, and nesting stays valid
        ("Anna <b>opened</b> the red door today.", "Anna hat heute die rote Tür <b>geöffnet</b>."),
        (
            "Anna opened <b>the <i>red</i> door</b> today.",
            "Anna hat heute <b>die <i>rote</i> Tür</b> geöffnet.",
        ),
        # tags without text stand before the aligned word, or after the word to which they are attached
        ("Anna opened the <img> red door today.", "Anna hat heute die <img> rote Tür geöffnet."),
        ("<img>Anna opened the red door<wbr> today.<br>", "<img>Anna hat heute die rote Tür<wbr> geöffnet.<br>"),
        ("The man<sup>[1]</sup>, who sleeps, dreams.", "Der Mann<sup>[1]</sup>, der schläft, träumt."),
        ("The man, who <em>sleeps</em>, dreams.", "Der Mann, der <em>schläft</em>, träumt."),
        ("<s>The man,</s> who sleeps, dreams.", "<s>Der Mann,</s> der schläft, träumt."),
        # one target word for two tags
        ("We see the <b>garden</b> <i>house</i>.", "Wir sehen das <b><i>Gartenhaus</i></b>."),
        ("We see the <a>garden</a> <a>house</a>.", "Wir sehen das <a>Gartenhaus</a><a></a>."),
        ("H<sub>2</sub>O is water.", "H<sub>2</sub>O ist Wasser."),
        ("H<wbr>2O is water.", "H<wbr>2O ist Wasser."),
        # punctuation next to a tag stays outside or inside
        ("(<i>“a”</i>), b", "(<i>“A”</i>), B"),
        ("a<b>:</b> b", "A<b>:</b> B"),
        ("“a”<img>, (<img>b)", "“A”<img>, (<img>B)"),
        # what is not translated
        ("Use <code>print(x)</code> here.", "Benutze hier <code>print(x)</code>."),
        ("Use <b translate='no'>print(x)</b> here.", "Benutze hier <b translate='no'>print(x)</b>."),
        ("<pre>The man laughs.</pre>", "<pre>The man laughs.</pre>"),
        (
            "<div class='a notranslate'>The <p>man</p> laughs.</div>",
            "<div class='a notranslate'>The <p>man</p> laughs.</div>",
        ),
        ("<script>if (a < b) {}</script>", "<script>if (a < b) {}</script>"),
        # several sentences, blocks and white space
        (
            "<p>\n  The man\n  <b>laughs. The woman</b> sleeps.\n</p>",
            "<p>\n  Der Mann <b>lacht. Die Frau</b> schläft.\n</p>",
        ),
        ("<li>The man laughs.<li>The woman sleeps.", "<li>Der Mann lacht.<li>Die Frau schläft."),
        ("<td>a &lt; b &amp; c</td>", "<td>A &lt; B &amp; C</td>"),
        # no-break spaces are not collapsed, but are empty lines between two <br>
        ("<p>&nbsp;&nbsp;a  b&nbsp;</p>", "<p>\xa0\xa0A B\xa0</p>"),
        ("a<br>&nbsp;<br>b", "A<br>&nbsp;<br>B"),
        ("The man laughs.<br><br>The woman sleeps.", "Der Mann lacht.<br><br>Die Frau schläft."),
        # tags without a partner, and crossing ones, are kept
        ("</i>The man laughs.</b>", "</i>Der Mann lacht.</b>"),
        # damaged and unusual markup, as browsers read it
        ("<p title=don't>a</p>", "<p title=don't>A</p>"),
        ('<a href="x"">a</a> <b>b</b>', '<a href="x"">A</a> <b>B</b>'),
        ("a <a href=/x/>b</a> c", "A <a href=/x/>B</a> C"),
        ('<!DOCTYPE html [<!ENTITY x "y">]><p>a', '<!DOCTYPE html [<!ENTITY x "y">]><p>A'),
        ("<?a b<c?><!d <e>a", "<?a b<c?><!d <e>A"),
        ("<html lang=en><body>The man laughs.", "<html lang=de><body>Der Mann lacht."),
    ],
)
def test_tags_of_html_follow_the_aligned_words(source: str, target: str) -> None:
    assert translate_html(source) == target


@pytest.mark.parametrize("tag", ["<img>", "<br>"])
@pytest.mark.parametrize(("before", "after"), [("", ""), (" ", ""), ("", " "), (" ", " "), ("\n", "\n  ")])
@pytest.mark.parametrize(
    "form", ["<p>{}A b c.</p>", "<p>A b{}c.</p>", "<p>A b.{}C d.</p>", "<p>A b c.{}</p>", "<p>A <b>b{}c</b> d.</p>"]
)
def test_white_space_around_images_and_line_breaks_is_kept(form: str, tag: str, before: str, after: str) -> None:
    source = form.format(before + tag + after)
    expected = re.sub(r"(<[^>]+>)|([a-z])", lambda match: match[1] or match[2].upper(), source)
    # a line break in the source may become a space, which looks the same
    assert re.sub(r"\s+", " ", translate_html(source)) == re.sub(r"\s+", " ", expected)


def test_attributes_are_translated_if_requested() -> None:
    text = """<img alt="The man laughs." src=a><a title='a "b"' href="The man laughs.">x</a>"""
    assert translate_html(text) == text.replace(">x<", ">X<")
    expected = """<img alt="Der Mann lacht." src=a><a title="A &quot;B&quot;" href="The man laughs.">X</a>"""
    assert translate_html(text, attributes=True) == expected


_PIECES = [
    "<b>",
    "</b>",
    "<i>",
    "</i>",
    "<a>",
    "</a>",
    "<br>",
    "<img>",
    "<p>",
    "</p>",
    "a",
    "dog.",
    " ",
    "\n",
    "&amp;",
    "<",
    ">",
]


@given(st.lists(st.sampled_from([*_PIECES, "<code>", "</code>", "<sup>", "</sup>", "<script>", "</script>", "{x}"])))
def test_every_tag_occurs_once_and_nothing_fails(pieces: list[str]) -> None:
    source = "".join(pieces)
    result = translate_html(source)
    tags: Callable[[str], list[str]] = lambda text: sorted(re.findall("<[^<>]*>", text))  # noqa: E731
    assert tags(result) == tags(source)


@given(st.lists(st.tuples(st.sampled_from("bius"), st.integers(0, 9), st.integers(1, 9)), max_size=4), st.randoms())
def test_valid_nesting_stays_valid(spans: list[tuple[str, int, int]], random: object) -> None:
    """Tags around random words of a sentence, with a random alignment, are closed in the order of a stack."""
    words = [f"w{n}" for n in range(10)]
    opened = [list[str]() for _ in words]
    for name, start, length in spans:
        for n in range(start, min(10, start + length)):
            opened[n].append(name)
    source = " ".join(
        "".join(f"<{n}>" for n in names) + word + "".join(f"</{n}>" for n in reversed(names))
        for names, word in zip(opened, words)
    )
    document = HtmlDocument.parse(source)
    (block,) = document.blocks
    links = [(random.randrange(10), t) for t in range(10)]  # type: ignore[attr-defined]
    split = SplitBlock.create(block, split_sentences(block.text, len, 10_000), Preserve.NONE)
    result = document.render([split.join([block.text.upper()], [links], "")])
    stack: list[str] = []
    for closing, name in re.findall("<(/?)([a-z])>", result):
        if closing:
            assert stack.pop() == name
        else:
            stack.append(name)
    assert not stack
    assert re.sub("<[^<>]*>", "", result) == block.text.upper()
    assert sorted(re.findall("<[^<>]*>", result)) == sorted(re.findall("<[^<>]*>", source))


def _tag(start: int, end: int, name: str, *children: Tag) -> Tag:
    return Tag(start, end, f"<{name}>", f"</{name}>", tuple(children), name)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        # links side by side in one tag are not nested
        ([_tag(0, 8, "b", _tag(0, 3, "a")), _tag(4, 7, "a")], "<b><a>012</a>3<a>456</a>7</b>89"),
        ([_tag(0, 8, "a"), _tag(2, 4, "a")], "<a>01234567</a><a></a>89"),
        # a link in a tag inside another link, or the other way round
        ([_tag(0, 8, "a"), _tag(1, 6, "b", _tag(2, 4, "a"))], "<a>0<b>12345</b>67</a><a></a>89"),
        ([_tag(0, 8, "b", _tag(0, 6, "a")), _tag(2, 4, "a")], "<b><a>012345</a><a></a>67</b>89"),
    ],
)
def test_only_nested_links_become_empty(tags: list[Tag], expected: str) -> None:
    assert MarkedText("0123456789", resolve_overlaps(tags)).render() == expected


def test_nested_and_repeated_markup_takes_no_quadratic_time() -> None:
    pieces = ("<b>" * 20_000 + "a", "<!--" * 50_000, "<pre>" * 20_000, "<a " * 50_000, "<sup>1" * 20_000)
    for hostile in (*pieces, "<!" * 50_000):
        assert html.unescape(translate_html(hostile)).lower() == hostile


# ---- placeholders, addresses and numbers


@pytest.mark.parametrize(
    ("text", "preserve", "expected"),
    [
        (
            "Hello {name}, {{ n }} of %d: %(x)s ${y} <0/>",
            "placeholders",
            ["{name}", "{{ n }}", "%d", "%(x)s", "${y}", "<0/>"],
        ),
        ("100% of {width}px in {0:.2f}", "placeholders", ["{width}px", "{0:.2f}"]),
        ("See http://a.b/c?d=1. Or mail a.b@c.org!", "placeholders", ["http://a.b/c?d=1", "a.b@c.org"]),
        ("On 12/31/2020 we paid 1,000.50 for 3.", "placeholders", []),
        ("On 12/31/2020 we paid 1,000.50 for 3.", "numbers", ["12/31/2020", "1,000.50", "3"]),
        ("{name} 3", "none", []),
    ],
)
def test_literals_are_found(text: str, preserve: str, expected: list[str]) -> None:
    assert [literal.text for literal in find_literals(text, Preserve(preserve))] == expected


@pytest.mark.parametrize(
    ("source", "target", "missing"),
    [
        ("1,000.50", "1.000,50", []),  # other separators
        ("12/31/2020", "31.12.2020", []),  # another order
        ("3 of 3", "3 von drei", ["3"]),
        ("15", "5", ["15"]),
        ("5", "15", ["5"]),
    ],
)
def test_numbers_may_have_other_separators(source: str, target: str, missing: list[str]) -> None:
    literals = find_literals(source, Preserve.NUMBERS)
    assert [literal.text for literal in missing_literals(literals, target)] == missing


@pytest.mark.parametrize(
    ("source", "target", "links", "expected"),
    [
        ("Hello {name}, sleep.", "Hallo Name, schlaf.", [(0, 0), (1, 1), (2, 2)], "Hallo {name}, schlaf."),
        ("See {a} and {b}.", "Siehe {b} und das.", [(0, 0), (1, 3), (2, 2), (3, 1)], "Siehe {b} und {a}."),
        # a word that also translates another word is kept
        ("Call {name} now.", "Rufe jetzt an.", [(0, 0), (0, 2), (1, 1), (2, 1)], "Rufe jetzt an {name}."),
        ("{name}!", "", [], "{name}"),
    ],
)
def test_lost_placeholders_replace_the_aligned_words(
    source: str, target: str, links: list[tuple[int, int]], expected: str
) -> None:
    literals = find_literals(source, Preserve.PLACEHOLDERS)
    restored = restore_literals(AlignedSentence(source, target, links), literals)
    assert restored.target == expected
    assert not missing_literals(literals, restored.target)


def test_a_literal_inside_another_one_is_not_mistaken_for_it() -> None:
    literals = find_literals("{a} {a.b}", Preserve.PLACEHOLDERS, [(1, 2), (5, 8)])
    assert [literal.text for literal in literals] == ["a", "a.b"]
    assert missing_literals(literals, "x a.b") == [literals[0]]
    assert missing_literals(literals, "a.b a") == []


def test_a_text_of_placeholders_is_copied() -> None:
    assert translate_html("<p>{a}: %s – 3</p>") == "<p>{a}: %s – 3</p>"


# ---- files


def test_plain_text_keeps_its_lines() -> None:
    content = "\ufeffThe man laughs. The woman sleeps.\r\n\r\n\t\r\n The man laughs.\n".encode()
    expected = "\ufeffDer Mann lacht. Die Frau schläft.\r\n\r\n\t\r\n Der Mann lacht.\n".encode()
    assert translate_file(content, "a.txt") == expected


@pytest.mark.parametrize(
    ("root", "translation", "language", "expected"),
    [
        ('<html lang="en" class="a">', "שלום", "he", '<html dir="rtl" lang="he" class="a">'),
        ("<HTML dir=ltr lang=en>", "שלום", "he", '<html dir="rtl" lang=he>'),
        ('<html lang="he" dir="rtl">', "Hello", "en", '<html dir="ltr" lang="en">'),
        ("<html>", "Hallo", "de", "<html>"),
        ('<html xml:lang="en" lang="en">', "Hallo", "de", '<html xml:lang="de" lang="de">'),
        ("<!-- <html lang=en> --><html lang=en>", "Hallo", "de", "<!-- <html lang=en> --><html lang=de>"),
        ('<html lang="en">', "שלום", "", '<html lang="en">'),
    ],
)
def test_root_element_has_language_and_direction(root: str, translation: str, language: str, expected: str) -> None:
    document = HtmlDocument.parse(f"{root}<p>text</p></html>")
    assert document.render([MarkedText(translation)], language) == f"{expected}<p>{translation}</p></html>"


def test_encodings_are_those_of_browsers() -> None:
    """“latin-1” is Windows-1252, and a declaration in ASCII letters is not UTF-16."""
    content = '<meta charset="iso-8859-1"><p>don’t – €</p>'.encode("cp1252")
    assert translate_file(content, "a.html") == content.replace(b"<p>don", b"<p>DON").replace(b"t ", b"T ")
    assert translate_file('<meta charset="utf-16">ä'.encode(), "a.html") == '<meta charset="utf-16">Ä'.encode()


def test_html_keeps_its_encoding() -> None:
    content = '<meta charset="latin-1"><p>The man laughs. Ä</p>'.encode("latin-1")
    assert translate_file(content, "a.HTML") == '<meta charset="latin-1"><p>Der Mann lacht. Ä</p>'.encode("latin-1")


SRT = """\
1
00:00:01,000 --> 00:00:02,000
<i>The dog that sees
the cat</i>

2
00:00:02,100 --> 00:00:03,000 X1:10
sleeps in the garden.

3
00:00:04,000 --> 00:00:05,000
- The man laughs.
- The woman sleeps.
"""


def test_sentences_across_subtitles_are_cut_by_the_alignment() -> None:
    expected = """\
1
00:00:01,000 --> 00:00:02,000
<i>Der Hund, der
die Katze sieht</i>,

2
00:00:02,100 --> 00:00:03,000 X1:10
schläft im Garten.

3
00:00:04,000 --> 00:00:05,000
- Der Mann lacht.
- Die Frau schläft.
"""
    assert translate_file(SRT.encode(), "a.srt").decode() == expected
    windows = SRT.replace("\n", "\r\n").encode("utf-8-sig")
    assert translate_file(windows, "a.srt").decode("utf-8-sig") == expected.replace("\n", "\r\n")


def subtitles(*texts: str) -> str:
    """A file of subtitles that follow each other directly."""
    return "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n + 1},000\n{text}\n\n" for n, text in enumerate(texts, 1))


@pytest.mark.parametrize(
    "texts",
    [
        ("Hello my", "<i>dear friend", "goodbye</b>"),
        ("Hello my</b>", "dear</i> friend", "and{\\i0}", "<i>goodbye"),
        ("pro<00:01.000>gram", "5 < 6 and 7 > 6"),
        ("\xa0a\xa0b",),
    ],
)
def test_tags_without_a_partner_stay_in_their_subtitle(texts: Sequence[str]) -> None:
    document = parse_document(subtitles(*texts).encode(), "a.srt")
    assert document.render(document.blocks, "").decode() == subtitles(*texts).replace("\n\xa0", "\n")
    same = []
    for block in document.blocks:
        split = SplitBlock.create(block, split_sentences(block.text, len, 10_000), Preserve.NONE)
        alignments = [[(n, n) for n in range(len(sentence))] for sentence in split.sentences]
        same.append(split.join(split.sentences, alignments, ""))
    assert document.render(same, "").decode() == subtitles(*texts).replace("\n\xa0", "\n")


def test_a_tag_across_a_cut_is_closed_and_opened_again() -> None:
    document = parse_document(subtitles("a", "b", "c").encode(), "a.srt")
    cuts = tuple(Tag(position, position, "", name=CUT) for position in (5, 5))
    tags = (Tag(0, 10, "<i>", "</i>", children=(*cuts, Tag(6, 10, "<b>", "</b>"))),)
    expected = subtitles("<i>Hallo</i>", "", "<i><b>Welt</b></i>!")
    assert document.render([MarkedText("Hallo Welt!", tags)], "de").decode() == expected
    assert document.render([MarkedText("Hallo Welt!")], "de").decode() == subtitles("Hallo Welt!", "", "")


def test_line_breaks_of_the_last_subtitle_are_those_of_the_file() -> None:
    content = subtitles("a\nb").rstrip().replace("\n", "\r\n").encode()
    assert translate_file(content, "a.srt") == content.replace(b"a\r\nb", b"A\r\nB")


def test_subtitles_with_missing_and_additional_empty_lines() -> None:
    """A number that follows the text directly is none of its lines; a text may have an empty line."""
    content = """\
1
00:00:01,000 --> 00:00:02,000
The man laughs.
2
00:00:03,000 --> 00:00:04,000
The woman sleeps.

The man laughs.

3
00:00:05,000 --> 00:00:06,000
1984
"""
    expected = content.replace("The man laughs.", "Der Mann lacht.").replace("The woman sleeps.", "Die Frau schläft.")
    assert translate_file(content.encode(), "a.srt").decode() == expected


def test_webvtt_keeps_headers_notes_and_settings() -> None:
    content = """\
WEBVTT - Title

NOTE The man laughs.

STYLE
::cue { color: red }

first
00:01.000 --> 00:02.000 align:start position:10%
<v Anna>The man <c.loud>laughs</c>.</v>

00:03.000 --> 00:04.000
<00:03.500>The woman sleeps.

00:05.000 --> 00:06.000
a &lt; b &amp; c
"""
    expected = content.replace("The man <c.loud>laughs</c>", "Der Mann <c.loud>lacht</c>")
    expected = expected.replace("The woman sleeps", "Die Frau schläft").replace("a &lt; b &amp; c", "A &lt; B &amp; C")
    assert translate_file(content.encode(), "a.vtt").decode() == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xyz", b"", "expected one of .txt"),
        ("a.txt", b"\xff", "not UTF-8 text"),
        ("a.txt", b"a\0b", "zero bytes"),
        ("a.srt", b"The man laughs.", "no subtitles"),
        ("a.html", b"<meta charset=latin-99>", "not LATIN-99 text"),
    ],
)
def test_damaged_files_are_user_errors(name: str, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        parse_document(content, name)
