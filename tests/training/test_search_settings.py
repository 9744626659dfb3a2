"""At the end of a training, beam size and length penalty are chosen on the validation set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest_training import small_config

import dragoman
from dragoman import config as configuration
from dragoman.api.events import MessageEvent, TrainingEvent
from dragoman.cli import app
from dragoman.config import Config, SearchDefaults
from dragoman.errors import UserError
from dragoman.run.search_choice import CHOSEN_SETTINGS, unset_search_settings
from dragoman.run_files import CONFIG_FILE, read_metrics
from dragoman.training.display import Display
from dragoman.training.trainer import Trainer


def config_of(corpus: Path, search: dict[str, Any] | None = None, **training: Any) -> Config:
    """A training of two steps, with 60 validation pairs that are held out, of which 3 are too long."""
    config = small_config(corpus, "bahdanau", steps=2, validation_sentences=60, **training)
    data = replace(config.data, valid_source=(), valid_target=(), validation_size=60)
    return replace(config, data=data, search=SearchDefaults(max_target_length=4, **(search or {})))


def searches(folder: Path, kind: str = "search") -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder) if record["kind"] == kind]


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run folder, and the messages of its training."""
    folder, messages = tmp_path_factory.mktemp("search") / "run", list[str]()

    def callback(event: TrainingEvent) -> None:
        if isinstance(event, MessageEvent):
            messages.append(event.text)

    dragoman.train(folder, config=config_of(corpus), callback=callback)
    return folder, messages


def test_the_choice_is_stored_printed_and_used(trained: tuple[Path, list[str]]) -> None:
    folder, messages = trained
    (record,) = searches(folder)
    config = configuration.from_yaml(folder / CONFIG_FILE)
    assert (record["step"], record["sentences"], len(record["scores"])) == (2, 57, 16)
    chosen = {"search.beam_size": record["beam_size"], "search.length_penalty": record["length_penalty"]}
    assert config.chosen.items() >= chosen.items()
    assert any("on 57 validation sentences" in text for text in messages)
    beam = dragoman.load(folder).beam_config()
    assert (beam.size, beam.length_penalty) == tuple(chosen.values())
    assert configuration.without_automatic_settings(config).search.beam_size is None


class Messages(Display):
    """Collects messages."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def test_nothing_is_chosen_without_memory_for_larger_beams(trained: tuple[Path, list[str]]) -> None:
    """As after errors of CUDA, the CPU's allocator or cuBLAS; other errors are raised."""
    display = Messages()
    trainer = Trainer(trained[0], display)

    def choose_search(message: str) -> None:
        def fail(num_validations: int) -> None:
            raise RuntimeError(message)

        trainer.validator.choose_search = fail  # type: ignore[assignment, method-assign]
        assert trainer._choose_search() is None

    choose_search("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")
    assert "no memory for a larger beam" in display.texts[-1]
    with pytest.raises(RuntimeError, match="shapes differ"):
        choose_search("shapes differ")


def test_an_extended_run_validates_as_before_and_chooses_again(trained: tuple[Path, list[str]]) -> None:
    folder, _ = trained
    settings = {"search.beam_size": 1, "search.length_penalty": 2.0}  # as if these had been chosen
    config = configuration.replace_settings(configuration.from_yaml(folder / CONFIG_FILE), settings)
    (folder / CONFIG_FILE).write_text(configuration.to_yaml(replace(config, chosen=config.chosen | settings)))
    dragoman.train(folder, resume=True, settings={"training.steps": 3}, callback=lambda event: None)
    assert [record["search"] for record in searches(folder, "valid")] == ["beam 5", "beam 5"]
    (record,) = searches(folder)
    assert record["step"] == 3
    assert configuration.from_yaml(folder / CONFIG_FILE).search.beam_size == record["beam_size"]


def test_tune_search_chooses_anew(
    trained: tuple[Path, list[str]], corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = trained
    files = ["--source", str(corpus / "valid.en"), "--reference", str(corpus / "valid.de")]
    app(["tune-search", str(folder), *files, "--metric", "chrf", "--device", "cpu"], standalone_mode=False)
    assert "chrF on 12 validation sentences" in capsys.readouterr().out
    app(["tune-search", str(folder), "--device", "cpu", "--json"], standalone_mode=False)
    assert '"sentences": 57' in capsys.readouterr().out  # those of the run


def test_what_was_set_is_chosen_only_on_request(trained: tuple[Path, list[str]]) -> None:
    """As in runs of earlier versions, which store the default without saying that nobody has set it."""
    run = dragoman.load(trained[0])
    config = replace(run.config, chosen={})
    assert (unset_search_settings(run.config), unset_search_settings(config)) == (list(CHOSEN_SETTINGS), [])
    (run.folder / CONFIG_FILE).write_text(configuration.to_yaml(config))
    dragoman.tune_search(run, ["the dog"], ["der Hund"])
    assert run.config.chosen.keys() == set(CHOSEN_SETTINGS)
    run.config = configuration.replace_settings(run.config, {"search.strategy": {"kind": "Sample"}})
    with pytest.raises(UserError, match="remove it from config"):
        dragoman.tune_search(run)
