"""Runs that are served: which one a request means, and what it says of a text."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from dragoman.errors import UserError, unknown_name
from dragoman.run import Run, Translation
from dragoman.run.sources import sentences_of
from dragoman.search import Beam, Decision, Length, MinimumRisk, Sample, from_description
from dragoman.serving.batching import Batcher, Way
from dragoman.serving.detection import Detector
from dragoman.serving.guard import Rates
from dragoman.serving.languages import Pair, name_of
from dragoman.serving.looking import Looking
from dragoman.serving.metrics import Metrics
from dragoman.serving.refusal import RequestError
from dragoman.serving.settings import Batching, Keys, Limits
from dragoman.text.sentences import SplitText, unsplit


@dataclass(frozen=True)
class Served:
    """A run under its name, with its languages and its queue."""

    name: str
    run: Run
    pair: Pair
    batcher: Batcher

    def split(self, text: str, split: bool = True) -> SplitText:
        """The sentences of a text, or the whole text as one sentence."""
        return sentences_of(self.run, text) if split else unsplit(text)

    def beam(self, best: int) -> Beam:
        """The run's own beam, made wide enough for an n-best list, which has fewer where words are few."""
        own = self.run.beam()
        room = self.run.model.vocabulary - len(self.run.symbols.banned) - 1
        size = min(max(own.size, best), max(own.size, room))
        size += -size % own.groups
        finished = None if best > own.pool else own.num_finished
        return replace(own, size=size, best=min(best, size), num_finished=finished)

    async def translate(self, texts: Sequence[SplitText], way: Way) -> list[list[Translation]]:
        """The translations of the sentences of each text."""
        sentences = [sentence for text in texts for sentence in text.sentences]
        sizes = [len(ids) for ids in self.run.source_tokenizer.encode_batch(sentences)]
        found = iter(await self.batcher.translate(sentences, sizes, way))
        return [[next(found) for _ in text.sentences] for text in texts]


