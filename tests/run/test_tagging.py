"""Tags are labels of the training data, never special tokens."""

from __future__ import annotations

import pytest
import torch

from dragoman.config import from_dict
from dragoman.run import Run, load
from dragoman.training.display import SilentDisplay
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("tagger")
    lines = [f"dog {n} sleeps\tNOUN NUMBER VERB\n" for n in range(40)]
    (folder / "tags.tsv").write_text("".join(lines))
    values = {
        "data": {"source": [str(folder / "tags.tsv")], "validation_size": 2},
        "text": {"vocab_size": 320},
        "system": {"name": "tagger", "size": "tiny", "settings": {"model_dim": 16, "layers": 1}},
        "training": {"steps": 1, "batch_tokens": 600, "device": "cpu"},
    }
    prepare_run(folder / "run", from_dict(values), print)
    Trainer(folder / "run", SilentDisplay()).train()
    return load(folder / "run", device="cpu")


@torch.no_grad()
def test_special_tokens_are_never_tags(tagger: Run) -> None:
    labels = {"NOUN", "NUMBER", "VERB"}
    numbers = {tagger.target_tokenizer.encode(label)[0] for label in labels}
    bias = next(
        value for name, value in tagger.model.named_parameters() if value.shape == (tagger.target_tokenizer.vocab_size,)
    )
    bias[[n for n in range(len(bias)) if n not in numbers]] += 100  # a model that would rather say anything else
    (tagged,) = tagger.tag(["dog 7 sleeps"])
    assert len(tagged.tags) == 3
    assert set(tagged.tags) <= labels
