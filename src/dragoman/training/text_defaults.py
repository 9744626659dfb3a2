"""Automatic choice of tokenizers and vocabularies, by the statistics of the text (`CorpusProfile`).

Lines of single words are spelled in characters, a closed inventory (phonemes, actions, logical forms, tags) has one
token per symbol, and everything else is segmented into subwords.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dragoman.config import TextConfig
from dragoman.data.corpus_passes import CorpusSurvey
from dragoman.data.data_formats import DataFormat
from dragoman.data.text_profile import CorpusCounts, CorpusProfile, TextCounts, TextProfile, alphabet_size
from dragoman.errors import UserError
from dragoman.text import TOKENIZER_TYPES, Tokenizer
from dragoman.text.special_tokens import BYTE_TOKENS, SPECIAL_TOKENS
from dragoman.training.defaults import Choice, Defaults, configured_recipe

SUBWORDS, CHARACTERS, DECOMPOSED, SYMBOLS = "bpe", "character", "decomposed", "symbol"

# A closed inventory: further text has hardly any unknown symbols, and words do not carry punctuation marks or digits
# from which new symbols could be formed.
MAX_CLOSED_SYMBOLS = 2000
MAX_UNSEEN_SHARE = 0.002  # estimated from the training text
MAX_UNSEEN_PHONEMES = 0.02  # some phonemes are rare, and a few hundred words have them only once
MAX_UNKNOWN_SHARE = 0.01  # observed in the validation text, which may be a few hundred words
MAX_ATTACHED_PUNCTUATION = 0.01
MAX_NUMERALS = 0.25
MAX_SENTENCE_LINES = 0.3  # with punctuation at the end

# Spelling: lines of one word, or of a few that seldom occur again, such as names
MAX_WORDS, MAX_DIFFERENT_WORDS, MIN_UNSEEN_WORDS = 1.5, 3.0, 0.1
MAX_WORD_PUNCTUATION = 0.05
MAX_WORD_CHARACTERS = 25
MAX_SEQUENCE_CHARACTERS = 200  # of one word per line: formulas of molecules, genes
MAX_UNSPACED_WORD_CHARACTERS = 10
MAX_PHRASE_CHARACTERS = 60  # of a source that is a word with its grammatical features
MAX_TARGET_CHARACTERS = 30  # of a target that is one
MAX_PHONEMES, MAX_PHONEME_CHARACTERS = 200, 2.0
MIN_LETTERS_PER_PHONEME, MAX_LETTERS_PER_PHONEME = 0.7, 2.0  # of sentences
MAX_LABELS = 100  # a closed inventory of more words may be no labels, but words to be spelled

# Characters are decomposed if further text has too many unknown ones, most of which letters and marks would spell.
MAX_UNSEEN_CHARACTERS, MAX_LETTER_RATIO = 0.001, 0.25

MIN_SYMBOL_OVERLAP = MIN_SCRIPT_OVERLAP = 0.5  # of source and target that share a vocabulary

MIN_SUBWORDS, MAX_SUBWORDS = 500, 32_000
UNSPACED_WORD_LENGTH = 2.5  # characters of a word in scripts without spaces, as Chinese and Japanese have them
MAX_VOCAB_SIZE = 100_000  # of characters and symbols, of which all are wanted

# Evenly spaced pairs that a tokenizer is learned from. Text without spaces has more different words, whole sentences.
MAX_LEARNING_PAIRS = 1_000_000
MAX_LEARNING_CHARACTERS = 4_000_000


@dataclass(frozen=True)
class TokenizerChoice:
    """A type of tokenizer, and the reason for it."""

    kind: str
    reason: str


def choose_tokenizers(
    defaults: Defaults,
    data_format: DataFormat,
    survey: CorpusSurvey,
    validation: CorpusCounts | None,
    is_decoder_only: bool,
) -> None:
    """Choose the tokenizers of source and target that the user has not set, and whether they share a vocabulary.

    Args:
        defaults: the configuration so far, in which settings are set and recorded.
        data_format: format of the corpus: pairs, text, labels ….
        survey: counts and statistics of the training text.
        validation: counts of the validation text, if it has its own files.
        is_decoder_only: whether the model reads source and target as one text.
    """
    text, profile = defaults.config.text, survey.profile
    requested = text.tokenizers  # of source and target, by the user; None: to be chosen
    is_joint = is_decoder_only or bool(text.shared_vocabulary) or not data_format.is_translation
    choices = _tokenizer_choices(defaults, data_format, survey, validation, profile)
    if is_joint:
        choices = _joint_choices(choices, requested)
    kinds = [kind or choice.kind for kind, choice in zip(requested, choices)]
    if is_joint and len(set(kinds)) > 1:
        raise UserError(
            f"source and target share a vocabulary and so one tokenizer, but text.source_tokenizer={kinds[0]} and "
            f"text.target_tokenizer={kinds[1]} differ: choose one type for both, or set text.shared_vocabulary=false"
        )
    if kinds[0] == kinds[1] and requested == (None, None):
        defaults.set_and_report("text.tokenizer", kinds[0], _join_reasons([choice.reason for choice in choices]))
    else:
        for side, kind, choice in zip(("source", "target"), requested, choices):
            if kind is None:
                defaults.set_and_report(f"text.{side}_tokenizer", choice.kind, choice.reason)
    defaults.set_quietly(dict(zip(("text.source_tokenizer", "text.target_tokenizer"), kinds)))
    if text.shared_vocabulary is None:
        _choose_sharing(defaults, profile, kinds, is_joint)


def _join_reasons(reasons: list[str]) -> str:
    """Return the reasons for source and target as one text; equal ones are given once."""
    return reasons[0] if len(set(reasons)) == 1 else f"source: {reasons[0]}; target: {reasons[-1]}"


def _tokenizer_choices(
    defaults: Defaults,
    data_format: DataFormat,
    survey: CorpusSurvey,
    validation: CorpusCounts | None,
    profile: CorpusProfile,
) -> tuple[TokenizerChoice, TokenizerChoice]:
    """Return the tokenizers of source and target by the recipe, by other settings of the text, or by its statistics.

    Args:
        defaults: the configuration so far.
        data_format: format of the corpus: pairs, text, labels ….
        survey: counts of the training text.
        validation: counts of the validation text, if it has its own files.
        profile: statistics of the training text.
    """
    text = defaults.config.text
    _, recipe = configured_recipe(defaults.config)
    if recipe.paper and recipe.paper.tokenizer:  # only in the recipe `textbook`
        choice = TokenizerChoice(recipe.paper.tokenizer, "the paper's")
        return choice, choice
    # settings that suggest subwords
    for name in ("vocab_size", "compression_ratio", "bpe_dropout", "source_word_vectors", "target_word_vectors"):
        if getattr(text, name) is not None:
            choice = TokenizerChoice(SUBWORDS, f"since text.{name} is set")
            return choice, choice
    unknown_source, unknown_target = (  # shares of symbols of the validation text that do not occur in training
        counts.symbols.unknown_share(held_out.symbols) if held_out else 0.0
        for counts, held_out in (
            (survey.text_counts.source, validation and validation.source),
            (survey.text_counts.target, validation and validation.target),
        )
    )
    if data_format.target_is_labels:  # whose tokenizer is learned elsewhere
        # the words of a tagger are never split into characters: every word has a tag
        choose = choose_for_text if data_format.one_label_per_sequence else _choice_for_words
        choice = choose(profile.source, unknown_source)
        return choice, choice
    if profile.source is None or profile.target is None:
        choice = choose_for_text(profile.source or profile.target, max(unknown_source, unknown_target))
        return choice, choice
    choices = choose_for_pairs(profile, unknown_source, unknown_target)
    kinds = {choice.kind for choice in choices}
    if defaults.config.system.settings.get("copying") and SUBWORDS in kinds:
        # a source token is copied as the equal target token, which a word and its subwords have seldom in common
        choice = TokenizerChoice(SUBWORDS, "copied words need the same kind of tokens in source and target")
        return choices if len(kinds) == 1 else (choice, choice)
    return choices


def choose_for_pairs(
    profile: CorpusProfile, unknown_source: float = 0.0, unknown_target: float = 0.0
) -> tuple[TokenizerChoice, TokenizerChoice]:
    """Choose the tokenizers of source and target: subwords, characters, or whole symbols (the words between spaces).

    Each side is chosen by its text, then both so that they suit each other: words and their spellings or inflected
    forms get characters on both sides, for example. Characters are decomposed further, such as Hangul syllables into
    letters, where this leaves fewer unknown ones. `profile` has the statistics of the training text; the unknown shares
    are those of symbols of the validation text that do not occur in training.
    """
    source, target = profile.source, profile.target
    source_choice = choose_for_text(source, unknown_source)
    target_choice = choose_for_text(target, unknown_target)
    if source is None or target is None:
        return source_choice, target_choice
    source_choice, target_choice = _suit_each_other(
        source_choice, target_choice, source, target, profile.script_overlap
    )
    decomposed_source = _decompose(source_choice, source, is_target=False)
    decomposed_target = _decompose(target_choice, target, is_target=True)
    both_spelled = source_choice.kind == target_choice.kind == CHARACTERS
    shares_letters = both_spelled and profile.script_overlap >= MIN_SCRIPT_OVERLAP
    # source and target in one script keep equal tokens: both are decomposed, or neither
    if shares_letters and decomposed_source.kind != decomposed_target.kind:
        return source_choice, target_choice
    return decomposed_source, decomposed_target


def _suit_each_other(
    source_choice: TokenizerChoice,
    target_choice: TokenizerChoice,
    source: TextProfile,
    target: TextProfile,
    script_overlap: float,
) -> tuple[TokenizerChoice, TokenizerChoice]:
    """Return tokenizers of source and target that suit each other, from those that were chosen for each text alone.

    `source` and `target` are the statistics of both texts, `script_overlap` is the share of letters in common scripts.
    A phrase, below, is a text of short lines that do not end like sentences. A closed inventory is a small number of
    different symbols (words between spaces), such as labels, of which further text has hardly any new ones.
    """
    # sentences whose targets are single words or short phrases: classes rather than spellings
    has_sentences = source_choice.kind == SUBWORDS and not _is_phrase(source, MAX_PHRASE_CHARACTERS)
    if target_choice.kind == CHARACTERS and has_sentences and _is_phrase(target, MAX_WORD_CHARACTERS):
        return source_choice, TokenizerChoice(SUBWORDS, "as in the source")
    are_words = target.words_per_line <= MAX_WORDS and _is_word_list(target, target_choice, script_overlap)
    # an inflection table, whose targets look like a closed inventory because every form occurs often
    if source_choice.kind == SYMBOLS and are_words and _is_phrase(source, MAX_PHRASE_CHARACTERS):
        reason = f"single words, {target.characters_per_line:.1f} characters per line"
        target_choice = TokenizerChoice(CHARACTERS, reason)
    # if one side is spelled in characters, and the other one has phrases, or words with phonemes, both are spelled
    if target_choice.kind == CHARACTERS and _is_phrase(source, MAX_PHRASE_CHARACTERS):
        # single words, however few: new ones must be read too, while labels among them can as well be spelled
        min_words = 0 if source.words_per_line <= MAX_WORDS else MAX_LABELS
        if source_choice.kind == SUBWORDS or _is_word_list(source, source_choice, script_overlap, min_words):
            reason = f"{source.characters_per_line:.1f} characters, as in the target"
            source_choice = TokenizerChoice(CHARACTERS, reason)
    elif source_choice.kind == CHARACTERS and _is_phrase(target, MAX_TARGET_CHARACTERS):
        if target_choice.kind == SUBWORDS or _is_word_list(target, target_choice, script_overlap):
            reason = f"{target.characters_per_line:.1f} characters, as in the source"
            target_choice = TokenizerChoice(CHARACTERS, reason)
    elif target_choice.kind == SYMBOLS and _is_pronunciation(source, target) and source.symbols > MAX_LABELS:
        # the source has more different words than a set of labels would have
        reason = f"words of {source.characters_per_line:.1f} characters with phonemes"
        source_choice = TokenizerChoice(CHARACTERS, reason)
    return source_choice, target_choice


def _is_pronunciation(source: TextProfile, target: TextProfile) -> bool:
    """Whether the target has phonemes, and the source is their spelling: about as many letters, or single words."""
    letters_per_phoneme = source.characters_per_line / target.words_per_line
    has_as_many_letters = MIN_LETTERS_PER_PHONEME < letters_per_phoneme < MAX_LETTERS_PER_PHONEME
    return are_phonemes(target) and (has_as_many_letters or _is_phrase(source, MAX_WORD_CHARACTERS))


def _decompose(choice: TokenizerChoice, text: TextProfile, is_target: bool) -> TokenizerChoice:
    """Replace the tokenizer of characters by that of decomposed characters (letters and marks), if that helps.

    It does if further text is expected to have many unknown characters but few unknown letters and marks. A target must
    be written in composed characters (Unicode NFC), because the tokenizer composes what the model generates.

    Args:
        choice: the tokenizer that was chosen; returned unchanged if it is not that of characters.
        text: statistics of the training text, with the expected shares of unknown characters and letters.
        is_target: whether the text is generated.
    """
    has_unknown_characters = text.unseen_characters > MAX_UNSEEN_CHARACTERS
    has_known_letters = text.unseen_letters <= MAX_LETTER_RATIO * text.unseen_characters
    helps = choice.kind == CHARACTERS and has_unknown_characters and has_known_letters
    if not helps or (is_target and not text.is_composed):
        return choice
    characters, letters = 100 * text.unseen_characters, 100 * text.unseen_letters
    shares = f"about {characters:.1f} % unknown characters in further text, but {letters:.2f} % unknown letters"
    return TokenizerChoice(DECOMPOSED, f"{choice.reason}; {shares}")


def choose_for_text(text: TextProfile | None, unknown: float = 0.0) -> TokenizerChoice:
    """Choose characters, whole symbols or subwords by the statistics of a text (None: there is no such text).

    Characters are chosen for words that are spelled, such as names, unless they are a small closed inventory. `unknown`
    is the share of symbols (words between spaces) of the validation text that do not occur in training.
    """
    if text is not None and not is_closed(text, unknown) and _is_spelling(text):
        words = "single words" if text.words_per_line <= MAX_WORDS else "a few words that seldom occur again"
        return TokenizerChoice(CHARACTERS, f"{words}, {text.characters_per_line:.1f} characters per line")
    return _choice_for_words(text, unknown)


def _choice_for_words(text: TextProfile | None, unknown: float) -> TokenizerChoice:
    """Choose between whole symbols and subwords by the statistics of a text (None: there is no such text).

    `unknown` is the share of symbols (words between spaces) of the validation text that do not occur in training.
    """
    if text is None:
        return TokenizerChoice(SUBWORDS, "")
    if is_closed(text, unknown):
        return TokenizerChoice(SYMBOLS, f"a closed inventory of {text.symbols:,} symbols between spaces")
    if not text.writes_spaces:
        length = f"{text.characters_per_line:.0f} characters per line"
        return TokenizerChoice(SUBWORDS, f"text without spaces between words, {length}")
    return TokenizerChoice(SUBWORDS, f"text of {text.words_per_line:.1f} words per line")


def is_closed(text: TextProfile, unknown: float = 0.0) -> bool:
    """Whether the symbols (words between spaces) of a text are a small closed inventory, such as phonemes or tags.

    They are if they are few, further text is expected to have hardly any new ones, and they have no punctuation or
    digits from which new symbols could be formed: neither words with and without a comma, nor sentences that end with
    a word and its full stop. `unknown` is the share of new symbols in the validation text.
    """
    return (
        text.is_counted  # the symbols were not too many to count
        and text.symbols <= MAX_CLOSED_SYMBOLS
        and text.unseen_share <= (MAX_UNSEEN_PHONEMES if are_phonemes(text) else MAX_UNSEEN_SHARE)
        and unknown <= MAX_UNKNOWN_SHARE
        and text.attached_punctuation <= MAX_ATTACHED_PUNCTUATION
        and text.attached_stops <= MAX_SENTENCE_LINES
        and text.numerals <= MAX_NUMERALS
    )


def are_phonemes(text: TextProfile) -> bool:
    """Whether the symbols (words between spaces) of a text are few and short, such as phonemes or single letters."""
    return text.symbols <= MAX_PHONEMES and text.characters_per_word <= MAX_PHONEME_CHARACTERS


def _is_spelling(text: TextProfile) -> bool:
    """Whether the lines of a text are single words, or a few words that seldom occur again, such as names.

    Such words are split into characters.
    """
    if text.sentence_lines > MAX_SENTENCE_LINES:  # share of lines with punctuation at the end
        return False
    if text.has_unspaced_script and not text.writes_spaces:  # words cannot be counted, for example in Chinese
        return text.characters_per_line <= MAX_UNSPACED_WORD_CHARACTERS
    if text.words_per_line <= MAX_WORDS:  # single words, among them formulas of molecules
        return text.characters_per_line <= MAX_SEQUENCE_CHARACTERS
    are_different = text.unseen_share >= MIN_UNSEEN_WORDS and text.punctuation <= MAX_WORD_PUNCTUATION
    is_short = text.words_per_line <= MAX_DIFFERENT_WORDS and text.characters_per_line <= MAX_WORD_CHARACTERS
    return is_short and are_different


def _is_phrase(text: TextProfile, max_characters: float) -> bool:
    """Whether the lines of a text have at most `max_characters` on average, and few end like a sentence."""
    return text.characters_per_line <= max_characters and text.sentence_lines <= MAX_SENTENCE_LINES


def _is_word_list(
    text: TextProfile, choice: TokenizerChoice, script_overlap: float, min_words: int = MAX_LABELS
) -> bool:
    """Whether a text that looks like a closed inventory of symbols is a list of words, to be split into characters.

    So it is in an inflection table, where every lemma occurs often, but new lemmas will come. The words are longer than
    phonemes, more than `min_words` different ones, and are written in the script of the other side.

    Args:
        text: statistics of the source or the target; `text.symbols` is the number of different symbols.
        choice: the tokenizer that was chosen for it; whole symbols for a closed inventory.
        script_overlap: share of the letters that source and target have in common scripts.
        min_words: number of different symbols that may be labels, rather than words.
    """
    are_words = text.symbols > min_words and text.characters_per_word > MAX_PHONEME_CHARACTERS
    return choice.kind == SYMBOLS and are_words and script_overlap >= MIN_SCRIPT_OVERLAP


def _joint_choices(
    choices: tuple[TokenizerChoice, TokenizerChoice], requested: tuple[str | None, str | None]
) -> tuple[TokenizerChoice, TokenizerChoice]:
    """Return the same tokenizer for source and target: the type that the user requests, or one that suits both texts.

    Args:
        choices: the tokenizers that suit source and target.
        requested: types of tokenizer that the user has set for source and target; None: not set.
    """
    source_kind, target_kind = requested
    kinds = {choice.kind for choice in choices}
    if not (source_kind or target_kind) and len(kinds) == 1:
        return choices
    kind = source_kind or target_kind or (SUBWORDS if SUBWORDS in kinds else CHARACTERS)
    choice = TokenizerChoice(kind, "one tokenizer reads source and target")
    return choice, choice


def _choose_sharing(defaults: Defaults, profile: CorpusProfile, kinds: list[str], is_joint: bool) -> None:
    """Set `text.shared_vocabulary`: true if source and target have the same tokenizer type and a common script.

    Args:
        defaults: the configuration so far, in which the setting is set and recorded.
        profile: statistics of the training text.
        kinds: types of the source and target tokenizer.
        is_joint: whether they must share a vocabulary, as in a decoder-only model.
    """
    name = "text.shared_vocabulary"
    if is_joint:
        defaults.set_quietly({name: True})
    elif kinds[0] != kinds[1]:
        defaults.set_and_report(name, False, "source and target have different kinds of tokens")
    elif kinds[0] == SYMBOLS and profile.symbol_overlap < MIN_SYMBOL_OVERLAP:
        share = f"{100 * profile.symbol_overlap:.0f} % of the target symbols"
        defaults.set_and_report(name, False, f"{share} also occur in the source")
    elif kinds[0] != SYMBOLS and profile.script_overlap < MIN_SCRIPT_OVERLAP:
        defaults.set_and_report(name, False, "source and target have different scripts")
    else:
        defaults.set_quietly({name: True})


@dataclass(frozen=True)
class VocabularyLimit:
    """The largest size of a vocabulary, and the reason for it; empty if the user has set it or there is no limit."""

    size: int
    reason: str = ""


def choose_vocab_sizes(
    defaults: Defaults, data_format: DataFormat, survey: CorpusSurvey
) -> tuple[VocabularyLimit, VocabularyLimit]:
    """Return the largest vocabulary sizes of source and target, which are equal if they share a vocabulary.

    Args:
        defaults: the configuration so far; `text.vocab_size` is set in it if both limits are equal and were chosen.
        data_format: format of the corpus; text without targets has one vocabulary.
        survey: counts and statistics of the training text.
    """
    text, counts, profile = defaults.config.text, survey.text_counts, survey.profile
    sides = [
        (_number_of_words(survey.source_words, profile.source), counts.source),
        (_number_of_words(survey.target_words, profile.target), counts.target),
    ]
    is_joint = text.shared_vocabulary or not data_format.is_translation
    source, target = text.tokenizers
    limits = (
        _vocabulary_limit(text, source or SUBWORDS, sides if is_joint else sides[:1]),
        _vocabulary_limit(text, target or SUBWORDS, sides if is_joint else sides[1:]),
    )
    if limits[0] == limits[1] and limits[0].reason:
        defaults.set_quietly({"text.vocab_size": limits[0].size})
    return limits


def _vocabulary_limit(text: TextConfig, kind: str, sides: list[tuple[int, TextCounts]]) -> VocabularyLimit:
    """Return the largest size of a vocabulary: `text.vocab_size`, or by the number of words of the training text.

    Subwords get 8·√words tokens, from 500 to 32,000, with which rare ones are still frequent enough to be learned, but
    at least the special tokens, the bytes, and twice as many tokens as characters. With `text.compression_ratio`, which
    determines the number of merges, the limit is 32,000. Characters and symbols are all in the vocabulary, up to
    100,000.

    Args:
        text: settings of the text.
        kind: type of the tokenizer, such as "bpe".
        sides: number of words, and counts of the text, of each side (source, target) that uses the vocabulary.
    """
    if text.vocab_size is not None:
        return VocabularyLimit(text.vocab_size)
    if text.compression_ratio is not None:
        return VocabularyLimit(MAX_SUBWORDS, "an upper limit, since text.compression_ratio is set")
    if kind in TOKENIZER_TYPES and not TOKENIZER_TYPES[kind].has_limited_vocabulary:
        return VocabularyLimit(MAX_VOCAB_SIZE)
    words = sum(words for words, _ in sides)
    size = int(max(MIN_SUBWORDS, min(MAX_SUBWORDS, round(8 * math.sqrt(words), -2))))
    alphabet = alphabet_size(counts for _, counts in sides)
    min_size = len(SPECIAL_TOKENS) + len(BYTE_TOKENS) + 2 * alphabet
    if size < min_size:
        return VocabularyLimit(min_size, f"bytes and twice the {alphabet:,} characters of the text")
    return VocabularyLimit(size, f"8·√words for the {words:,} words of the corpus, at most 32,000")


def _number_of_words(words: int, text: TextProfile | None) -> int:
    """Return the number of words of a text that has `words` character sequences between spaces.

    It is estimated from the number of characters if no spaces separate the words, as `text` (its statistics) says.
    """
    if text is None or text.writes_spaces:
        return words
    return round(words * text.characters_per_word / UNSPACED_WORD_LENGTH)


def max_learning_pairs(profile: CorpusProfile) -> int:
    """Return the largest number of training pairs that a tokenizer is learned from: a million, or fewer by `profile`.

    For text without spaces between words it is smaller, about four million characters: its units between spaces are
    sentences, which hardly ever repeat, so that learning takes longer.
    """
    unspaced = [text for text in (profile.source, profile.target) if text and not text.writes_spaces]
    characters_per_line = max((text.characters_per_line for text in unspaced), default=1.0)  # 1: a million pairs
    return max(1, min(MAX_LEARNING_PAIRS, round(MAX_LEARNING_CHARACTERS / characters_per_line)))


def report_vocab_sizes(
    defaults: Defaults, limits: tuple[VocabularyLimit, VocabularyLimit], tokenizers: tuple[Tokenizer, Tokenizer]
) -> None:
    """Report the sizes of the learned source and target vocabularies, and why, as automatic choices in `defaults`.

    `limits` are the largest sizes; those without a reason are not reported: the user has set them, or all tokens are in
    the vocabulary, such as characters.
    """
    sizes, reasons = [], []
    for limit, tokenizer in zip(limits, tokenizers):
        if limit.reason:
            sizes.append(tokenizer.vocab_size)
            is_smaller = tokenizer.vocab_size < limit.size
            learned = f"the tokens that were learned; the limit is {limit.size:,}, " if is_smaller else ""
            reasons.append(learned + limit.reason)
    if sizes:
        value = " and ".join(map(str, dict.fromkeys(sizes)))
        defaults.choices.append(Choice("text.vocab_size", value, _join_reasons(reasons)))
