"""A run that is served: its name, its languages and its queue of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dragoman.run import Run, StreamedTokens, Translation
from dragoman.run.language_pair import LanguagePair
from dragoman.run.sources import split_into_sentences
from dragoman.run.translation_warnings import LanguageNames, TranslationWarning, checker_of
from dragoman.search import Beam
from dragoman.serving.request_batching import Batcher, DecodeOptions, TranslationJob
from dragoman.serving.run_reloading import RunSource
from dragoman.text.language_codes import LanguageCodes
from dragoman.text.language_names import language_name, parse_language
from dragoman.text.sentences import SplitText, single_sentence


@dataclass(frozen=True)
class ServedRun:
    """A run with its name, its languages and its queue of requests.

    A multilingual run without a default has no `pair`; `for_languages` returns it with one.
    """

    name: str
    run: Run
    pair: LanguagePair | None
    batcher: Batcher
    version: str = ""  # of the files that were loaded, such as 000500-1f0c93ab
    source: RunSource | None = None  # from which it can be loaded again
    loaded_at: float = field(default_factory=time.time)  # seconds since 1970

    @property
    def language_codes(self) -> LanguageCodes | None:
        """The language codes of a multilingual run; None if texts may have codes of their own, as in Marian."""
        codes = self.run.model_framing.languages
        return codes if codes is not None and codes.reads_source_code else None

    @property
    def is_multilingual(self) -> bool:
        """Whether the run translates between several languages, of which a request names two."""
        return self.language_codes is not None

    @property
    def target_language(self) -> str:
        """The language of translations as a code such as de or zh, '' if it is unknown."""
        return "" if self.pair is None else parse_language(self.pair.target).language

    @property
    def directions(self) -> dict[str, list[str]]:
        """The source languages of the run, with the target languages of each; empty if they are unknown."""
        if self.language_codes is not None:
            return {
                source: [code for code in self.language_codes.ids if code != source]
                for source in self.language_codes.ids
            }
        return {} if self.pair is None else {self.pair.source: [self.pair.target]}

    def for_languages(self, source: str | None, target: str | None) -> ServedRun:
        """Return a multilingual run set to a language pair; other runs are returned unchanged.

        None stands for the default of the run. An unknown language, or None without a default, is a UserError.
        """
        if self.language_codes is None:
            return self
        codes = self.language_codes.with_default(source, target)
        source_code, target_code = codes.pair(None, None)  # an error if one is missing
        assert source_code is not None
        run = self.run.with_languages(source_code, target_code)
        return replace(self, run=run, pair=LanguagePair(source_code, target_code))

    def with_any_languages(self) -> ServedRun:
        """Return the run set to some language pair if it has none, so that it can be warmed up."""
        if self.language_codes is None or self.language_codes.has_default:
            return self
        source, target = (*self.language_codes.examples, *self.language_codes.examples)[:2]
        return self.for_languages(source, target)

    def split(self, text: str, split: bool = True) -> SplitText:
        """Split a text into sentences, or treat it as one sentence."""
        return split_into_sentences(self.run, text) if split else single_sentence(text)

    def beam_search(self, n_best: int) -> Beam:
        """Return the run's default beam search, with a beam that is wide enough to return `n_best` translations.

        The beam is at most as large as the vocabulary.
        """
        default = self.run.beam_config()
        max_size = max(default.size, self.run.max_beam_size)
        size = min(max(default.size, n_best), max_size)
        size += -size % default.num_groups  # the next multiple: groups have equal sizes
        num_finished = None if n_best > default.max_finished else default.num_finished
        return replace(default, size=size, n_best=min(n_best, size), num_finished=num_finished)

    def warnings(self, source: str, translation: Translation) -> list[TranslationWarning]:
        """Return what is suspicious about the translation of a sentence."""
        names = LanguageNames() if self.pair is None else LanguageNames(*map(language_name, self.pair))
        return checker_of(self.run).check(source, translation, names)

    async def translate(self, texts: Sequence[SplitText], options: DecodeOptions) -> list[list[Translation]]:
        """Queue the sentences of `texts`, and return for each text the translations of its sentences.

        If they cost more than a client may have pending, they are queued in parts, one after the other.
        """
        sentences = [sentence for text in texts for sentence in text.sentences]
        translations: list[Translation] = []
        for part in self._parts(sentences, options):
            job = self.submit(part, options)
            translations += [] if job is None else await self.result(job)
        remaining = iter(translations)
        return [[next(remaining) for _ in text.sentences] for text in texts]

    def _parts(self, sentences: list[str], options: DecodeOptions) -> Iterator[list[str]]:
        """Divide sentences into parts that cost at most half of what a client may have pending.

        Sentences that belong together, because of a prefix or of random draws, are not divided.
        """
        token_budget = max(1, self.batcher.limits.shares.per_client // 2 // options.cost(tokens=1))
        sizes = [len(sentence.encode(errors="replace")) for sentence in sentences]  # in bytes: an upper bound of tokens
        if options.needs_own_batch or sum(sizes) <= token_budget:
            yield sentences
            return
        start, size = 0, 0
        for number, sentence_size in enumerate(sizes):
            if size and size + sentence_size > token_budget:
                yield sentences[start:number]
                start, size = number, 0
            size += sentence_size
        yield sentences[start:]

    def submit(
        self,
        sentences: Sequence[str],
        options: DecodeOptions,
        on_tokens: Callable[[int, StreamedTokens], None] | None = None,
    ) -> TranslationJob | None:
        """Queue sentences, and return their job; None if there are none.

        With `is_streamed` in the options, `on_tokens` is called in another thread with the number of a sentence and
        each new part of its translation.
        """
        if not sentences:
            return None
        token_counts = [len(ids) for ids in self.run.source_tokenizer.encode_batch(sentences)]
        options = replace(options, languages=self.run.language_pair)
        job = TranslationJob(sentences=sentences, token_counts=token_counts, options=options, on_tokens=on_tokens)
        return self.batcher.submit(job)

    async def result(self, job: TranslationJob) -> list[Translation]:
        """Wait for the translations of a job. If the caller cancels, the job is dropped from the queue."""
        translations = await asyncio.wrap_future(job.future)
        self.count_tokens(sum(job.token_counts), sum(len(translation.tokens) for translation in translations))
        return translations

    def count_tokens(self, source: int, target: int) -> None:
        """Count source tokens and generated tokens in the metrics of this version of the run."""
        metrics = self.batcher.metrics
        metrics.source_tokens.labels(self.name, self.version).inc(source)
        metrics.target_tokens.labels(self.name, self.version).inc(target)
