"""Validation: loss by teacher forcing, and what the model says when it is on its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman import evaluation
from dragoman.data import Batches, TokenStore
from dragoman.data.feature_files import describe_features
from dragoman.objectives import Objective
from dragoman.objectives import pretraining_examples as examples
from dragoman.run import Run, Source, filling
from dragoman.search import Beam, SearchConfig
from dragoman.text import Tokenizer
from dragoman.training.checkpoint_selection import ValidationScore, check_metric, default_metric

MAX_DECODED_SENTENCES = 500  # decoded at each validation
REPAIRED = 5  # corrupted texts that are shown at each validation of a pretraining


@dataclass(frozen=True)
class ValidationSample:
    """A source, its reference and its translation; in pretraining a corrupted input, its target and the prediction."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class ValidationResult:
    """The result of a validation.

    Loss and accuracy (percent of target tokens) are of all sentences; BLEU, chrF and exact match are of some
    sentences, decoded with the run's own search, for objectives that write whole targets.
    """

    loss: float
    perplexity: float
    metrics: dict[str, float]
    samples: list[ValidationSample]
    search: str = ""  # how sentences were decoded

    def to_record(self) -> dict[str, Any]:
        """The line of metrics.jsonl."""
        search = {"search": self.search} if self.search else {}
        return {"loss": self.loss, "perplexity": self.perplexity, **self.metrics, **search}


class Validator:
    """Validates a model on the run's validation store, always in the same way.

    Sentences are decoded as `translate` and `evaluate` decode them (`config.search`), so that the metric is the one
    that the user will get. `sentences` bounds the cost.
    """

    def __init__(
        self,
        run: Run,
        objective: Objective,
        store: TokenStore,
        tokens: int,
        sentences: int | None = None,
        best_by: str = "auto",
    ) -> None:
        self.run, self.objective, self.store = run, objective, store
        lengths = store.length_counts()
        widest = int(objective.row_length(lengths.source, lengths.target).max())
        self.batches = Batches(
            store,
            max(tokens, widest),
            seed=0,
            shuffle=False,
            rows=objective.row_format.for_validation(),
        )
        corrupted = (examples.corrupt_row(objective, store, n, seed=0) for n in range(min(REPAIRED, len(store))))
        self.corrupted = [row for row in corrupted if row is not None]
        sentences = MAX_DECODED_SENTENCES if sentences is None else sentences
        decoded = evenly_spaced(store, sentences if objective.generates else 0)
        self.sources: list[Source] = [self._source(store.source(i)) for i in decoded]
        self.tags = [run.tag_of_row(store.source(i)) for i in decoded]
        self.references = decode_references(store, run.target_tokenizer, decoded)
        self.metric = default_metric(objective, self.references)[0] if best_by == "auto" else best_by
        check_metric(self.metric, self.references)

    def _source(self, row: NDArray[Any]) -> Source:
        """What is to be translated: a text, or the vectors themselves."""
        return self.run.source_tokenizer.decode(row.tolist()) if row.ndim == 1 else np.array(row)

    def score(self, result: ValidationResult) -> ValidationScore:
        """By which validations are compared: the metric, and the loss where metrics are equal."""
        metric = -result.loss if self.metric == "loss" else result.metrics[self.metric]
        return ValidationScore(metric, -result.loss)

    @torch.inference_mode()
    def validate(self) -> ValidationResult:
        model, training = self.run.model, self.run.model.training
        model.eval()
        torch.manual_seed(0)  # for objectives that draw words
        sums: Counter[str] = Counter()
        count = 0
        for batch in self.batches.iterate_epoch(0):
            loss = self.objective.validation_loss(model, batch.to(self.run.device))
            count += int(loss.count)
            sums.update({"total": float(loss.total)} | {name: float(part) for name, part in loss.metrics.items()})
        measures = {"accuracy": 100 * sums["correct"] / count}
        others = [name for name in sums if name not in ("total", "likelihood", "spread", "correct")]
        measures |= {name.replace(" ", "_"): sums[name] / count for name in others}
        samples, search = [], ""
        if self.sources:
            texts, search = self._decode()
            measures["bleu"] = evaluation.bleu(texts, self.references).value
            if self.metric == "chrf":
                measures["chrf"] = evaluation.chrf(texts, self.references).value
            measures["exact_match"] = evaluation.exact_match(texts, self.references).value
            shown = [source if isinstance(source, str) else describe_features(source) for source in self.sources]
            samples = list(map(ValidationSample, shown, self.references, texts))[:20]
        if self.corrupted:
            samples = self._repaired()
        model.train(training)
        perplexity = evaluation.perplexity(-sums["likelihood"], count).value
        return ValidationResult(sums["total"] / count, perplexity, measures, samples, search)

    def _decode(self) -> tuple[list[str], str]:
        """Translations of the sentences to decode, and the name of the search."""
        search = self.run.default_search
        self.run.engine_cache = (
            {} if self.run.engine_cache is None and _has_room(self.run.device) else self.run.engine_cache
        )
        texts = [t.text for t in self.run.translate(self.sources, search=search, alignment=False, tag=self.tags)]
        if not _has_room(self.run.device):  # they are kept where that takes nothing from the training
            self.run.engine_cache = None
        return texts, search_name(search)

    def _repaired(self) -> list[ValidationSample]:
        """Corrupted inputs, their targets, and what the model makes of them, where it fills gaps."""
        repaired = filling.repair_corrupted(self.run, self.corrupted) or [[]] * len(self.corrupted)
        samples = []
        for row, found in zip(self.corrupted, repaired):
            one = examples.render_row(self.objective, row)
            written = (
                "" if not found else examples.render_row(self.objective, row._replace(target=np.array(found))).target
            )
            samples.append(ValidationSample(one.input + (f"  ({one.note})" if one.note else ""), one.target, written))
        return samples


def evenly_spaced(store: TokenStore, count: int) -> list[int]:
    """The numbers of `count` sentences at even distances, so that every corpus of a store has its share."""
    count = min(count, len(store))
    return [n * len(store) // count for n in range(count)]


def decode_references(store: TokenStore, tokenizer: Tokenizer, numbers: Sequence[int]) -> list[str]:
    """The targets of some sentences as text."""
    return [tokenizer.decode(store.target(i).tolist()) for i in numbers]


def search_name(search: SearchConfig) -> str:
    """A search in two words, such as `beam 5`."""
    if isinstance(search, Beam):
        return "greedy" if search.is_greedy else f"beam {search.size}"
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", type(search).__name__).lower()
    return {"sample": "sampling", "minimum risk": "minimum Bayes risk"}.get(words, words)


def _has_room(device: torch.device) -> bool:
    """Is much of a GPU's memory free?"""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return 4 * free > total
