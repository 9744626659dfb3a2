"""Translation memories (TMX 1.4): translation units with a segment per language, read as a stream.

The parser never loads external entities, and a file that declares entities is refused: what is read does not grow
beyond the file. A reference to an external DTD, which many files have, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from xml.parsers import expat

from dragoman.data.corpus import ColumnChoice
from dragoman.data.file_formats import ColumnFormat
from dragoman.errors import UserError
from dragoman.text.language_names import language_spellings

if TYPE_CHECKING:
    from dragoman.data.corpus import Corpus

TMX_READ_BYTES = 2**16
MAX_SEGMENT_CHARACTERS = 2**24
MAX_LANGUAGES = 100  # that are remembered for a message
_CODE_ELEMENTS = ("bpt", "ept", "it", "ph", "ut")  # formatting codes in a segment; the text in `hi` is kept


class TranslationUnit(NamedTuple):
    """A unit of a translation memory: its texts by language tag, as the file writes them, such as `en-US`."""

    line: int
    texts: dict[str, str]


class TranslationMemoryFormat(ColumnFormat):
    """A translation memory (TMX), of which two languages are read; units that lack one of them are left out.

    Without chosen languages, the first unit must have two: the source is the `srclang` of the file, or the first.
    """

    name, suffixes = "tmx", (".tmx",)

    def read_columns(
        self, corpus: Corpus, columns: Sequence[ColumnChoice], allow_empty: bool = False
    ) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield (line number, texts in the languages of the columns) for every translation unit that has all of them.

        `columns` are source and target, or the source alone. Their languages are chosen by the user, or those of the
        first unit. A file without such units is a UserError unless `allow_empty`, and so is a column of features.
        """
        for choice in corpus.feature_columns:
            raise UserError(
                f"{corpus.source} is a translation memory, which has no column {str(choice.column)!r} of features: "
                "name a file with --source-features instead, or convert it to TSV"
            )
        languages: list[str] | None = None  # of the columns; known after the first unit
        seen: dict[str, None] = {}  # all language tags, in their order
        # for the language tags of a unit, which of them stand for `languages`; None for a language that it lacks
        tags: dict[tuple[str, ...], list[str | None]] = {}
        has_pairs = False
        with corpus.open() as stream:
            parser = _UnitParser(corpus.source)
            for unit in parser.parse(stream):
                unit_tags = tuple(unit.texts)  # language tags
                if languages is None:
                    languages = _choose_languages(corpus, columns, unit_tags, parser.source_language)
                if unit_tags not in tags:
                    if len(seen) < MAX_LANGUAGES:
                        seen |= dict.fromkeys(unit_tags)
                    tags[unit_tags] = [_find_tag(language, unit_tags) for language in languages]
                chosen = [tag for tag in tags[unit_tags] if tag is not None]
                if len(chosen) == len(columns):
                    has_pairs = True
                    yield unit.line, [unit.texts[tag] for tag in chosen]
        if not has_pairs and not allow_empty:
            chosen = [str(choice.column or choice.language) for choice in columns]
            expected = " and ".join(languages or (chosen if all(chosen) else ["two languages"]))
            raise UserError(
                f"{corpus.source} has no translation unit in {expected}, only texts in "
                f"{', '.join(seen) or 'no language'}: choose two of its languages with --from and --to"
            )


def _choose_languages(
    corpus: Corpus, columns: Sequence[ColumnChoice], unit_tags: Sequence[str], source_language: str
) -> list[str]:
    """Return the language of each column (source, target): those of the settings, or the two of the first unit.

    `columns` are source and target, or the source alone; `corpus.columns`, always both, have the settings. `unit_tags`
    are the language tags of the first unit, `source_language` is that of the header, "" if it has none. By default the
    source is in this language, or in the first one of the unit; if only the target is chosen, the source is in the
    other one. If a language is not chosen, the unit must have two, otherwise there is a UserError.
    """
    chosen = {choice.role: str(choice.column or choice.language) for choice in corpus.columns}
    tags = list(dict.fromkeys(unit_tags))
    source_tag = _find_tag(chosen["source"] or source_language, tags) or (tags[0] if tags else "")
    others = [tag for tag in tags if tag != source_tag]
    if chosen["target"]:
        target_tag = _find_tag(chosen["target"], tags)
        if not chosen["source"] and target_tag == source_tag and len(others) == 1:  # the other one is the source
            source_tag, others = others[0], [source_tag]
    needs_default = any(not chosen[choice.role] for choice in columns)
    if needs_default and len(tags) != 2:
        raise UserError(
            f"{corpus.source} has texts in {', '.join(tags) or 'no language'}, but two languages are needed: choose "
            "them with --from and --to"
        )
    defaults = {"source": source_tag, "target": others[0] if others else ""}
    return [chosen[choice.role] or defaults[choice.role] for choice in columns]


def _find_tag(language: str, tags: Sequence[str]) -> str | None:
    """Return the first of the language tags that stands for `language`; None if there is none.

    `en` is also found as EN or en-US, but en-GB not as en-US; `eng_Latn` is also found as en.
    """
    for wanted in (code.lower().replace("_", "-") for code in language_spellings(language)):
        for tag in tags:
            present = tag.lower().replace("_", "-")
            if present == wanted or present.startswith(f"{wanted}-"):
                return tag
    return None


