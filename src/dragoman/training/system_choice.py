"""Automatic choice of the system, by what the corpus consists of."""

from __future__ import annotations

from dragoman.config import Config
from dragoman.data import DataFormat, TokenStore
from dragoman.data.lexical_model import alignment_statistics
from dragoman.data.text_profile import CorpusProfile
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import Tokenizer
from dragoman.training.defaults import Defaults, configured_recipe
from dragoman.training.text_defaults import MAX_WORDS, are_phonemes

MONOTONE_SYSTEM = "hard-monotonic"  # for words that are spelled, pronounced, transliterated or inflected
MIN_MONOTONE_SHARE = 0.7  # at least 0.75 in the pronunciation of 21 languages, below 0.6 in dates, names and commands
MIN_EXPLAINED_SHARE = 0.3  # 0.52 in formulas of chemical names, 0.75 to 0.91 in pronunciation, 0.15 in sums of numbers
MAX_WORD_TOKENS = 30  # in the mean; its cost grows with the product of source and target length
MAX_MONOTONE_PAIRS = 50_000  # from more, a Transformer learns as well

MIN_TAGGED_SHARE = 0.99  # minimum share of lines with one tag per word, or with a single label
MAX_TAGS, MIN_TAG_FREQUENCY = 100, 10  # different ones, and how often each occurs in the mean


def choose_system(
    defaults: Defaults,
    user_config: Config,
    data_format: DataFormat,
    tokenizers: tuple[Tokenizer, Tokenizer],
    sizes: VocabularySizes,
    profile: CorpusProfile,
    store: TokenStore,
) -> None:
    """Choose the system `hard-monotonic` for a small corpus of single words, as characters or as letters with spaces.

    It is chosen if most target tokens follow the order of the source tokens that they come from, these tell much about
    them, pairs are few and short, and the user has not named a system, an objective, or a model to start from. A
    paper's recipe, or a setting of the system that `hard-monotonic` lacks, excludes it.

    Args:
        defaults: the configuration so far, in which `system.name` is set and recorded.
        user_config: the configuration as the user has written it.
        data_format: format of the corpus; it must have pairs to translate.
        tokenizers, sizes: of source and target, with their vocabulary sizes.
        profile: statistics of the training text, by which letters between spaces are told from words.
        store: the tokenized training pairs.
    """
    config = defaults.config
    monotone_settings = SYSTEMS[MONOTONE_SYSTEM].settings()
    user_choices = (user_config.system.name, user_config.training.start_from, user_config.objective.name)
    if any(choice is not None for choice in user_choices):
        return
    _, recipe = configured_recipe(config)
    follows_paper = recipe.paper is not None
    if follows_paper or any(name not in monotone_settings for name in config.system.settings):
        return
    if not (data_format.is_translation and defaults.objective.generates):
        return
    # letters with spaces between them, or text whose tokens are characters
    are_letters = all(text is not None and are_phonemes(text) for text in (profile.source, profile.target))
    are_spelled = are_letters or any(tokenizer.spells for tokenizer in tokenizers)
    have_subwords = any(tokenizer.has_limited_vocabulary for tokenizer in tokenizers)
    # too many tokens per pair on average: the cost of the system grows with the product of both lengths
    is_long = max(column.tokens for column in store.columns) > MAX_WORD_TOKENS * len(store)
    if not are_spelled or have_subwords or is_long or len(store) > MAX_MONOTONE_PAIRS:
        return
    # feature symbols of sources, such as "PST", have no order: their ids are ignored
    alignment = alignment_statistics(store, (sizes.source, sizes.target), ignored=sizes.features)
    if alignment.monotone >= MIN_MONOTONE_SHARE and alignment.explained >= MIN_EXPLAINED_SHARE:
        share = f"{100 * alignment.monotone:.0f} %"
        order = f"{share} of the target tokens follow the order of the source tokens they come from"
        defaults.set_and_report("system.name", MONOTONE_SYSTEM, f"{len(store):,} pairs of words; {order}")


def labelling_system(profile: CorpusProfile) -> str:
    """Return why a tagger or classifier may suit the text, as a sentence for the user; empty if it does not.

    A target with a tag for each word, or with one of a few labels, can be learned by translating, but a tagger or a
    classifier is smaller, and is always right about the number of tags. `profile` has the statistics of the training
    text, in which symbols are what stands between spaces.
    """
    source, target = profile.source, profile.target
    if source is None or target is None or source.words_per_line <= MAX_WORDS or are_phonemes(source):
        return ""
    occurrences = target.lines * target.words_per_line
    # a single word, too many different ones, or words that are too rare, for tags or labels
    if not target.is_counted or not 1 < target.symbols <= min(MAX_TAGS, occurrences / MIN_TAG_FREQUENCY):
        return ""
    labels = f"one of {target.symbols:,} labels"
    if target.single_word_lines >= MIN_TAGGED_SHARE:
        return f"every target is {labels}: --system classifier learns to classify texts"
    if profile.equal_lengths >= MIN_TAGGED_SHARE and target.symbols < source.symbols:
        return f"the target has {labels} for each word of the source: --system tagger learns to tag words"
    return ""
