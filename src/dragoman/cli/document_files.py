"""Documents as input of `dragoman translate`: HTML, subtitles, office files and plain text with its lines."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dragoman.cli.translation_output import LineProgress, OutputOptions
from dragoman.console import log
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.cli.search_options import SearchOptions
    from dragoman.run import Run
    from dragoman.search import SearchConfig
    from dragoman.text.documents.document import MarkupFormat


@dataclass(frozen=True)
class DocumentOptions:
    """How documents, such as HTML pages and office files, are translated."""

    preserve: Annotated[
        Literal["none", "placeholders", "numbers"] | None,
        typer.Option(
            help="What the translation of a document must keep unchanged. placeholders: variables such as {name}, "
            "URLs and e-mail addresses; numbers: placeholders and numbers; none: nothing. Default: placeholders.",
            show_default=False,
        ),
    ] = None
    translate_attributes: Annotated[
        bool, "Also translate the attributes alt, title, placeholder and aria-label of HTML elements."
    ] = False

    def find_format(self, file: Path | None, name: str) -> MarkupFormat | None:
        """Return the format of a document; None for files that are translated line by line.

        `name` is the value of --format. If it is empty, the ending of the file name decides, but .txt means one
        sentence per line. The options of this group together with lines are a UserError.
        """
        from dragoman.text.documents.document import DOCUMENT_FORMATS, format_of_file

        document_format = DOCUMENT_FORMATS.get(name)
        if not name and file is not None and file.suffix.lower() != ".txt":
            document_format = format_of_file(file.name)
        if document_format is None and (self.preserve is not None or self.translate_attributes):
            option = "--preserve" if self.preserve is not None else "--translate-attributes"
            raise UserError(
                f"{option} needs a document, but the input is translated line by line: add --format with the "
                f"format of the document ({', '.join(DOCUMENT_FORMATS)}), or leave {option} out"
            )
        return document_format


def check_document_options(search: SearchOptions, *groups: Any) -> None:
    """Raise a UserError for options that apply to lines, and cannot be used with documents.

    Of `search` this is only --n-best. `groups` are further dataclasses of options; a field that is neither false nor
    its default was given by the user.
    """
    if search.n_best is not None:
        raise UserError(
            "--n-best only works for text that is translated line by line, but the input is a document such as HTML "
            "or DOCX: leave out --n-best"
        )
    # fields of options that also apply to documents
    supported = {"output", "overwrite", "exclude", "corpus_tag", "split_sentences", "format", "source_language"}
    for group in groups:
        defaults = {field.name: field.default for field in fields(group)}
        for name, value in asdict(group).items():
            if value and value != defaults[name] and name not in supported:
                raise UserError(
                    f"--{name.replace('_', '-')} only works for text that is translated line by line, but the input is "
                    f"a document such as HTML or DOCX: leave out --{name.replace('_', '-')}"
                )


def read_document(file: Path | None) -> bytes:
    """Return the bytes of a document, from a file or (None) from standard input, which must not be a terminal.

    A file that cannot be read is a UserError.
    """
    if file is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise UserError("no document is given: name its file as an argument, or pipe it into standard input")
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}; check its path and permissions") from None


def translate_document(
    run: Run,
    search: SearchConfig,
    content: bytes,
    document_format: MarkupFormat,
    options: DocumentOptions,
    output: OutputOptions,
    **arguments: Any,
) -> None:
    """Translate a document, show the progress in sentences, and write the result to a file or to standard output.

    Args:
        run: the run that translates.
        search: its search configuration.
        content: the bytes of the document.
        document_format: parses the content.
        options: which text must be preserved, and whether attributes of HTML elements are translated.
        output: has the output file; without one, the document is written to standard output.
        arguments: further arguments of `Run.translate_stream`.
    """
    from dragoman.run.document_translation import translate_blocks
    from dragoman.run.language_pair import target_language_code
    from dragoman.storage import write_file
    from dragoman.text.documents.preserved_text import Preserve

    document = document_format.parse(content, options.translate_attributes)
    preserve = Preserve(options.preserve or "placeholders")
    language, blocks = target_language_code(run), []
    progress = LineProgress(total=None, unit="sentences")
    progress.update(0)  # starts the clock of the speed
    with progress.bar:
        for result in translate_blocks(run, document.blocks, search, preserve=preserve, language=language, **arguments):
            if isinstance(result, list):  # the last one: the translated blocks (texts such as paragraphs)
                blocks = result
            else:
                done, total = result  # numbers of sentences
                progress.set_total(total)
                progress.update(done)
    translated = document.render(blocks, language)
    if output.file is None:
        sys.stdout.buffer.write(translated)
        sys.stdout.buffer.flush()
    else:
        write_file(output.file, translated)
        log(f"{output.file}: {progress.summary()}")
