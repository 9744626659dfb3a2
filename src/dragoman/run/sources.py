"""Sources of a run: texts as framed token ids, or feature arrays, truncated at the maximum source length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.console import log
from dragoman.data.batching import batch_by_length
from dragoman.data.data_formats import encode_dialogue
from dragoman.data.feature_files import check_features
from dragoman.data.media_files import MediaFile, is_media
from dragoman.errors import UserError, unknown_name
from dragoman.text.feature_symbols import split_features
from dragoman.text.normalization import TextNormalizer
from dragoman.text.sentences import SplitText, single_sentence, split_sentences
from dragoman.text.untranslatable import is_untranslatable

if TYPE_CHECKING:
    from dragoman.run.run import Run

# A text, or for a run that reads images or speech: the path of a file, or a feature array (length × features).
Source = str | Path | NDArray[Any]
Tag = str | Sequence[str]  # one corpus tag for all texts, or one for each; where it is None: the run's default


def is_empty(source: Source) -> bool:
    """Whether a source has only white space as text, or no feature vectors; the path of a file is never empty."""
    if isinstance(source, Path):
        return False
    return not source.strip() if isinstance(source, str) else not len(source)


def load_features(run: Run, source: Source) -> Source:
    """Read the image or sound file that a source names, for a run that reads feature vectors; return an array S F.

    An empty name gives an array with S = 0. Arrays, texts that do not name such a file, and all sources of a run that
    reads text are returned unchanged. A file whose vectors do not have the size F is a UserError.
    """
    num_features = run.model.source_features  # size F of the vectors; None: the run reads text
    if num_features is None or not isinstance(source, str | Path):
        return source
    if is_empty(source):
        return np.zeros((0, num_features), np.float32)
    path = Path(source.strip()) if isinstance(source, str) else source
    if not is_media(path):
        return source
    return check_features(MediaFile(path, run.config.features), num_features, str(path))


def normalize_source(run: Run, source: Source) -> Source:
    """Normalize a text as in the run's training, or read the image or sound file that it names.

    In dialogues the turns, which are separated by tabs, are normalized separately. Features such as 'V;PST', which
    follow a text after a tab, are not normalized.
    """
    source = load_features(run, source)
    if not isinstance(source, str):
        return source
    if run.is_dialogue:
        return "\t".join(normalize_text(run, turn) for turn in source.split("\t"))
    if run.source_tokenizer.features and "\t" in source:
        text, features = split_features(source)
        return f"{normalize_text(run, text)}\t{features.strip()}"
    return normalize_text(run, source)


def normalize_text(run: Run, text: str) -> str:
    """Normalize a text as in the run's training: Unicode form, lower case and white space."""
    return TextNormalizer.from_settings(run.config.text)(text)


def normalize_phrases(run: Run, phrases: Sequence[str]) -> list[str]:
    """Normalize the letters of phrases that a translation must or must not contain, but not their white space."""
    return list(map(TextNormalizer.from_settings(run.config.text).normalize_letters, phrases))


def is_copied(run: Run, source: Source) -> bool:
    """Whether a source is copied instead of translated: it has no letters, and `search.copy_untranslatable` is set."""
    return bool(run.config.search.copy_untranslatable) and isinstance(source, str) and is_untranslatable(source)


def split_into_sentences(run: Run, text: str) -> SplitText:
    """Split a text into sentences with at most as many tokens as the run reads, and as those of its training had.

    In a run with features (such as 'V;PST' after the text) it is one sentence, because they belong to the whole text.
    """
    if run.source_tokenizer.features:
        return single_sentence(text)

    def count_tokens(sentence: str) -> int:
        """Return the number of source tokens of a sentence."""
        return len(run.source_tokenizer.encode(normalize_text(run, sentence)))

    return split_sentences(text, count_tokens, min(max_source_tokens(run), run.config.data.max_length))


def tag_ids(run: Run, count: int, tag: Tag | None) -> list[list[int]]:
    """Return for each of `count` texts a list with the token id of its corpus tag, which precedes it; empty for tag ''.

    `tag` is one name for all texts, or one for each; None is the first of the run's `data.corpus_tags`, or '' if it has
    none. An unknown name is a UserError.
    """
    if tag is None:
        tag = next(iter(run.config.data.corpus_tags), "")
    names = [tag] * count if isinstance(tag, str) else tag
    tag_tokens = run.source_tokenizer.tags  # name → token id
    if unknown := [name for name in names if name and name not in tag_tokens]:
        if tag_tokens:
            raise unknown_name("corpus tag", unknown[0], tag_tokens)
        raise UserError(
            f"the run {run.folder} was trained without corpus tags (data.corpus_tags: a token before each source that "
            "names its corpus): leave out --corpus-tag"
        )
    return [[tag_tokens[name]] if name else [] for name in names]


