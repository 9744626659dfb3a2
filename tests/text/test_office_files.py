"""Office files: formatted runs follow the aligned words, and everything else stays the same."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.errors import UserError
from dragoman.text.documents import office_file
from dragoman.text.documents.block_translation import SplitBlock
from dragoman.text.documents.document import parse_document
from dragoman.text.documents.preserved_text import Preserve
from dragoman.text.sentences import single_sentence

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def archive(files: dict[str, str | bytes]) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as opened:
        for name, content in files.items():
            opened.writestr(zipfile.ZipInfo(name), content)
    return output.getvalue()


def translate(content: bytes, name: str) -> dict[str, bytes]:
    """Translate all texts by reversing their words, and return the files of the result."""
    document = parse_document(content, name)
    blocks = []
    for block in document.blocks:
        split = SplitBlock.create(block, single_sentence(block.text), Preserve.NONE)
        words = block.text.strip().rstrip(".").split()
        target = " ".join(reversed(words)) + "." * block.text.endswith(".")
        alignment = [(n, len(words) - 1 - n) for n in range(len(words))]
        blocks.append(split.join([target], [alignment], ""))
    with zipfile.ZipFile(io.BytesIO(document.render(blocks, "de"))) as opened:
        return {info.filename: opened.read(info) for info in opened.infolist()}


def word_paragraph(content: str) -> str:
    """Translate a paragraph of a Word document."""
    text = f'<?xml version="1.0"?>\n<w:document {W}><w:body><w:p>{content}</w:p></w:body></w:document>'
    result = translate(archive({"word/document.xml": text}), "a.docx")["word/document.xml"].decode()
    start, end = text.split(content)
    assert result.startswith(start)
    assert result.endswith(end)
    return result[len(start) : -len(end)].replace(' xml:space="preserve"', "")


def run(text: str, properties: str = "") -> str:
    return f"<w:r>{properties}<w:t>{text}</w:t></w:r>"


BOLD, RED = "<w:rPr><w:b/></w:rPr>", '<w:rPr><w:color w:val="FF0000"/></w:rPr>'


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (run("one two"), run("two one")),
        (f"<w:pPr><w:jc/></w:pPr>{run('one two')}", f"<w:pPr><w:jc/></w:pPr>{run('two one')}"),
        # the format of most of the text is that of the paragraph
        (run("one ") + run("two", BOLD) + run(" three."), run("three ") + run("two", BOLD) + run(" one.")),
        (run("one two three ", BOLD) + run("four"), run("four") + run(" three two one", BOLD)),
        # runs with the same format are one run, even inside a word
        (run("on") + '<w:proofErr w:type="spellStart"/>' + run("e two"), run("two one")),
        # links, fields, and content without text
        (
            f'<w:hyperlink r:id="1">{run("one", RED)}</w:hyperlink>{run(" two three")}',
            f'{run("three two ")}<w:hyperlink r:id="1">{run("one", RED)}</w:hyperlink>',
        ),
        (
            run("one") + "<w:r><w:footnoteReference w:id='1'/></w:r>" + run(" two."),
            run("two one") + "<w:r><w:footnoteReference w:id='1'/></w:r>" + run("."),
        ),
        (
            "<w:r><w:footnoteRef/></w:r>" + run(" one two."),  # at the beginning of a footnote
            "<w:r><w:footnoteRef/></w:r>" + run(" two one."),
        ),
        (
            run("one ")
            + "<w:r><w:fldChar w:fldCharType='begin'/></w:r><w:r><w:instrText>PAGE</w:instrText></w:r>"
            + "<w:r><w:fldChar w:fldCharType='separate'/></w:r>"
            + run("two")
            + "<w:r><w:fldChar w:fldCharType='end'/></w:r>",
            "<w:r><w:fldChar w:fldCharType='begin'/></w:r><w:r><w:instrText>PAGE</w:instrText></w:r>"
            "<w:r><w:fldChar w:fldCharType='separate'/></w:r>"
            + run("two")
            + "<w:r><w:fldChar w:fldCharType='end'/></w:r>"
            + run(" one"),
        ),
        # a field that ends in a later paragraph, such as a table of contents, and a tab inside a link
        (
            "<w:r><w:fldChar w:fldCharType='begin'/></w:r><w:r><w:fldChar w:fldCharType='separate'/></w:r>"
            + f"<w:hyperlink>{run('one two')}<w:r><w:tab/></w:r>{run('3')}</w:hyperlink>",
            "<w:r><w:fldChar w:fldCharType='begin'/></w:r><w:r><w:fldChar w:fldCharType='separate'/></w:r>"
            + f"<w:hyperlink>{run('3 two')}<w:r><w:tab/></w:r>{run('one')}</w:hyperlink>",
        ),
        # tabs and line breaks separate texts
        (
            run("one two") + "<w:r><w:tab/></w:r>" + run("12") + "<w:r><w:br/></w:r>" + run("three four"),
            run("two one") + "<w:r><w:tab/></w:r>" + run("12") + "<w:r><w:br/></w:r>" + run("four three"),
        ),
        # nothing to translate, and characters that XML reserves
        (run("12 – 13"), run("12 – 13")),
        (run("a &amp; b &lt; &#99;"), run("c &lt; b &amp; a")),
        # paragraphs in text boxes inside a paragraph
        (
            run("one two")
            + f"<w:r><w:pict><w:txbxContent><w:p>{run('three four')}</w:p></w:txbxContent></w:pict></w:r>",
            run("two one")
            + f"<w:r><w:pict><w:txbxContent><w:p>{run('four three')}</w:p></w:txbxContent></w:pict></w:r>",
        ),
        (f"<w:del>{run('gone away')}</w:del>{run('one two')}", f"<w:del>{run('gone away')}</w:del>{run('two one')}"),
    ],
)
def test_runs_of_word_documents_follow_the_aligned_words(source: str, target: str) -> None:
    assert word_paragraph(source) == target


def test_other_files_of_the_archive_are_copied() -> None:
    files: dict[str, str | bytes] = {
        "[Content_Types].xml": "<Types/>",
        "word/document.xml": f"<w:document {W}><w:p>{run('one two')}</w:p></w:document>",
        "word/media/image1.png": bytes(range(256)),
        "word/header2.xml": f"<w:hdr {W}><w:p>{run('three four')}</w:p></w:hdr>",
    }
    result = translate(archive(files), "a.docx")
    assert list(result) == list(files)
    assert (result["word/media/image1.png"], result["[Content_Types].xml"]) == (bytes(range(256)), b"<Types/>")
    assert b"two one" in result["word/document.xml"]
    assert b"four three" in result["word/header2.xml"]


def test_slides_keep_their_formats() -> None:
    def slide(text: str) -> str:
        return f"<p:sld><a:p>{text}<a:endParaRPr/></a:p></p:sld>"

    text = "<a:r><a:rPr lang='en'/><a:t>one </a:t></a:r><a:r><a:rPr b='1'/><a:t>two</a:t></a:r>"
    moved = "<a:r><a:rPr b='1'/><a:t>two</a:t></a:r><a:r><a:rPr lang='en'/><a:t> one</a:t></a:r>"
    files: dict[str, str | bytes] = {"ppt/presentation.xml": "<p/>", "ppt/slides/slide1.xml": slide(text)}
    assert translate(archive(files), "a.pptx")["ppt/slides/slide1.xml"].decode() == slide(moved)


def test_spans_of_open_documents_follow_the_aligned_words() -> None:
    text = (
        "<o><text:h>one  two</text:h><text:p>a <text:span text:style-name='B'>b c</text:span> d<text:note><text:p>x y"
    )
    text += "</text:p></text:note>.</text:p><text:p>Page <text:page-number/></text:p></o>"
    moved = "<o><text:h>two one</text:h><text:p>d<text:note><text:p>y x</text:p></text:note> "
    moved += "<text:span text:style-name='B'>c b</text:span> a.</text:p>"
    moved += "<text:p>Page <text:page-number/></text:p></o>"
    files: dict[str, str | bytes] = {"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": text}
    assert translate(archive(files), "a.odt")["content.xml"].decode() == moved


def test_text_and_spaces_that_are_not_changed_stay_the_same() -> None:
    """Also fields that begin inside an element and end outside, spaces as elements, and formats inside words."""
    begin, end = (f"<w:r><w:fldChar w:fldCharType='{mark}'/></w:r>" for mark in ("begin", "end"))
    word = f"<w:ins>{begin}</w:ins>{run('one ')}{run('t', BOLD)}{run('wo three')}{end}"
    word = f"<w:p>{word}</w:p>".replace("<w:t>", '<w:t xml:space="preserve">')
    odf = "<text:p><text:s text:c='3'/>one<text:s/>two <text:span><text:s/>three</text:span>\xa0four</text:p>"
    for name, file, text in (("a.docx", "word/document.xml", f"<w:d {W}>{word}</w:d>"), ("a.odt", "content.xml", odf)):
        document = parse_document(archive({file: text}), name)
        split = [SplitBlock.create(block, single_sentence(block.text), Preserve.NONE) for block in document.blocks]
        identity = [(n, n) for n in range(4)]
        same = [block.join(block.sentences, [identity], "") for block in split]
        with zipfile.ZipFile(io.BytesIO(document.render(same, ""))) as opened:
            assert opened.read(file).decode() == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a zip file", "not a Word document, or it is damaged"),
        (archive({"a.txt": "x"}), "word/document.xml is missing"),
        (archive({"word/document.xml": "<w:p>"}), "not valid XML"),
        (archive({"word/document.xml": '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'}), "declares a document type"),
        (archive({"word/document.xml": "<a>" * 300 + "</a>" * 300}), "nests elements more than 200 levels deep"),
        (archive({"word/document.xml": f"<w:p {W}/>"})[:-30], "damaged"),
        (archive({"word/document.xml": "<a/>", "b": "intact"}).replace(b"intact", b"broken"), "b in it cannot be read"),
        (archive({"word/document.xml": "<?xml version='1.0' encoding='latin-99'?><a/>"}), "not valid XML"),
        (archive({"word/document.xml": "<a/>".encode("utf-16")}), "not valid XML"),
    ],
)
def test_damaged_and_hostile_files_are_user_errors(content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        parse_document(content, "a.docx")


def test_archives_that_grow_far_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office_file, "MIN_CHECKED_BYTES", 1000)
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("word/document.xml", "<a/>")
        opened.writestr("word/media/image1.png", bytes(1_000_000))
    with pytest.raises(UserError, match="has 1,000,000 bytes"):
        parse_document(output.getvalue(), "a.docx")


@pytest.mark.peer
def test_other_libraries_read_the_translated_files() -> None:
    """python-docx, python-pptx and odfpy write files, and read the translations."""
    docx, pptx, opendocument = (pytest.importorskip(name) for name in ("docx", "pptx", "odf.opendocument"))
    text = pytest.importorskip("odf.text")

    def reread(document: Any, name: str, load: Callable[[io.BytesIO], Any]) -> Any:
        """Save a document, translate it, and load the result."""
        saved, result = io.BytesIO(), io.BytesIO()
        document.save(saved)
        with zipfile.ZipFile(result, "w") as opened:
            for file, content in translate(saved.getvalue(), name).items():
                opened.writestr(file, content)
        return load(result)

    document = docx.Document()
    document.add_heading("one two", 1)
    paragraph = document.add_paragraph("one two ")
    paragraph.add_run("three").bold = True
    document.add_table(1, 1).cell(0, 0).text = "one two"
    document.sections[0].header.paragraphs[0].text = "one two"
    found = reread(document, "a.docx", docx.Document)
    assert [paragraph.text for paragraph in found.paragraphs] == ["two one", "three two one"]
    assert [(run.text, run.bold) for run in found.paragraphs[1].runs] == [("three", True), (" two one", None)]
    assert (found.paragraphs[0].style.name, found.tables[0].cell(0, 0).text) == ("Heading 1", "two one")
    assert found.sections[0].header.paragraphs[0].text == "two one"

    slides = pptx.Presentation()
    slides.slides.add_slide(slides.slide_layouts[0]).shapes.title.text = "one two"
    assert reread(slides, "a.pptx", pptx.Presentation).slides[0].shapes.title.text == "two one"

    letter = opendocument.OpenDocumentText()
    letter.text.addElement(text.P(text="one two"))
    (line,) = reread(letter, "a.odt", opendocument.load).getElementsByType(text.P)
    assert str(line) == "two one"
