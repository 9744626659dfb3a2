"""`dragoman recipe`: lists, describes and carries out recipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.cli import app
from dragoman.data.task_recipes import load_recipe, recipe_names
from dragoman.errors import UserError

RECIPE = """
name = "own"
task = "summarization"
shows = "nothing"
corpus = "a few lines"
size = "40 / - / 2"
licence = "none"
metrics = ["exact", "per"]
baseline = "lead"
[splits]
train = { source = "train.tsv" }
test = { source = "test.tsv", group_by_source = true }
[settings]
"system.name" = "bahdanau"
"system.size" = "tiny"
"system.settings" = { model_dim = 16 }
"text.tokenizer" = "word"
"training.steps" = 2
"training.validation_sentences" = 2
"search.max_target_length" = 5
[[published]]
metric = "exact"
value = 12.5
citation = "Somebody 2020"
"""


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints."""
    app(arguments, standalone_mode=False)
    return capsys.readouterr().out


def test_list_and_description(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(run(["recipe", "--json"], capsys))
    assert [row["recipe"] for row in rows] == recipe_names()
    assert {row["data"] for row in rows} == {"generated", "download", "--data FOLDER"}
    text = run(["recipe", "multi30k"], capsys)
    assert "41.02" in text
    assert "research and education only" in text
    assert "en-fr" in text


def test_a_recipe_trains_and_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines with the same source are one item with two references; the lead sentence of "b c" is itself."""
    (tmp_path / "own.toml").write_text(RECIPE)
    (tmp_path / "train.tsv").write_text("".join(f"a b c{n % 7}\tx y\n" for n in range(40)))
    (tmp_path / "test.tsv").write_text("b c\tb d\nSo. B\tx\nb c\tb c\n")
    command = ["recipe", str(tmp_path / "own.toml"), str(tmp_path / "run"), "--data", str(tmp_path), "--quiet"]
    results = json.loads(run([*command, "--json", "--device", "cpu"], capsys))["results"]
    assert [(row["system"], row["score"]["name"]) for row in results] == [
        ("this run", "exact match"),
        ("this run", "phoneme error rate"),
        ("first sentence", "exact match"),
        ("first sentence", "phoneme error rate"),
    ]
    assert results[0]["published"][0]["value"] == 12.5
    # first sentences: "b c" equals its second reference; "So." is not "x": 1 of 2 items, 1 error in 3 phonemes
    assert results[2]["score"]["value"] == 50
    assert results[3]["score"]["value"] == pytest.approx(100 / 3)
    text = run(command, capsys)  # the finished run is scored again
    assert "published 12.5 (test, exact match): Somebody 2020" in text
    (tmp_path / "other").mkdir()
    for name in ("train.tsv", "test.tsv"):
        (tmp_path / "other" / name).write_text((tmp_path / name).read_text())
    with pytest.raises(UserError, match="was trained on"):
        run([*command[:3], "--data", str(tmp_path / "other")], capsys)


def test_the_lead_sentence_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: "A cat sleeps" has 2 of its 3 words in the reference of 2 words, F₁ = 2 · 2/3 · 1 / (2/3 + 1) = 80 %."""
    (tmp_path / "test.tsv").write_text("A cat sleeps. It is old.\tcat sleeps\n")
    command = ["evaluate", "--lead", "--metrics", "rouge-1", "--json"]
    scores = json.loads(run([*command, "--source", str(tmp_path / "test.tsv")], capsys))["scores"]
    assert scores[0]["value"] == pytest.approx(80)
    (tmp_path / "own.txt").write_text("cat sleeps\n")
    with pytest.raises(UserError, match="name the source texts"):
        run([*command, "--reference", str(tmp_path / "own.txt")], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", [row for row in recipe_names() if load_recipe(row).generator])
def test_generated_recipes_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every recipe with generated data can be carried out, for two steps."""
    monkeypatch.chdir(tmp_path)
    short = ["--steps", "2", "--device", "cpu", "--set", "search.max_target_length=4", "--set", "search.beam_size=1"]
    results = json.loads(run(["recipe", name, "run", "--quiet", "--json", *short], capsys))["results"]
    assert [result["score"]["value"] >= 0 for result in results] == [True] * len(load_recipe(name).metrics)
