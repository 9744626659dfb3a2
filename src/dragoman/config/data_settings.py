"""Settings of the corpora and of their cleaning."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.config.setting_declarations import Section, setting
from dragoman.errors import UserError

Files = tuple[str, ...]


@dataclass(frozen=True)
class DataConfig(Section, section="data"):
    """Files with sentences. Each file, or each pair of a source and a target file, is a corpus."""

    source: Files = setting(
        (),
        "Training source files, such as [train.en]: text with one sentence per line, or files with columns for source "
        "and target: TSV, CSV, JSON lines, TMX, Parquet, or a folder that Hugging Face `datasets` wrote with "
        "save_to_disk. For images and speech: .npz or .npy files of arrays, one vector per patch or frame; text files "
        "that list .png, .jpg or .wav files; or folders of such files.",
    )
    target: Files = setting(
        (),
        "Training target files: line n translates line n of the source file. Empty: the source files contain the "
        "targets as well, or the training needs none (a language model).",
    )
    valid_source: Files = setting(
        (), "Validation source files. Without them, part of the training data is held out for validation."
    )
    valid_target: Files = setting(
        (), "Validation target files: line n translates line n of the validation source file."
    )
    test_source: Files = setting(
        (), "Test source files, only used to count the test sentences that also occur in the training data."
    )
    test_target: Files = setting((), "Test target files: line n translates line n of the test source file.")
    format: str = setting(
        "",
        "Format of the data files: text, tsv, csv, jsonl, tmx, parquet or datasets (folders that Hugging Face "
        "`datasets` wrote with save_to_disk). Empty: derived from the file name.",
    )
    source_column: str | None = setting(
        None,
        "Source column: its name in a CSV, TSV, JSON-lines or Parquet file, or its number from 0 in a TSV or CSV file.",
        auto="0 in TSV without a header, else the column named as data.source_language or `source`, or the first of "
        "two",
    )
    target_column: str | None = setting(
        None,
        "Target column: its name in a CSV, TSV, JSON-lines or Parquet file, or its number from 0 in a TSV or CSV file.",
        auto="1 (2 if column 1 holds features) in TSV without a header, else the column named as data.target_language "
        "or `target`, or the second of two",
    )
    header: bool | None = setting(
        None,
        "Whether the first line of a TSV or CSV file names its columns.",
        auto="true in CSV, and in TSV if a column is chosen by name",
    )
    source_language: str = setting(
        "",
        "Source language, such as en or eng_Latn. It selects the language code of a multilingual model, the texts of a "
        "translation memory (TMX), the file of a Moses corpus (corpus.en for the source `corpus`), or the column.",
    )
    target_language: str = setting(
        "",
        "Target language, such as de or deu_Latn. It selects the language code of a multilingual model, the texts of a "
        "translation memory (TMX), the file of a Moses corpus (corpus.de for the source `corpus`), or the column.",
    )
    features_column: str | None = setting(
        None,
        "Column with the features of a source, its labels such as V;PST;3 (the inflected form to generate): its name, "
        "or its number from 0 in a TSV or CSV file. The model reads each feature as one token before those of the "
        "source. An empty text: there are none.",
        auto="the column named `features`; 2 or 1 in TSV without a header, if that column looks like features",
    )
    source_features: Files = setting(
        (),
        "Files with the features of the training sources, labels such as V;PST;3, line by line with data.source. "
        "Cannot be combined with data.features_column.",
    )
    valid_source_features: Files = setting(
        (),
        "Files with the features of the validation sources, labels such as V;PST;3, line by line with "
        "data.valid_source.",
    )
    test_source_features: Files = setting(
        (), "Files with the features of the test sources, labels such as V;PST;3, line by line with data.test_source."
    )
    feature_separator: str = setting(
        ";",
        "Text between two features of a source (the labels that are read before it), such as the ; in V;PST;3: one "
        "space, or characters other than spaces.",
    )
    feature_positions: Literal["invariant", "sequential"] = setting(
        "invariant",
        "Position embeddings of the features of a source, labels such as V;PST;3 that are read before its tokens. "
        "invariant: features are at position 0, and tokens count from 1, so that number and order of features change "
        "no position (Wu et al. 2021). sequential: features and tokens are counted together; decoder-only systems "
        "always do so. Without effect in recurrent systems, which have no position embeddings.",
    )
    max_length: int = setting(
        256,
        "Maximum length of a source or target in tokens. Longer training pairs are dropped, and their number is "
        "printed.",
        min=1,
        max=100_000,
    )
    validation_size: int | None = setting(
        None,
        "Number of training pairs held out for validation if there are no validation files.",
        min=1,
        auto="5 % of the pairs, at least 50 (or a tenth of them, if that is less) and at most 2,000",
    )
    sampling_weights: tuple[float, ...] = setting(
        (),
        "One number per training corpus (pair of files), such as [3, 1]: its relative share of the sampled training "
        "pairs. Empty: every pair is used once per epoch.",
    )
    sampling_temperature: float | None = setting(
        None,
        "Temperature T: sample training corpora in proportion to (number of pairs)^(1/T). 1: by size; larger: more "
        "evenly. Cannot be combined with data.sampling_weights.",
        min=0.1,
        max=1e6,
        auto="every pair once per epoch",
    )
    corpus_tags: tuple[str, ...] = setting(
        (),
        "One tag per training corpus (pair of files), such as [backtranslated, ''], prepended to its sources as a "
        "token; '' for a corpus without a tag. Empty: no tags.",
    )
    valid_corpus_tags: tuple[str, ...] = setting(
        (),
        "One tag per validation corpus, prepended to its sources as a token. Empty: those of data.corpus_tags, for "
        "which there must be as many validation as training corpora.",
    )
    corpus_languages: tuple[str, ...] = setting(
        (),
        "Languages of each training corpus as FROM:TO, such as [eng_Latn:kin_Latn], if training starts from a "
        "multilingual model. Empty: all have the languages of the options --from and --to.",
    )
    valid_corpus_languages: tuple[str, ...] = setting(
        (),
        "Languages of each validation corpus as FROM:TO. Empty: those of data.corpus_languages; if these "
        "differ, there must be one validation corpus for each training corpus.",
    )
    num_workers: int | None = setting(
        None, "Number of processes that read and tokenize the corpus.", min=1, max=10_000, auto="number of CPU cores"
    )

    def __post_init__(self) -> None:
        """Convert and check every setting, then check them against each other; raise a UserError for a wrong one."""
        super().__post_init__()
        weights = self.sampling_weights
        if not all(0 <= weight < math.inf for weight in weights) or (weights and not any(weights)):
            raise UserError(f"data.sampling_weights must be at least 0 and not all 0, got {list(weights)}: change them")
        # both decide how often each corpus is sampled
        if weights and self.sampling_temperature is not None:
            raise UserError("data.sampling_weights and data.sampling_temperature exclude each other: set one of them")
        if self.source_features and self.features_column:
            raise UserError("data.source_features and data.features_column exclude each other: set one of them")
        if not self.feature_separator.strip() and self.feature_separator != " ":
            raise UserError(
                f"data.feature_separator must be one space or characters other than spaces, got "
                f"{self.feature_separator!r}: use ';', for example"
            )
        if self.valid_corpus_tags and not self.corpus_tags:
            raise UserError("data.valid_corpus_tags need data.corpus_tags: set the tags of the training corpora too")
        if self.valid_corpus_languages and not self.corpus_languages:
            raise UserError("data.valid_corpus_languages need data.corpus_languages: set both, or none of them")
        for pair in (*self.corpus_languages, *self.valid_corpus_languages):
            source_language, _, target_language = pair.partition(":")
            if not source_language or not target_language:
                raise UserError(
                    "each of data.corpus_languages and data.valid_corpus_languages must be FROM:TO, such as "
                    f"eng_Latn:kin_Latn, but one is {pair!r}: correct it"
                )


@dataclass(frozen=True)
class CleaningConfig(Section, section="cleaning"):
    """Removal of bad training pairs, before anything is learned from them. Validation and test data are not cleaned."""

    enabled: bool = setting(
        False,
        "Clean the training data with all filters of the section cleaning, and report what was removed. Validation and "
        "test data are not cleaned.",
    )
    deduplicate: bool | None = setting(
        None, "Remove pairs that are equal to an earlier one.", auto="true with cleaning.enabled"
    )
    deduplicate_similar: bool = setting(
        False,
        "Remove pairs that have nearly the same words as an earlier one, by MinHash of word trigrams: it finds 95 % of "
        "the pairs with a Jaccard index of 0.8, more of those above it, and fewer below.",
    )
    max_length_ratio: float | None = setting(
        None,
        "Remove pairs whose ratio of target to source characters differs from the median of the corpus by more than "
        "this factor. 0: never.",
        min=0,
        auto="4 with cleaning.enabled",
    )
    min_characters: int = setting(0, "Remove pairs whose source or target has fewer characters. 0: no minimum.", min=0)
    max_characters: int = setting(0, "Remove pairs whose source or target has more characters. 0: no maximum.", min=0)
    match_script: bool | None = setting(
        None,
        "Remove pairs whose source (or target) is in another script than most sources (targets), such as Cyrillic "
        "among Latin.",
        auto="true with cleaning.enabled",
    )
    identify_language: bool = setting(
        False,
        "Remove pairs whose source is not in data.source_language, or target not in data.target_language; if these are "
        "not set, the extensions of the files (train.en) name the languages. Needs the package "
        "lingua-language-detector; takes a few milliseconds per text.",
    )
    min_letter_share: float | None = setting(
        None,
        "Remove pairs whose source or target has a smaller share of letters among its characters, spaces left out. 0: "
        "never.",
        min=0,
        max=1,
        auto="0.3 with cleaning.enabled",
    )
    reject_control_characters: bool | None = setting(
        None, "Remove pairs with control or replacement characters (U+FFFD).", auto="true with cleaning.enabled"
    )
    reject_identical: bool | None = setting(
        None, "Remove pairs whose source equals their target.", auto="true with cleaning.enabled"
    )

    def with_defaults(self) -> CleaningConfig:
        """Return the settings with cleaning's own defaults in place of None if it is `enabled`, else unchanged."""
        if not self.enabled:
            return self
        defaults: dict[str, Any] = {
            "deduplicate": True,
            "max_length_ratio": 4.0,
            "match_script": True,
            "min_letter_share": 0.3,
            "reject_control_characters": True,
            "reject_identical": True,
        }
        unset = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **unset)

    @property
    def is_active(self) -> bool:
        """Whether any filter is set; `enabled` is none, it only sets the defaults of others (`with_defaults`)."""
        return any(getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "enabled")
