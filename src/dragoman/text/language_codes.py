"""Language codes of multilingual models: the tokens that say from which language into which one to translate."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NoReturn, get_args

from dragoman.errors import UserError
from dragoman.text.language_names import language_name, parse_language

SourceCodePosition = Literal["prefix", "suffix", "none"]
TargetCodePosition = Literal["forced_bos", "bos", "source_prefix"]
MAX_SHOWN_CODES = 8  # in error messages
EXAMPLE_LANGUAGES = ("en", "fr", "es", "de", "zh", "ar", "hi", "sw")  # shown first, if a model knows them


@dataclass(frozen=True)
class LanguageCodes:
    """The languages of a multilingual model, and where their codes stand.

    | | source code | target code |
    |---|---|---|
    | M2M-100, NLLB-200, mBART-50 | `prefix`: before the text | `forced_bos`: generated first, after BOS |
    | mBART-25, NLLB-200 with legacy_behaviour | `suffix`: after EOS | `bos` in mBART-25: takes the place of BOS |
    | Marian with several target languages | `none` | `source_prefix`: before the source |
    | Whisper | `none` | `forced_bos`: the language of the transcript |

    Attributes:
        ids: token id of each code, such as eng_Latn or en.
        source_position, target_position: where the codes stand.
        source, target: the languages of a text for which none are given, if the model has such a default.
        detected: whether the model recognizes the language of a recording: the most probable code after BOS.
    """

    ids: Mapping[str, int] = field(hash=False)
    source_position: SourceCodePosition = "prefix"
    target_position: TargetCodePosition = "forced_bos"
    source: str | None = None
    target: str | None = None
    detected: bool = False

    def __post_init__(self) -> None:
        """Raise a ValueError for fields that are not valid; they may come from a file."""
        if not all(isinstance(code, str) and isinstance(index, int) and index >= 0 for code, index in self.ids.items()):
            raise ValueError("language codes must have token ids")
        if self.source_position not in get_args(SourceCodePosition):
            raise ValueError(f"unknown position {self.source_position!r} of the source code")
        if self.target_position not in get_args(TargetCodePosition):
            raise ValueError(f"unknown position {self.target_position!r} of the target code")
        if unknown := {self.source, self.target} - {None, *self.ids}:
            raise ValueError(f"the default language {unknown.pop()!r} has no token id")

    @property
    def reads_source_code(self) -> bool:
        """Whether the model is told the source language."""
        return self.source_position != "none"

    @property
    def are_required(self) -> bool:
        """Whether codes must be added to a text, so that the languages have to be known.

        They need not for Marian, whose target code stands before the source (`source_prefix`): the text itself may
        begin with it, as in ">>deu<< Hello".
        """
        return self.target_position != "source_prefix"

    @property
    def has_default(self) -> bool:
        """Whether there is a default target language, and a default source language if the model is told it."""
        return self.target is not None and (self.source is not None or not self.reads_source_code)

    def find(self, language: str) -> str:
        """Return the code of a language, which may be given by its code, by another one of ISO 639, or by its name.

        `en`, `eng`, `en-GB` and `English` all mean `eng_Latn` if that is the only code of this language. An unknown
        language is a UserError with the nearest codes, and so is one with several codes, such as those of two scripts.

        Examples:
            >>> LanguageCodes({"eng_Latn": 5, "zho_Hans": 6, "zho_Hant": 7}).find("en")
            'eng_Latn'
        """
        if language in self.ids:
            return language
        given = parse_language(language)
        candidates = [code for code in self.ids if _fold(code) == _fold(language)]
        for code in self.ids if not candidates else ():
            tag = parse_language(code)
            same_script = None in (given.script, tag.script) or given.script == tag.script  # None: not stated
            if tag.language == given.language and same_script:
                candidates.append(code)
        return candidates[0] if len(candidates) == 1 else self._raise_unknown(language, candidates)

    def _raise_unknown(self, language: str, candidates: list[str]) -> NoReturn:
        """Raise the UserError for a `language` that no code stands for, or several codes (`candidates`)."""
        if candidates:
            raise UserError(f"the language {language!r} is ambiguous: use one of {described(candidates)}")
        wanted = parse_language(language).language
        names = {_fold(language_name(code)): code for code in self.ids} | {_fold(code): code for code in self.ids}
        near = [code for code in self.ids if parse_language(code).language == wanted]  # such as one in another script
        near += [names[name] for name in difflib.get_close_matches(_fold(language), names, n=3, cutoff=0.6)]
        known = described(dict.fromkeys(near or self.examples))
        hint = f"did you mean {known}?" if near else f"it knows {len(self.ids)} languages: {known}"
        raise UserError(f"the model does not know the language {language!r}: {hint}")

    def with_default(self, source: str | None = None, target: str | None = None) -> LanguageCodes:
        """Return these codes with another default source and target language; None keeps the present default.

        Languages are given by code or name. An unknown one is a UserError, and so is a source language if the model is
        not told it.
        """
        if source is not None and not self.reads_source_code:
            raise UserError(
                f"the model recognizes the source language itself, but got {source!r}: give only the target language "
                "(--to)"
            )
        return replace(
            self,
            source=self.source if source is None else self.find(source),
            target=self.target if target is None else self.find(target),
        )

    def without_default(self) -> LanguageCodes:
        """Return these codes without default languages."""
        return replace(self, source=None, target=None)

    def pair(self, source: str | None, target: str | None) -> tuple[str | None, str]:
        """Return the codes of two languages, given by code or name; None: the default, or a UserError without one.

        The source code is None if the model is not told the source language.
        """
        chosen = self.with_default(source, target)
        missing = ["source (--from)"] if self.reads_source_code and chosen.source is None else []
        missing += ["target (--to)"] if chosen.target is None else []
        if missing or chosen.target is None:  # the second condition is for type checkers
            raise UserError(
                f"the model translates between {len(self.ids)} languages: give the {' and '.join(missing)} language, "
                f"such as {described(self.examples)} ('dragoman show languages' lists all)"
            )
        return chosen.source if self.reads_source_code else None, chosen.target

    @property
    def examples(self) -> list[str]:
        """All codes, those of widely known languages first."""
        rank = {language: number for number, language in enumerate(EXAMPLE_LANGUAGES)}
        return sorted(self.ids, key=lambda code: rank.get(parse_language(code).language, len(rank)))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)} | {"ids": dict(self.ids)}


def described(codes: Iterable[str]) -> str:
    """Return codes with the names of their languages as text, such as "kin_Latn (Kinyarwanda), fra_Latn (French)".

    After MAX_SHOWN_CODES codes, "…" stands for the others.
    """
    codes = list(codes)
    named = [f"{code} ({name})" if (name := language_name(code)) != code else code for code in codes[:MAX_SHOWN_CODES]]
    return ", ".join(named) + " …" * (len(codes) > MAX_SHOWN_CODES)


def _fold(text: str) -> str:
    """Return the code or name of a language for comparison: in lower case, with `_` for `-`."""
    return text.casefold().replace("-", "_").strip()
