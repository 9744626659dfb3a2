"""The public Python API: examples in docstrings run, and training accepts custom parts and systems."""

from __future__ import annotations

import doctest
import inspect
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import config
from dragoman.api import evaluate_run, events, train_run
from dragoman.cli.reference import markdown_lines
from dragoman.data import phrasebook
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.spec import replace_parts
from dragoman.search import configs, exact_search, minimum_bayes_risk, reranking, search_config, speculative
from dragoman.systems import SYSTEMS

SETTINGS: dict[str, Any] = {
    "training.steps": 3,
    "training.validation_interval": 3,
    "training.validation_sentences": 2,
    "training.batch_tokens": 600,
    "training.device": "cpu",
    "text.vocab_size": 400,
    "search.max_target_length": 8,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api") / "corpus"
    phrasebook.write(folder, pairs=200, valid=6, test=6)
    return folder


@pytest.fixture(scope="module")
def trained(
    corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dragoman.Run, list[dragoman.TrainingEvent]]:
    """A run of three steps, and the events of its training."""
    received: list[dragoman.TrainingEvent] = []
    run = dragoman.train(
        tmp_path_factory.mktemp("runs") / "run",
        source=corpus / "train.en",
        target=corpus / "train.de",
        system="bahdanau",
        size="tiny",
        settings=SETTINGS | {"system.settings.model_dim": 16},
        callback=received.append,
    )
    return run, received


def test_training_returns_a_run_and_reports_events(
    trained: tuple[dragoman.Run, list[dragoman.TrainingEvent]], corpus: Path
) -> None:
    run, received = trained
    assert isinstance(run, dragoman.Run)
    assert run.config.training.steps == 3
    (validation,) = (event for event in received if isinstance(event, dragoman.ValidationEvent))
    assert validation.step == 3
    assert validation.is_best
    assert validation.perplexity > 1
    assert any(isinstance(event, dragoman.MessageEvent) for event in received)
    longer = dragoman.train(run.folder, resume=True, settings={"training.steps": 12}, callback=received.append)
    steps = [event for event in received if isinstance(event, dragoman.StepEvent)]
    assert [event.step for event in steps] == [10]
    assert steps[0].loss > 0
    assert "000012" in longer.checkpoints()


def test_a_run_is_evaluated(trained: tuple[dragoman.Run, list[dragoman.TrainingEvent]]) -> None:
    run, _ = trained
    result = dragoman.evaluate(run, ["The dog sleeps."], ["Der Hund schläft."], log=lambda text: None)
    assert list(result.scores) == ["bleu", "chrf", "ter", "exact-match", "perplexity"]
    assert result["perplexity"] > 1
    assert run.evaluate(["The dog sleeps."], ["Der Hund schläft."], ["bleu"]).scores == {"bleu": result.scores["bleu"]}


def test_every_accepted_metric_gets_a_score(trained: tuple[dragoman.Run, list[dragoman.TrainingEvent]]) -> None:
    run, _ = trained
    texts = ["The dog sleeps."], ["Der Hund schläft."]
    found = dragoman.evaluate(run, *texts, ["perplexity", "word_perplexity", "bits_per_character"])
    assert list(found.scores) == ["perplexity", "word_perplexity", "bits_per_character"]
    words = found.scores["word_perplexity"].detail
    assert words["words"] == 4  # with EOS
    tokens = found.scores["perplexity"].detail
    total = tokens["cross_entropy"] * tokens["tokens"]  # −ln p
    assert words["cross_entropy"] * 4 == pytest.approx(total)
    assert found["word-perplexity"] == found["word_perplexity"] == pytest.approx(math.exp(total / 4))
    with pytest.raises(dragoman.UserError, match="the metric perplexity=char cannot be computed"):
        dragoman.evaluate(run, *texts, ["perplexity=char"])


def test_sources_without_a_reference_are_not_aligned(
    trained: tuple[dragoman.Run, list[dragoman.TrainingEvent]],
) -> None:
    run, _ = trained
    links = (frozenset({(0, 0)}), frozenset({(0, 0)}))
    other_links = (frozenset({(0, 1), (1, 0)}), frozenset({(0, 1), (1, 0)}))
    sources, references = ["The dog sleeps.", "A man.", "The tree."], [["Der Hund schläft."], [], ["Der Baum."]]
    found = dragoman.evaluate(run, sources, references, ["perplexity"], alignments=[links, other_links, links])
    expected = dragoman.evaluate(run, sources[::2], references[::2], ["perplexity"], alignments=[links, links])
    assert found.scores == expected.scores
    assert list(found.scores) == ["perplexity", "alignment-error-rate"]


def test_a_test_set_needs_references_and_alignments_for_all_sources(
    trained: tuple[dragoman.Run, list[dragoman.TrainingEvent]],
) -> None:
    run, _ = trained
    with pytest.raises(dragoman.UserError, match="2 sources but 1 references"):
        run.evaluate(["The dog.", "A man."], ["Der Hund."], ["perplexity"])
    with pytest.raises(dragoman.UserError, match="1 sources but 2 gold alignments"):
        dragoman.evaluate(run, ["The dog."], ["Der Hund."], ["perplexity"], alignments=[(frozenset(), frozenset())] * 2)


def gated(vocabulary: dragoman.VocabularySizes, *, model_dim: int = 16) -> Any:
    """A Transformer with the custom feed-forward layer below."""
    spec = SYSTEMS["transformer"].spec(vocabulary, "tiny", model_dim=model_dim, layers=1, heads=2)
    return replace_parts(spec, FeedForward, lambda layer: CustomFeedForward(layer.inner_dim))


@dataclass(frozen=True)
class CustomFeedForward(FeedForward):
    """A feed-forward layer under another name."""


def test_custom_parts_and_systems_are_trained_without_changing_the_package(corpus: Path, tmp_path: Path) -> None:
    files = {"source": corpus / "train.en", "target": corpus / "train.de"}
    run = dragoman.train(
        tmp_path / "function",
        **files,
        system=gated,
        custom_parts=[CustomFeedForward],
        settings=SETTINGS | {"system.settings.model_dim": 8},
        callback=lambda event: None,
    )
    assert run.spec.dim == 8
    assert run.config.system.name == "gated"
    assert "gated" not in SYSTEMS
    again = dragoman.load(run.folder, custom_parts=[CustomFeedForward])
    assert again.spec == run.spec
    spec = SYSTEMS["transformer"].spec(dragoman.VocabularySizes(9, 9), "tiny", model_dim=8, heads=2)
    from_spec = dragoman.train(tmp_path / "spec", **files, system=spec, settings=SETTINGS, callback=lambda event: None)
    assert from_spec.model.vocab_size == from_spec.target_tokenizer.vocab_size


def test_a_custom_system_must_have_a_name_of_its_own(corpus: Path, tmp_path: Path) -> None:
    def transformer(vocabulary: dragoman.VocabularySizes) -> Any:
        return SYSTEMS["transformer"].spec(vocabulary, "tiny")

    with pytest.raises(dragoman.UserError, match="transformer is a built-in system"):
        dragoman.train(tmp_path / "run", source=corpus / "train.en", target=corpus / "train.de", system=transformer)


@pytest.mark.parametrize(
    "module",
    [
        *(dragoman, config, train_run, evaluate_run, events),
        *(configs, exact_search, minimum_bayes_risk, reranking, search_config, speculative),
    ],
    ids=lambda module: module.__name__,
)
def test_examples_in_docstrings_run(
    module: Any, trained: tuple[dragoman.Run, list[dragoman.TrainingEvent]], corpus: Path, tmp_path: Path
) -> None:
    run, _ = trained
    folder = run.folder if module is dragoman else tmp_path / "run"
    names = {"dragoman": dragoman, "run": run, "folder": folder, "corpus": corpus}
    results = doctest.testmod(module, extraglobs=names, optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


def test_every_public_name_is_importable_and_documented() -> None:
    for name in dragoman.__all__:
        value = getattr(dragoman, name)
        assert name in ("__version__", "TrainingEvent") or (value.__doc__ or "").strip(), name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = dragoman.trian  # type: ignore[attr-defined]


def public_functions() -> dict[str, Any]:
    """Functions and classes of the public API, and their public methods, by name."""
    found: dict[str, Any] = {}
    for name in dragoman.__all__:
        value = getattr(dragoman, name)
        methods = vars(value).items() if inspect.isclass(value) else ()
        found |= {f"{name}.{method}": item for method, item in methods if inspect.isfunction(item) and method[0] != "_"}
        found |= {name: value} if callable(value) else {}
    return found


def test_documented_arguments_are_those_of_the_signature() -> None:
    """Otherwise the reference pages cannot be built."""
    for name, value in public_functions().items():
        section = re.search(r"^Args:\n((?: +.*\n?)+)", inspect.getdoc(value) or "", re.MULTILINE)
        if section is None:
            continue
        documented = re.findall(r"^    (\S[^:]*):", section[1], re.MULTILINE)
        unknown = {argument.lstrip("*") for argument in documented} - {*inspect.signature(value).parameters}
        assert not unknown, f"{name} has no argument {unknown}"


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, dragoman; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_reference_of_settings_is_current() -> None:
    path = Path(__file__).parent.parent / "docs" / "settings.md"
    assert path.read_text(encoding="utf-8") == "\n".join([*markdown_lines(), ""]), (
        "run: dragoman settings --markdown > docs/settings.md"
    )
