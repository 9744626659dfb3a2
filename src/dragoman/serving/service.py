"""Runs that are served: which one a request means, and what it says of a text."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from dragoman.errors import UserError, unknown_name
from dragoman.run import Run, Translation
from dragoman.run.sources import split_into_sentences
from dragoman.search import Beam, LengthLimit, MinimumBayesRisk, Sample, SearchConfig, search_from_dict
from dragoman.serving.inspection_queue import InspectionQueue
from dragoman.serving.language_detection import LanguageDetector
from dragoman.serving.languages import LanguagePair, language_name
from dragoman.serving.request_batching import Batcher, DecodeOptions
from dragoman.serving.request_error import RequestError
from dragoman.serving.request_guard import RateLimiter
from dragoman.serving.service_metrics import Metrics
from dragoman.serving.service_settings import ApiKeys, BatchingSettings, ServiceLimits
from dragoman.text.sentences import SplitText, single_sentence


@dataclass(frozen=True)
class ServedRun:
    """A run under its name, with its languages and its queue."""

    name: str
    run: Run
    pair: LanguagePair
    batcher: Batcher

    def split(self, text: str, split: bool = True) -> SplitText:
        """The sentences of a text, or the whole text as one sentence."""
        return split_into_sentences(self.run, text) if split else single_sentence(text)

    def beam_search(self, best: int) -> Beam:
        """The run's own beam, made wide enough for an n-best list, which has fewer where words are few."""
        own = self.run.beam_config()
        room = self.run.model.vocab_size - len(self.run.special_tokens.suppressed) - 1
        size = min(max(own.size, best), max(own.size, room))
        size += -size % own.num_groups
        finished = None if best > own.max_finished else own.num_finished
        return replace(own, size=size, n_best=min(best, size), num_finished=finished)

    async def translate(self, texts: Sequence[SplitText], way: DecodeOptions) -> list[list[Translation]]:
        """The translations of the sentences of each text."""
        sentences = [sentence for text in texts for sentence in text.sentences]
        sizes = [len(ids) for ids in self.run.source_tokenizer.encode_batch(sentences)]
        found = iter(await self.batcher.translate(sentences, sizes, way))
        return [[next(found) for _ in text.sentences] for text in texts]


