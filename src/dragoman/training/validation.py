"""Validation: loss with teacher forcing, and metrics of decoded sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman import evaluation
from dragoman.data import Batches, TokenStore
from dragoman.data.feature_files import describe_features
from dragoman.errors import UserError
from dragoman.evaluation.text_metrics import text_metric
from dragoman.objectives import Objective, pretraining_examples
from dragoman.parts.experts import record_expert_usage
from dragoman.run import Run, Source, filling
from dragoman.run.search_choice import MIN_CHOICE_SENTENCES, SearchChoice, choose_search, open_settings
from dragoman.text import Tokenizer

GENERATION_METRICS = ("bleu", "chrf", "rouge_l", "exact_match")
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "rouge_l": "ROUGE-L", "exact_match": "exact match"}
TEXT_METRIC_NAMES = {"bleu": "bleu", "chrf": "chrf", "rouge_l": "rouge-l", "exact_match": "exact"}
BLEU_ORDER = 4  # corpus BLEU is 0 if no sentence has this many words
#: scripts written without spaces: Thai to Myanmar, Khmer, kana and CJK ideographs
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")


def default_metric(objective: type[Objective], references: Sequence[str]) -> tuple[str, str]:
    """Return the metric that suits the objective and the decoded validation references, and the reason."""
    metric = objective.selection_metric
    if metric not in GENERATION_METRICS:
        return metric, "the metric of this objective"
    if not references:
        return "loss", "no validation sentences are decoded"
    if _in_majority(references, lambda text: len(text.split()) < BLEU_ORDER):
        if _in_majority(references, lambda text: UNSPACED.search(text) is not None):
            return "chrf", "the target script has no spaces between words"
        return "exact_match", f"most validation references have fewer than {BLEU_ORDER} words, where BLEU is 0"
    return metric, "of the decoded validation sentences"


def check_metric(metric: str, references: Sequence[str]) -> None:
    """Raise a UserError for a metric of decoded sentences if none are decoded."""
    if metric in GENERATION_METRICS and not references:
        raise UserError(
            f"training.selection_metric is {metric}, but no validation sentences are decoded (by this objective, or "
            "because training.validation_sentences is 0): set training.selection_metric=loss"
        )
    if metric == "rouge_l":
        evaluation.TEXT_METRICS["rouge-l"](["a"], ["a"])  # an error here, before training, if rouge-score is missing


def _in_majority(texts: Sequence[str], condition: Callable[[str], bool]) -> bool:
    """Whether more than half of the texts meet a condition."""
    return 2 * sum(condition(text) for text in texts) > len(texts)


MAX_DECODED_SENTENCES = 500  # at each validation
#: with as many validations, choosing the search on the sentences of one of them takes about 3 % of the training time
VALIDATIONS_PER_CHOICE = 12
MAX_CHOICE_SENTENCES = 2000
MAX_SAMPLES = 20  # translations that are saved
REPAIRED_SAMPLES = 5  # corrupted texts whose reconstruction is saved in pretraining
LOSS_SUMS = ("total", "nll_loss", "smooth_loss", "correct")  # other sums of the objective are metrics


@dataclass(frozen=True)
class ValidationSample:
    """A source, its reference and its translation; in pretraining a corrupted input, its target, the prediction."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class ValidationResult:
    """Result of a validation.

    Loss, perplexity and accuracy (percent of target tokens) are computed over all sentences; BLEU, chrF and exact match
    over some sentences that are decoded with the search of the run.
    """

    loss: float
    perplexity: float
    metrics: dict[str, float]
    samples: list[ValidationSample]
    search: str = ""  # name of the search that decoded sentences
    expert_load: dict[str, list[float]] = field(default_factory=dict)  # path of a layer → share of each of its experts

    def to_record(self) -> dict[str, Any]:
        """Return the record for metrics.jsonl."""
        rounded = {path: [round(share, 5) for share in shares] for path, shares in self.expert_load.items()}
        named = {name: value for name, value in (("search", self.search), ("expert_load", rounded)) if value}
        return {"loss": self.loss, "perplexity": self.perplexity, **self.metrics, **named}


