"""A score can be quoted, and hypotheses that do not pair with references are refused in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from dragoman.errors import UserError
from dragoman.evaluation import TEXT_METRICS, MetricScore, evaluate
from dragoman.evaluation.text_metrics import TextMetric

METRICS_WITHOUT_SOURCES = {name: metric for name, metric in TEXT_METRICS.items() if not metric.needs_sources}
every_measure = pytest.mark.parametrize("measure", METRICS_WITHOUT_SOURCES.values(), ids=METRICS_WITHOUT_SOURCES.keys())
SENTENCE_METRICS = {  # span-f1 and bracket-f1 need tags and trees
    name: metric for name, metric in METRICS_WITHOUT_SOURCES.items() if name not in ("span-f1", "bracket-f1")
}
every_sentence_measure = pytest.mark.parametrize("measure", SENTENCE_METRICS.values(), ids=SENTENCE_METRICS.keys())


def test_score_as_text() -> None:
    assert str(MetricScore("BLEU", 38.1, "higher", signature="nrefs:1|case:mixed")) == "BLEU 38.10 (nrefs:1|case:mixed)"
    assert str(MetricScore("exact match", 97.254, "higher", unit="%")) == "exact match 97.25 %"
    assert str(MetricScore("AER", 1 / 6, "lower", decimals=4)) == "AER 0.1667"


def test_the_evaluation_package_is_quick_to_import() -> None:
    code = "import sys, dragoman.evaluation; print({'torch', 'sacrebleu'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@every_measure
def test_different_numbers_of_hypotheses_and_references_are_refused(measure: TextMetric) -> None:
    with pytest.raises(UserError, match="2 hypotheses but 1 references"):
        measure(["a", "b"], ["a"])


@every_measure
def test_empty_input_is_refused(measure: TextMetric) -> None:
    with pytest.raises(UserError, match="there are no hypotheses and no references to evaluate"):
        measure([], [])


@every_measure
@pytest.mark.parametrize("nothing", [[], ()])
def test_a_hypothesis_without_a_reference_is_named(measure: TextMetric, nothing: list[str]) -> None:
    with pytest.raises(UserError, match="hypothesis 2 has no reference"):
        measure(["a", "b"], [["a"], nothing])


@every_measure
def test_one_string_is_not_a_list_of_sentences(measure: TextMetric) -> None:
    with pytest.raises(UserError, match="lists of sentences"):
        measure("a b", "a b")


@every_sentence_measure
def test_a_perfect_hypothesis_has_the_best_score(measure: TextMetric) -> None:
    sentences = ["the cat sat on the mat", "a dog barked at it all night"]
    score = measure(sentences, sentences)
    assert score.value == pytest.approx(100 if score.better == "higher" else 0)


@every_sentence_measure
def test_one_reference_may_be_given_alone_or_in_a_list(measure: TextMetric) -> None:
    hypotheses, references = ["the cat sat on a mat", "dogs bark"], ["the cat sat on the mat", "dogs do bark"]
    assert measure(hypotheses, references) == measure(hypotheses, [[reference] for reference in references])


@every_sentence_measure
def test_the_order_of_references_does_not_matter(measure: TextMetric) -> None:
    hypotheses = ["the cat sat on a mat", "dogs bark"]
    references = [["the cat sat on the mat", "a cat sat on a big mat"], ["dogs do bark", "a dog barks", "barking dogs"]]
    backwards = [among[::-1] for among in references]
    assert measure(hypotheses, references).value == measure(hypotheses, backwards).value


@every_sentence_measure
def test_a_score_can_be_written_as_json(measure: TextMetric) -> None:
    score = measure(["the cat sat on a mat"], ["the cat sat on the mat"])
    assert MetricScore(**json.loads(json.dumps(asdict(score)))) == score


def test_metrics_are_evaluated_by_name_in_order() -> None:
    scores = evaluate(["ter", "exact"], ["the cat"], ["the cat"])
    assert [(name, score.name) for name, score in scores.items()] == [("ter", "TER"), ("exact", "exact match")]


def test_unknown_metric_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown metric 'blue': did you mean 'bleu'"):
        evaluate(["exact", "blue"], ["a"], ["a"])


@every_sentence_measure
def test_the_statistics_of_sentences_give_the_score_of_the_corpus(measure: TextMetric) -> None:
    hypotheses = ["the cat sat on a mat", "a dog barked", "it rains"]
    references = [["the cat sat on the mat", "a cat sat there"], ["a dog barked at it"], ["it rains"]]
    statistics = measure.sentence_statistics(hypotheses, references)
    assert len(statistics.table) == 3
    assert statistics.corpus_score(statistics.table.sum(0)) == pytest.approx(measure(hypotheses, references).value)


@pytest.mark.parametrize("name", ["span-f1", "bracket-f1"])
def test_statistics_of_tags_and_trees_give_the_score_of_the_corpus(name: str) -> None:
    hypotheses, references = ["B I O (S (NP a b) c)", "O B (S d e)"], ["B I O (S (NP a b c))", "O B (S d e)"]
    statistics = TEXT_METRICS[name].sentence_statistics(hypotheses, references)
    score = TEXT_METRICS[name](hypotheses, references)
    assert statistics.corpus_score(statistics.table.sum(0)) == pytest.approx(score.value)