class Service:
    """All runs that are served, and what is allowed."""

    def __init__(
        self,
        runs: Iterable[tuple[Run, LanguagePair]],
        limits: ServiceLimits | None = None,
        batching: BatchingSettings | None = None,
        keys: ApiKeys | None = None,
    ) -> None:
        self.limits, self.keys, self.metrics = limits or ServiceLimits(), keys or ApiKeys(), Metrics()
        self.rate_limiter, self.detector = RateLimiter(self.limits.requests_per_minute), LanguageDetector()
        self.device_lock = threading.Lock()
        self.active_streams = 0  # that are being sent
        self.inspections = InspectionQueue(self.device_lock, self.limits.max_inspections)
        self.runs: dict[str, ServedRun] = {}
        for run, pair in runs:
            run.check_usage("translate")
            if run.model.source_features is not None or not run.model.can_generate:
                raise UserError(f"{run.folder} does not translate text into text, and cannot be served")
            name = self._free_name(run.folder.resolve().name)
            batcher = Batcher(
                run, name, self.device_lock, batching or BatchingSettings(), self.limits.max_queue, self.metrics
            )
            self.runs[name] = ServedRun(name, run, pair, batcher)
        if not self.runs:
            raise UserError("there is no run to serve: name one")
        self.metrics.gauge(
            "dragoman_streams", "Translations that are being sent word by word.", lambda: self.active_streams
        )
        self.metrics.gauge(
            "dragoman_looks", "Requests that wait to look into something.", lambda: self.inspections.pending
        )

    def _free_name(self, name: str) -> str:
        names = (name if n == 1 else f"{name}-{n}" for n in range(1, len(self.runs) + 2))
        return next(one for one in names if one not in self.runs)

    def public_message(self, error: Exception) -> str:
        """What an error says, by the names of runs: where their folders lie is nobody's business."""
        text = str(error)
        for name, served in self.runs.items():
            text = text.replace(str(served.run.folder), name)
        return text

    def start(self) -> None:
        """Learn the languages, make every run ready, and begin to work."""
        for served in self.runs.values():
            self.detector.learn_from_run(served.run, served.pair)
            served.run.translate(["a"], alignment=False)  # weights are packed now, and not while somebody waits
            served.batcher.start()

    def close(self) -> None:
        """Finish what was accepted."""
        for served in self.runs.values():
            served.batcher.close()
        self.inspections.close()

    # ---- which run

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(served.pair.source for served in self.runs.values()))

    def targets(self, source: str) -> list[str]:
        return list(dict.fromkeys(served.pair.target for served in self.runs.values() if served.pair.source == source))

    def languages(self) -> list[dict[str, Any]]:
        """Every language that is read or written, and into which it is translated."""
        codes = dict.fromkeys(code for served in self.runs.values() for code in served.pair)
        return [{"code": code, "name": language_name(code), "targets": self.targets(code)} for code in codes]

    def language_code(self, language: str) -> str:
        """A language as it is called here: en for EN or en-GB."""
        code = language.strip().lower().replace("_", "-")
        known = {code for served in self.runs.values() for code in served.pair}
        return code if code in known else code.split("-")[0]

    def run_for_languages(self, source: str, target: str) -> ServedRun:
        """The first run for two languages."""
        for served in self.runs.values():
            if served.pair == (self.language_code(source), self.language_code(target)):
                return served
        known = ", ".join(dict.fromkeys(f"{one.pair.source} to {one.pair.target}" for one in self.runs.values()))
        raise RequestError(400, f"nothing here translates from {source!r} to {target!r}, only from {known}")

    def run_by_name(self, name: str) -> ServedRun:
        if name not in self.runs:
            raise RequestError(400, str(unknown_name("run", name, self.runs)))
        return self.runs[name]

    def resolve_run(self, name: str | None, source: str | None, target: str | None) -> ServedRun:
        """The run that is named, or the first for the languages, or the only one."""
        if name is not None:
            return self.run_by_name(name)
        if source is not None and target is not None:
            return self.run_for_languages(source, target)
        if len(self.runs) > 1 or source is not None or target is not None:
            raise RequestError(400, "say which run is meant: give 'run', or 'source' and 'target'")
        return next(iter(self.runs.values()))

    def detect_language(self, text: str, target: str | None = None) -> tuple[str, float]:
        """The likeliest language of a text, among those that are translated into `target`; the only one if none is."""
        wanted = None if target is None else self.language_code(target)
        sources = [one.pair.source for one in self.runs.values() if wanted in (None, one.pair.target)]
        for language, confidence in self.detector(text):
            if language in sources:
                return language, confidence
        if len(set(sources)) != 1:
            raise RequestError(400, "the language of the text could not be told: say it as 'source'")
        return sources[0], 0.0

    # ---- what is allowed

    def reject_if_full(self) -> None:
        """Refuse a request before it is even read where all queues are full: that costs least."""
        if all(served.batcher.is_full for served in self.runs.values()):
            raise RequestError(503, "too many requests are waiting already: try again in a moment", retry_after=1)

    def authorize(self, client: str, key: str | None) -> None:
        """Refuse those who have no key, and those who ask too often."""
        if not self.keys.accepts(key):
            raise RequestError(403, "this service wants an API key" if key is None else "this API key is not known")
        self.rate_limiter.check(client if key is None or not self.keys.required else f"key {key}")

    def check_text_size(self, texts: Sequence[str]) -> None:
        """Refuse too much text."""
        if len(texts) > self.limits.max_texts:
            raise RequestError(400, f"a request may have {self.limits.max_texts} texts, but has {len(texts):,}")
        characters = sum(map(len, texts))
        if characters > self.limits.max_characters:
            raise RequestError(
                400, f"a request may have {self.limits.max_characters:,} characters, but has {characters:,}"
            )
        self.metrics.count("dragoman_characters_total", "Characters that were accepted.", characters)

    def validate_search(self, served: ServedRun, description: dict[str, Any]) -> SearchConfig:
        """A search that a client describes: no other runs' folders, nothing that has no bounds."""
        kind = description.get("kind")
        if kind not in ("Beam", "Sample", "MinimumBayesRisk"):
            raise RequestError(400, f"a search here is of kind 'Beam', 'Sample' or 'MinimumBayesRisk', not {kind!r}")
        search = search_from_dict(description)
        longest = self._longest(served.run)
        parts = [search]
        if isinstance(search, MinimumBayesRisk):
            parts = [search.candidates, *([search.references] if search.references else [])]
        for part in parts:
            if not isinstance(part, (Beam, Sample)):
                raise RequestError(400, "candidates and references are found by a search of kind 'Beam' or 'Sample'")
            if part.rows_per_source > self.limits.max_hypotheses:
                raise RequestError(
                    400,
                    f"a search may look at {self.limits.max_hypotheses} hypotheses at a time, not {part.rows_per_source:,}",
                )
            if part.length_limit.max > longest:
                raise RequestError(400, f"translations may have {longest:,} tokens here, not {part.length_limit.max:,}")
        return search

    @staticmethod
    def _longest(run: Run) -> int:
        return max(run.config.search.max_target_length, LengthLimit().max)

    def streaming_run(self, served: ServedRun) -> Run:
        """The run for a translation word by word, whose steps alternate with those of batches."""
        run = copy(served.run)
        run.engine_cache = None  # those that are kept belong to one search at a time
        return run
