"""Translations token by token: what has become certain of the translations of a batch, as soon as it is."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import torch

from dragoman.run.pair_scoring import align_batch
from dragoman.run.results import StreamedTokens, Translation
from dragoman.run.sources import (
    Source,
    encode_without_framing,
    frame_source,
    is_empty,
    max_source_tokens,
    normalize_phrases,
    normalize_source,
    normalize_text,
)
from dragoman.run.translator import TextIndices, Translator, to_translation
from dragoman.search import Constraints, Hypothesis, SearchRequest
from dragoman.search.search_config import StepwiseSearch
from dragoman.search.search_state import EMPTY_SLOT, PartialResult, partial_result
from dragoman.text import Tokenizer

if TYPE_CHECKING:
    from dragoman.run.run import Run

NumberedTokens = tuple[int, StreamedTokens]  # (index of the text, its new tokens)


def stream_batch(
    translator: Translator,
    texts: Sequence[Source],
    prefixes: Sequence[str],
    include: Sequence[Sequence[str]] | None = None,
    first_index: int = 0,
    interval: float = 0.0,
) -> Generator[NumberedTokens]:
    """Translate texts in a batch, and yield pairs (index of a text, tokens that have become certain since the last).

    Tokens are certain if all hypotheses of a text begin with them: the rest of the search cannot change them. The last
    pair of a text contains its complete translation. A search that compares complete translations, such as minimum
    Bayes risk, yields only this pair.

    Args:
        translator: has the run, the search and the options
        texts: the sources
        prefixes: how each translation begins, '' for any
        include: phrases that each translation must contain; None: none
        first_index: index of the first text, which seeds sampling
        interval: seconds between two yields; 0: after each step of the search
    """
    run = translator.run
    texts = [normalize_source(run, text) for text in texts]
    constraints = Constraints(
        prefixes=[normalize_text(run, prefix) for prefix in prefixes] if any(prefixes) else None,
        include=[normalize_phrases(run, phrases) for phrases in include] if include and any(include) else None,
        exclude=translator.forbidden_phrases,
    )
    searched = []  # indices of the texts that are neither empty nor copied
    for index, text in enumerate(texts):
        prefix, required_phrases = constraints.at(index)
        if is_empty(text):
            empty = Translation(text="", score=0.0, alignment=[] if translator.align else None)
            yield index, StreamedTokens(text="", translation=empty)
        elif translator.copies(text, prefix, required_phrases):
            copied = translator.copy(str(text))
            yield index, StreamedTokens(copied.text, copied.tokens, translation=copied)
        else:
            searched.append(index)
    if not searched:
        return
    token_ids = encode_without_framing(run, texts, translator.tag)
    sources = [frame_source(run, ids) for ids in token_ids]
    for language_run, indices in translator.group_by_language(sources, np.array(searched)):
        source, lengths = run.pad_batch([sources[index] for index in indices])
        request = SearchRequest(
            source,
            lengths,
            keys=torch.from_numpy(indices + first_index),
            texts=[texts[index] for index in indices],
            constraints=constraints.select(indices.tolist()),
        )
        stream = _BatchStream(language_run, translator, request, indices, interval)
        yield from stream.parts(truncated=[len(token_ids[index]) > max_source_tokens(run) for index in indices])


class _BatchStream:
    """Translates a batch of texts in one language, and yields the translations in parts."""

    def __init__(
        self, run: Run, translator: Translator, request: SearchRequest, text_indices: TextIndices, interval: float
    ) -> None:
        """Translate the sources of `request` with `run`; `translator` has the search and the options.

        `text_indices` are the indices of these sources among all texts, `interval` is the number of seconds between two
        yields of tokens.
        """
        self.run, self.translator, self.request, self.interval = run, translator, request, interval
        self.text_indices: list[int] = text_indices.tolist()
        self.detokenizers = [_Detokenizer(run.target_tokenizer) for _ in self.text_indices]
        #: of each source: the result of its search when tokens were yielded the last time; None: none were yielded
        self.last_results: list[PartialResult | None] = [None] * len(self.text_indices)

    def parts(self, truncated: Sequence[bool]) -> Generator[NumberedTokens]:
        """Yield pairs (index of a text, its new tokens); the last pair of a text contains the whole translation.

        `truncated` says for each source whether it was too long, so that only its beginning is translated.
        """
        run, translator, request = self.run, self.translator, self.request
        # a search that compares complete translations has no steps that could be streamed; and with a vocabulary
        # shortlist, token ids are indices in a part of the vocabulary until the search ends
        if isinstance(translator.search, StepwiseSearch) and run.shortlist is None:
            hypotheses = yield from self._search(translator.search)
        else:
            hypotheses = translator.search.decode(run, request)
        best = [ranked[0] for ranked in hypotheses]
        alignments = None
        if translator.align:
            alignments = align_batch(run, request.source, request.lengths, [hypothesis.tokens for hypothesis in best])
        for n, (ranked, last) in enumerate(zip(hypotheses, self.last_results)):
            alignment = alignments[n] if alignments else None
            translation = to_translation(run, ranked, alignment, truncated_source=truncated[n])
            score: float | None = best[n].score
            # of the tokens since the last part; log p of a common prefix of several hypotheses is not known
            if last is not None:
                score = best[n].score - last.score if last.single_hypothesis else None
            part = self.detokenizers[n].add(best[n].tokens, best[n].tokens, score, is_last=True)
            yield self.text_indices[n], StreamedTokens(part.text, part.tokens, score, translation=translation)

    def _search(self, search: StepwiseSearch) -> Generator[NumberedTokens, None, list[list[Hypothesis]]]:
        """Search step by step; yield pairs (index of a text, tokens that have become certain), except at the last step.

        Tokens are certain if all hypotheses of a source begin with them. With several hypotheses, log p of these tokens
        is not known. Returns the hypotheses of each source at the end of the search.
        """
        engine, arguments = search.prepare(self.run, self.request)
        next_time = time.monotonic() + self.interval
        with closing(engine.steps(*arguments)) as steps:  # yields the search state after each step
            while True:
                try:
                    sources, state = next(steps)  # the source in each row (slot) of the search state
                except StopIteration as end:  # its value has the hypotheses of each source
                    return end.value
                if time.monotonic() < next_time:
                    continue
                next_time = time.monotonic() + self.interval
                done = state.done.tolist()
                for slot, n in enumerate(sources):
                    if n == EMPTY_SLOT or done[slot]:  # the last part of a translation follows after the search
                        continue
                    result = partial_result(state, slot, self.run.special_tokens.eos, search.length_divisor)
                    last = self.last_results[n]
                    if result is None or result == last:
                        continue
                    score = result.score - (last.score if last else 0.0) if result.single_hypothesis else None
                    self.last_results[n] = result
                    new_tokens = self.detokenizers[n].add(result.stable_prefix, result.best_tokens, score)
                    yield self.text_indices[n], new_tokens


class _Detokenizer:
    """Turns token ids that arrive one after the other into text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start with an empty translation, whose tokens are decoded by `tokenizer`."""
        self.tokenizer = tokenizer
        self.tokens: list[int] = []  # all token ids so far
        self.text = ""  # the text of these that was returned

    def add(self, stable: list[int], best: list[int], score: float | None, is_last: bool = False) -> StreamedTokens:
        """Return the tokens and the text that were added since the last call, and how the best hypothesis continues.

        Args:
            stable: token ids of the beginning of the translation that does not change any more
            best: token ids of the best hypothesis so far
            score: log p of the new tokens; None if it is not known
            is_last: whether the translation is complete
        """
        new_tokens = self.tokenizer.tokens(stable[len(self.tokens) :])
        # a text that later tokens could change, such as a part of a character, is held back until the end
        text = self.tokenizer.decode(stable) if is_last else self.tokenizer.decode_certain(stable)
        new_text = text[len(self.text) :]
        self.tokens, self.text = stable, self.text + new_text
        # the rest of the best hypothesis, which later steps may replace
        tentative_text = self.tokenizer.decode_certain(best)[len(self.text) :]
        return StreamedTokens(new_text, new_tokens, score, tentative_text=tentative_text)
