"""The configuration of a run: typed sections of settings, read from YAML, the command line or Python.

Every setting is declared once, with its default, range and help text. Validation, the options of the command line and
`docs/settings.md` come from these declarations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from dragoman import legacy
from dragoman.config_fields import Section, convert, parse_text, setting, settings_of
from dragoman.errors import UserError, unknown_name

Files = tuple[str, ...]


@dataclass(frozen=True)
class DataConfig(Section, section="data"):
    """Files with sentences. Each file, or each pair of a source and a target file, is a corpus."""

    source: Files = setting(
        (),
        "Training source files: text with one sentence per line, or files with both sides: TSV, CSV, JSON lines, TMX, "
        "Parquet, a saved dataset. For images and speech: .npz and .npy files of vectors, lists of .png, .jpg and .wav "
        "files, or folders of them.",
    )
    target: Files = setting(
        (), "Training target files: line n translates line n of the source file. Omit for files with both sides."
    )
    valid_source: Files = setting(
        (), "Validation source files. Without them, part of the training data is held out for validation."
    )
    valid_target: Files = setting(
        (), "Validation target files: line n translates line n of the validation source file."
    )
    test_source: Files = setting(
        (), "Test source files, only used to count test sentences that also occur in the training data."
    )
    test_target: Files = setting((), "Test target files: line n translates line n of the test source file.")
    format: str = setting(
        "",
        "Format of the data files: text, tsv, csv, jsonl, tmx, parquet or datasets. Empty: derived from the file name.",
    )
    source_column: str | None = setting(
        None,
        "Source column: its name in a CSV, TSV, JSON-lines or Parquet file, or its number from 0 in a TSV or CSV file.",
        auto="0 in TSV, else `source` or data.source_language",
    )
    target_column: str | None = setting(
        None,
        "Target column: its name in a CSV, TSV, JSON-lines or Parquet file, or its number from 0 in a TSV or CSV file.",
        auto="1 in TSV, else `target` or data.target_language",
    )
    header: bool | None = setting(
        None,
        "Whether the first line of a TSV or CSV file names its columns.",
        auto="true in CSV, and in TSV if a column is chosen by name",
    )
    source_language: str = setting(
        "",
        "Source language, such as en or eng_Latn: code of a multilingual model, language of a translation memory "
        "(TMX), extension of Moses files (corpus.en for the source `corpus`), or name of the source column.",
    )
    target_language: str = setting(
        "",
        "Target language, such as de or deu_Latn: code of a multilingual model, language of a translation memory "
        "(TMX), extension of Moses files (corpus.de for the source `corpus`), or name of the target column.",
    )
    features_column: str | None = setting(
        None,
        "Column of a TSV file, counted from 0, or key of a JSON line with features of the source such as V;PST;3. Each "
        "feature is one symbol before the tokens of the source. Empty: none.",
        auto="2 if the third column holds features, or `features`",
    )
    source_features: Files = setting(
        (), "Files of features such as V;PST;3, line by line with the training source files, instead of a column."
    )
    valid_source_features: Files = setting((), "Files of features, line by line with the validation source files.")
    test_source_features: Files = setting((), "Files of features, line by line with the test source files.")
    feature_separator: str = setting(";", "What separates the features of a source.")
    feature_positions: Literal["invariant", "sequential"] = setting(
        "invariant",
        "Positions of features. invariant: all are at position 0 and the tokens of the source count from 1, so that "
        "number and order of features change no position (Wu et al. 2021). sequential: features are counted like "
        "tokens. Recurrent systems read features in their order, decoder-only systems count them.",
    )
    max_length: int = setting(
        256,
        "Maximum tokens of a source or target. Training pairs with longer ones are dropped, and their number is "
        "printed.",
        min=1,
        max=100_000,
    )
    validation_size: int | None = setting(
        None,
        "Number of training pairs held out for validation if there are no validation files.",
        min=1,
        auto="from the amount of data",
    )
    sampling_weights: tuple[float, ...] = setting(
        (),
        "One number per training corpus (pair of files): its relative share of the sampled training pairs. Empty: "
        "every pair is used once per epoch.",
    )
    sampling_temperature: float | None = setting(
        None,
        "Temperature T: sample training corpora in proportion to (number of pairs)^(1/T). 1: by size; larger: more "
        "evenly. Excludes data.sampling_weights.",
        min=0.1,
        max=1e6,
        auto="every pair once per epoch",
    )
    corpus_tags: Files = setting(
        (), "Tag of each training corpus, prepended to its sources as a token. Use '' for a corpus without a tag."
    )
    valid_corpus_tags: Files = setting(
        (),
        "Tag of each validation corpus, prepended to its sources. Empty: the tags of data.corpus_tags, which needs as "
        "many validation as training corpora.",
    )
    corpus_languages: Files = setting(
        (),
        "Languages of each training corpus as FROM:TO, such as eng_Latn:kin_Latn, if training starts from a "
        "multilingual model. Empty: --from and --to for all.",
    )
    valid_corpus_languages: Files = setting(
        (),
        "Languages of each validation corpus as FROM:TO. Empty: those of data.corpus_languages, if there is one "
        "validation corpus for each training corpus.",
    )
    num_workers: int | None = setting(
        None, "Processes that read and tokenize the corpus.", min=1, max=10_000, auto="number of CPU cores"
    )

    def __post_init__(self) -> None:
        """Check the settings of the section against each other."""
        super().__post_init__()
        weights = self.sampling_weights
        if not all(0 <= weight < math.inf for weight in weights) or (weights and not any(weights)):
            raise UserError(f"data.sampling_weights must be at least 0 and not all 0, got {list(weights)}")
        if weights and self.sampling_temperature is not None:
            raise UserError("data.sampling_weights and data.sampling_temperature exclude each other: set one of them")
        if self.source_features and self.features_column:
            raise UserError("data.source_features and data.features_column exclude each other: set one of them")
        if not self.feature_separator.strip() and self.feature_separator != " ":
            raise UserError(f"data.feature_separator must be a text or a space, got {self.feature_separator!r}")
        if self.valid_corpus_tags and not self.corpus_tags:
            raise UserError("data.valid_corpus_tags need data.corpus_tags: set the tags of the training corpora too")
        if self.valid_corpus_languages and not self.corpus_languages:
            raise UserError(
                "data.valid_corpus_languages need data.corpus_languages: set those of the training corpora too"
            )
        for pair in (*self.corpus_languages, *self.valid_corpus_languages):
            if not all(pair.partition(":")[::2]):
                raise UserError(
                    f"data.corpus_languages must be written FROM:TO, such as eng_Latn:kin_Latn, got {pair!r}"
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
    max_length_ratio: float | None = setting(
        None,
        "Remove pairs whose ratio of target to source characters differs from the median of the corpus by more than "
        "this factor. 0: never.",
        min=0,
        auto="4 with cleaning.enabled",
    )
    min_characters: int = setting(0, "Remove pairs with a shorter source or target, in characters.", min=0)
    max_characters: int = setting(0, "Remove pairs with a longer source or target, in characters. 0: no limit.", min=0)
    match_script: bool | None = setting(
        None,
        "Remove pairs with a side in another script than most texts of this side, such as Cyrillic among Latin.",
        auto="true with cleaning.enabled",
    )
    identify_language: bool = setting(
        False,
        "Remove pairs with a side in another language than data.source_language and data.target_language, or the "
        "extensions of the files (train.en). Needs the package lingua-language-detector; takes a few milliseconds per "
        "text.",
    )
    min_letter_share: float | None = setting(
        None,
        "Remove pairs with a smaller share of letters in the characters of a side. 0: never.",
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
        """Return the settings with the default thresholds of all filters that are left open, if cleaning is enabled."""
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
        open_settings = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **open_settings)

    @property
    def is_active(self) -> bool:
        """Whether any filter is used."""
        return any(getattr(self, setting.name) for setting in dataclasses.fields(self) if setting.name != "enabled")


@dataclass(frozen=True)
class TextConfig(Section, section="text"):
    """Tokenization and vocabulary."""

    tokenizer: str | None = setting(
        None,
        "Tokenizer to learn: bpe, byte-bpe (byte-level BPE as in GPT-2), unigram, word, symbol (whatever stands "
        "between spaces), character, decomposed (letters and marks of characters: Hangul as jamo) or byte.",
        auto="by the text: character or decomposed for single words, symbol for a small closed inventory, else bpe; "
        "with training.recipe=textbook, that of the paper",
    )
    source_tokenizer: str | None = setting(None, "Tokenizer to learn for the source.", auto="text.tokenizer")
    target_tokenizer: str | None = setting(None, "Tokenizer to learn for the target.", auto="text.tokenizer")
    vocab_size: int | None = setting(
        None,
        "Vocabulary size in tokens.",
        min=1,
        max=10**7,
        auto="8·√(words of the corpus), at most 32,000; 32,000 with text.compression_ratio; all characters or symbols",
    )
    compression_ratio: float | None = setting(
        None,
        "Stop learning BPE when the training text has this many characters (bpe) or bytes (byte-bpe) per token, spaces "
        "included, unless text.vocab_size is reached first.",
        min=1,
        max=1000,
    )
    shared_vocabulary: bool | None = setting(
        None,
        "Use one tokenizer and vocabulary for source and target.",
        auto="true if source and target have the same type of tokenizer and a common script or inventory",
    )
    unknown_word_tokens: int | None = setting(
        None,
        "Tokens of a word tokenizer among which a hash distributes unknown words, so that a system with "
        "system.settings.copying copies them; 0: all unknown words are one token.",
        min=0,
        max=10**6,
        auto="100 if the system copies, else 0",
    )
    space_marker: str = setting(
        "initial", "Whether tokens mark the space before a word (initial: ▁house) or after it (final: house▁)."
    )
    bpe_dropout: float | None = setting(
        None,
        "Probability of skipping a BPE merge in training (Provilkov et al. 2020).",
        min=0,
        max=1,
        auto="0.1 with training.recipe=modern and fewer than 100,000 pairs, else 0",
    )
    normalize_whitespace: bool | None = setting(
        None,
        "Strip lines and collapse runs of white space, in training and translation.",
        auto="true; false in runs of older versions",
    )
    unicode_normalization: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] | None = setting(
        None,
        "Unicode normalization form of all text, in training and translation. NFC writes é as one character, NFKC also "
        "full-width letters, ligatures and superscripts as plain ones.",
        auto="none, or that of the run in training.start_from",
    )
    lowercase: bool | None = setting(
        None,
        "Lower-case all text, in training and translation. Translations are lower case, and are scored against "
        "lower-cased references.",
        auto="false, or that of the run in training.start_from",
    )
    tokenizer_from: str | None = setting(
        None,
        "Tokenizer to use instead of learning one: a run folder, a SentencePiece .model or a Hugging Face "
        "tokenizer.json.",
    )
    add_language: str | None = setting(
        None,
        "Code of a new language for the model in training.start_from, such as kin_Latn: its code and the subwords that "
        "the tokenizer lacks are appended to vocabulary and embeddings. Name it with --from, --to or --languages too.",
    )
    similar_language: str | None = setting(
        None,
        "Language of the model whose code the new one in text.add_language starts from; for a model of one language "
        "pair, the name of its target language.",
        auto="the default target language of the model",
    )
    max_new_pieces: int | None = setting(
        None,
        "Maximum number of pieces that text.add_language adds. Each contains a character that the tokenizer could not "
        "represent, so that other text is segmented as before.",
        min=0,
        max=10**6,
        auto="2,000",
    )
    source_word_vectors: str | None = setting(
        None, "File of word vectors (word2vec, GloVe or fastText) that initializes the source embeddings."
    )
    target_word_vectors: str | None = setting(
        None, "File of word vectors (word2vec, GloVe or fastText) that initializes the target embeddings."
    )

    def __post_init__(self) -> None:
        """Check the settings of the section against each other."""
        super().__post_init__()
        for name in ("bpe_dropout", "compression_ratio"):
            if getattr(self, name) and not {None, "bpe", "byte-bpe"}.intersection(self.tokenizers):
                raise UserError(
                    f"text.{name} needs text.tokenizer=bpe or byte-bpe, got text.tokenizer={self.tokenizers[0]}: "
                    f"change it, or leave out text.{name}"
                )
        if self.similar_language and not self.add_language:
            raise UserError("text.similar_language needs a new language: set text.add_language, or leave it out")

    @property
    def tokenizers(self) -> tuple[str | None, str | None]:
        """The types of the source and the target tokenizer; None if they are not chosen yet."""
        return self.source_tokenizer or self.tokenizer, self.target_tokenizer or self.tokenizer


@dataclass(frozen=True)
class FeatureConfig(Section, section="features"):
    """How the vectors of image and sound files are computed, for systems that read vectors."""

    image_size: int = setting(
        224,
        "Height and width in pixels to which images are scaled; a multiple of features.patch_size.",
        min=1,
        max=4096,
    )
    image_fit: Literal["crop", "pad", "stretch"] = setting(
        "crop",
        "How images that are not square become so. crop: cut off equal margins of the longer side. pad: add white "
        "margins. stretch: change the proportions.",
    )
    image_colors: Literal["rgb", "gray"] = setting("rgb", "Read images in three colors or in shades of gray.")
    patch_size: int = setting(
        16, "Height and width in pixels of a patch. Every patch of an image is one vector.", min=1, max=4096
    )
    sample_rate: int = setting(
        16_000, "Samples per second of all sound files. Files with another rate are an error.", min=100, max=1_000_000
    )
    frame_length: float = setting(
        25.0, "Length of an acoustic frame in milliseconds. Every frame is one vector.", min=0.1, max=10_000
    )
    frame_shift: float = setting(
        10.0, "Time from the start of a frame to the start of the next one in milliseconds.", min=0.1, max=10_000
    )
    spectrum: Literal["log-mel", "whisper"] = setting(
        "log-mel",
        "How recordings become vectors. log-mel: logarithms of the energies of mel filters. whisper: those of Whisper "
        "checkpoints, of recordings that are padded to features.seconds.",
    )
    seconds: float = setting(
        30.0, "Length to which features.spectrum=whisper pads recordings with silence.", min=0.1, max=3600
    )
    mel_bins: int = setting(80, "Filters of the mel filter bank: numbers per acoustic frame.", min=1, max=1000)
    normalize_utterances: bool = setting(
        True, "Shift and scale every mel filter to mean 0 and variance 1 over the frames of a recording."
    )

    def __post_init__(self) -> None:
        """Check the settings of the section against each other."""
        super().__post_init__()
        if self.image_size % self.patch_size:
            raise UserError(
                f"features.image_size={self.image_size} is not a multiple of features.patch_size={self.patch_size}: "
                "images are cut into whole patches, so change one of them"
            )


@dataclass(frozen=True)
class SystemConfig(Section, section="system"):
    """Architecture of the model."""

    name: str | None = setting(
        None,
        "Architecture of the model, such as transformer or luong; `dragoman systems` lists all names.",
        auto="by the text: hard-monotonic for few pairs of words whose letters keep their order, else transformer; or "
        "the system of the run in training.start_from",
    )
    size: str | None = setting(
        None, "Model size: tiny, small, base or big.", auto="from the amount of data and the device"
    )
    settings: dict[str, Any] = setting(
        {}, "Hyper-parameters of the system, such as `model_dim` or `dropout`; `dragoman systems NAME` lists them."
    )


@dataclass(frozen=True)
class ObjectiveConfig(Section, section="objective"):
    """Training objective."""

    name: str | None = setting(
        None,
        "What is learned from the data: translation, reward, causal-lm, masked-lm, denoising, span-corruption, "
        "tagging, classification or another objective of docs/settings.md.",
        auto="from the system and the kind of data",
    )
    settings: dict[str, Any] = setting(
        {}, "Settings of the objective, such as `mask_rate`; docs/settings.md lists them."
    )


Schedule = Literal["inverse-sqrt", "cosine", "linear", "constant", "stable", "halving", "plateau"]
Optimizer = Literal["adamw", "adam", "sgd", "adadelta", "adafactor", "muon"]


SelectionMetric = Literal[
    "auto",
    "bleu",
    "chrf",
    "chrf++",
    "ter",
    "rouge_1",
    "rouge_2",
    "rouge_l",
    "rouge_1_stem",
    "rouge_2_stem",
    "rouge_l_stem",
    "exact_match",
    "ier",
    "wer",
    "ser",
    "per",
    "cer",
    "span_f1",
    "bracket_f1",
    "accuracy",
    "loss",
]


@dataclass(frozen=True)
class TrainingConfig(Section, section="training"):
    """Optimization. Training stops at the first limit it reaches: steps, epochs, minutes or patience."""

    batch_tokens: int | None = setting(
        None,
        "Batch size in tokens: number of pairs × tokens of the longest source or target, padding included.",
        min=1,
        auto="from the amount of data and the device",
    )
    batch_by: Literal["row", "pair"] = setting(
        "row",
        "How the tokens of a pair are counted for training.batch_tokens. row: by the sequence that the model reads "
        "(for a decoder-only model, source and target together). pair: by the longer of source and target, which gives "
        "all systems the same batches.",
    )
    auto_batch_size: bool = setting(
        False, "Before training, find the largest training.batch_tokens that fits into memory by trying."
    )
    gradient_checkpointing: bool | None = setting(
        None,
        "Recompute activations in the backward pass: about a third more time, much less memory.",
        auto="true if training would not fit into memory otherwise",
    )
    gradient_accumulation: int = setting(
        1, "Number of batches whose gradients are summed for one optimizer step.", min=1
    )
    steps: int | None = setting(
        None,
        "Maximum number of optimizer steps.",
        min=1,
        auto="from the amount of data with training.schedule=cosine, linear or stable; else no limit",
    )
    epochs: int | None = setting(None, "Maximum number of passes over the training data.", min=1, auto="no limit")
    minutes: float | None = setting(
        None,
        "Maximum training time in minutes, including validation. The learning-rate schedule is fitted to it.",
        min=0,
        auto="no limit",
    )
    patience: int | None = setting(8, "Stop after this many validations without improvement; null: never.", min=1)
    learning_rate: float | None = setting(
        None, "Peak learning rate.", min=0, max=1e3, auto="from the model width and training.recipe"
    )
    warmup_steps: int | None = setting(
        None, "Steps of linear warm-up to the peak learning rate.", min=0, auto="from the number of steps"
    )
    extended_at: int = setting(
        0,
        "Step at which `train --resume` last extended a finished run; 0: never. Written by the program: do not set it.",
    )
    recipe: Literal["auto", "textbook", "modern", "plain"] = setting(
        "auto",
        "Set of defaults for optimizer, schedule and regularization. textbook: as in the paper of the system. modern: "
        "Muon with a cosine schedule. plain: AdamW with an inverse-square-root schedule. auto: modern for systems that "
        "learn better with it, else plain.",
    )
    schedule: Schedule | None = setting(
        None,
        "Learning-rate schedule after the warm-up. inverse-sqrt: ∝ 1/√step. cosine, linear: decay in this shape until "
        "the end of training. stable: constant, then a decay by 1 − √progress in the last training.decay_fraction of "
        "training. halving: halved every training.halving_interval epochs. plateau: multiplied by "
        "training.plateau_factor after each validation without a lower loss.",
        fallback="inverse-sqrt",
    )
    warmup_start_factor: float | None = setting(
        None, "Learning rate at the start of warm-up, as a fraction of the peak.", min=0, max=1, fallback=0.0
    )
    hold_steps: int | None = setting(
        None,
        "Steps at the peak learning rate between the warm-up and the decay. Only for training.schedule=inverse-sqrt.",
        min=0,
        fallback=0,
    )
    final_rate_factor: float | None = setting(
        None,
        "Learning rate at the end of training, as a fraction of the peak. Only for training.schedule=cosine, linear or "
        "stable, which end at this rate.",
        min=0,
        max=1,
        fallback=0.0,
    )
    decay_fraction: float = setting(
        0.2,
        "With training.schedule=stable: fraction of training, at its end, in which the learning rate decays.",
        min=0,
        max=1,
    )
    halving_start_epoch: float | None = setting(
        None,
        "With training.schedule=halving: epochs until the learning rate is halved for the first time.",
        min=0,
        fallback=5.0,
    )
    halving_interval: float | None = setting(
        None,
        "With training.schedule=halving: epochs between two halvings of the learning rate.",
        min=0.001,
        fallback=1.0,
    )
    plateau_factor: float | None = setting(
        None,
        "With training.schedule=plateau: factor of the learning rate after each validation without a lower loss.",
        min=0,
        max=1,
        fallback=0.1,
    )
    optimizer: Optimizer | None = setting(
        None,
        "Optimizer: adamw, adam, sgd, adadelta, adafactor, or muon (which updates embeddings and vectors by AdamW).",
        fallback="adamw",
    )
    momentum: float | None = setting(
        None, "Momentum of sgd, adafactor and muon.", min=0, max=0.99999, auto="0 for sgd and adafactor, 0.95 for muon"
    )
    nesterov: bool | None = setting(None, "Use Nesterov momentum in sgd.", fallback=False)
    beta1: float | None = setting(
        None, "β₁ of Adam and AdamW: decay of the mean of gradients.", min=0, max=0.99999, fallback=0.9
    )
    beta2: float | None = setting(
        None, "β₂ of Adam and AdamW: decay of the mean of squared gradients.", min=0, max=0.9999999, fallback=0.98
    )
    epsilon: float | None = setting(
        None, "ε of Adam and AdamW: added to the denominator of an update.", min=0, max=1, fallback=1e-9
    )
    weight_decay: float | None = setting(
        None, "Decoupled weight decay of adamw and muon (Loshchilov and Hutter 2019).", min=0, max=10, fallback=0.01
    )
    loss_normalization: Literal["tokens", "sentences"] | None = setting(
        None,
        "What the summed loss of a training step is divided by: its number of target tokens, or of sentences.",
        fallback="tokens",
    )
    clip_norm: float | None = setting(
        None, "Maximum norm of the gradient; larger gradients are scaled down. 0: no clipping.", min=0, fallback=1.0
    )
    label_smoothing: float | None = setting(
        None, "Label smoothing ε (Szegedy et al. 2016).", min=0, max=0.999, auto="0.1 for translation, else 0"
    )
    validation_interval: int | None = setting(
        None, "Training steps between two validations.", min=1, auto="about one epoch"
    )
    validation_sentences: int | None = setting(
        None,
        "Validation sentences that are decoded at each validation, for BLEU, exact match and other metrics of texts.",
        min=0,
        auto="as many as can be decoded in about a tenth of the training time",
    )
    selection_metric: SelectionMetric = setting(
        "auto",
        "Validation metric that decides which checkpoint is the best; equal ones by error rate and loss. "
        "training.patience counts validations in which neither this metric nor the loss improves. auto: by the "
        "validation references, such as bleu for sentences and exact_match for single words. rouge needs the package "
        "rouge-score.",
    )
    bleu_tokenizer: Literal[
        "auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200", "spBLEU-1K", "none"
    ] = setting(
        "auto",
        "Tokenizer of sacreBLEU for the BLEU of this run; auto: by the script of the references, 13a where words are "
        "separated by spaces.",
    )
    keep_checkpoints: int = setting(5, "Number of recent validated checkpoints to keep, besides the best.", min=1)
    average_checkpoints: bool = setting(
        True,
        "At the end of training, average the weights of the kept checkpoints, and use the average if it validates "
        "better than the best checkpoint.",
    )
    ema_decay: float | None = setting(
        None,
        "Decay per step of an exponential moving average of the weights, such as 0.999. Validation and inference use "
        "the average.",
        min=0,
        max=0.9999999,
        auto="no average",
    )
    start_from: str | None = setting(
        None,
        "Run folder, or folder of a Hugging Face checkpoint, that provides the initial weights, the tokenizers and the "
        "system (warm start). The model is validated with these weights before step 1.",
    )
    freeze: tuple[str, ...] = setting(
        (),
        "Weights that are not trained: embeddings, the beginning of names up to a dot (encoder, decoder.layers.0), or "
        "a pattern such as *.bias; a later pattern with ! excludes weights, as in [*, '!*norm*']. They have no "
        "optimizer state, and checkpoints do not repeat them.",
    )
    seed: int = setting(1, "Random seed of initialization, data order and dropout.", min=0, max=2**31 - 1)
    device: str = setting("auto", "Device: auto, cpu, cuda, cuda:N or mps.")
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "Number format of matrix products; auto: bfloat16 on a GPU, else float32."
    )
    parallelism: Literal["auto", "replicated", "sharded"] = setting(
        "auto",
        "Distribution of the weights over processes: replicated (data parallel) or sharded (FSDP); auto: replicated.",
    )
    batch_layout: Literal["auto", "padded", "packed"] = setting(
        "auto",
        "Layout of a batch. padded: one row per pair. packed: all pairs in one row, without padding. auto: packed on a "
        "GPU where the system supports it.",
    )
    compile: bool | None = setting(
        None,
        "Compile the training step on a GPU, which takes about a minute.",
        auto="true if the training is long enough to save more than that",
    )
    deterministic: bool = setting(False, "Use deterministic GPU kernels: bit-identical results, somewhat slower.")

    def __post_init__(self) -> None:
        """Check the settings of the section against each other."""
        super().__post_init__()
        if self.auto_batch_size and self.batch_tokens is not None:
            raise UserError(
                f"training.auto_batch_size searches for the batch size, but training.batch_tokens={self.batch_tokens} "
                "sets it: leave one of them out"
            )

    def resolved(self, name: str) -> Any:
        """Return the value of a setting, or its fallback if neither the user nor the recipe has set it.

        The recipe (`training.recipe`) is a set of training defaults.
        """
        value = getattr(self, name)
        return TRAINING_DEFAULTS.get(name) if value is None else value


#: fallback values of training settings that neither the user nor the recipe has set
TRAINING_DEFAULTS: dict[str, Any] = {
    name: about.fallback for name, about in settings_of(TrainingConfig).items() if about.fallback is not None
}


@dataclass(frozen=True)
class SearchDefaults(Section, section="search"):
    """Default search of a run, used by `translate` unless options change it."""

    beam_size: int | None = setting(
        None,
        "Beam size in hypotheses; 1 is greedy search.",
        min=1,
        max=10_000,
        auto="chosen on the validation set at the end of training; 5 until then",
    )
    length_penalty: float | None = setting(
        None,
        "Exponent α of the length normalization log p(y|x) / |y|^α; larger values prefer longer translations.",
        min=-10,
        max=10,
        auto="chosen on the validation set at the end of training; 1 until then",
    )
    length_normalization: Literal["power", "gnmt"] = setting(
        "power", "Length normalization: power |y|^α, or GNMT's ((5 + |y|) / 6)^α (Wu et al. 2016)."
    )
    early_stopping: Literal[True, False, "never", "steps"] = setting(
        "never",
        "When beam search stops. never: when no unfinished hypothesis can improve the result any more. true: once "
        "search.num_finished hypotheses have finished. false: once, in addition, the best unfinished hypothesis, "
        "normalized by its present length, scores worse than they do. steps: at the length limit.",
    )
    num_finished: int | None = setting(
        None,
        "Number of finished hypotheses that search.early_stopping=true waits for, and search.early_stopping=false at "
        "least; the other values of search.early_stopping ignore it.",
        min=1,
        max=100_000,
        auto="search.beam_size",
    )
    rank_unfinished: Literal["last", "by_score"] = setting(
        "last",
        "Rank of hypotheses that reach the length limit without EOS. last: after all finished hypotheses. by_score: "
        "among them, by score.",
    )
    coverage_penalty: float = setting(
        0.0,
        "Weight β of GNMT's coverage penalty (Wu et al. 2016), which rewards attention to every source token.",
        min=0,
        max=10,
    )
    batch_tokens: int = setting(8192, "Source tokens translated in one batch.", min=1, max=10**9)
    max_source_length: int = setting(
        1024, "Maximum source tokens; longer lines are truncated with a warning.", min=2, max=100_000
    )
    length_ratio: float | None = setting(
        None,
        "Maximum target tokens per source token: a translation has at most search.length_ratio · source tokens + "
        "search.length_offset tokens.",
        min=0,
        max=100,
        auto="from the training pairs",
    )
    length_offset: int | None = setting(
        None,
        "Target tokens allowed in addition to search.length_ratio · source tokens.",
        min=1,
        max=100_000,
        auto="from the training pairs",
    )
    max_target_length: int = setting(1024, "Maximum target tokens of any translation.", min=1, max=100_000)
    min_length: int = setting(0, "Minimum target tokens: EOS is not generated earlier.", min=0, max=100_000)
    no_repeat_ngram_size: int = setting(
        0, "No n-gram of this many tokens may occur twice in a translation; 0: no restriction.", min=0, max=1000
    )
    copy_untranslatable: bool | None = setting(
        None,
        "Copy lines of numbers, punctuation, URLs and e-mail addresses instead of translating them.",
        auto="true if the training targets keep such lines",
    )
    strategy: dict[str, Any] = setting(
        {},
        "Complete search configuration, as `translate --show-search` prints it. If it is given, it replaces beam "
        "search with the other `search` settings.",
    )


@dataclass(frozen=True)
class LoRAConfig(Section, section="lora"):
    """Low-rank adaptation of the model in training.start_from (Hu et al. 2021): W + (alpha / rank) · B A."""

    rank: int = setting(
        0,
        "Rank of the update of each matrix, such as 16: only these updates are trained, and all other weights are "
        "frozen. 0: train all weights.",
        min=0,
        max=10_000,
    )
    alpha: float | None = setting(
        None, "Scale α of the updates, which are multiplied by α / rank.", min=0, auto="2 · lora.rank"
    )
    dropout: float = setting(0.0, "Dropout of the input of the updates.", min=0, max=0.99)
    targets: tuple[str, ...] = setting(
        ("attention",),
        "Matrices with an update: attention, feed-forward, all; query, key, value, output, widen, gate or narrow; or "
        "patterns over names such as decoder.layers.0.1.body.query.",
    )
    train_also: tuple[str, ...] = setting(
        (),
        "Weights that are trained in full beside the updates, as patterns like those of training.freeze. Weights that "
        "training.start_from does not provide always are.",
    )

    def __post_init__(self) -> None:
        """Check the settings of the section against each other."""
        super().__post_init__()
        if self.rank and not self.targets:
            raise UserError("lora.targets is empty: name the matrices that lora.rank applies to, such as attention")
        if not self.rank and (self.alpha is not None or self.train_also):
            raise UserError("lora.alpha and lora.train_also need a rank: set lora.rank, for example to 16")


@dataclass(frozen=True)
class Config:
    """All settings of a run.

    `chosen` holds the settings that were chosen automatically, by their dotted names. Another run that starts from this
    configuration chooses them anew (`without_automatic_settings`), unless their values have been changed since.

    Examples:
        >>> config = Config(training=TrainingConfig(steps=1000), system=SystemConfig(name="luong"))
        >>> config.training.steps
        1000
    """

    data: DataConfig = field(default_factory=DataConfig)
    text: TextConfig = field(default_factory=TextConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    system: SystemConfig = field(default_factory=SystemConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    search: SearchDefaults = field(default_factory=SearchDefaults)
    cleaning: CleaningConfig = field(default_factory=CleaningConfig)
    chosen: dict[str, Any] = field(default_factory=dict)


SECTIONS: dict[str, type[Section]] = {
    cls.section: cls
    for cls in (
        DataConfig,
        CleaningConfig,
        TextConfig,
        FeatureConfig,
        SystemConfig,
        ObjectiveConfig,
        TrainingConfig,
        LoRAConfig,
        SearchDefaults,
    )
}


def from_dict(values: Any, where: str = "the configuration") -> Config:
    """Build a configuration from nested plain values. An unknown name is an error that suggests the nearest one.

    Args:
        values: `{"training": {"steps": 1000}, …}`; names of earlier versions are accepted.
        where: the origin of the values, for error messages.
    """
    if not isinstance(values, dict):
        raise UserError(f"{where} must map section names (data, text, system, training …) to settings, got {values!r}")
    values = legacy.translate_settings(values, where)
    sections: dict[str, Any] = {}
    for section, settings in values.items():
        if section == "chosen":  # automatically chosen settings by their dotted names
            sections[section] = dict(settings)
            continue
        if section not in SECTIONS:
            raise unknown_name(f"section in {where}:", section, SECTIONS)
        if not isinstance(settings, dict):
            raise UserError(f"{where}: {section} must be a mapping of settings, got {settings!r}")
        known = settings_of(SECTIONS[section])
        for name in settings:
            if name not in known:
                raise unknown_name(f"setting in {where}:", f"{section}.{name}", [f"{section}.{key}" for key in known])
        sections[section] = SECTIONS[section](**settings)
    return Config(**sections)


#: reads plain values only; written in C where PyYAML was built with libyaml
YAML_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def from_yaml(path: Path) -> Config:
    """Read a configuration file."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=YAML_LOADER)
    except FileNotFoundError:
        raise UserError(f"the configuration file {path} does not exist: check --config") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {str(error).splitlines()[0]}") from None
    return from_dict({} if values is None else values, str(path))