class Service:
    """All runs that are served, and what is allowed."""

    def __init__(
        self,
        runs: Iterable[tuple[Run, Pair]],
        limits: Limits | None = None,
        batching: Batching | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.limits, self.keys, self.metrics = limits or Limits(), keys or Keys(), Metrics()
        self.rates, self.detector = Rates(self.limits.rate), Detector()
        self.device = threading.Lock()
        self.streams = 0  # that are being sent
        self.looking = Looking(self.device, self.limits.looks)
        self.runs: dict[str, Served] = {}
        for run, pair in runs:
            run.check_usage("translate")
            if run.model.source_features is not None or not run.model.writes:
                raise UserError(f"{run.folder} does not translate text into text, and cannot be served")
            name = self._free_name(run.folder.resolve().name)
            batcher = Batcher(run, name, self.device, batching or Batching(), self.limits.queue, self.metrics)
            self.runs[name] = Served(name, run, pair, batcher)
        if not self.runs:
            raise UserError("there is no run to serve: name one")
        self.metrics.gauge("dragoman_streams", "Translations that are being sent word by word.", lambda: self.streams)
        self.metrics.gauge("dragoman_looks", "Requests that wait to look into something.", lambda: self.looking.waiting)

    def _free_name(self, name: str) -> str:
        names = (name if n == 1 else f"{name}-{n}" for n in range(1, len(self.runs) + 2))
        return next(one for one in names if one not in self.runs)

    def said(self, error: Exception) -> str:
        """What an error says, by the names of runs: where their folders lie is nobody's business."""
        text = str(error)
        for name, served in self.runs.items():
            text = text.replace(str(served.run.folder), name)
        return text

    def start(self) -> None:
        """Learn the languages, make every run ready, and begin to work."""
        for served in self.runs.values():
            self.detector.learn_from(served.run, served.pair)
            served.run.translate(["a"], alignment=False)  # weights are packed now, and not while somebody waits
            served.batcher.start()

    def close(self) -> None:
        """Finish what was accepted."""
        for served in self.runs.values():
            served.batcher.close()
        self.looking.close()

    # ---- which run

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(served.pair.source for served in self.runs.values()))

    def targets(self, source: str) -> list[str]:
        return list(dict.fromkeys(served.pair.target for served in self.runs.values() if served.pair.source == source))

    def languages(self) -> list[dict[str, Any]]:
        """Every language that is read or written, and into which it is translated."""
        codes = dict.fromkeys(code for served in self.runs.values() for code in served.pair)
        return [{"code": code, "name": name_of(code), "targets": self.targets(code)} for code in codes]

    def code(self, language: str) -> str:
        """A language as it is called here: en for EN or en-GB."""
        code = language.strip().lower().replace("_", "-")
        known = {code for served in self.runs.values() for code in served.pair}
        return code if code in known else code.split("-")[0]

    def between(self, source: str, target: str) -> Served:
        """The first run for two languages."""
        for served in self.runs.values():
            if served.pair == (self.code(source), self.code(target)):
                return served
        known = ", ".join(dict.fromkeys(f"{one.pair.source} to {one.pair.target}" for one in self.runs.values()))
        raise RequestError(400, f"nothing here translates from {source!r} to {target!r}, only from {known}")

    def named(self, name: str) -> Served:
        if name not in self.runs:
            raise RequestError(400, str(unknown_name("run", name, self.runs)))
        return self.runs[name]

    def meant(self, name: str | None, source: str | None, target: str | None) -> Served:
        """The run that is named, or the first for the languages, or the only one."""
        if name is not None:
            return self.named(name)
        if source is not None and target is not None:
            return self.between(source, target)
        if len(self.runs) > 1 or source is not None or target is not None:
            raise RequestError(400, "say which run is meant: give 'run', or 'source' and 'target'")
        return next(iter(self.runs.values()))

    def detected(self, text: str, target: str | None = None) -> tuple[str, float]:
        """The likeliest language of a text, among those that are translated into `target`; the only one if none is."""
        wanted = None if target is None else self.code(target)
        sources = [one.pair.source for one in self.runs.values() if wanted in (None, one.pair.target)]
        for language, confidence in self.detector(text):
            if language in sources:
                return language, confidence
        if len(set(sources)) != 1:
            raise RequestError(400, "the language of the text could not be told: say it as 'source'")
        return sources[0], 0.0

    # ---- what is allowed

    def hurry(self) -> None:
        """Refuse a request before it is even read where all queues are full: that costs least."""
        if all(served.batcher.full for served in self.runs.values()):
            raise RequestError(503, "too many requests are waiting already: try again in a moment", retry=1)

    def admit(self, client: str, key: str | None) -> None:
        """Refuse those who have no key, and those who ask too often."""
        if not self.keys.know(key):
            raise RequestError(403, "this service wants an API key" if key is None else "this API key is not known")
        self.rates.take(client if key is None or not self.keys.asked else f"key {key}")

    def check(self, texts: Sequence[str]) -> None:
        """Refuse too much text."""
        if len(texts) > self.limits.texts:
            raise RequestError(400, f"a request may have {self.limits.texts} texts, but has {len(texts):,}")
        characters = sum(map(len, texts))
        if characters > self.limits.characters:
            raise RequestError(400, f"a request may have {self.limits.characters:,} characters, but has {characters:,}")
        self.metrics.count("dragoman_characters_total", "Characters that were accepted.", characters)

    def search(self, served: Served, description: dict[str, Any]) -> Decision:
        """A search that a client describes: no other runs' folders, nothing that has no bounds."""
        kind = description.get("kind")
        if kind not in ("Beam", "Sample", "MinimumRisk"):
            raise RequestError(400, f"a search here is of kind 'Beam', 'Sample' or 'MinimumRisk', not {kind!r}")
        search = from_description(description)
        longest = self._longest(served.run)
        parts = [search]
        if isinstance(search, MinimumRisk):
            parts = [search.candidates, *([search.references] if search.references else [])]
        for part in parts:
            if not isinstance(part, (Beam, Sample)):
                raise RequestError(400, "candidates and references are found by a search of kind 'Beam' or 'Sample'")
            if part.rows > self.limits.rows:
                raise RequestError(
                    400, f"a search may look at {self.limits.rows} hypotheses at a time, not {part.rows:,}"
                )
            if part.length.most > longest:
                raise RequestError(400, f"translations may have {longest:,} tokens here, not {part.length.most:,}")
        return search

    @staticmethod
    def _longest(run: Run) -> int:
        return max(run.config.search.max_target_length, Length().most)

    def streaming(self, served: Served) -> Run:
        """The run for a translation word by word, whose steps alternate with those of batches."""
        run = copy(served.run)
        run.engines = None  # those that are kept belong to one search at a time
        return run