class Validator:
    """Validates the model of a run on its validation store.

    Sentences are decoded with the search of the run's configuration; `choose_search` chooses what it leaves open at the
    end of training.

    `objective` is built without label smoothing and BPE dropout.
    """

    def __init__(self, run: Run, objective: Objective, store: TokenStore) -> None:
        """Choose the sentences to decode, at equal distances, and the metric that selects the best checkpoint.

        `store` holds the tokenized validation pairs.
        """
        self.run, self.objective, training = run, objective, run.config.training
        lengths = store.length_counts()
        longest = int(objective.row_length(lengths.source, lengths.target).max())
        # a row is one sequence of a batch
        max_tokens, rows = max(training.batch_tokens or 4096, longest), objective.row_format.for_validation()
        self.batches = Batches(store, max_tokens, seed=0, shuffle=False, rows=rows)
        corrupted = (  # masked or noisy inputs of a pretraining objective; None for other objectives
            pretraining_examples.corrupt_row(objective, store, index, seed=0)
            for index in range(min(REPAIRED_SAMPLES, len(store)))
        )
        self.corrupted = [row for row in corrupted if row is not None]
        sentences, metric = training.validation_sentences, training.selection_metric
        sentences = MAX_DECODED_SENTENCES if sentences is None else sentences
        self.store = store
        self.sources, self.tags, self.references = stored_sentences(run, store, sentences if objective.generates else 0)
        self.metric = default_metric(type(objective), self.references)[0] if metric == "auto" else metric
        check_metric(self.metric, self.references)

    def num_choice_sentences(self, num_validations: int) -> int:
        """Return the number of sentences on which the search is chosen after this many validations; 0: not at all."""
        count = len(self.sources) * max(1, num_validations // VALIDATIONS_PER_CHOICE)
        count = min(count, len(self.store), MAX_CHOICE_SENTENCES)
        return count if count >= MIN_CHOICE_SENTENCES and open_settings(self.run.config) else 0

    def choose_search(self, num_validations: int) -> SearchChoice | None:
        """Choose beam size and length penalty for the run's model, after a training with this many validations.

        They are chosen by the selection metric, or by that of the objective if the best checkpoint is selected without
        decoding. Returns None if no sentences are decoded, if they are too few, or if the user has set the search.
        """
        count, metric = self.num_choice_sentences(num_validations), self.metric
        if not count:
            return None
        sources, tags, references = stored_sentences(self.run, self.store, count)
        if metric not in GENERATION_METRICS:
            metric = default_metric(type(self.objective), references)[0]
        model, training = self.run.model, self.run.model.training
        model.eval()
        with torch.inference_mode():
            choice = choose_search(self.run, sources, references, text_metric(TEXT_METRIC_NAMES[metric]), tags)
        model.train(training)
        return choice

    def score(self, result: ValidationResult) -> tuple[float, float]:
        """Return the metric, where higher is better, and −loss, which decides between equal metrics."""
        metric = -result.loss if self.metric == "loss" else result.metrics[self.metric]
        return metric, -result.loss

    @torch.inference_mode()
    def validate(self) -> ValidationResult:
        """Compute loss and metrics of the run's model on all validation pairs, and decode some of their sources."""
        model, training = self.run.model, self.run.model.training
        model.eval()
        torch.manual_seed(0)  # for objectives that sample tokens
        sums: Counter[str] = Counter()
        count = 0
        with record_expert_usage(model) as usage:
            for batch in self.batches.iterate_epoch(0):
                loss = self.objective.validation_loss(batch.to(self.run.device))
                count += int(loss.num_labels)
                sums.update({"total": float(loss.total)} | {name: float(value) for name, value in loss.metrics.items()})
        metrics = {"accuracy": 100 * sums["correct"] / count}
        if usage:
            metrics["expert_load_cv"] = max(layer.load_variation for layer in usage.values())
            metrics["expert_importance_cv"] = max(layer.importance_variation for layer in usage.values())
        metrics |= {name: sums[name] / count for name in sums if name not in LOSS_SUMS}
        samples, search = [], ""
        if self.sources:
            texts, search = self._translate_sources()
            metrics["bleu"] = evaluation.bleu(texts, self.references).value
            if self.metric in ("chrf", "rouge_l"):
                metrics[self.metric] = self._score_texts(self.metric, texts)
            metrics["exact_match"] = evaluation.exact_match(texts, self.references).value
            metrics |= self.objective.text_metrics(texts, self.references)
            sources = [
                describe_features(source) if isinstance(source, np.ndarray) else str(source) for source in self.sources
            ]
            samples = list(map(ValidationSample, sources, self.references, texts))[:MAX_SAMPLES]
        if self.corrupted:
            samples = self._reconstruct()
        model.train(training)
        perplexity = evaluation.perplexity(-sums["nll_loss"], count).value
        expert_load = {path: layer.load_fractions for path, layer in usage.items()}
        return ValidationResult(sums["total"] / count, perplexity, metrics, samples, search, expert_load)

    def _score_texts(self, metric: str, texts: list[str]) -> float:
        """Score decoded sentences by a selection metric, chrf or rouge_l."""
        return evaluation.TEXT_METRICS[metric.replace("_", "-")](texts, self.references).value

    def _translate_sources(self) -> tuple[list[str], str]:
        """Translate the validation sources to decode; return the translations and the name of the search.

        Search engines (with their CUDA graphs) are kept for the next validation if memory allows it.
        """
        run, search = self.run, self.run.default_search
        if run.engine_cache is None and _has_free_memory(run.device):
            run.engine_cache = {}
        texts = [t.text for t in run.translate(self.sources, search=search, alignment=False, tag=self.tags)]
        if not _has_free_memory(run.device):  # engines are kept only if training does not need their memory
            run.engine_cache = None
        return texts, search.label

    def _reconstruct(self) -> list[ValidationSample]:
        """Return corrupted inputs of a pretraining objective, their targets, and the reconstructions by the model.

        The reconstruction is empty if the model cannot fill gaps.
        """
        repaired = filling.repair_corrupted(self.run, self.corrupted) or [[]] * len(self.corrupted)
        samples = []
        for row, ids in zip(self.corrupted, repaired):
            example = pretraining_examples.render_row(self.objective, row)
            prediction = ""
            if ids:
                repaired_row = row._replace(target=np.array(ids))
                prediction = pretraining_examples.render_row(self.objective, repaired_row).target
            note = f"  ({example.note})" if example.note else ""
            samples.append(ValidationSample(example.input + note, example.target, prediction))
        return samples


def stored_sentences(run: Run, store: TokenStore, count: int) -> tuple[list[Source], list[str], list[str]]:
    """Return sources, corpus tags and references of `count` pairs of a token store at equal distances.

    A source is what `Run.translate` takes: text, or S F features.
    """
    indices = evenly_spaced(store, count)
    rows: list[NDArray[Any]] = [store.source(index) for index in indices]
    sources: list[Source] = [run.decode_source(row) if row.ndim == 1 else np.array(row) for row in rows]
    return sources, [run.tag_of_row(row) for row in rows], decode_references(store, run.target_tokenizer, indices)


def evenly_spaced(store: TokenStore, count: int) -> list[int]:
    """Return the indices of `count` sentences at equal distances, so that every corpus of a store has its share."""
    count = min(count, len(store))
    return [number * len(store) // count for number in range(count)]


def decode_references(store: TokenStore, tokenizer: Tokenizer, indices: Sequence[int]) -> list[str]:
    """Return the targets with these indices in a token store as text."""
    return [tokenizer.decode(store.target(index).tolist()) for index in indices]


def _has_free_memory(device: torch.device) -> bool:
    """Whether more than a quarter of a GPU's memory is free."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return 4 * free > total