class _UnitParser:
    """Collects translation units from the events of an XML parser that refuses entity declarations."""

    def __init__(self, path: Path) -> None:
        """Prepare to parse a file; `path` names it in errors. Entities and declarations in it are errors."""
        self.path, self.units = path, list[TranslationUnit]()  # complete units
        self.source_language = ""  # of the header
        self.depth = 0  # number of open XML elements
        self.texts: dict[str, str] = {}  # of the present unit
        self.unit_line, self.language = 0, ""  # where the present unit begins; language tag of the present segment
        self.segment: list[str] | None = None  # pieces of the present segment
        self.characters = self.code_depth = 0  # in the present segment; open elements with formatting codes
        self.expat = expat.ParserCreate()
        self.expat.buffer_text = True  # pass text in large pieces
        self.expat.StartElementHandler, self.expat.EndElementHandler = self._start, self._end
        self.expat.CharacterDataHandler = self._text
        self.expat.StartDoctypeDeclHandler = self._doctype
        self.expat.EntityDeclHandler = self.expat.SkippedEntityHandler = self._entity
        self.expat.UnparsedEntityDeclHandler = self.expat.ExternalEntityRefHandler = self._entity  # type: ignore[assignment]

    def parse(self, stream: IO[bytes]) -> Iterator[TranslationUnit]:
        """Yield the translation units of an open TMX file; a file that is not valid XML is a UserError."""
        try:
            while chunk := stream.read(TMX_READ_BYTES):
                self.expat.Parse(chunk, False)  # not the end
                yield from self._take_units()
            self.expat.Parse(b"", True)  # the end
            yield from self._take_units()
        except (expat.ExpatError, UnicodeError, LookupError, ValueError) as error:
            reason = expat.errors.messages.get(getattr(error, "code", 0), str(error))
            raise UserError(
                f"{self.path}, line {self.expat.CurrentLineNumber:,} is not valid XML ({reason}): expected a TMX file, "
                "export or download it again"
            ) from None

    def _take_units(self) -> list[TranslationUnit]:
        """Return the translation units that are complete, and remove them from `self.units`."""
        units, self.units = self.units, []
        return units

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        """Handle the start of an XML element: of the header, a unit (tu), one of its languages (tuv) or texts (seg).

        A root element other than tmx is a UserError.
        """
        if not self.depth and name != "tmx":  # the root of the file
            raise UserError(
                f"{self.path} is an XML file of <{name}>, not a translation memory (<tmx>): convert the file to TMX"
            )
        self.depth += 1
        if self.segment is not None:
            # number of open elements with formatting codes, such as <bpt>, and of all elements in them
            self.code_depth += bool(self.code_depth) or name in _CODE_ELEMENTS
        elif name == "header":
            language = attributes.get("srclang", "")
            self.source_language = "" if language == "*all*" else language  # *all*: any language may be the source
        elif name == "tu":
            self.texts, self.unit_line = {}, self.expat.CurrentLineNumber
        elif name == "tuv":
            self.language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self.segment, self.characters, self.code_depth = [], 0, 0

    def _end(self, name: str) -> None:
        """Handle the end of an XML element: a text (seg) or a translation unit (tu) is complete."""
        self.depth -= 1
        if self.segment is not None:
            if name == "seg":
                self.texts.setdefault(self.language, "".join(self.segment))  # of several, the first one counts
                self.segment = None
            self.code_depth -= bool(self.code_depth)  # number of open elements with formatting codes
        elif name == "tu":
            self.units.append(TranslationUnit(self.unit_line, self.texts))

    def _text(self, text: str) -> None:
        """Add text to the present segment (the text of a unit in one language), unless it is a formatting code.

        A segment of more than MAX_SEGMENT_CHARACTERS is a UserError.
        """
        if self.segment is None or self.code_depth:  # outside a segment, or inside elements with formatting codes
            return
        self.characters += len(text)
        if self.characters > MAX_SEGMENT_CHARACTERS:
            raise UserError(
                f"{self.path}, line {self.unit_line:,} has a segment of more than {MAX_SEGMENT_CHARACTERS:,} "
                "characters: remove or split the translation unit (<tu>) that begins in this line"
            )
        self.segment.append(text)

    def _doctype(self, name: str, system_id: Any, public_id: Any, has_internal_subset: int) -> None:
        """Accept the reference to a DTD, which is not loaded, but no declarations in the file (an internal subset).

        The other arguments, which expat passes, are not used.
        """
        if has_internal_subset:
            self._entity()  # raises a UserError

    def _entity(self, *arguments: Any) -> None:
        """Raise a UserError for a declaration, or for an entity that XML does not define; arguments are unused."""
        raise UserError(
            f"{self.path}, line {self.expat.CurrentLineNumber:,} declares or uses an XML entity, which could expand "
            "without limit: remove the declarations in <!DOCTYPE …>"
        )