def encode_features(run: Run, sources: Sequence[str]) -> tuple[list[list[int]], list[str]]:
    """Split sources into text and features; return the token ids of the features of each source, and the texts.

    In a run with features, such as the grammatical ones in 'V;PST', these follow the text after the last tab. Unknown
    features are logged once and share one token. In other runs there are none, and the texts are returned unchanged.
    """
    symbols = run.source_tokenizer.features  # the names of features and their tokens; empty: a run without features
    if not symbols:
        return [[] for _ in sources], list(sources)
    texts_and_features = [split_features(source) for source in sources]
    unknown = {name: None for _, features in texts_and_features for name in symbols.unknown(features)}  # an ordered set
    if unreported := [name for name in unknown if name not in run.reported_features]:
        run.reported_features.update(unreported)
        plural, more = "s" * (len(unreported) > 1), " …" * (len(unreported) > 5)
        log(
            f"warning: the run {run.folder} does not know the feature{plural} {', '.join(unreported[:5])}{more} of "
            f"sources; it was trained with {', '.join(symbols.names[:12])} …"
        )
    return [symbols.encode(features) for _, features in texts_and_features], [text for text, _ in texts_and_features]


def encode_without_framing(run: Run, sources: Sequence[Source], tag: Tag | None = None) -> list[Any]:
    """Return the token ids of each source without BOS, EOS and other special tokens around it, or its feature array.

    Nothing is truncated. A text begins with the token of its corpus tag (`tag`: one for all, or one for each; None: the
    run's default) and the tokens of its features. A dialogue, a text with tabs between its turns, has the special
    tokens between turns; it must have an odd number of turns. Sources of the wrong kind (array or text), and another
    number of turns, are UserErrors.
    """
    if (num_features := run.model.source_features) is not None:  # the run reads vectors of this size
        return [check_features(load_features(run, source), num_features) for source in sources]
    texts = [text for source in sources if isinstance(text := normalize_source(run, source), str)]
    if len(texts) < len(sources):
        raise UserError(
            f"the run {run.folder} reads text, but a source is an array of feature vectors: give text, or use a run "
            "that was trained on images or speech"
        )
    if not run.is_dialogue:
        feature_ids, texts = encode_features(run, texts)
        token_ids = run.source_tokenizer.encode_batch(texts)
        by_source = zip(tag_ids(run, len(texts), tag), feature_ids, token_ids)
        return [[*tag_id, *features, *tokens] for tag_id, features, tokens in by_source]
    if any(text.count("\t") % 2 for text in texts):  # n tabs separate n + 1 turns
        raise UserError(
            "a dialogue must end with a turn of the user, to which the model replies, but has an even number of "
            "turns: give an odd number of turns, separated by tabs"
        )
    dialogues = (run.source_tokenizer.encode_batch(text.split("\t")) for text in texts)  # token ids of each turn
    ids_and_labels = [encode_dialogue(turns, run.framing) for turns in dialogues]
    return [[*ids[len(run.framing.source_prefix) :]] for ids, _ in ids_and_labels]  # without the prefix of the framing


def max_source_tokens(run: Run) -> int:
    """Return the largest number of tokens of a source that are read, not counting the special tokens around it.

    It is at least 1, even if the special tokens (`framing`) leave no space for a source.
    """
    return max(1, run.max_source_length - len(run.framing.source_prefix) - len(run.framing.source_suffix))


def check_language_pair(run: Run) -> None:
    """Raise a UserError if a multilingual run has no language pair: its special tokens (framing) are then unknown."""
    if run.framing.languages is not None:  # None: no codes are needed, or those of the pair are filled in
        run.framing.for_languages()  # raises the UserError, which names the missing languages


def add_framing(run: Run, ids: Sequence[int]) -> list[int]:
    """Return the token ids of a source with the run's special tokens before and after them.

    A multilingual run without a language pair, whose special tokens are not known, is a UserError.
    """
    check_language_pair(run)
    return [*run.framing.source_prefix, *ids, *run.framing.source_suffix]


def frame_source(run: Run, ids: Any) -> Any:
    """Return a source as the model reads it: token ids, truncated and with special tokens around them.

    Feature arrays (S F) are only truncated.
    """
    truncated = ids[: max_source_tokens(run)]
    return truncated if run.model.source_features is not None else add_framing(run, truncated)


@torch.inference_mode()
def detect_languages(run: Run, sources: Sequence[NDArray[Any]]) -> list[str]:
    """Return the language code of each recording (a feature array S F) that the model predicts right after BOS.

    A model that does not recognize languages is a UserError.
    """
    codes = run.model_framing.languages  # token ids of its language codes; None: it has none
    if codes is None or not codes.detected:
        raise UserError(
            f"the model in {run.folder} cannot detect the language of a recording: name the languages with --from and "
            "--to"
        )
    names, ids = list(codes.ids), list(codes.ids.values())  # language codes, and their token ids
    results = [""] * len(sources)
    for batch in batch_by_length(np.array([len(source) for source in sources]), run.config.search.batch_tokens):
        source, lengths = run.pad_batch([sources[n] for n in batch])
        bos = torch.full_like(lengths[:, None], run.model_framing.bos)  # B 1
        # B languages: logits of the language codes after BOS, the only target token (lengths of 1)
        logits = run.full_precision_model(source, lengths, bos, torch.ones_like(lengths))[:, 0, ids]
        for n, best in zip(batch, logits.argmax(-1).tolist()):
            results[n] = names[best]
    return results
