"""Metrics of texts: BLEU, chrF and TER by sacreBLEU, and all metrics by name.

A score is comparable only with its signature (Post 2018, A Call for Clarity in Reporting BLEU Scores).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import UserError, unknown_name
from dragoman.evaluation.comet import comet, comet_by_sentence
from dragoman.evaluation.error_rates import (
    Counts,
    bracket_f1,
    bracket_f1_counts,
    character_edit_counts,
    character_error_rate,
    edit_counts,
    exact_match,
    exact_match_counts,
    item_error_rate,
    mismatch_counts,
    phoneme_error_rate,
    span_f1,
    span_f1_counts,
    symbol_error_rate,
    token_accuracy,
    word_error_rate,
)
from dragoman.evaluation.metric_choice import choose_bleu_tokenizer
from dragoman.evaluation.metric_score import MetricScore, References, check_equal_counts, reference_lists
from dragoman.evaluation.rouge import ROUGE_NAMES, rouge, rouge_by_sentence

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

# sacreBLEU takes a fifth of a second to import, and error rates do not need it: it is imported where it is used.


def bleu(
    hypotheses: Sequence[str],
    references: References,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    effective_order: bool = False,
) -> MetricScore:
    """BLEU: geometric mean of n-gram precisions times the brevity penalty, from 0 to 100 (Papineni et al. 2002).

        BLEU = 100 · min(1, exp(1 − r/c)) · (p₁ p₂ p₃ p₄)^¼,   c, r: hypothesis and closest reference length

    `tokenize` is a tokenizer of sacreBLEU, or `auto`: one that suits the references. `lowercase` ignores case.
    `effective_order` omits the orders n for which no hypothesis has n words, so that a corpus of very short sentences
    does not score 0.
    """
    metric = _bleu_metric(tokenize, references, lowercase=lowercase, effective_order=effective_order)
    result = _corpus_score(metric, hypotheses, references)
    detail = {f"precision_{n}": float(precision) for n, precision in enumerate(result.precisions, 1)} | {
        "brevity_penalty": result.bp,
        "hypothesis_length": result.sys_len,
        "reference_length": result.ref_len,
    }
    return MetricScore("BLEU", result.score, better="higher", signature=str(metric.get_signature()), detail=detail)


def _bleu_metric(
    tokenize: str,
    references: References,
    *,
    lowercase: bool = False,
    effective_order: bool = False,
    warn_if_tokenized: bool = True,
) -> Metric:
    """Return sacreBLEU's BLEU with a tokenizer; `auto` is one that suits the references.

    `lowercase` ignores case; `effective_order` omits the orders n for which no hypothesis has n words;
    `warn_if_tokenized` lets sacreBLEU warn of hypotheses that look tokenized. A tokenizer whose package or model is
    missing is a UserError. sacreBLEU would download a model without asking.
    """
    from sacrebleu import BLEU
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    if tokenize == "auto":
        tokenize = choose_bleu_tokenizer(first_references(references)).tokenizer
    if tokenize not in BLEU.TOKENIZERS:
        raise unknown_name("BLEU tokenizer", tokenize, [*BLEU.TOKENIZERS, "auto"])
    if tokenize in SPM_MODELS:  # tokenizers that are SentencePiece models
        file_name = SPM_MODELS[tokenize]["url"].rpartition("/")[2]
        model = Path(SACREBLEU_DIR) / "models" / file_name
        if not model.exists():
            raise UserError(
                f"the BLEU tokenizer {tokenize} needs a SentencePiece model, which is not in {model.parent}: download "
                f"it once with: python -c \"import sacrebleu; sacrebleu.BLEU(tokenize='{tokenize}')\""
            )
    try:
        # sacreBLEU warns if hypotheses look tokenized, unless `force`; "none" says that they are
        force = tokenize == "none" or not warn_if_tokenized
        return BLEU(lowercase, force=force, tokenize=tokenize, effective_order=effective_order)
    except (ImportError, RuntimeError) as error:  # a tokenizer that needs another package
        message = " ".join(str(error).split())
        raise UserError(
            f"the BLEU tokenizer {tokenize!r} is not available ({message}): install the package that it needs, or "
            "choose the tokenizer 13a"
        ) from error


def chrf(
    hypotheses: Sequence[str], references: References, *, word_order: int = 0, lowercase: bool = False
) -> MetricScore:
    """chrF: F-score of character n-grams (n ≤ 6) with β = 2, from 0 to 100 (Popović 2015).

        chrF_β = 100 · (1 + β²) P R / (β² P + R),   P, R: mean precision and recall over n

    `word_order` 2 gives chrF++, which also counts words and word pairs (Popović 2017). `lowercase` ignores case.
    """
    from sacrebleu import CHRF

    metric = CHRF(word_order=word_order, lowercase=lowercase)
    result = _corpus_score(metric, hypotheses, references)
    return MetricScore("chrF" + "+" * word_order, result.score, better="higher", signature=str(metric.get_signature()))


def ter(
    hypotheses: Sequence[str], references: References, *, normalized: bool = False, lowercase: bool = True
) -> MetricScore:
    """Translation edit rate: insertions, deletions, substitutions and shifts in % of the reference words.

        TER = 100 · edits to the closest reference / mean reference length

    Snover et al. (2006). Case is ignored by default (`lowercase`), as in sacreBLEU and Tercom. `normalized` is their
    option to separate punctuation marks from words and to decode XML entities.
    """
    from sacrebleu import TER

    metric = TER(normalized=normalized, case_sensitive=not lowercase)
    result = _corpus_score(metric, hypotheses, references)
    detail = {"edits": result.num_edits, "reference_length": result.ref_length}
    return MetricScore(
        "TER", result.score, better="lower", unit="%", signature=str(metric.get_signature()), detail=detail
    )


def reference_streams(hypotheses: Sequence[str], references: References) -> list[tuple[str | None, ...]]:
    """Return sacreBLEU's reference streams: all first references, all second ones, …; None for a missing one."""
    return list(zip_longest(*reference_lists(hypotheses, references)))


