"""Validation: loss with teacher forcing, and metrics of decoded sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from dragoman import evaluation
from dragoman.data import Batches, TokenStore
from dragoman.data.feature_files import describe_features
from dragoman.errors import UserError
from dragoman.evaluation.metric_score import References
from dragoman.evaluation.text_metrics import TextMetric
from dragoman.objectives import Objective, pretraining_examples
from dragoman.parts.experts import record_expert_usage
from dragoman.run import Run, Source, filling
from dragoman.run.search_choice import MIN_CHOICE_SENTENCES, SearchChoice, choose_search, unset_search_settings
from dragoman.seeding import seed_generators
from dragoman.training.validation_corpora import decoded_corpora, stored_sentences

MIN_LINES_FOR_EXACT_MATCH = 50  # with fewer validation references, each one is more than 2 % of the exact match


def default_metric(
    objective: type[Objective], references: Sequence[str], sources: Sequence[str] = ()
) -> tuple[str, str]:
    """Return the name of the metric that suits the objective and the validation pairs, and the reason as text.

    `references` and `sources` are targets and sources of the validation sentences that are decoded; without any, the
    metric is the loss. `sources` are empty if they are not texts. An objective that generates nothing has a metric of
    its own. For fewer than 50 references, exact match is replaced by an error rate, which is less coarse.
    """
    if not objective.generates:
        return objective.selection_metric, "the metric of this objective"
    if not references:
        return "loss", "no validation sentences are decoded"
    choice = evaluation.choose_metrics(references, sources)
    metric, reason = choice.metrics[0], choice.reason
    if tie_break := tie_break_metric(metric, references):
        title = evaluation.text_metric(tie_break).title
        if len(references) < MIN_LINES_FOR_EXACT_MATCH:
            metric, reason = tie_break, f"{reason}; {len(references)} of them are too few for exact match"
        else:
            reason += f"; ties are broken by the {title}"
    return evaluation.metric_key(metric), reason


def tie_break_metric(metric: str, references: Sequence[str]) -> str:
    """Return the error-rate metric that decides between checkpoints with equal exact match on the references.

    It is the error rate of characters or symbols, whichever suits the references. `metric` is the name of the selection
    metric; the result is empty if that does not count exact lines.
    """
    counts_lines = evaluation.is_text_metric(metric) and evaluation.text_metric(metric).counts_lines
    return evaluation.error_rate_for(references) if counts_lines else ""


def check_metric(metric: str, bleu_tokenizer: str, references: Sequence[str]) -> None:
    """Raise a UserError for a selection metric of decoded sentences if none are decoded, or if a package is missing.

    `references` are the targets of the validation sentences that are decoded, `bleu_tokenizer` is sacreBLEU's name of a
    tokenizer, such as "13a".
    """
    if metric in TEACHER_FORCED_METRICS:  # loss and accuracy, for which nothing is decoded
        return
    if not references:
        raise UserError(
            f"training.selection_metric={metric} needs translations of validation sentences, but none are generated "
            "(this objective generates none, or training.validation_sentences is 0): set "
            "training.selection_metric=loss"
        )
    sample = ["B (S a)"]  # valid for all metrics: as words, as tags of spans and as a tree
    evaluation.text_metric(metric)(sample, sample)  # an error here, before training, if a package is missing
    evaluation.bleu(sample, sample, tokenize=bleu_tokenizer)


def decoding_metric(run: Run, sources: Sequence[Source], references: References) -> TextMetric:
    """Return the metric of decoded texts for choosing a search: the one that selected the run's best checkpoint.

    If the checkpoint was selected by loss or accuracy, without decoding, or if the setting is still "auto", it is the
    metric that suits these sources and references. BLEU has the tokenizer of the run.
    """
    name: str = run.config.training.selection_metric
    if name in ("auto", *TEACHER_FORCED_METRICS):
        texts = [source for source in sources if isinstance(source, str)]
        name = evaluation.choose_metrics(evaluation.first_references(references), texts).metrics[0]
    return evaluation.text_metric(f"bleu={run.config.training.bleu_tokenizer}" if name == "bleu" else name)


def metric_title(name: str) -> str:
    """Return the name of a validation metric in messages: "exact match" for exact_match, "BLEU" for bleu."""
    is_decoded = name not in TEACHER_FORCED_METRICS and evaluation.is_text_metric(name)
    return evaluation.text_metric(name).title if is_decoded else name


def format_metric(name: str, value: float) -> str:
    """Format a validation metric, named as in metrics.jsonl, with its value: "BLEU 31.2", "exact match 4.0 %"."""
    is_percent = evaluation.is_text_metric(name) and evaluation.text_metric(name).unit == "%"
    return f"{metric_title(name)} {value:.1f}{' %' if is_percent else ''}"


def displayed_metrics(record: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics of a validation record to show, the one that selects the checkpoint first.

    These are the metrics of decoded sentences, or the accuracy if none were decoded. N-gram metrics such as BLEU are
    left out if a metric of another kind selects: texts are then single words or symbols.
    """
    selected = record.get("selection_metric", "")
    names = [name for name in record if name not in TEACHER_FORCED_METRICS and evaluation.is_text_metric(name)]
    if not names:
        return ["accuracy"] if "accuracy" in record else []
    if selected in names:
        compares_ngrams = evaluation.text_metric(selected).compares_ngrams
        others = [name for name in names if compares_ngrams or not evaluation.text_metric(name).compares_ngrams]
        names = list(dict.fromkeys([selected, *others]))
    return ["accuracy", *names] if selected == "accuracy" else names


