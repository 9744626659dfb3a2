"""Features of sources such as V;PST, from the files of a corpus to commands, service and Python."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import pytest
from calling import Dragoman
from starlette.testclient import TestClient

import dragoman as library
from dragoman.api import seed_training
from dragoman.api.evaluate_run import EvaluationResult
from dragoman.cli.inputs import FileLayout
from dragoman.cli.serve_options import AnalysisOptions
from dragoman.config import from_dict, from_yaml, replace_settings, to_yaml
from dragoman.data import TokenStore
from dragoman.data.generated_tasks import write_generated
from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.run_files import CONFIG_FILE
from dragoman.serving import LanguagePair, Service, ServiceLimits, create_app
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.resolve import make_corpora
from dragoman.training.trainer import Trainer

SETTINGS = {
    "text": {"tokenizer": "character"},
    "system": {"name": "transformer", "settings": {"model_dim": 16, "layers": 1, "heads": 2}},
    "training": {"steps": 2, "validation_sentences": 2, "device": "cpu", "batch_tokens": 500},
    "search": {"max_target_length": 8, "beam_size": 2},
}


def train(folder: Path, data: dict[str, object], **settings: dict[str, object]) -> Run:
    prepare_run(folder, from_dict({"data": data} | SETTINGS | settings), lambda text: None)
    Trainer(folder, Display()).train()
    return library.load(folder, device="cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features") / "inflection"
    write_generated("inflection", folder, {"train": 200, "valid": 10, "test": 10})
    columns = [line.split("\t") for line in (folder / "train.tsv").read_text().splitlines()]
    for column, name in enumerate(("lemmas", "forms", "tags")):
        (folder / name).write_text("".join(f"{row[column]}\n" for row in columns))
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path) -> Run:
    return train(corpus.parent / "run", {"source": [str(corpus / "train.tsv")]})


def test_a_third_column_of_features_is_found(run: Run, corpus: Path) -> None:
    assert run.config.data.features_column == "2"
    assert {"N", "V", "PST", "LOC", "1", "PL"} <= set(run.source_tokenizer.features.names)
    assert run.target_tokenizer.vocab_size == run.source_tokenizer.vocab_size  # one vocabulary …
    assert set(run.source_tokenizer.features.ids.values()) <= set(run.special_tokens.suppressed)  # … never generated


def test_features_are_whole_symbols_before_the_characters(run: Run, corpus: Path) -> None:
    lemma, _, features = (corpus / "train.tsv").read_text().splitlines()[0].split("\t")
    ids = run.encode_sources([f"{lemma}\t{features}"])[0]
    symbols = [f"<feature:{name}>" for name in features.split(";")]
    assert run.source_tokenizer.tokens(ids) == [*symbols, *lemma, "</s>"]
    stored = {tuple(row) for row in map(TokenStore(run.folder / "data" / "train").source, range(150))}
    assert tuple(ids[:-1]) in stored  # what the model was trained on


def test_a_separate_file_gives_the_same_training_data(run: Run, corpus: Path) -> None:
    files = {"source": "lemmas", "target": "forms", "source_features": "tags"}
    other = train(corpus.parent / "files", {name: [str(corpus / file)] for name, file in files.items()})
    assert other.source_tokenizer.to_json() == run.source_tokenizer.to_json()
    source = ["kukka"], ["N;GEN;SG"]
    assert other.score(source[0], ["kukan"], features=source[1]) == run.score(source[0], ["kukan"], features=source[1])


def test_python_takes_features_or_a_tab(run: Run) -> None:
    texts, features = ["kukka", "taloda"], ["N;GEN;SG", "V;PST;3;PL"]
    joined = [f"{text}\t{names}" for text, names in zip(texts, features)]
    assert run.translate(texts, features=features) == run.translate(joined)
    assert run.translate(joined, split_sentences=True)[0].text == run.translate(joined)[0].text
    assert run.score(texts, ["a", "b"], features=features) == run.score(joined, ["a", "b"])
    assert run.score(texts, ["a", "b"]) != run.score(joined, ["a", "b"])
    result = run.evaluate(texts, ["a", "b"], ["exact"], features=features)
    assert result.hypotheses == [translation.text for translation in run.translate(joined)]
    with pytest.raises(UserError, match=r"one entry for each of the 2 texts, .*, but has 1 entries"):
        run.translate(texts, features=["V"])


def test_the_order_of_features_does_not_matter(run: Run) -> None:
    first, other = run.score(["kukka\tN;GEN;SG", "kukka\tSG;N;GEN"], ["kukan", "kukan"])
    assert first.score == pytest.approx(other.score, abs=1e-4)


def test_unknown_features_are_reported_once(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.console.quiet", False)  # another test may have used --quiet
    run.reported_features.clear()
    run.translate(["kukka\tN;XYZ"])
    assert "does not know the feature XYZ of sources; it was trained with" in capsys.readouterr().err
    run.translate(["kukka\tN;XYZ"])
    assert not capsys.readouterr().err
    ids = run.encode_sources(["kukka\tN;XYZ"])[0]
    assert run.source_tokenizer.tokens(ids)[1] == "<feature:>"


def test_lens_shows_features(run: Run) -> None:
    assert run.lens("kukka", "kukan", features="N;GEN").source.tokens[:2] == ("<feature:N>", "<feature:GEN>")


def test_commands_read_columns_files_and_lines(run: Run, corpus: Path, tmp_path: Path, dragoman: Dragoman) -> None:
    rows = [line.split("\t") for line in (corpus / "test.tsv").read_text().splitlines()]
    expected = [t.text for t in run.translate([row[0] for row in rows], features=[row[2] for row in rows])]
    inputs = {
        "columns.tsv": "".join(f"{row[0]}\t{row[2]}\n" for row in rows),  # no forms
        "lines.txt": "".join(f"{row[0]}\t{row[2]}\n" for row in rows),
        "lemmas.txt": "".join(f"{row[0]}\n" for row in rows),
        "features.txt": "".join(f"{row[2]}\n" for row in rows),
        "pairs.jsonl": "".join(json.dumps(dict(zip(("source", "target", "tags"), row))) + "\n" for row in rows),
    }
    for name, text in inputs.items():
        (tmp_path / name).write_text(text)
    for file, *options in (
        [corpus / "test.tsv"],
        [tmp_path / "columns.tsv"],
        [tmp_path / "lines.txt"],
        [tmp_path / "lemmas.txt", "--source-features", tmp_path / "features.txt"],
        [tmp_path / "pairs.jsonl", "--features-column", "tags"],
    ):
        assert dragoman("translate", run.folder, file, *options).out.splitlines() == expected
    scored = dragoman("score", run.folder, "--source", corpus / "test.tsv").out.splitlines()
    assert len(scored) == len(rows)
    assert float(scored[0]) == pytest.approx(
        run.score([rows[0][0]], [rows[0][1]], features=[rows[0][2]])[0].score, abs=1e-3
    )
    output = tmp_path / "out"
    evaluated = dragoman(
        "evaluate", run.folder, "--source", corpus / "test.tsv", "--metrics", "exact", "--output", output
    )
    assert evaluated.code == 0
    assert output.read_text().splitlines() == expected
    (tmp_path / "features.txt").write_text("N\n")
    short = dragoman("translate", run.folder, tmp_path / "lemmas.txt", "--source-features", tmp_path / "features.txt")
    assert "a file of source features needs one line for each source sentence" in short.err


def sources_with_features(corpus: Path) -> list[str]:
    """The sources of the test set as a run with features reads them."""
    rows = [line.split("\t") for line in (corpus / "test.tsv").read_text().splitlines()]
    return [f"{lemma}\t{features}" for lemma, _, features in rows]


def test_search_is_tuned_with_features(
    run: Run, corpus: Path, dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[str]] = []

    class Choice:
        def __init__(self, loaded: Run, sources: list[str], references: list[str], metric: str | None) -> None:
            read.append(sources)

        def lines(self) -> list[str]:
            return []

    monkeypatch.setattr("dragoman.api.tune_search.tune_search", Choice)
    assert dragoman("tune-search", run.folder, "--source", corpus / "test.tsv").code == 0
    assert read == [sources_with_features(corpus)]


def test_each_served_run_is_analyzed_with_the_columns_that_it_reads(run: Run, corpus: Path) -> None:
    service = Service([(run, LanguagePair("lemma", "form"))] * 2)
    folders = {"run": run.folder, "without": corpus}  # a folder without settings stands for a run without features
    AnalysisOptions(test_source=corpus / "test.tsv").apply(service, folders, is_local=True)
    expected = sources_with_features(corpus)
    assert service.analysis.test_sets["run"].sources == expected
    assert service.analysis.test_sets["without"].sources == [source.partition("\t")[0] for source in expected]


def test_a_file_is_not_read_before_its_run_is_known(corpus: Path) -> None:
    with pytest.raises(AssertionError, match="for_run"):
        FileLayout().corpus(corpus / "test.tsv")
    assert not FileLayout().for_run(None).corpus(corpus / "test.tsv").has_feature_symbols
    assert FileLayout(features_column="2").for_run(None).corpus(corpus / "test.tsv").has_feature_symbols


def test_runs_with_several_seeds_are_scored_with_features(
    run: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(run.folder, tmp_path / "seed1")
    test_set = {"data.test_source": [str(corpus / "test.tsv")]}
    config = to_yaml(replace_settings(from_yaml(run.folder / CONFIG_FILE), test_set))
    for folder in (tmp_path, tmp_path / "seed1"):
        (folder / CONFIG_FILE).write_text(config)
    ensemble = {"version": seed_training.ENSEMBLE_VERSION, "members": ["seed1"], "finished": {}, "report": {}}
    (tmp_path / "ensemble.json").write_text(json.dumps(ensemble))
    read: list[list[str]] = []

    def evaluate(run: Run, sources: list[str], references: list[str], **options: object) -> EvaluationResult:
        read.append(sources)
        return EvaluationResult()

    monkeypatch.setattr(seed_training, "evaluate", evaluate)
    finished = {"seed1": {run.config.training.selection_metric: 0.0}}
    seed_training.make_report(tmp_path, finished, custom_parts=(), log=lambda text: None)
    assert read == [sources_with_features(corpus)] * 2  # for the run, and for the ensemble


def test_the_service_takes_features(run: Run) -> None:
    service = Service([(run, LanguagePair("lemma", "form"))], ServiceLimits(requests_per_minute=0))
    expected = run.translate(["kukka"], features=["N;GEN;SG"])[0].text
    with TestClient(create_app(service), "http://localhost") as client:
        answer = client.post("/v1/translate", json={"text": "kukka", "features": "N;GEN;SG"}).json()
        assert answer["translations"][0]["text"] == expected
        answer = client.post("/v1/translate", json={"text": "kukka", "features": ""}).json()
        assert answer["translations"][0]["text"] == run.translate(["kukka"])[0].text
        answer = client.post("/v1/translate", json={"text": ["kukka"], "features": ["N", "V"]})
        assert answer.status_code == 400
        assert "each of the 1 texts" in answer.json()["error"]
        lens = client.post("/v1/lens", json={"text": "kukka", "features": "N;GEN", "translation": "kukan"}).json()
        assert lens["inspection"]["source"]["tokens"][0] == "<feature:N>"


@pytest.mark.parametrize("system", ["bahdanau", "gpt"])
def test_recurrent_and_decoder_only_systems_read_features(corpus: Path, tmp_path: Path, system: str) -> None:
    spec = {"name": system, "settings": {"model_dim": 16, "layers": 1}}
    run = train(tmp_path / "run", {"source": [str(corpus / "train.tsv")]}, system=spec)
    first, other = run.score(["kukka\tN;GEN;SG", "kukka\tV"], ["kukan", "kukan"])
    assert first.score != other.score


def test_wrong_features_are_refused(run: Run, corpus: Path, tmp_path: Path) -> None:
    prepare = lambda **data: prepare_run(tmp_path / "new", from_dict({"data": data} | SETTINGS), lambda text: None)  # noqa: E731
    source, lemmas, forms = str(corpus / "train.tsv"), [str(corpus / "lemmas")], [str(corpus / "forms")]
    with pytest.raises(UserError, match="exclude each other"):
        prepare(source=[source], features_column="2", source_features=[source])
    with pytest.raises(UserError, match="1 source files need as many files of source features, but 2 were given"):
        prepare(source=lemmas, target=forms, source_features=[source, source])
    with pytest.raises(UserError, match="expected columns 0 and 1 and 5"):
        prepare(source=[source], features_column="5")
    (tmp_path / "short").write_text("N\n")
    with pytest.raises(UserError, match="a file of source features needs one line for each source sentence"):
        prepare(source=lemmas, target=forms, source_features=[str(tmp_path / "short")])
    (tmp_path / "blank").write_text("\n" * 200)
    with pytest.raises(UserError, match="has a feature"):
        prepare(source=lemmas, target=forms, source_features=[str(tmp_path / "blank")])
    assert not (tmp_path / "new").exists()


def test_systems_are_compared_with_features(corpus: Path, tmp_path: Path, dragoman: Dragoman) -> None:
    """The column of features that training finds is read from the test set as well."""
    settings = ["system.settings.model_dim=16", "system.settings.layers=1", "search.max_target_length=4"]
    options = [part for setting in settings for part in ("--set", setting)]
    files = ["--source", corpus / "train.tsv", "--test-source", corpus / "test.tsv"]
    budget = ["--systems", "bahdanau", "--steps", 2, "--metrics", "exact", "--device", "cpu"]
    assert dragoman("compare", tmp_path / "all", *files, *budget, *options, "--json").code == 0
    (run_folder,) = (path.parent for path in (tmp_path / "all").rglob("model.json"))
    rows = [line.split("\t") for line in (corpus / "test.tsv").read_text().splitlines()]
    run = library.load(run_folder, device="cpu")
    expected = [t.text for t in run.translate([row[0] for row in rows], features=[row[2] for row in rows])]
    assert json.loads((run_folder / "comparison.json").read_text())["texts"] == expected


def test_features_before_the_form_are_found(run: Run, corpus: Path, tmp_path: Path, dragoman: Dragoman) -> None:
    """The shared tasks of SIGMORPHON have lemma, features and form since 2022: the form is what is to be generated."""
    for name in ("train", "test"):
        rows = [line.split("\t") for line in (corpus / f"{name}.tsv").read_text().splitlines()]
        (tmp_path / f"{name}.tsv").write_text("".join(f"{row[0]}\t{row[2]}\t{row[1]}\n" for row in rows))
    other = train(tmp_path / "run", {"source": [str(tmp_path / "train.tsv")]})
    assert (other.config.data.features_column, other.config.data.target_column) == ("1", "2")
    first, second = (TokenStore(folder / "data" / "train") for folder in (run.folder, other.folder))
    for row in range(150):  # equal training data
        assert first.source(row).tolist() == second.source(row).tolist()
        assert first.target(row).tolist() == second.target(row).tolist()
    lemma, features, form = (tmp_path / "test.tsv").read_text().splitlines()[0].split("\t")
    scored = dragoman("score", other.folder, "--source", tmp_path / "test.tsv").out.splitlines()
    assert float(scored[0]) == pytest.approx(other.score([lemma], [form], features=[features])[0].score, abs=1e-3)


def test_which_columns_hold_features(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    for rows, columns, expected in (
        ([("go", "went", "V;PST")], {}, {"features_column": "2"}),
        ([("go", "V;PST", "went")], {}, {"features_column": "1", "target_column": "2"}),
        ([("go", "V;PST", "went")], {"target_column": "1"}, {}),  # morphological analysis, by the user's choice
        ([("go", "V;PST", "went")], {"target_column": "2"}, {"features_column": "1"}),
        ([("went", "go", "V;PST")], {"source_column": "1", "target_column": "0"}, {"features_column": "2"}),
        ([("go", "V;PST")], {}, {}),
        ([("Go; now.", "Geh; jetzt.", "a; b")], {}, {}),
    ):
        file.write_text("".join("\t".join(row) + "\n" for row in rows * 20))
        corpus = make_corpora(from_dict({"data": {"source": [str(file)]} | columns}))[0]
        assert corpus.file_format.find_features(corpus, ";") == expected