def to_yaml(config: Config) -> str:
    """Write all settings of a configuration as YAML."""
    return yaml.safe_dump(_plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)


def replace_settings(config: Config, values: Mapping[str, Any]) -> Config:
    """Replace settings by their dotted names: `replace_settings(config, {"training.steps": 1000})`."""
    tree = dataclasses.asdict(config)
    for name, value in values.items():
        system = values.get("system.name", config.system.name)
        if (present_name := legacy.renamed_setting(name, system)) != name:  # a name of an earlier version
            raise UserError(f"the setting {name} is now called {present_name}: use that name")
        section, *keys = name.split(".")
        if section not in SECTIONS:
            raise unknown_name("section", section, SECTIONS)
        if not keys:
            raise UserError(f"{name} is a section: set its settings one by one, such as training.steps")
        settings = tree[section]
        for depth, key in enumerate(keys[:-1], 1):  # "system.settings.dropout" is nested more deeply
            if not isinstance(settings.get(key), dict):
                raise unknown_name("section", ".".join([section, *keys[:depth]]), SECTIONS)
            settings = settings[key]
        settings[keys[-1]] = value
    return from_dict(tree, "--set")


def override_settings(config: Config, settings: Sequence[str]) -> Config:
    """Replace settings given as text: `override_settings(config, ["training.steps=1000"])`."""
    return replace_settings(config, parse_settings(settings))


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE` texts, such as "training.steps=1000", by the declared types of the settings."""
    values = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set expects NAME=VALUE, such as training.steps=1000, got {text!r}")
        hint = setting_type(name)
        values[name] = convert(parse_text(value, hint, name), hint, name)
    return values


def setting_type(name: str) -> Any:
    """Return the declared type of a setting, such as "training.steps"; Any for an unknown one or a key of a mapping."""
    section, _, key = name.partition(".")
    settings = settings_of(SECTIONS[section]) if section in SECTIONS else {}
    return settings[key].hint if key in settings else Any


def record_automatic_settings(given: Config, resolved: Config) -> Config:
    """Return the resolved configuration with `chosen` set to the values that differ from what the user gave."""
    before, after = (settings_by_name(config) for config in (given, resolved))
    chosen = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return dataclasses.replace(resolved, chosen=_plain(chosen))


def is_automatic(config: Config, name: str) -> bool:
    """Whether a setting, by its dotted name, has been left open by the user: it is None or was chosen automatically."""
    section, _, key = name.partition(".")
    value = getattr(getattr(config, section), key)
    return value is None or (name in config.chosen and config.chosen[name] == value)


def without_automatic_settings(config: Config) -> Config:
    """Return the settings that the user gave, for another run.

    `config.chosen` holds the automatic choices by dotted name: those that have not been changed since are unset.
    """
    tree, defaults = dataclasses.asdict(config), settings_by_name(Config())
    tree["chosen"], tree["training"]["extended_at"] = {}, 0
    values = _plain(settings_by_name(config))
    for name, value in config.chosen.items():
        if name not in values or values[name] != value:  # changed since
            continue
        *sections, key = name.split(".")
        settings = tree
        for section in sections:
            settings = settings[section]
        if name not in defaults:  # a setting of the system or objective
            del settings[key]
        elif value is defaults[name] is False:  # a choice differs from what the user gave, which then was true
            settings[key] = True
        else:
            settings[key] = defaults[name]
    return from_dict(tree)


def settings_by_name(config: Config) -> dict[str, Any]:
    """Return all settings by their dotted names, without the mappings `chosen` and `search.strategy`."""
    tree = dataclasses.asdict(config)
    del tree["chosen"], tree["search"]["strategy"]
    return flatten_settings(tree)


def flatten_settings(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return nested values by their dotted names, each of which begins with `path`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten_settings(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return flat


def _plain(value: Any) -> Any:
    """Return a nested value with lists instead of tuples, for YAML."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
