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
        "with the path of one .png, .jpg or .wav file per line; or folders of such files.",
    )
    target: Files = setting(
        (),
        "Training target files, one for each of data.source, such as [train.de]: line n is the translation of line n "
        "of the source file. Empty: the source files contain the targets as well, or the training needs none (a "
        "language model).",
    )
    valid_source: Files = setting(
        (),
        "Validation source files, in the formats of data.source. Empty: training pairs are held out for validation "
        "(data.validation_size).",
    )
    valid_target: Files = setting(
        (),
        "Validation target files, one for each of data.valid_source: line n is the translation of line n of the "
        "source file. Empty: the validation source files contain the targets as well, or there are none.",
    )
    test_source: Files = setting(
        (),
        "Test source files. Training neither learns from them nor translates them: it only reports how many of their "
        "sentences also occur in the training data.",
    )
    test_target: Files = setting(
        (),
        "Test target files, one for each of data.test_source: line n is the translation of line n of the source file. "
        "Empty: the test source files contain the targets as well, or there are none.",
    )
    format: str = setting(
        "",
        "Format of all data files: text, tsv, csv, jsonl, tmx, parquet or datasets (folders that Hugging Face "
        "`datasets` wrote with save_to_disk). Empty: derived from the name of each file.",
    )
    source_column: str | None = setting(
        None,
        "Source column: its name in a CSV, TSV, JSON-lines or Parquet file, or its number from 0 in a TSV or CSV file.",
        auto="0 in TSV and CSV files without a header; else the column with the name of data.source_language, or "
        "`source`; else the first one of a file with two columns",
    )
    target_column: str | None = setting(
        None,
        "Target column: its name in a CSV, TSV, JSON-lines or Parquet file, or its number from 0 in a TSV or CSV file.",
        auto="1 in TSV and CSV files without a header (2 if data.features_column is 1); "
        "else the column with the name of data.target_language, or `target`; else the second one of a file with two "
        "columns",
    )
    header: bool | None = setting(
        None,
        "Whether the first line of a TSV or CSV file holds the names of its columns.",
        auto="true for CSV; true for TSV if data.source_column, data.target_column or data.features_column is a name, "
        "or if the line has columns named data.source_language and data.target_language; else false",
    )
    source_language: str = setting(
        "",
        "Source language, such as en or eng_Latn. It selects the language code of a multilingual model, the source "
        "texts of a translation memory (TMX), the file corpus.en if data.source is the Moses corpus `corpus`, and, "
        "unless data.source_column is set, the column of that name in a file with columns.",
    )
    target_language: str = setting(
        "",
        "Target language, such as de or deu_Latn. It selects the language code of a multilingual model, the target "
        "texts of a translation memory (TMX), the file corpus.de if data.source is the Moses corpus `corpus`, and, "
        "unless data.target_column is set, the column of that name in a file with columns.",
    )
    features_column: str | None = setting(
        None,
        "Column with the features of each source, labels such as V;PST;3 for the inflected form to generate: its "
        "name, or its number from 0 in a TSV or CSV file. The model reads each label as one token before the source. "
        "'' (an empty text): no features.",
        auto="the column named `features`; in TSV and CSV files of three or more columns without a header, column 2, "
        "or else column 1 (counted from 0), if its texts look like V;PST;3; else no features",
    )
    source_features: Files = setting(
        (),
        "Files with the features of the training sources, one for each of data.source: line n has the labels of "
        "source n, such as V;PST;3, which the model reads as tokens before the source. Cannot be combined with "
        "data.features_column.",
    )
    valid_source_features: Files = setting(
        (),
        "Files with the features of the validation sources, one for each of data.valid_source: line n has the labels "
        "of source n, such as V;PST;3, which the model reads as tokens before the source.",
    )
    test_source_features: Files = setting(
        (),
        "Files with the features of the test sources, one for each of data.test_source: line n has the labels of "
        "source n, such as V;PST;3.",
    )
    feature_separator: str = setting(
        ";",
        "Text between two features of a source (labels that the model reads before it), such as the ; in V;PST;3: one "
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
        "Maximum length of a source or target in tokens, without BOS and EOS. Training and validation pairs of which "
        "one side is longer are dropped, and their number is printed; longer lines of a language model's text are "
        "split.",
        min=1,
        max=100_000,
    )
    validation_size: int | None = setting(
        None,
        "Number of training pairs that are held out for validation if data.valid_source is empty.",
        min=1,
        auto="5 % of the pairs, but at least 50 (10 % of the pairs, if they are fewer than 500) and at most 2,000",
    )
    sampling_weights: tuple[float, ...] = setting(
        (),
        "One number per training corpus (pair of files), such as [3, 1]: its relative share of the sampled training "
        "pairs, whatever its size. Empty: every pair is used once per epoch, unless data.sampling_temperature is set.",
    )
    sampling_temperature: float | None = setting(
        None,
        "Temperature T: sample training corpora (pairs of files) in proportion to (number of pairs)^(1/T). 1: by "
        "size; larger: more evenly. Cannot be combined with data.sampling_weights.",
        min=0.1,
        max=1e6,
        auto="none: every pair is used once per epoch",
    )
    corpus_tags: tuple[str, ...] = setting(
        (),
        "One tag per training corpus (pair of files), such as [backtranslated, '']: a token that names the origin of "
        "a corpus, by which the model can tell it from others, and that is prepended to each of its sources; '' for a "
        "corpus without a tag. Empty list: no tags.",
    )
    valid_corpus_tags: tuple[str, ...] = setting(
        (),
        "One tag of data.corpus_tags per validation corpus (pair of files): a token that is prepended to each of its "
        "sources. Empty: validation corpus n has the tag of training corpus n, so that there must be equally many.",
    )
    corpus_languages: tuple[str, ...] = setting(
        (),
        "Source and target language of each training corpus (pair of files) as FROM:TO, such as [eng_Latn:kin_Latn] "
        "for one corpus, if training starts from a multilingual model. Empty: all corpora have data.source_language "
        "and data.target_language.",
    )
    valid_corpus_languages: tuple[str, ...] = setting(
        (),
        "Source and target language of each validation corpus (pair of files) as FROM:TO, such as [eng_Latn:kin_Latn] "
        "for one corpus. Empty: the languages of data.corpus_languages; if these differ, validation corpus n has the "
        "languages of training corpus n, so that there must be equally many.",
    )
    num_workers: int | None = setting(
        None,
        "Number of processes that read and tokenize the corpus.",
        min=1,
        max=10_000,
        auto="number of CPU cores if the training files have more than 32 MiB, else 1",
    )

    def __post_init__(self) -> None:
        """Convert and check every setting, then check them against each other; raise a UserError for a wrong one."""
        super().__post_init__()
        weights = self.sampling_weights
        if not all(0 <= weight < math.inf for weight in weights) or (weights and not any(weights)):
            raise UserError(
                f"each of data.sampling_weights must be at least 0, and one of them above 0, got {list(weights)}: "
                "change them"
            )
        # both decide how often each corpus is sampled
        if weights and self.sampling_temperature is not None:
            raise UserError("data.sampling_weights and data.sampling_temperature exclude each other: set one of them")
        if self.source_features and self.features_column:
            raise UserError("data.source_features and data.features_column exclude each other: set one of them")
        if not self.feature_separator.strip() and self.feature_separator != " ":
            raise UserError(
                "data.feature_separator, which stands between the features of a source, must be one space or "
                f"characters other than spaces, got {self.feature_separator!r}: use ';', for example"
            )
        if self.valid_corpus_tags and not self.corpus_tags:
            raise UserError(
                "data.valid_corpus_tags (a tag token before the sources of each validation corpus) needs tags of the "
                "training corpora, too: set data.corpus_tags"
            )
        if self.valid_corpus_languages and not self.corpus_languages:
            raise UserError(
                "data.valid_corpus_languages (the languages of each validation corpus) needs those of the training "
                "corpora, too: set data.corpus_languages, or leave out both"
            )
        for pair in (*self.corpus_languages, *self.valid_corpus_languages):
            source_language, _, target_language = pair.partition(":")
            if not source_language or not target_language:
                raise UserError(
                    "each entry of data.corpus_languages and data.valid_corpus_languages must be FROM:TO, such as "
                    f"eng_Latn:kin_Latn, but one is {pair!r}: correct this entry"
                )


