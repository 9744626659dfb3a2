"""What a comparison claims, and what it does not claim."""

from __future__ import annotations

import json
import math

from dragoman.evaluation import TEXT_METRICS
from dragoman.evaluation.system_comparison import RunResult, SystemComparison, metric_label, shuffled_bleu

SOURCES = [" ".join(["w"] * (6 if i % 2 else 14)) for i in range(80)]
REFERENCES = [f"line {i} tells of {i % 11} cats on {i % 7} mats in house {i % 13} today" for i in range(80)]


def run(system: str, texts: list[str], seed: int = 1, attention: bool = True) -> RunResult:
    return RunResult(system, seed, 2015, attention, 1000, 10, 5000, 1e9, 2.0, 3.0, texts)


def damaged(every: int, start: int = 0) -> list[str]:
    """The references with every n-th sentence wrong."""
    return [r if (i + start) % every else "something else" for i, r in enumerate(REFERENCES)]


def compared(results: list[RunResult], minutes: bool = False) -> SystemComparison:
    return SystemComparison(results, SOURCES, REFERENCES, "5,000 target tokens", minutes, samples=200)


def test_a_clear_difference_is_claimed_with_its_p_value() -> None:
    comparison = compared([run("good", damaged(20)), run("bad", damaged(2))])
    (difference,) = comparison.differences
    assert (difference.better, difference.worse, difference.significant) == ("good", "bad", True)
    told = " ".join(comparison.findings())
    assert "Highest BLEU: good" in told
    assert "Significantly better than bad" in told
    assert "p = " in told
    assert "n = 80 sentences" in comparison.method
    assert "Holm correction for 1 comparison," in comparison.method


def test_a_difference_in_one_sentence_is_not_claimed() -> None:
    nearly = [*damaged(9)[:-1], "another one"]
    comparison = compared([run("first", damaged(9)), run("second", nearly)])
    assert not comparison.differences[0].significant
    assert "No significant difference from second" in " ".join(comparison.findings())


def test_seeds_that_vary_more_than_systems_allow_no_claim() -> None:
    results = [run("a", damaged(20), 1), run("a", damaged(2), 2), run("b", damaged(3), 1), run("b", damaged(2, 1), 2)]
    alone = compared([results[0], results[2]])
    assert alone.differences[0].significant
    both = compared(results)
    assert not both.differences[0].significant
    assert "variance between 2 seeds" in both.method
    assert "±" in str(both.systems[0].quality()["BLEU"].formatted)  # type: ignore[attr-defined]


def test_finding_about_a_single_seed() -> None:
    results = [run("a", damaged(9)), run("b", damaged(5))]
    assert any("One seed" in line for line in compared(results).findings())
    twice = results + [run(one.system, one.texts, 2) for one in results]
    assert not any("One seed" in line for line in compared(twice).findings())


def test_systems_whose_outputs_do_not_depend_on_the_source_have_not_learned() -> None:
    same, empty = ["line 1 tells of 1 cats on 1 mats in house 1 today"] * 80, [""] * 80
    comparison = compared([run("constant", same), run("silent", empty, attention=False), run("good", damaged(20))])
    assert comparison.systems[0].bleu[0] > 1  # a constant sentence has something in common with the references
    assert [one.name for one in comparison.learned] == ["good"]
    assert comparison.differences == []
    told = " ".join(comparison.findings())
    assert "constant" in told
    assert "silent" in told
    assert "have not learned to translate" in told
    assert "better than" not in told
    assert "Attention is not compared" in told


def test_a_seed_that_has_not_learned_is_named() -> None:
    comparison = compared([run("a", damaged(20), 1), run("a", [""] * 80, 2)])
    assert any("a has not learned to translate with seed 2" in line for line in comparison.findings())


def test_attention_is_compared_on_long_sentences_in_the_same_family_of_tests() -> None:
    results = [run("a", damaged(40)), run("b", damaged(20)), run("c", damaged(2), attention=False)]
    comparison = compared(results)
    assert len(comparison.differences) == 4  # three pairs and the two groups
    group = comparison.differences[-1]
    assert (group.better, group.worse, group.metric) == ("attention", "no attention", "BLEU, 13+ words")
    assert group.adjusted_p_value > group.p_value
    assert any("Attention: systems with attention score" in line for line in comparison.findings())


def test_finding_about_a_time_budget() -> None:
    assert "machine" in compared([run("a", damaged(9))], minutes=True).findings()[0]


def test_the_json_document_has_every_number_but_no_text() -> None:
    results = [run("a", damaged(9)), run("b", damaged(5))]
    document = json.loads(json.dumps(compared(results).to_dict()))
    assert document["systems"][0]["BLEU"]["std"] is None
    assert document["systems"][1]["runs"][0]["target_tokens"] == 5000
    assert document["systems"][1]["runs"][0]["tokens_per_second"] == 2500
    assert "something else" not in json.dumps(document)
    assert document["differences"][0]["p_value"] > 0


def test_shuffled_outputs_of_a_translator_score_low() -> None:
    assert shuffled_bleu(REFERENCES, REFERENCES) < 50
    assert shuffled_bleu(["a b c d e"] * 4, ["a b c d e"] * 4) > 99.9
    assert math.isfinite(shuffled_bleu(["a"], ["a"]))


def test_every_metric_without_sources_has_a_column_title() -> None:
    titles = [metric_label(name) for name, metric in TEXT_METRICS.items() if not metric.needs_sources]
    assert {"BLEU", "ROUGE-L", "exact match %", "span F1 %"} <= set(titles)
    assert metric_label("bleu=char") == "BLEU (char)"
