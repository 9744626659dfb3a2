"""`dragoman recipe`: lists, describes and carries out recipes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dragoman as library
from dragoman.cli import app
from dragoman.data.task_recipes import load_recipe, recipe_names
from dragoman.errors import UserError
from dragoman.run import Translation

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
    assert list(dict.fromkeys(row["recipe"] for row in rows)) == recipe_names()
    assert {row["data"] for row in rows} == {"generated", "download", "--data FOLDER"}
    text = run(["recipe", "multi30k"], capsys)
    assert "41.02" in text
    assert "research and education only" in text
    assert "en-fr" in text
    means = {row["variant"]: row["published"] for row in rows if row["recipe"] == "g2p-2021"}
    assert means == {"mean of medium": "10.64", "mean of low": "25.1"}
    assert [row["test set"] for row in rows if row["recipe"] == "cogs"] == ["test", "gen"]


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


def test_categories_and_names_of_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: of the items "a b" (active and passive) and "a c" (passive), only "a b" has its second reference."""
    text = RECIPE.replace('["exact", "per"]', '["perplexity", "exact"]')
    (tmp_path / "own.toml").write_text(text.replace("group_by_source", "category_column = 2, group_by_source"))
    (tmp_path / "train.tsv").write_text("".join(f"a b c{n % 7}\tx y\n" for n in range(40)))
    (tmp_path / "test.tsv").write_text("a b\tx x\tactive\na c\ty y\tpassive\na b\tx\tpassive\n")
    translate, texts = library.Run.translate, {"a b": "x", "a c": "z"}

    def translate_by_hand(run: library.Run, sources: list[str], **options: Any) -> list[Translation]:
        results = translate(run, sources, **options)
        return [replace(result, text=texts.get(source, "")) for source, result in zip(sources, results)]

    monkeypatch.setattr(library.Run, "translate", translate_by_hand)
    command = ["recipe", str(tmp_path / "own.toml"), str(tmp_path / "run"), "--data", str(tmp_path), "--quiet"]
    results = json.loads(run([*command, "--json", "--device", "cpu"], capsys))["results"]
    likelihood, whole, active, passive, baseline = results
    assert (likelihood["metric"], likelihood["score"]["name"]) == ("perplexity", "perplexity")
    assert likelihood["published"] == []  # the published score is an exact match
    for row, category, value in ((whole, "", 50), (active, "active", 100), (passive, "passive", 50)):
        assert (row["metric"], row["category"], row["score"]["value"]) == ("exact", category, value)
    assert (baseline["system"], baseline["metric"]) == ("first sentence", "exact")