@dataclass(frozen=True)
class CleaningConfig(Section, section="cleaning"):
    """Removal of bad training pairs, before anything is learned from them. Validation and test data are not cleaned."""

    enabled: bool = setting(
        False,
        "Remove each training pair that is equal to an earlier one; whose ratio of target to source characters "
        "differs from the median by more than a factor of 4; of which a side is in another script than most texts of "
        "that side, has less than 30 % letters among its characters, or contains control characters; or whose target "
        "equals its source. The other filters of the section cleaning, such as cleaning.deduplicate_similar, stay off "
        "unless they are set themselves. Validation and test data are not cleaned.",
    )
    deduplicate: bool | None = setting(
        None, "Remove training pairs that are equal to an earlier one.", auto="true with cleaning.enabled, else false"
    )
    deduplicate_similar: bool = setting(
        False,
        "Remove training pairs that have nearly the same words as an earlier one, by MinHash of word trigrams: it "
        "finds 95 % of the pairs whose trigrams have a Jaccard index of 0.8, more of those above it, and fewer below.",
    )
    max_length_ratio: float | None = setting(
        None,
        "Remove training pairs whose length ratio (target characters / source characters) differs from the median of "
        "all pairs by more than this factor. 0: no limit.",
        min=0,
        auto="4 with cleaning.enabled, else 0",
    )
    min_characters: int = setting(
        0, "Remove training pairs whose source or target has fewer characters than this. 0: no minimum.", min=0
    )
    max_characters: int = setting(
        0, "Remove training pairs whose source or target has more characters than this. 0: no maximum.", min=0
    )
    match_script: bool | None = setting(
        None,
        "Remove training pairs whose source is in another script than most sources, or whose target is in another "
        "script than most targets, such as Cyrillic among Latin. A side of which less than 80 % of the texts are in "
        "one script is not filtered.",
        auto="true with cleaning.enabled, else false",
    )
    identify_language: bool = setting(
        False,
        "Remove training pairs whose source is not in data.source_language, or target not in data.target_language; if "
        "these are not set, the extensions of the files (train.en) name the languages. Needs the package "
        "lingua-language-detector; takes a few milliseconds per text.",
    )
    min_letter_share: float | None = setting(
        None,
        "Remove training pairs whose source or target has a smaller share (0 to 1) of letters than this among its "
        "characters other than spaces. 0: no minimum.",
        min=0,
        max=1,
        auto="0.3 with cleaning.enabled, unless most texts of a side have fewer, as numbers do; else 0",
    )
    reject_control_characters: bool | None = setting(
        None,
        "Remove training pairs with control characters, or with U+FFFD, the replacement character of wrongly decoded "
        "text.",
        auto="true with cleaning.enabled, else false",
    )
    reject_identical: bool | None = setting(
        None,
        "Remove training pairs whose source equals their target.",
        auto="true with cleaning.enabled, unless sources have features, or targets repeat much of their sources, as "
        "inflected words and corrected sentences do; else false",
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
