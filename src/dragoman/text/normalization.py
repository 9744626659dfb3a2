"""Normalization of text before tokenization, the same in training, translation, scoring and evaluation."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.text.word_splitting import normalize_whitespace

if TYPE_CHECKING:
    from dragoman.config import TextConfig


@dataclass(frozen=True)
class TextNormalizer:
    """Applies a Unicode normalization form, lower-casing and normalization of white space, in this order.

    Attributes:
        unicode_form: NFC, NFD, NFKC or NFKD (Unicode Standard Annex 15), or none.
    """

    whitespace: bool = False
    unicode_form: str = "none"
    lowercase: bool = False

    @classmethod
    def from_settings(cls, text: TextConfig) -> TextNormalizer:
        """Return the normalizer that the settings of a run (section text) describe; None is no normalization."""
        return cls(
            whitespace=bool(text.normalize_whitespace),
            unicode_form=text.unicode_normalization or "none",
            lowercase=bool(text.lowercase),
        )

    @property
    def changes_letters(self) -> bool:
        """Whether letters are normalized: lower-cased, or brought into a Unicode form."""
        return self.lowercase or self.unicode_form != "none"

    @property
    def is_active(self) -> bool:
        """Whether anything is normalized."""
        return self.whitespace or self.changes_letters

    def __call__(self, text: str) -> str:
        """Return the normalized text; normalizing it again changes nothing."""
        text = self.normalize_letters(text)
        return normalize_whitespace(text) if self.whitespace else text

    def normalize_words(self, text: str) -> str:
        """Normalize the letters of every word, but keep the number of words; white space becomes single spaces.

        Text whose letters are not normalized is returned unchanged.
        """
        if not self.changes_letters:
            return text
        # NFKC writes some characters with a space, which must not divide a word
        return " ".join("".join(self.normalize_letters(word).split()) or word for word in text.split())

    def signature(self, signature: str) -> str:
        """Return sacreBLEU's signature of a metric, such as "nrefs:1|case:mixed|tok:13a", with this normalization.

        The references were normalized by it. Lower case is `case:lc`, as in sacreBLEU; a Unicode form is `norm:NFKC`.
        """
        fields = [field for field in signature.split("|") if field]
        if self.lowercase:
            has_case = any(field.startswith("case:") for field in fields)
            fields = [field.replace("case:mixed", "case:lc") for field in fields] + ["case:lc"] * (not has_case)
        if self.unicode_form != "none":
            fields.append(f"norm:{self.unicode_form}")
        return "|".join(fields)

    def normalize_letters(self, text: str) -> str:
        """Apply the Unicode form and lower-case; then the form again, as lower-casing can leave text in another one."""
        if self.unicode_form != "none":
            text = unicodedata.normalize(self.unicode_form, text)  # type: ignore[arg-type]
        if self.lowercase:
            text = text.lower()
            if self.unicode_form != "none":
                text = unicodedata.normalize(self.unicode_form, text)  # type: ignore[arg-type]
        return text