def first_references(references: References) -> list[str]:
    """Return the first reference of each sentence; sentences with an empty text or list are left out."""
    return [text if isinstance(text, str) else text[0] for text in references if text]


def _corpus_score(metric: Metric, hypotheses: Sequence[str], references: References) -> Any:
    """Return sacreBLEU's score object (score and statistics) of all hypotheses together."""
    # sacreBLEU documents None for a missing reference, but its annotations do not allow it
    streams: list[Any] = reference_streams(hypotheses, references)
    return metric.corpus_score(hypotheses, streams)


Floats = NDArray[np.float64]
EditCounts = Callable[[Sequence[str], References], Counts]
"""Function from hypotheses and references to errors and length of each sentence."""


class SentenceStatistics(NamedTuple):
    """What a corpus score is computed from.

    Attributes:
        table: a row of numbers for each sentence, such as n-gram matches; shape (sentences, statistics).
        corpus_score: function from the sum of rows to the score of a corpus.
    """

    table: Floats
    corpus_score: Callable[[Floats], float]


@dataclass(frozen=True)
class TextMetric:
    """A metric of hypotheses and their references, and of the sources if `needs_sources`.

    Both functions take the hypotheses, the references and, if needed, the sources.

    Attributes:
        title, unit, better: name, unit and direction of its scores, as in `MetricScore`.
        meaning: what the score is, as a phrase.
        function: returns the score of a corpus.
        statistics: returns the statistics of each sentence, which significance tests resample.
        needs_sources: whether it also compares with the sources.
        counts_lines: whether a line is right or wrong as a whole, so that ties are frequent.
        compares_ngrams: whether partly right sentences score, which means little for single words and symbols.
    """

    title: str
    meaning: str
    function: Callable[..., MetricScore]
    statistics: Callable[..., SentenceStatistics]
    unit: str = "%"
    better: Literal["higher", "lower"] = "higher"
    needs_sources: bool = False
    counts_lines: bool = False
    compares_ngrams: bool = False

    def __call__(
        self, hypotheses: Sequence[str], references: References, sources: Sequence[str] | None = None
    ) -> MetricScore:
        """Score a corpus; only some metrics (COMET) need the sources, without which they raise a UserError."""
        return self.function(hypotheses, references, *self._source_arguments(sources))

    def sentence_statistics(
        self, hypotheses: Sequence[str], references: References, sources: Sequence[str] | None = None
    ) -> SentenceStatistics:
        """Return numbers of each sentence, such as n-gram matches, and the function from their sum to the corpus score.

        Significance tests add up the sentences of a resampled corpus.
        """
        return self.statistics(hypotheses, references, *self._source_arguments(sources))

    def _source_arguments(self, sources: Sequence[str] | None) -> list[Sequence[str]]:
        """Return the sources as a list of further arguments, which is empty if the metric does not use them.

        If it does, and `sources` is None, a UserError is raised.
        """
        if self.needs_sources and sources is None:
            raise UserError("COMET compares translations with their sources: name the source file with --source")
        return [sources] if self.needs_sources and sources is not None else []


