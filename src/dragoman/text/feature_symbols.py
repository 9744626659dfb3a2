"""Feature symbols: properties of a source such as V;PST;3, which are read as whole symbols in front of its tokens.

Where a source is one text, its features follow it after a tab: `walk<TAB>V;PST`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dragoman.errors import UserError

FEATURE_SEPARATOR = ";"
UNKNOWN_FEATURE = ""  # the name of the symbol that stands for all unknown features
MAX_FEATURE_SYMBOLS = 10_000


@dataclass(frozen=True)
class FeatureSymbols:
    """The feature symbols of a vocabulary: consecutive ids after all tokens of text, so that the two never mix.

    Attributes:
        ids: id of each feature by its name; `UNKNOWN_FEATURE` has one as well. Empty if there are no features.
        separator: between the features of a source.
    """

    ids: Mapping[str, int] = field(default_factory=dict)
    separator: str = FEATURE_SEPARATOR

    def __bool__(self) -> bool:
        """Whether the vocabulary has feature symbols."""
        return bool(self.ids)

    @property
    def names(self) -> list[str]:
        """The names of all known features, in the order of their ids."""
        return [name for name in self.ids if name != UNKNOWN_FEATURE]

    @property
    def id_range(self) -> range:
        """The ids of all features, as a range; empty if there are none. Ids that are not consecutive: a UserError."""
        ids = range(min(self.ids.values()), max(self.ids.values()) + 1) if self.ids else range(0)
        if len(ids) > len(self.ids):
            raise UserError(
                "the token ids of all source features (data.source_features, data.features_column) must be "
                "consecutive, but the reused tokenizer already has features, or corpus tags (data.corpus_tags), "
                "of an earlier run between them: leave out --tokenizer-from, so that a new tokenizer is learned"
            )
        return ids

    def encode(self, text: str) -> list[int]:
        """Return the ids of the features in a text such as "V;PST"; all unknown ones get one id (UNKNOWN_FEATURE)."""
        return [self.ids.get(name, self.ids[UNKNOWN_FEATURE]) for name in split_names(text, self.separator)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the features among token ids as text, such as "V;PST"; "?" stands for an unknown feature."""
        names = {token_id: name for name, token_id in self.ids.items()}
        # the symbol of unknown features has an empty name
        return self.separator.join(names[token_id] or "?" for token_id in ids if token_id in names)

    def unknown(self, text: str) -> list[str]:
        """Return the features in a text such as "V;PST" that have no id."""
        return [name for name in split_names(text, self.separator) if name not in self.ids]


def split_names(text: str, separator: str) -> list[str]:
    """Split features such as "V;PST" at the separator; white space around a name and empty names are dropped."""
    return [name for part in text.split(separator) if (name := part.strip())]


def collect_names(texts: Iterable[str], separator: str) -> list[str]:
    """Return the different features in texts such as "V;PST", sorted; more than MAX_FEATURE_SYMBOLS are a UserError."""
    names: set[str] = set()
    for text in texts:
        names.update(split_names(text, separator))
        if len(names) > MAX_FEATURE_SYMBOLS:
            raise UserError(
                f"the training data has more than {MAX_FEATURE_SYMBOLS:,} different features, such as {min(names)!r}: "
                "check that data.features_column is the column of the features, and data.feature_separator the "
                "characters between them"
            )
    return sorted(names)


def feature_token(name: str) -> str:
    """Return the token of a feature, such as <feature:PST>.

    No text is tokenized into it: words are split between brackets and letters, and a symbol that is written like this
    includes the space beside it.
    """
    return f"<feature:{name}>"


def join_features(texts: Sequence[str], features: Sequence[str] | None) -> list[str]:
    """Append to each text, after a tab, its features such as "V;PST"; a text with the features "" stays as it is.

    `features` has one entry for each text, else a UserError is raised; None: no text has features.
    """
    if features is None:
        return list(texts)
    if isinstance(features, str) or len(features) != len(texts):
        actual = "a single string" if isinstance(features, str) else f"{len(features):,} entries"
        raise UserError(
            f"features must be a list with one entry for each of the {len(texts):,} texts, such as ['V;PST'] "
            f"(morphological features of one text), but has {actual}: pass one entry for each text"
        )
    return [f"{text}\t{names}" if names else text for text, names in zip(texts, features)]


def split_features(source: str) -> tuple[str, str]:
    """Split a source into its text and the features after its last tab, which are empty if there is no tab."""
    text, tab, features = source.rpartition("\t")
    return (text, features) if tab else (source, "")
