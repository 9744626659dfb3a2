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
        """The codes of the languages that a request to a multilingual run names; None for other runs.

        A model that is not told the source language is treated like other runs, as in Marian, where a text may begin
        with the code of its target language.
        """
        # model_framing: the special tokens around source and target, with the language codes of a multilingual model
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
        """The source languages of the run as codes, with the target languages of each; empty if they are unknown."""
        if self.language_codes is not None:  # `ids` are the tokens of the languages, by code
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
        codes = self.language_codes.with_default(source, target)  # None: its own default stays
        source_code, target_code = codes.pair(None, None)  # the defaults; a UserError if one is missing
        assert source_code is not None
        run = self.run.with_languages(source_code, target_code)
        return replace(self, run=run, pair=LanguagePair(source_code, target_code))

    def with_any_languages(self) -> ServedRun:
        """Return the run set to some pair of its languages if it is multilingual and has no default.

        It can then translate any text, for example to be warmed up.
        """
        if self.language_codes is None or self.language_codes.has_default:
            return self
        codes = self.language_codes.examples  # all, the best known first
        return self.for_languages(source=codes[0], target=codes[1] if len(codes) > 1 else codes[0])

    def split(self, text: str, split: bool = True) -> SplitText:
        """Split a text into sentences, or (`split` false) treat it as one sentence."""
        return split_into_sentences(self.run, text) if split else single_sentence(text)

    def beam_search(self, n_best: int) -> Beam:
        """Return the run's default beam search, with a beam that is wide enough to return `n_best` translations.

        The beam is not larger than the vocabulary (`max_beam_size`) allows, so fewer may be returned.
        """
        default = self.run.beam_config()
        max_size = max(default.size, self.run.max_beam_size)
        size = min(max(default.size, n_best), max_size)
        size += -size % default.num_groups  # rounded up to a multiple: the groups of diverse beam search have one size
        # the search keeps `num_finished` finished hypotheses; None: as many as the beam has
        num_finished = None if n_best > default.max_finished else default.num_finished
        return replace(default, size=size, n_best=min(n_best, size), num_finished=num_finished)

    def warnings(self, source: str, translation: Translation) -> list[TranslationWarning]:
        """Return what is suspicious about the translation of a sentence, such as a repetition or an uncovered word."""
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
            translations += [] if job is None else await self.result(job)  # None: there are no sentences
        remaining = iter(translations)
        return [[next(remaining) for _ in text.sentences] for text in texts]

    def _parts(self, sentences: list[str], options: DecodeOptions) -> Iterator[list[str]]:
        """Divide sentences into parts that cost at most half of what a client may have pending.

        The cost is estimated from their bytes, which are at least as many as their tokens. A sentence that costs more
        is a part of its own. Sentences that belong together, because of a prefix or random draws, are not divided.
        """
        max_tokens = max(1, self.batcher.limits.shares.per_client // 2 // options.cost(tokens=1))
        lengths = [len(sentence.encode(errors="replace")) for sentence in sentences]  # bytes: not below tokens
        if options.needs_own_batch or sum(lengths) <= max_tokens:
            yield sentences
            return
        start, part_length = 0, 0
        for number, length in enumerate(lengths):
            if part_length and part_length + length > max_tokens:
                yield sentences[start:number]
                start, part_length = number, 0
            part_length += length
        yield sentences[start:]

    def submit(
        self,
        sentences: Sequence[str],
        options: DecodeOptions,
        on_tokens: Callable[[int, StreamedTokens], None] | None = None,
    ) -> TranslationJob | None:
        """Queue sentences, and return their job; None if there are none. A full queue is a RequestError.

        With `is_streamed` in the options, `on_tokens` is called in another thread with the number of a sentence and
        each new part of its translation.
        """
        if not sentences:
            return None
        token_counts = [len(ids) for ids in self.run.source_tokenizer.encode_batch(sentences)]
        options = replace(options, languages=self.run.language_pair)  # only sentences of equal options share a batch
        job = TranslationJob(sentences=sentences, token_counts=token_counts, options=options, on_tokens=on_tokens)
        return self.batcher.submit(job)

    async def result(self, job: TranslationJob) -> list[Translation]:
        """Wait for the translations of a job, and count their tokens; if the caller cancels, the job is dropped."""
        translations = await asyncio.wrap_future(job.future)  # canceling it cancels the future of the job
        self.count_tokens(sum(job.token_counts), sum(len(translation.tokens) for translation in translations))
        return translations

    def count_tokens(self, source: int, target: int) -> None:
        """Count source tokens and generated tokens in the metrics of this version of the run."""
        metrics = self.batcher.metrics
        metrics.source_tokens.labels(self.name, self.version).inc(source)
        metrics.target_tokens.labels(self.name, self.version).inc(target)
