"""The analysis of a test set over HTTP: its numbers are those of sacreBLEU and of the run itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from starlette.testclient import TestClient

import dragoman
from dragoman.lens.diagnosis import validation_pairs
from dragoman.lens.sentence_errors import SentenceError
from dragoman.lens.test_set_analysis import AnalyzedSentence
from dragoman.run import Run
from dragoman.serving import AnalysisSettings, LanguagePair, NamedTestSet, Service, ServiceLimits, create_app
from dragoman.serving.analysis_table import AnalysisRequest, outcome_counts, select_rows
from dragoman.serving.device_scheduler import DeviceScheduler, Turn
from dragoman.serving.job_queue import CanceledError
from dragoman.serving.shared_run import SharedRun


def analyzed(client: TestClient, **query: object) -> dict[str, Any]:
    """The table, when it is complete."""
    for _ in range(600):
        answer = client.get("/v1/runs/run/analysis", params=query).json()
        if all(job["state"] in ("done", "failed") for job in answer["runs"]):
            return answer
        time.sleep(0.1)
    raise AssertionError("the analysis does not end")


@pytest.fixture(scope="module")
def test_set(run: Run) -> tuple[list[str], list[str]]:
    return validation_pairs(run, 100)


def test_scores_are_those_of_sacrebleu(client: TestClient, run: Run, test_set: Any) -> None:
    sources, references = test_set
    answer = analyzed(client, sort="index")
    assert [row["source"] for row in answer["rows"]] == sources
    texts = [row["results"][0]["translation"] for row in answer["rows"]]
    assert texts == [translation.text for translation in run.translate(sources, alignment=False)]
    for row, text, reference in zip(answer["rows"], texts, references):
        result = row["results"][0]
        assert result["chrf"] == pytest.approx(sacrebleu.sentence_chrf(text, [reference]).score, abs=1e-4)
        assert result["bleu"] == pytest.approx(sacrebleu.sentence_bleu(text, [reference]).score, abs=1e-4)
        assert result["reference_score"] == pytest.approx(run.score([row["source"]], [reference])[0].score, abs=1e-3)
    scores = {name.partition("=")[0]: score["value"] for name, score in answer["runs"][0]["scores"].items()}
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(texts, [references]).score, abs=1e-4)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(texts, [references]).score, abs=1e-4)
    evaluated = dragoman.evaluate(run, sources, references, ["bleu", "chrf", "exact-match"], log=lambda text: None)
    assert scores["exact-match"] == pytest.approx(evaluated["exact-match"])
    assert scores["chrf"] == pytest.approx(evaluated["chrf"])


def test_pages_filters_and_wrong_fields(client: TestClient) -> None:
    first, second = (analyzed(client, sort="words", limit=3, offset=offset)["rows"] for offset in (0, 3))
    words = [row["words"] for row in (*first, *second)]
    assert words == sorted(words)
    assert not {row["index"] for row in first} & {row["index"] for row in second}
    assert analyzed(client, min_words=100)["count"] == 0
    assert "the field 'sort' must be 'index'" in client.get("/v1/runs/run/analysis?sort=colour").json()["error"]
    assert client.get("/v1/runs/other/analysis").status_code == 404
    assert client.get("/v1/runs/run/analysis?compare=other").status_code == 404


def sentence(index: int, chrf: float, translation: str = "x", **fields: Any) -> AnalyzedSentence:
    values = {"source": f"source {index}", "reference": "R", "score": -1.0, "num_tokens": 2, "source_words": index}
    values |= {"reference_score": None, "bleu": chrf} | fields
    return AnalyzedSentence(index=index, chrf=chrf, translation=translation, **values)


def test_rows_are_selected_by_hand() -> None:
    error = (SentenceError("omission", "dog"),)
    left = [sentence(0, 50.0), sentence(1, 90.0, "Hund", errors=error), sentence(2, 10.0, rare_words=("yak",))]
    right = [sentence(0, 50.0), sentence(1, 20.0, "dog"), sentence(2, 30.0, "y")]
    rows = list(zip(left, right))

    def indices(**fields: Any) -> list[int]:
        return [row[0].index for row in select_rows(rows, AnalysisRequest(**fields))]

    assert indices() == [2, 0, 1]  # the worst chrF first
    assert indices(sort="difference", descending=True) == [1, 0, 2]
    assert indices(error="omission") == [1]
    assert indices(error="none") == [2, 0]
    assert indices(rare=True) == [2]
    assert indices(contains="HUND") == [1]
    assert indices(min_words=1, max_words=1) == [1]
    assert indices(outcome="better") == [1]
    assert indices(outcome="worse") == [2]
    assert indices(outcome="different") == [2, 1]
    assert outcome_counts(rows) == {"better": 1, "worse": 1, "equal": 1}


class CountingScheduler(DeviceScheduler):
    """A scheduler that counts the turns of background work."""

    count = 0

    @contextmanager
    def turn(self, is_background: bool = False) -> Iterator[Turn]:
        self.count += is_background
        with super().turn(is_background) as turn:
            yield turn


def test_long_work_returns_the_device_after_every_few_sentences(run: Run) -> None:
    scheduler, texts = CountingScheduler(), [f"The dog sees {n} cats." for n in range(40)]
    shared = SharedRun(run, scheduler, lambda: False)
    assert [text.text for text in shared.translate(texts)] == [text.text for text in run.translate(texts)]
    assert scheduler.count == 3  # 16, 16 and 8 sentences
    with pytest.raises(CanceledError):
        SharedRun(run, scheduler, lambda: True).translate(texts)


def test_a_language_model_scores_long_texts_in_turns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "score", lambda self, sources, targets: [(sources, target) for target in targets])
    scheduler, texts = CountingScheduler(), [f"text {n}" for n in range(40)]
    assert SharedRun(run, scheduler, lambda: False).score(None, texts) == [(None, text) for text in texts]
    assert scheduler.count == 3  # 16, 16 and 8 sentences
    with pytest.raises(CanceledError):
        SharedRun(run, scheduler, lambda: True).score(None, texts)


def test_given_test_set_two_runs_and_switched_off(run: Run) -> None:
    service = Service([(run, LanguagePair("en", "de"))] * 2, ServiceLimits(requests_per_minute=0))
    test_set = NamedTestSet("mine", ["The dog sleeps.", ""], ["Der Hund schläft.", ""])
    service.analysis = AnalysisSettings(test_sets={"run": test_set})
    with TestClient(create_app(service), "http://localhost", raise_server_exceptions=False) as client:
        answer = analyzed(client, compare="run-2", sort="index")
        assert (answer["test_set"], answer["count"]) == ("mine", 2)
        assert answer["outcomes"] == {"better": 0, "worse": 0, "equal": 2}  # a run against itself
        assert len({result["translation"] for result in answer["rows"][0]["results"]}) == 1
        service.analysis = AnalysisSettings(enabled=False)
        refused = client.get("/v1/runs/run/analysis")
        assert refused.status_code == 403
        assert "--analysis" in refused.json()["error"]


def test_saliency_is_a_distribution_over_what_a_token_depends_on(client: TestClient) -> None:
    fields = {"run": "run", "text": "The dog sleeps.", "translation": "Der Hund schläft."}
    saliency = client.post("/v1/saliency", json=fields).json()["saliency"]
    for t, (source, target) in enumerate(zip(saliency["source"], saliency["target"])):
        assert sum(source) + sum(target) == pytest.approx(1, abs=1e-4)
        assert not any(target[t + 1 :])  # later tokens have no influence
        assert any(source)
    assert len(saliency["target_tokens"]) == len(saliency["source"])


def test_diagnosis_is_that_of_the_command(client: TestClient, folder: Path) -> None:
    for _ in range(600):
        answer = client.get("/v1/runs/run/diagnosis").json()
        if answer["state"] in ("done", "failed"):
            break
        time.sleep(0.1)
    assert answer["error"] == ""
    assert str(folder) not in str(answer)
    assert {"gender", "hallucination", "copying", "length"} <= {
        entry["name"] for entry in answer["diagnosis"]["findings"]
    }