def test_the_lead_sentence_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: "A cat sleeps" has 2 of its 3 words in the reference of 2 words, F₁ = 2 · 2/3 · 1 / (2/3 + 1) = 80 %."""
    (tmp_path / "test.tsv").write_text("A cat sleeps. It is old.\tcat sleeps\n")
    command = ["evaluate", "--lead", "--metrics", "rouge-1", "--json"]
    scores = json.loads(run([*command, "--source", str(tmp_path / "test.tsv")], capsys))["scores"]
    assert scores[0]["value"] == pytest.approx(80)
    (tmp_path / "own.txt").write_text("cat sleeps\n")
    with pytest.raises(UserError, match="name the source texts"):
        run([*command, "--reference", str(tmp_path / "own.txt")], capsys)


VARIANTS = """
[variants]
one = { setting = "low", file = "train.tsv" }
two = { setting = "low", file = "train2.tsv" }
three = { setting = "high", file = "train.tsv" }
"""


@pytest.mark.exhaustive
def test_variants_seeds_and_categories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Means over two seeds and over the two variants of a group are those of the single results."""
    text = RECIPE.replace('"train.tsv"', '"{file}"').replace("group_by_source = true", "category_column = 2") + VARIANTS
    mean = "[[published]]\nmetric = 'exact'\nvariant = 'low'\nvalue = 7.5\ncitation = 'Somebody 2021'\n"
    (tmp_path / "own.toml").write_text(text.replace('baseline = "lead"', "") + mean)
    for name, word in (("train.tsv", "x"), ("train2.tsv", "y")):
        (tmp_path / name).write_text("".join(f"a b c{n % 7}\t{word} {word}\n" for n in range(40)))
    (tmp_path / "test.tsv").write_text("a b\tx x\tactive\na c\ty y\tpassive\na d\tx\tactive\n")
    command = ["recipe", str(tmp_path / "own.toml"), str(tmp_path / "runs"), "--data", str(tmp_path), "--quiet"]
    options = ["--variant", "low", "--seeds", "2", "--device", "cpu"]
    results = json.loads(run([*command, *options, "--json"], capsys))["results"]
    folders = [tmp_path / "runs" / variant / f"seed{seed}" for variant in ("one", "two") for seed in (1, 2)]
    assert all(folder.is_dir() for folder in folders)
    rows = [(row["variant"], row["system"], row["category"]) for row in results if row["metric"] == "exact"]
    single = [("", ""), *(("", category) for category in ("active", "passive"))]
    systems = ("mean of 2 seeds", "ensemble of 2 seeds")
    expected = [(name, system, category) for name in ("one", "two") for system in systems for _, category in single]
    assert rows == [*expected, *(("mean of low", system, "") for system in systems)]
    scores = {}
    for folder, variant in zip(folders, ("one", "one", "two", "two")):
        hypotheses = [one.text for one in library.load(folder, device="cpu").translate(["a b", "a c", "a d"])]
        right = [hypothesis == reference for hypothesis, reference in zip(hypotheses, ("x x", "y y", "x"))]
        scores.setdefault(variant, []).append((100 * sum(right) / 3, 50 * (right[0] + right[2])))
    whole, active = ({name: [pair[part] for pair in pairs] for name, pairs in scores.items()} for part in (0, 1))
    found = {
        (row["variant"], row["category"]): row
        for row in results
        if row["system"] == systems[0] and row["metric"] == "exact"
    }
    for name in ("one", "two"):
        assert found[name, ""]["score"]["value"] == pytest.approx(sum(whole[name]) / 2)
        assert found[name, ""]["deviation"] == pytest.approx(abs(whole[name][0] - whole[name][1]) / 2**0.5)
        assert found[name, "active"]["score"]["value"] == pytest.approx(sum(active[name]) / 2)
    assert found["mean of low", ""]["score"]["value"] == pytest.approx(sum(map(sum, whole.values())) / 4)
    assert [figure["value"] for figure in found["mean of low", ""]["published"]] == [7.5]
    text = run([*command, *options], capsys)
    assert "mean of low" in text
    assert "passive" in text
    for wrong, message in (
        (["--variant", "lo"], "did you mean 'low'"),
        (["--variant", "one", "--all-variants"], "leave"),
    ):
        with pytest.raises(UserError, match=message):
            run([*command, *wrong], capsys)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", [row for row in recipe_names() if not load_recipe(row).generator])
def test_recipes_of_corpora_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every recipe of a corpus can be carried out with files of the same form, in a folder of corpora."""
    recipe = load_recipe(name)
    folder = tmp_path / "corpora" / (recipe.folder or name)
    for split in recipe.splits:
        files = recipe.split(split, recipe.default_variant)
        words = [[f"{letter}{number % 5}" for letter in "abc"] for number in range(40 if split == "train" else 6)]
        texts = [(" ".join(row), " ".join(word.upper() for word in row)) for row in words]  # one tag per word
        lines = ["\t".join((*text, "kind")) if files.category_column else "\t".join(text) for text in texts]
        contents = {files.source: lines} if not files.target else dict(zip((files.source, files.target), zip(*texts)))
        for file, column in contents.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text("".join(f"{line}\n" for line in column))
    command = ["recipe", name, str(tmp_path / "run"), "--data", str(tmp_path / "corpora"), "--quiet", "--json"]
    short = ["--steps", "2", "--device", "cpu", "--set", "search.max_target_length=4", "--set", "search.beam_size=1"]
    results = json.loads(run([*command, *short], capsys))["results"]
    whole = [result for result in results if not result["category"] and result["system"] == "this run"]
    assert len(whole) == len(recipe.metrics) * len(recipe.test_sets)
    assert [result["category"] for result in results if result["category"]] == ["kind"] * (name == "cogs")
