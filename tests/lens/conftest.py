from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
from lens_pages import MALICE

from dragoman.config import Config, DataConfig, SystemConfig, TextConfig, TrainingConfig
from dragoman.run import Run, load
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer


class Quiet(Display):
    def message(self, text: str) -> None:
        pass


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Trains a very small model for a few steps, or for none, on text that tries to be markup."""

    def make(
        name: str = "run",
        system: str = "transformer",
        *,
        interrupted: bool = False,
        kind: str = "bpe",
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> Run:
        folder = tmp_path_factory.mktemp("lens")
        nouns = ["man", "dog", "house", "tree", "book"]
        english = [f"The {a} sees the {b}." for a in nouns for b in nouns] + [f"A man & a {b} {MALICE}" for b in nouns]
        german = [f"DER {a} SIEHT DEN {b}." for a in nouns for b in nouns] + [
            f"EIN man & EIN {b} {MALICE}" for b in nouns
        ]
        files = {"train.en": english, "train.de": german}
        files |= {"valid.en": [english[7], english[-1], english[3]], "valid.de": [german[7], german[-1], german[3]]}
        for file, lines in files.items():
            (folder / file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        paths = [(str(folder / file),) for file in files]
        heads = {"heads": 2} if system == "transformer" else {}
        config = Config(
            DataConfig(paths[0], paths[1], paths[2], paths[3], max_length=100),
            TextConfig(tokenizer=kind, vocab_size=350),
            system=SystemConfig(system, "tiny", {"model_dim": 16, "layers": 1} | heads | dict(settings)),
            training=TrainingConfig(
                batch_tokens=256, steps=20, validation_interval=10, learning_rate=0.01, warmup_steps=5, device="cpu"
            ),
        )
        prepare_run(folder / name, config, lambda text: None)
        trainer = Trainer(folder / name, Quiet())
        trainer.interrupted = interrupted
        trainer.train()
        return load(folder / name, device="cpu")

    return make


@pytest.fixture(scope="session")
def run(make_run: Callable[..., Run]) -> Run:
    return make_run("run <b>&'\"")


@pytest.fixture(scope="session")
def experts_run(make_run: Callable[..., Run]) -> Run:
    """LSTMs with a mixture of four experts in either stack, two of them for each token."""
    return make_run(system="moe-2017")