def _sacrebleu_statistics(name: str, **options: Any) -> Callable[..., SentenceStatistics]:
    """Return a function that computes the sentence statistics of a metric of sacreBLEU.

    `name` is that of its class, such as "CHRF", and `options` are the arguments of its constructor.
    """

    def statistics(hypotheses: Sequence[str], references: References) -> SentenceStatistics:
        """Return sacreBLEU's statistics of each sentence, and the function from their sum to the score."""
        import sacrebleu

        return _metric_statistics(getattr(sacrebleu, name)(**options), hypotheses, references)

    return statistics


def _metric_statistics(metric: Any, hypotheses: Sequence[str], references: References) -> SentenceStatistics:
    """Return the statistics of each sentence by a metric of sacreBLEU, and the function from their sum to the score."""
    statistics = metric._extract_corpus_statistics(hypotheses, reference_streams(hypotheses, references))
    return SentenceStatistics(
        table=np.array(statistics, np.float64),
        corpus_score=lambda sums: float(metric._compute_score_from_stats(sums).score),
    )


def _rate_statistics(counts: EditCounts, complement: bool = False) -> Callable[..., SentenceStatistics]:
    """Return a function that computes the sentence statistics of a rate, 100 · Σ count / Σ length over sentences.

    `counts` returns (count, length) of each sentence. With `complement`, the metric is 100 − the rate.
    """

    def rate(sums: Floats) -> float:
        """Return the rate, or its complement, from the sums of counts and lengths."""
        percent = 100 * float(sums[0] / max(sums[1], 1))  # a resample may consist of empty texts
        return 100 - percent if complement else percent

    return lambda hypotheses, references: SentenceStatistics(
        table=np.array(counts(hypotheses, references), np.float64), corpus_score=rate
    )


def _mean_statistics(scores: Callable[..., Sequence[float]]) -> Callable[..., SentenceStatistics]:
    """Return a function that computes the sentence statistics of a metric that is the mean over sentences.

    `scores` returns the score of each sentence, from hypotheses, references and, for some metrics, sources.
    """

    def statistics(*texts: Sequence[Any]) -> SentenceStatistics:
        """Return (score, 1) of each sentence; the score of a corpus is the ratio of the sums."""
        values = np.array(scores(*texts), np.float64)
        table = np.stack([values, np.ones_like(values)], axis=1)
        return SentenceStatistics(table, corpus_score=lambda sums: float(sums[0] / sums[1]))

    return statistics


def _bleu_text_metric(tokenize: str = "auto") -> TextMetric:
    """Return BLEU with a tokenizer of sacreBLEU; `auto` is the one that suits the references."""

    def statistics(hypotheses: Sequence[str], references: References) -> SentenceStatistics:
        """Return n-gram matches and lengths of each sentence, and the function from their sum to BLEU."""
        return _metric_statistics(_bleu_metric(tokenize, references, warn_if_tokenized=False), hypotheses, references)

    meaning = "geometric mean of the shares of n-grams that are in the reference, with a penalty for brevity"
    function = partial(bleu, tokenize=tokenize)
    return TextMetric("BLEU", meaning, function=function, statistics=statistics, unit="", compares_ngrams=True)


def _rouge_metric(title: str, stem: bool = False) -> TextMetric:
    """Return a ROUGE metric: ROUGE-1, ROUGE-2 or ROUGE-L (`title`), of words or, with `stem`, of English stems."""
    kind = {name: kind for kind, name in ROUGE_NAMES.items()}[title]  # "rouge1", "rouge2" or "rougeL"
    shared_items = {"rouge1": "words", "rouge2": "word pairs", "rougeL": "words in the same order"}[kind]
    return TextMetric(
        title,
        meaning=f"F₁ of shared {shared_items}, mean over sentences",
        function=partial(rouge, kind=kind, stem=stem),
        statistics=_mean_statistics(lambda *texts: rouge_by_sentence(*texts, kind=kind, stem=stem)[0]),
        unit="",
        compares_ngrams=True,
    )


