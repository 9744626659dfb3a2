"""Settings of the tokenizers, and of the features of images and speech."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dragoman.config.setting_declarations import Section, setting
from dragoman.errors import UserError


@dataclass(frozen=True)
class TextConfig(Section, section="text"):
    """Tokenization and vocabulary."""

    tokenizer: str | None = setting(
        None,
        "Type of tokenizer to learn for source and target: bpe, byte-bpe (byte-level BPE as in GPT-2), unigram (as in "
        "SentencePiece), word (punctuation marks are words), symbol (whatever stands between spaces), character, "
        "decomposed (characters split into letters and marks by Unicode NFD, Hangul into jamo) or byte.",
        auto="by the text of each side: character for lists of words or names; decomposed instead of character if, by "
        "an estimate, more than 0.1 % of the characters of new text do not occur in the training text, but of the "
        "letters and marks that they consist of at most a quarter as many; symbol if at most 2,000 different symbols, "
        "such as phonemes, stand between spaces, and new text has hardly any others; else bpe; with "
        "training.recipe=textbook, as in the system's paper",
    )
    source_tokenizer: str | None = setting(
        None,
        "Type of tokenizer to learn for the source, such as bpe: one of the types of text.tokenizer, which it "
        "overrides for the source. If source and target have the same type, text.shared_vocabulary says whether they "
        "share one tokenizer.",
        auto="text.tokenizer; if that is not set either, by the source text",
    )
    target_tokenizer: str | None = setting(
        None,
        "Type of tokenizer to learn for the target, such as bpe: one of the types of text.tokenizer, which it "
        "overrides for the target. If source and target have the same type, text.shared_vocabulary says whether they "
        "share one tokenizer.",
        auto="text.tokenizer; if that is not set either, by the target text",
    )
    vocab_size: int | None = setting(
        None,
        "Maximum number of tokens of the vocabulary (of each one, if source and target share none): subwords to "
        "learn, or most frequent words to keep.",
        min=1,
        max=10**7,
        auto="8·√N for a training text of N words, counted with repetitions, but at least 500 and at most 32,000 "
        "(more if that is less than about twice the number of its different characters); at most 32,000 if "
        "text.compression_ratio is set; for the tokenizers character, decomposed (letters and marks of characters) "
        "and symbol, all that occur in the text, at most 100,000",
    )
    compression_ratio: float | None = setting(
        None,
        "Stop learning BPE as soon as the training text has this many characters (bpe) or bytes (byte-bpe) per token, "
        "spaces included, or text.vocab_size is reached. None: only text.vocab_size decides.",
        min=1,
        max=1000,
    )
    shared_vocabulary: bool | None = setting(
        None,
        "Use one tokenizer and vocabulary, learned from both texts, for source and target. false: each side has its "
        "own.",
        auto="true for decoder-only systems, or if source and target have the same type of tokenizer (text.tokenizer) "
        "and mostly the same script, or, for the tokenizer symbol, the same symbols; else false",
    )
    unknown_word_tokens: int | None = setting(
        None,
        "Number of tokens that stand for unknown words in the vocabulary of a word tokenizer. A hash of the word "
        "selects one of them, so that a system with system.settings.copying can tell which word to copy. 0: all "
        "unknown words are the same token <unk>.",
        min=0,
        max=10**6,
        auto="100 for a word tokenizer with system.settings.copying=true, else 0",
    )
    space_marker: str = setting(
        "initial",
        "Which space the tokens of a word contain, shown as ▁: initial (the one before the word: ▁house) or final "
        "(the one after it: house▁).",
    )
    bpe_dropout: float | None = setting(
        None,
        "Probability of skipping a BPE merge in training, so that a word has another segmentation in every epoch "
        "(Provilkov et al. 2020). 0: always the same one.",
        min=0,
        max=1,
        auto="0.1 with training.recipe=modern (or auto, where that means modern) and fewer than 500,000 pairs, unless "
        "system.size is tiny or system.settings.copying is true; else 0",
    )
    normalize_whitespace: bool | None = setting(
        None,
        "Strip lines and replace runs of white space by one space, in training and translation.",
        auto="true; false for runs that a version without this setting has trained",
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
        "Tokenizer to use instead of learning one: a run folder, a SentencePiece .model, a Hugging Face "
        "tokenizer.json or the folder of a Hugging Face checkpoint. None: learn one.",
    )
    add_language: str | None = setting(
        None,
        "Code of a language to add to the model in training.start_from, such as kin_Latn: the code and the subwords "
        "that the tokenizer lacks are appended to the vocabulary and the embeddings. One of the options --from, --to "
        "and --languages must name it as well.",
    )
    similar_language: str | None = setting(
        None,
        "Language of the model in training.start_from that resembles text.add_language, such as run_Latn: the "
        "embedding of its language code initializes that of the new code. For a model of a single language pair, "
        "which has no language codes, name its target language: BOS becomes the code of that language.",
        auto="the default target language of a multilingual model; data.target_language, or the extension of the "
        "target file, of a model of a single language pair",
    )
    max_new_pieces: int | None = setting(
        None,
        "Maximum number of subwords that text.add_language adds to each tokenizer. Each contains a character that the "
        "tokenizer could not represent, so that text without such characters is segmented as before.",
        min=0,
        max=10**6,
        auto="2,000",
    )
    source_word_vectors: str | None = setting(
        None,
        "File of word vectors (word2vec, GloVe or fastText) that initializes the source embeddings. None: random "
        "initialization.",
    )
    target_word_vectors: str | None = setting(
        None,
        "File of word vectors (word2vec, GloVe or fastText) that initializes the target embeddings. None: random "
        "initialization.",
    )

    def __post_init__(self) -> None:
        """Convert and check every setting, then check them against each other; raise a UserError for a wrong one."""
        super().__post_init__()
        for name in ("bpe_dropout", "compression_ratio"):
            # None: the tokenizer is not chosen yet, and may become bpe
            if getattr(self, name) and not {None, "bpe", "byte-bpe"}.intersection(self.tokenizers):
                raise UserError(
                    f"text.{name} needs text.tokenizer=bpe or byte-bpe, got text.tokenizer={self.tokenizers[0]}: "
                    f"change the tokenizer, or leave out text.{name}"
                )
        if self.similar_language and not self.add_language:
            raise UserError(
                "text.similar_language names a language of the model that resembles the one to add, but no "
                "language is added: set text.add_language, or leave out text.similar_language"
            )

    @property
    def tokenizers(self) -> tuple[str | None, str | None]:
        """The types of the source and the target tokenizer, such as "bpe"; None for one that is not chosen yet."""
        return self.source_tokenizer or self.tokenizer, self.target_tokenizer or self.tokenizer


@dataclass(frozen=True)
class FeatureConfig(Section, section="features"):
    """How image and sound files become sequences of vectors (patches or frames), for systems that read vectors."""

    image_size: int = setting(
        224,
        "Height and width in pixels to which images are scaled: a multiple of features.patch_size.",
        min=1,
        max=4096,
    )
    image_fit: Literal["crop", "pad", "stretch"] = setting(
        "crop",
        "How images that are not square become square. crop: cut off equal margins of the longer side. pad: add white "
        "margins. stretch: change the proportions.",
    )
    image_colors: Literal["rgb", "gray"] = setting(
        "rgb", "Numbers per pixel of an image: rgb (three colors) or gray (one shade of gray)."
    )
    patch_size: int = setting(
        16, "Height and width in pixels of a patch, a square part of an image that becomes one vector.", min=1, max=4096
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
        "How recordings become vectors. log-mel: logarithms of the energies of mel filters. whisper: the same, but "
        "with the mel scale and normalization of OpenAI's Whisper, whose checkpoints need it, and with recordings "
        "padded with silence to features.seconds.",
    )
    seconds: float = setting(
        30.0,
        "With features.spectrum=whisper: length in seconds to which recordings are padded with silence; longer ones "
        "are padded to a multiple of it.",
        min=0.1,
        max=3600,
    )
    mel_bins: int = setting(
        80, "Number of filters of the mel filter bank: the dimension of the vector of a frame.", min=1, max=1000
    )
    normalize_utterances: bool = setting(
        True, "Shift and scale the values of each mel filter to mean 0 and variance 1 over the frames of a recording."
    )

    def __post_init__(self) -> None:
        """Convert and check every setting, then check them against each other; raise a UserError for a wrong one."""
        super().__post_init__()
        if self.image_size % self.patch_size:
            raise UserError(
                f"features.image_size={self.image_size} is not a multiple of features.patch_size={self.patch_size}: "
                "images are cut into whole patches, so change one of them"
            )
