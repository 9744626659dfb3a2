"""Translating: texts in windows, batches of like length, a search, and texts again in the order of the sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.data.batching import batch_by_length
from dragoman.errors import UserError
from dragoman.run.decoding import SearchRequest, decode
from dragoman.run.pair_scoring import align_batch, batch_cross_attention, hypothesis_token_scores
from dragoman.run.results import Alignment, Translation
from dragoman.run.sources import (
    Source,
    Tag,
    encode_without_framing,
    frame_source,
    is_copied,
    is_empty,
    max_source_tokens,
    normalize_source,
    normalize_text,
    split_into_sentences,
    tag_ids,
)
from dragoman.run.translation_constraints import Constraints, TargetPrefix
from dragoman.run.workers import shared
from dragoman.search import Hypothesis, SearchConfig
from dragoman.search.forbidden_phrases import ForbiddenPhrases
from dragoman.search.unknown_words import UnknownWordReplacer
from dragoman.text import alignment_words
from dragoman.text.sentences import SplitText

if TYPE_CHECKING:
    from dragoman.run.run import Run

WINDOW_LINES = 4096  # lines that are sorted and translated together
WAITING = 4  # sources that are given to a search for each that it works on


class Translator:
    """A run that translates any number of texts in one and the same way."""

    def __init__(
        self,
        run: Run,
        settings: SearchConfig,
        *,
        alignment: bool,
        dictionary: Mapping[str, str] | None,
        tag: Tag,
        forbidden: Sequence[str],
        token_scores: bool = False,
    ) -> None:
        self.run, self.settings, self.tag, self.token_scores = run, settings, tag, token_scores
        self.unknown = None
        if dictionary is not None:
            self.unknown = UnknownWordReplacer(run.source_tokenizer, run.target_tokenizer, dictionary)
            if forbidden:
                raise UserError(
                    "unknown words are replaced after the search, which could not keep phrases away: do without"
                )
        #: vectors are no words, and where unknown words are replaced they are aligned anew
        self.align = alignment and self.unknown is None and run.model.source_features is None
        self.forbidden = tuple(forbidden)
        self.never = None
        if forbidden:
            self.never = ForbiddenPhrases(run.target_tokenizer, forbidden, run.special_tokens, run.model.vocab_size)

    def stream(
        self,
        texts: Iterable[Source],
        first: int,
        prefixes: Iterable[str] | None,
        required: Iterable[Sequence[str]] | None,
        tag: Tag = None,
    ) -> Iterator[Translation]:
        """The translations in order, a window of texts at a time; `first` is the number of the first text."""
        texts, place, tag = iter(texts), 0, self.tag if tag is None else tag
        beginnings = None if prefixes is None else iter(prefixes)
        phrases = None if required is None else iter(required)
        while window := [normalize_source(self.run, text) for text in islice(texts, WINDOW_LINES)]:
            named = tag if tag is None or isinstance(tag, str) else tag[place : place + len(window)]
            begun = None
            if beginnings is not None:
                begun = [normalize_text(self.run, text) for text in islice(beginnings, len(window))]
            wanted = None if phrases is None else list(islice(phrases, len(window)))
            translated = self.window(window, first + place, named, Constraints(begun, wanted, self.never))
            yield from (
                self.replace_unknown_words(window, translated, self.unknown, named) if self.unknown else translated
            )
            place += len(window)

    def stream_split(self, texts: Iterable[Source], first: int) -> Iterator[Translation]:
        """The same, with every text split into sentences that are translated one by one and joined again."""
        texts, place, tag = iter(texts), 0, self.tag
        while window := list(islice(texts, WINDOW_LINES)):
            if not all(isinstance(text, str) for text in window):
                raise UserError(f"{self.run.folder} reads vectors, which have no sentences to split")
            split = [split_into_sentences(self.run, text) for text in window if isinstance(text, str)]
            named = tag
            if tag is not None and not isinstance(tag, str):
                of_texts = zip(tag[place : place + len(window)], split)
                named = [name for name, text in of_texts for _ in text.sentences]
            sentences: list[Source] = [sentence for text in split for sentence in text.sentences]
            found = self.stream(sentences, first + place, None, None, named)
            for text in split:
                yield join_sentences(text, [next(found) for _ in text.sentences])
            place += len(window)

    def copies(self, text: Source, prefix: TargetPrefix, required: Sequence[str]) -> bool:
        """Whether a text is copied: nothing is asked of its translation that the copy might not fulfil."""
        if not is_copied(self.run, text) or prefix or required:
            return False
        return not any(phrase in str(text) for phrase in self.forbidden)

    def copied(self, text: str) -> Translation:
        """The text as its own translation, aligned word by word."""
        tokens = self.run.target_tokenizer.tokens(self.run.target_tokenizer.encode(text))
        links = [(n, n) for n in range(len(alignment_words(text)))] if self.align else None
        return Translation(
            text, 0.0, tokens, links, copied=True, token_scores=[0.0] * (len(tokens) + 1) if self.token_scores else None
        )

    def window(self, texts: list[Source], first: int, tag: Tag, wishes: Constraints) -> list[Translation]:
        run = self.run
        full = encode_without_framing(run, texts, tag)
        sources = [frame_source(run, ids) for ids in full]
        nothing = Translation("", 0.0, alignment=[] if self.align else None)
        results = [replace(nothing, token_scores=[] if self.token_scores else None)] * len(texts)
        for i, text in enumerate(texts):
            if self.copies(text, *wishes.at(i)):
                results[i] = self.copied(str(text))
        written = np.array(
            [i for i, text in enumerate(texts) if not is_empty(text) and not results[i].copied], dtype=np.int64
        )
        lengths = np.array([len(sources[i]) for i in written])
        budget = max(1, run.config.search.batch_tokens // self.settings.rows_per_source)

        def translated(batch: NDArray[np.int64]) -> list[Translation]:
            rows = written[batch]
            source, source_lengths = run.pad_batch([sources[i] for i in rows], run.framing.pad)
            asked = SearchRequest(
                source,
                source_lengths,
                torch.from_numpy(rows + first),
                [texts[i] for i in rows],
                constraints=wishes.select(rows.tolist()),
                max_batch_size=max(1, budget // source.shape[1]),
            )
            found = decode(self.settings, run, asked)
            targets = [hypotheses[0].tokens for hypotheses in found]
            links = align_batch(run, source, source_lengths, targets) if self.align else None
            scores = hypothesis_token_scores(run, source, source_lengths, found) if self.token_scores else None
            return [
                to_translation(
                    run,
                    hypotheses,
                    links[n] if links else None,
                    len(full[i]) <= max_source_tokens(run),
                    scores[n] if scores else None,
                )
                for n, (i, hypotheses) in enumerate(zip(rows, found))
            ]

        waiting = WAITING
        if run.num_workers > 1:
            waiting, _ = (
                1,
                run.inference_models,
            )  # more batches, so that no worker has nothing to do; packed once for all
        batches = batch_by_length(lengths, waiting * budget) if len(written) else []
        for batch, some in zip(batches, shared(translated, batches, run.num_workers)):
            for i, one in zip(written[batch], some):
                results[i] = one
        return results

    def replace_unknown_words(
        self, texts: list[Source], translated: list[Translation], unknown: UnknownWordReplacer, tag: Tag
    ) -> Iterator[Translation]:
        """The translations with unknown words replaced through the alignment, their alternatives too."""
        run = self.run
        for text, first, before in zip(texts, translated, tag_ids(run, len(texts), tag)):
            if not isinstance(text, str):
                raise UserError("unknown words are replaced through the source's words, but vectors have none")
            if not text.strip() or first.copied:
                yield first
                continue
            framed = frame_source(run, [*before, *encode_without_framing(run, [text], "")[0]])
            source, lengths = run.pad_batch([framed], run.framing.pad)
            found = []
            for one in (first, *first.alternatives):
                ids = run.target_tokenizer.tokens_to_ids(one.tokens)
                looks = batch_cross_attention(run, source, lengths, [ids])
                if looks is None:
                    raise UserError(f"{run.folder} has no attention, by which unknown words are replaced")
                written, links = unknown.replace(text, ids, looks[0][:, len(before) :])
                found.append(replace(one, text=written, alignment=links, alternatives=[]))
            yield replace(found[0], alternatives=found[1:])


def join_sentences(text: SplitText, found: Sequence[Translation]) -> Translation:
    """The translation of a text from those of its sentences: scores are summed, word positions count in the text.

    The second best is made of the second best of every sentence, and so on.
    """
    ranked = [(one, *one.alternatives) for one in found]
    best, *others = (
        _joined_once(text, [some[min(rank, len(some) - 1)] for some in ranked])
        for rank in range(max(map(len, ranked), default=1))
    )
    return replace(best, alternatives=others)


def _joined_once(text: SplitText, found: Sequence[Translation]) -> Translation:
    gaps = text.gaps_after([one.text for one in found])
    target = gaps[0] + "".join(one.text + gap for one, gap in zip(found, gaps[1:]))
    links: Alignment | None = [] if all(one.alignment is not None for one in found) else None
    begin = 0, 0  # words of the sentences before
    for sentence, one in zip(text.sentences, found):
        if links is not None:
            links += [(begin[0] + s, begin[1] + t) for s, t in one.alignment or ()]
        begin = begin[0] + len(alignment_words(sentence)), begin[1] + len(alignment_words(one.text))
    scores = [score for one in found for score in one.token_scores or ()]
    proved = [one.proven_optimal for one in found if one.proven_optimal is not None]
    return Translation(
        target,
        sum(one.score for one in found),
        [token for one in found for token in one.tokens],
        links,
        finished=all(one.finished for one in found),
        whole=all(one.whole for one in found),
        proven_optimal=all(proved) if proved else None,
        copied=bool(found) and all(one.copied for one in found),
        token_scores=scores if any(one.token_scores is not None for one in found) else None,
    )


def continue_prompts(run: Run, prompts: Sequence[str], settings: SearchConfig) -> list[Translation]:
    """Each prompt, which may be empty, with what a decoder goes on to say."""
    if not run.model.is_decoder_only:
        raise run.usage_error("generate")
    prompts = [normalize_text(run, prompt) for prompt in prompts]
    begin, encoded = run.framing.source_prefix, run.target_tokenizer.encode_batch(prompts)
    encoded = [[*begin, *ids] or [run.framing.bos] for ids in encoded]
    longest = max(map(len, encoded), default=0)
    room = run.model.max_target_length(torch.tensor([longest]))
    if room is not None and int(room) < 1:
        raise UserError(f"a prompt has {longest:,} tokens, and {1 - int(room):,} too many for the model: shorten it")
    results = [Translation("", 0.0)] * len(prompts)
    budget = max(1, run.config.search.batch_tokens // settings.rows_per_source)
    for batch in batch_by_length([len(ids) for ids in encoded], budget) if len(prompts) else []:
        source, lengths = run.pad_batch([encoded[i][:-1] for i in batch], run.framing.pad)
        first = torch.tensor([encoded[i][-1] for i in batch], device=run.device)
        asked = SearchRequest(source, lengths, torch.from_numpy(batch), first_token=first)
        for i, found in zip(batch, decode(settings, run, asked)):
            begun = encoded[i][len(begin) :]
            whole = [hypothesis._replace(tokens=[*begun, *hypothesis.tokens]) for hypothesis in found]
            results[i] = to_translation(run, whole, None, True)
    return results


def to_translation(
    run: Run,
    hypotheses: list[Hypothesis],
    links: Alignment | None,
    whole: bool,
    token_scores: list[list[float]] | None = None,
) -> Translation:
    """The best of some hypotheses as text, the others as its alternatives."""
    tokenizer = run.target_tokenizer
    by_token: Sequence[list[float] | None] = token_scores or [None] * len(hypotheses)
    best, *others = (
        Translation(
            tokenizer.decode(h.tokens),
            h.score,
            tokenizer.tokens(h.tokens),
            finished=h.finished,
            proven_optimal=h.proven_optimal,
            token_scores=scores,
        )
        for h, scores in zip(hypotheses, by_token)
    )
    return replace(best, alignment=links, alternatives=others, whole=whole)