def _comet_metric(model: str = "") -> TextMetric:
    """Return COMET with the model of this folder or checkpoint; empty is the default model."""
    return TextMetric(
        "COMET",
        meaning="quality predicted by a neural network",
        function=partial(comet, model=model),
        statistics=_mean_statistics(partial(comet_by_sentence, model=model)),
        unit="",
        needs_sources=True,
    )


def _error_rate(unit: str, function: Callable[..., MetricScore], counts: EditCounts = edit_counts) -> TextMetric:
    """Return an error rate as a metric: edits (insertions, deletions, substitutions) in % of the reference length.

    `unit` is what is counted, such as "word". `function` returns the score of a corpus, `counts` the edits and the
    reference length of each sentence.
    """
    meaning = f"insertions, deletions and substitutions in % of the {unit}s of the reference"
    statistics = _rate_statistics(counts)
    return TextMetric(f"{unit} error rate", meaning, function=function, statistics=statistics, better="lower")


def _chrf_metric(word_order: int) -> TextMetric:
    """Return chrF, or chrF++ for `word_order` 2, the longest word n-grams that it counts."""
    words = " and of words and word pairs" if word_order else ""
    return TextMetric(
        "chrF" + "+" * word_order,
        meaning=f"F-score of character n-grams{words}",
        function=partial(chrf, word_order=word_order),
        statistics=_sacrebleu_statistics("CHRF", word_order=word_order),
        unit="",
        compares_ngrams=True,
    )


#: metrics by name. Settings and the records of a training write "_" for "-": exact_match, rouge_l
TEXT_METRICS: Mapping[str, TextMetric] = {
    "bleu": _bleu_text_metric(),
    "chrf": _chrf_metric(0),
    "chrf++": _chrf_metric(2),
    "ter": TextMetric(
        "TER",
        "edits and moves of blocks in % of the words of the reference",
        ter,
        _sacrebleu_statistics("TER"),
        better="lower",
        compares_ngrams=True,
    ),
    "rouge-1": _rouge_metric("ROUGE-1"),
    "rouge-2": _rouge_metric("ROUGE-2"),
    "rouge-l": _rouge_metric("ROUGE-L"),
    "rouge-1-stem": _rouge_metric("ROUGE-1", stem=True),
    "rouge-2-stem": _rouge_metric("ROUGE-2", stem=True),
    "rouge-l-stem": _rouge_metric("ROUGE-L", stem=True),
    "comet": _comet_metric(),
    "exact-match": TextMetric(
        "exact match",
        "share of lines that equal a reference",
        exact_match,
        _rate_statistics(exact_match_counts),
        counts_lines=True,
    ),
    "ier": TextMetric(
        "item error rate",
        "share of lines that equal no reference; the word error rate of grapheme-to-phoneme conversion",
        item_error_rate,
        _rate_statistics(exact_match_counts, complement=True),
        better="lower",
        counts_lines=True,
    ),
    "wer": _error_rate("word", word_error_rate),
    "ser": _error_rate("symbol", symbol_error_rate),
    "per": _error_rate("phoneme", phoneme_error_rate),
    "cer": _error_rate("character", character_error_rate, character_edit_counts),
    "accuracy": TextMetric(
        "token accuracy",
        "share of tokens that equal the reference at their position",
        token_accuracy,
        _rate_statistics(mismatch_counts, complement=True),
    ),
    "span-f1": TextMetric("span F1", "F₁ of tagged spans", span_f1, _rate_statistics(span_f1_counts)),
    "bracket-f1": TextMetric("bracket F1", "F₁ of constituents", bracket_f1, _rate_statistics(bracket_f1_counts)),
}
METRIC_ALIASES = {"exact": "exact-match", "g2p-wer": "ier"}
METRIC_VARIANTS: Mapping[str, Callable[[str], TextMetric]] = {"bleu": _bleu_text_metric, "comet": _comet_metric}


