"""Framing: the special tokens around the texts that a model reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from dragoman.errors import UserError
from dragoman.text.language_codes import LanguageCodes
from dragoman.text.special_tokens import BOS, CLS, EOS, MASK, PAD, SEP


@dataclass(frozen=True)
class Framing:
    """Ids of the special tokens around a source text x and a target text y.

    A source is `source_prefix` x `source_suffix`, a target `bos` y `eos`; batches are padded with `pad`. The defaults
    are those of an encoder–decoder. Imported checkpoints have their own token ids.

    The framing of a multilingual model (`languages`) is without language codes; `for_languages` returns that of a pair.
    """

    pad: int = PAD
    bos: int = BOS
    eos: int = EOS
    source_prefix: tuple[int, ...] = ()
    source_suffix: tuple[int, ...] = (EOS,)
    forced_bos: tuple[int, ...] = ()  # generated right after BOS, with probability 1
    force_eos_at_limit: bool = False  # a target that reaches the length limit gets EOS
    suppressed: tuple[int, ...] = (PAD, BOS, MASK, SEP, CLS)  # never generated
    suppressed_first: tuple[int, ...] = ()  # not generated right after the forced tokens
    forced_is_prompt: bool = False  # forced tokens are no part of the target: they do not count in its length
    languages: LanguageCodes | None = None  # of a multilingual model; None: one pair, or the framing of a pair

    @property
    def target_prefix(self) -> tuple[int, ...]:
        """What the decoder reads before a target: BOS and the tokens that are always generated after it (forced)."""
        return (self.bos, *self.forced_bos)

    @property
    def prompt_length(self) -> int:
        """Number of forced tokens (always generated after BOS) that do not count in the length of a target.

        It is 0 if they count (`forced_is_prompt` is false). A language code that `for_languages` adds to them is
        included.
        """
        # whether the target's language code becomes a forced token
        adds_code = self.languages is not None and self.languages.target_position == "forced_bos"
        return len(self.forced_bos) + adds_code if self.forced_is_prompt else 0

    def for_languages(self, source: str | None = None, target: str | None = None) -> Framing:
        """Return the special tokens (framing) for a language pair, with language codes; None: the default language.

        A model without language codes has one framing, and no languages may be given. Unknown languages, and missing
        ones without a default, are a UserError.

        Examples:
            >>> codes = LanguageCodes({"eng_Latn": 7, "kin_Latn": 8})
            >>> Framing(bos=2, eos=2, source_suffix=(2,), languages=codes).for_languages("eng_Latn", "kin_Latn")
            Framing(pad=0, bos=2, eos=2, source_prefix=(7,), source_suffix=(2,), forced_bos=(8,), …)
        """
        languages = self.languages
        if languages is None:
            if source is not None or target is not None:
                raise UserError(
                    "the model has no language codes, which only multilingual models have: give neither a source nor "
                    "a target language (--from, --to)"
                )
            return self
        source, target = languages.pair(source, target)  # codes such as eng_Latn
        source_ids = () if source is None else (languages.ids[source],)
        target_id = languages.ids[target]
        framing = replace(self, languages=None)  # to which the codes are added
        if languages.source_position == "prefix":
            framing = replace(framing, source_prefix=(*source_ids, *self.source_prefix))
        elif languages.source_position == "suffix":
            framing = replace(framing, source_suffix=(*self.source_suffix, *source_ids))
        if languages.target_position == "forced_bos":
            return replace(framing, forced_bos=(target_id, *self.forced_bos))
        if languages.target_position == "bos":
            return replace(framing, bos=target_id)
        return replace(framing, source_prefix=(target_id, *framing.source_prefix))  # "source_prefix", as in Marian

    def for_default_languages(self) -> Framing:
        """Return the special tokens for texts without given languages: those of the default pair, if there is one.

        A model without language codes has only one framing. Without a default pair, no codes are added for Marian,
        whose texts may begin with a code of their own. Other models need codes: this object is returned unchanged, so
        that `for_languages` can still add them.
        """
        if self.languages is None or self.languages.has_default:
            return self.for_languages()
        return self if self.languages.are_required else replace(self, languages=None)  # None: Marian

    def with_default_languages(self, source: str | None, target: str | None) -> Framing:
        """Return these special tokens with other default languages (codes or names); None keeps the present default.

        A model without language codes has none: giving one is a UserError.
        """
        if self.languages is None:
            return self.for_languages(source, target)  # raises a UserError if languages are given
        return replace(self, languages=self.languages.with_default(source, target))

    def without_default_languages(self) -> Framing:
        """Return these special tokens without a default pair of languages.

        The results are equal for all runs of one model, whose defaults may differ.
        """
        return self if self.languages is None else replace(self, languages=self.languages.without_default())

    def to_dict(self) -> dict[str, Any]:
        """Return the framing, the special tokens around source and target, as JSON values."""
        languages = {} if self.languages is None else {"languages": self.languages.to_dict()}
        values = asdict(replace(self, languages=None))
        del values["languages"]  # absent if the model has no language codes
        return values | languages

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Framing:
        """Build the framing from what `to_dict` returned, also after JSON has turned tuples into lists.

        Values that are not valid are a ValueError or TypeError.
        """
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
        }
        if values.get("languages") is not None:
            values["languages"] = LanguageCodes(**values["languages"])
        framing = cls(**values)
        token_ids = [framing.pad, framing.bos, framing.eos, *framing.source_prefix, *framing.source_suffix]
        token_ids += [*framing.forced_bos, *framing.suppressed, *framing.suppressed_first]
        if not all(isinstance(token_id, int) and token_id >= 0 for token_id in token_ids):
            raise ValueError("special tokens must have token ids")
        return framing


#: the encoder reads x EOS, the decoder writes BOS y EOS
ENCODER_DECODER_FRAMING = Framing()
#: the decoder reads BOS x SEP and continues with y EOS: SEP takes the place of the target's BOS
DECODER_ONLY_FRAMING = Framing(bos=SEP, source_prefix=(BOS,), source_suffix=())
#: the encoder reads CLS x SEP
ENCODER_ONLY_FRAMING = Framing(source_prefix=(CLS,), source_suffix=(SEP,))