TEACHER_FORCED_METRICS = ("accuracy", "loss")  # of the reference tokens; all others compare decoded sentences
MAX_DECODED_SENTENCES = 2000  # at each validation
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

    Loss, perplexity and accuracy (percent of target tokens) are computed over all sentences; BLEU, exact match and
    other metrics of texts over some sentences that are decoded with the search of the run.
    """

    loss: float
    perplexity: float
    metrics: dict[str, float]
    samples: list[ValidationSample]
    search: str = ""  # name of the search that decoded sentences
    expert_load: dict[str, list[float]] = field(default_factory=dict)  # path of a layer → share of each of its experts
    selection_metric: str = ""  # name of the metric that selects the best checkpoint
    signatures: dict[str, str] = field(default_factory=dict)  # of metrics of sacreBLEU and ROUGE
    #: name of a corpus → its metrics, if there are several; of several languages, `metrics` has the means
    corpora: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_record(self) -> dict[str, Any]:
        """Return the result as a record for metrics.jsonl: all fields but the samples, without empty ones."""
        optional = {
            "search": self.search,
            "selection_metric": self.selection_metric,
            "signatures": self.signatures,
            "corpora": self.corpora,
            "expert_load": {path: [round(share, 5) for share in shares] for path, shares in self.expert_load.items()},
        }
        optional = {name: value for name, value in optional.items() if value}
        return {"loss": self.loss, "perplexity": self.perplexity, **self.metrics, **optional}


class ValidationScore(NamedTuple):
    """What the best checkpoint is chosen by, in order of precedence; higher is better."""

    metric: float
    tie_break: float  # negated error rate of symbols or characters; 0 if the metric needs none
    negative_loss: float


class Validator:
    """Validates the model of a run on its validation store.

    Sentences are decoded with the search of the run's configuration; `choose_search` chooses what it leaves open at the
    end of training.
    """

    def __init__(self, run: Run, objective: Objective, store: TokenStore) -> None:
        """Choose the sentences to decode, at equal distances, and the metric that selects the best checkpoint.

        A UserError is raised if the user's metric needs decoded sentences, and there are none, or lacks a package.

        Args:
            run: the run, whose model is validated and decodes.
            objective: computes the loss of a batch, without label smoothing and BPE dropout.
            store: the tokenized validation pairs.
        """
        self.run, self.objective, training = run, objective, run.config.training
        lengths = store.length_counts()
        # a row is one sequence of a batch; its format says how it is built from a pair
        longest = int(objective.row_length(lengths.source, lengths.target).max())
        max_tokens, rows = max(training.batch_tokens or 4096, longest), objective.row_format.for_validation()
        # special tokens around source and target; of a multilingual model for the languages of each corpus
        rows = replace(rows, model_framing=run.model_framing)
        self.batches = Batches(store, max_tokens, seed=0, shuffle=False, rows=rows)
        corrupted = (  # masked or noisy inputs of a pretraining objective; None for other objectives
            pretraining_examples.corrupt_row(objective, store, index, seed=0)
            for index in range(min(REPAIRED_SAMPLES, len(store)))
        )
        self.corrupted = [row for row in corrupted if row is not None]  # are reconstructed as samples
        sentences, metric = training.validation_sentences, training.selection_metric
        sentences = MAX_DECODED_SENTENCES if sentences is None else sentences
        self.store = store
        self.corpora = decoded_corpora(run, store, sentences if objective.generates else 0)
        self.sources = [source for corpus in self.corpora for source in corpus.sources]
        self.references = [reference for corpus in self.corpora for reference in corpus.references]
        texts = [source for source in self.sources if isinstance(source, str)]  # without feature vectors
        automatic, _ = default_metric(type(objective), self.references, texts)
        self.metric: str = automatic if metric == "auto" else metric
        tokenizer: str = training.bleu_tokenizer
        if tokenizer == "auto":
            tokenizer = evaluation.choose_bleu_tokenizer(self.references).tokenizer
        check_metric(self.metric, tokenizer, self.references)
        self.tie_break = tie_break_metric(self.metric, self.references)
        names = [*({self.metric} - set(TEACHER_FORCED_METRICS)), "bleu", "exact_match"]
        names += [self.tie_break] if self.tie_break else []
        # metrics of decoded sentences, by their names in the records
        self.text_metrics = {
            name: evaluation.text_metric(f"bleu={tokenizer}" if name == "bleu" else name)
            for name in dict.fromkeys(names)
        }

    def num_choice_sentences(self, num_validations: int) -> int:
        """Return the number of validation sentences on which beam size and length penalty are chosen; 0: not at all.

        It is the number of sentences that each validation decodes, and a multiple of it after a training with many
        validations (`num_validations`), of whose time the choice is to take a small part; at most 2,000. 0 if sentences
        are too few, or the user has set both.
        """
        # as many as 1, 2, 3 … validations decode
        count = len(self.sources) * max(1, num_validations // VALIDATIONS_PER_CHOICE)
        count = min(count, len(self.store), MAX_CHOICE_SENTENCES)
        return count if count >= MIN_CHOICE_SENTENCES and unset_search_settings(self.run.config) else 0

    def choose_search(self, num_validations: int) -> SearchChoice | None:
        """Choose beam size and length penalty for the run's model, after a training with this many validations.

        They are chosen by the selection metric, or by one that suits the references if the best checkpoint is selected
        without decoding. Returns None if too few sentences are decoded, or if the user has set both.
        """
        count = self.num_choice_sentences(num_validations)
        if not count:
            return None
        sources, tags, references = stored_sentences(self.run, self.store, count)
        metric = decoding_metric(self.run, sources, references)
        model, training = self.run.model, self.run.model.training
        model.eval()
        with torch.inference_mode():
            choice = choose_search(self.run, sources, references, metric, tag=tags)
        model.train(training)
        return choice

    def score(self, result: ValidationResult) -> ValidationScore:
        """Return the score of a validation `result`, by which the best checkpoint is selected: higher is better.

        It has the selection metric, its tie-break (0 for metrics that have none) and the loss, each negated if lower is
        better.
        """
        tie_break = self._higher_is_better(self.tie_break, result) if self.tie_break else 0.0
        metric = -result.loss if self.metric == "loss" else self._higher_is_better(self.metric, result)
        return ValidationScore(metric, tie_break, negative_loss=-result.loss)

    def _higher_is_better(self, name: str, result: ValidationResult) -> float:
        """Return the value of the metric `name` in a validation result, negated if it is an error rate.

        Error rates above 100 % count as 100 %, and so leave the choice to the loss, the next criterion: a model that
        has hardly learned anything produces outputs of any length, whose error rates say nothing.
        """
        value = result.metrics[name]
        is_error = name in self.text_metrics and self.text_metrics[name].better == "lower"
        return -min(value, 100.0) if is_error else value

    @torch.inference_mode()
    def validate(self) -> ValidationResult:
        """Compute loss and metrics of the run's model on all validation pairs, and decode some of their sources."""
        model, training = self.run.model, self.run.model.training
        model.eval()
        seed_generators(0)  # for objectives that sample tokens: the same ones in every validation
        sums: Counter[str] = Counter()  # of the objective's loss and metrics over all labels
        count = 0  # of labels
        with record_expert_usage(model) as usage:
            for batch in self.batches.iterate_epoch(0):  # the same epoch, and so the same noise, in every validation
                loss = self.objective.validation_loss(batch.to(self.run.device))
                count += int(loss.num_labels)
                sums.update({"total": float(loss.total)} | {name: float(value) for name, value in loss.metrics.items()})
        metrics = {"accuracy": 100 * sums["correct"] / count}
        if usage:  # the model has mixtures of experts; CV: coefficient of variation over the experts of a layer
            metrics["expert_load_cv"] = max(layer.load_variation for layer in usage.values())
            metrics["expert_importance_cv"] = max(layer.importance_variation for layer in usage.values())
        # other sums of the objective than those for loss, perplexity and accuracy are metrics of their own
        metrics |= {name: sums[name] / count for name in sums if name not in LOSS_SUMS}
        samples, search, signatures, by_corpus = [], "", {}, {}
        if self.sources:
            texts, search = self._translate_sources()
            scores = {name: metric(texts, self.references) for name, metric in self.text_metrics.items()}
            signatures = {name: score.signature for name, score in scores.items() if score.signature}
            by_corpus = self._scores_by_corpus(texts)
            # with several languages, means over the corpora replace the metrics of all sentences
            metrics |= {name: score.value for name, score in scores.items()} | self._means(by_corpus)
            metrics |= self.objective.text_metrics(texts, self.references)
            sources = [
                describe_features(source) if isinstance(source, np.ndarray) else str(source) for source in self.sources
            ]
            samples = list(map(ValidationSample, sources, self.references, texts))[:MAX_SAMPLES]
        if self.corrupted:  # of a pretraining objective, which generates no translations
            samples = self._reconstruct()
        model.train(training)
        perplexity = evaluation.perplexity(-sums["nll_loss"], count).value  # of the total log-probability of all labels
        expert_load = {path: layer.load_fractions for path, layer in usage.items()}
        metrics = {name: metrics[name] for name in (self.metric, *metrics) if name in metrics}  # it comes first
        return ValidationResult(
            loss=sums["total"] / count,
            perplexity=perplexity,
            metrics=metrics,
            samples=samples,
            search=search,
            expert_load=expert_load,
            selection_metric=self.metric,
            signatures=signatures,
            corpora=by_corpus,
        )

    def _translate_sources(self) -> tuple[list[str], str]:
        """Translate the validation sources to decode; return the translations and the name of the search.

        Search engines (with their CUDA graphs) are kept in `run.engine_cache` for the next validation as long as more
        than a quarter of the GPU's memory is free; None disables the cache.
        """
        run, search = self.run, self.run.default_search
        if run.engine_cache is None and _has_free_memory(run.device):
            run.engine_cache = {}
        texts = [text for corpus in self.corpora for text in corpus.translate(run, search)]
        if not _has_free_memory(run.device):  # engines are kept only if training does not need their memory
            run.engine_cache = None
        return texts, search.label

    def _scores_by_corpus(self, texts: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the metrics of each corpus, by the name of the corpus; empty if there is only one corpus.

        `texts` are the translations of all corpora, one after the other.
        """
        scores: dict[str, dict[str, float]] = {}
        start = 0
        for corpus in self.corpora if len(self.corpora) > 1 else ():
            corpus_texts = texts[start : start + len(corpus.sources)]
            start += len(corpus.sources)
            scores[corpus.name] = {
                name: metric(corpus_texts, corpus.references).value for name, metric in self.text_metrics.items()
            }
        return scores

    def _means(self, by_corpus: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return the mean of each metric over the corpora, if they have different languages; otherwise nothing.

        `by_corpus` has the metrics of each corpus, by the name of the corpus. Corpora of one language pair have no
        mean: their metrics are computed over all sentences together.
        """
        if len({(corpus.source_language, corpus.target_language) for corpus in self.corpora}) < 2:
            return {}
        return {name: float(np.mean([scores[name] for scores in by_corpus.values()])) for name in self.text_metrics}

    def _reconstruct(self) -> list[ValidationSample]:
        """Return corrupted inputs of a pretraining objective, their targets, and the reconstructions by the model.

        The reconstruction is empty if the model cannot fill gaps. All are rendered as text.
        """
        # token ids of the reconstruction of each row
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


def _has_free_memory(device: torch.device) -> bool:
    """Whether more than a quarter of the memory of a GPU is free; not for other devices."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return 4 * free > total