def metric_name(name: str) -> str:
    """Return the standard name of a metric: for "exact_match", "exact-match" or "exact" it is "exact-match".

    What follows "=" is kept, as in "bleu=ja-mecab".
    """
    base, equals, variant = name.partition("=")
    base = base.replace("_", "-")
    return METRIC_ALIASES.get(base, base) + equals + variant


def metric_key(name: str) -> str:
    """Return the name of a metric as settings and the records of a training write it: "exact_match", "rouge_l"."""
    return metric_name(name).replace("-", "_")


def is_text_metric(name: str) -> bool:
    """Whether a metric of this name compares texts: in TEXT_METRICS, "comet=MODEL" or "bleu=TOKENIZER"."""
    base, equals, _ = metric_name(name).partition("=")
    return base in (METRIC_VARIANTS if equals else TEXT_METRICS)


def text_metric(name: str) -> TextMetric:
    """Return a metric by its name.

    "bleu=TOKENIZER" is BLEU with a tokenizer of sacreBLEU, "comet=MODEL" COMET with the model of this folder. An
    unknown name is a UserError.
    """
    if not is_text_metric(name):
        raise unknown_name("metric", name, TEXT_METRICS)
    base, equals, variant = metric_name(name).partition("=")
    return METRIC_VARIANTS[base](variant) if equals else TEXT_METRICS[base]


def check_metric_names(names: Iterable[str], other_metrics: Iterable[str] = ()) -> None:
    """Raise a UserError for a name that is neither a metric of texts nor in `other_metrics`."""
    supported = [*TEXT_METRICS, *other_metrics]
    for name in names:
        if metric_name(name) not in supported and not is_text_metric(name):
            raise unknown_name("metric", name, supported)


def evaluate(
    names: Iterable[str], hypotheses: Sequence[str], references: References, sources: Sequence[str] | None = None
) -> dict[str, MetricScore]:
    """Compute the metrics of these names for the same hypotheses; return scores by name. Only COMET needs sources."""
    metrics = {name: text_metric(name) for name in names}
    return {name: metric(hypotheses, references, sources) for name, metric in metrics.items()}


class LengthBucket(NamedTuple):
    """Scores of the sentences whose source has a similar number of words."""

    words: str  # such as "6 to 10"
    sentences: int
    exact_match: float
    bleu: float


def score_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    *,
    edges: Sequence[int] = (5, 10, 15, 20, 30, 40, 50),
) -> list[LengthBucket]:
    """Score sentences by the number of words in the source (Bahdanau et al. 2015, figure 2).

    Each edge is the largest number of words of its bucket; a last bucket holds longer sources. Empty buckets are
    omitted. Edges that do not increase, and different numbers of texts, are a UserError.
    """
    if not edges or any(low >= high for low, high in pairwise(edges)):
        raise UserError(
            "edges, the largest source lengths (in words) of the buckets in which sentences are scored, must "
            f"increase, but are {', '.join(map(str, edges)) or 'empty'}: pass numbers such as 5, 10, 20"
        )
    lists = reference_lists(hypotheses, references)
    check_equal_counts(len(sources), "sources", len(hypotheses), "hypotheses")
    inner_labels = [str(high) if low + 1 == high else f"{low + 1} to {high}" for low, high in pairwise(edges)]
    labels = [f"up to {edges[0]}", *inner_labels, f"over {edges[-1]}"]
    bucket_indices: list[list[int]] = [[] for _ in labels]  # of sentences
    for index, source in enumerate(sources):
        bucket_indices[bisect_left(edges, len(source.split()))].append(index)
    tokenizer = choose_bleu_tokenizer(first_references(references)).tokenizer
    buckets = []
    for label, indices in zip(labels, bucket_indices):
        if indices:
            bucket_hypotheses, bucket_references = [hypotheses[i] for i in indices], [lists[i] for i in indices]
            exact = exact_match(bucket_hypotheses, bucket_references)
            # effective order: a bucket may have no sentence of four words, and so no 4-grams
            quality = bleu(bucket_hypotheses, bucket_references, tokenize=tokenizer, effective_order=True)
            buckets.append(LengthBucket(label, sentences=len(indices), exact_match=exact.value, bleu=quality.value))
    return buckets
