"""The configuration that every recipe gives every system, against the papers' values written down by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from dragoman.config import Config, SystemConfig, TrainingConfig
from dragoman.data import EncodedPair, SentencePair, TokenStore, write_store
from dragoman.errors import UserError
from dragoman.models import ModelSpec
from dragoman.parts.recurrence import Recurrent
from dragoman.parts.recurrent_decoder import RecurrentDecoder
from dragoman.parts.spec import find_specs
from dragoman.parts.stack import PreNorm, Stack
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.training.defaults import Choice, Defaults, choose_settings
from dragoman.training.resolve import resolve_objective

WIDTH = 128  # of every system in the size tiny
VOCABULARY = VocabularySizes(50, 50, True)


class Expected(NamedTuple):
    optimizer: str
    schedule: str
    warmup: int
    rate: float
    clip: float
    smoothing: float
    dropout: float
    normalization: str = "tokens"
    betas: tuple[float, float] = (0.9, 0.98)
    more: dict[str, Any] = {}  # noqa: RUF012
    steps: int | None = None  # of the paper's training, where its warm-up is a share of it


NOAM = 1 / math.sqrt(WIDTH * 4000)
SENTENCES = "sentences"
LARGE = {"final_rate_factor": 0.1, "weight_decay": 0.1, "epsilon": 1e-8}
HELD = {"warmup_start_factor": 1.0}

TEXTBOOK = {
    "sutskever": Expected(
        "sgd", "halving", 0, 0.7, 5, 0, 0, SENTENCES, more={"halving_start_epoch": 5, "halving_interval": 0.5}
    ),
    "cho": Expected("adadelta", "constant", 0, 1, 1, 0, 0, SENTENCES),
    "bahdanau": Expected("adadelta", "constant", 0, 1, 1, 0, 0, SENTENCES),
    "bow": Expected("adadelta", "constant", 0, 1, 1, 0, 0, SENTENCES),
    "luong": Expected(
        "sgd", "halving", 0, 1, 5, 0, 0.2, SENTENCES, more={"halving_start_epoch": 8, "halving_interval": 1}
    ),
    "gnmt": Expected("adam", "constant", 0, 2e-4, 5, 0, 0.2, SENTENCES, (0.9, 0.999)),
    "deep-att": Expected("sgd", "plateau", 0, 1, 5, 0, 0.1, SENTENCES, more={"plateau_factor": 0.5}),
    "convs2s": Expected(
        "sgd", "plateau", 0, 0.25, 0.1, 0, 0.2, more={"momentum": 0.99, "nesterov": True, "plateau_factor": 0.1}
    ),
    "bytenet": Expected("adam", "constant", 0, 3e-4, 0, 0, 0, betas=(0.9, 0.999)),
    "transformer": Expected("adam", "inverse-sqrt", 4000, NOAM, 0, 0.1, 0.1, more={"epsilon": 1e-9}),
    "shaw": Expected("adam", "inverse-sqrt", 4000, NOAM, 0, 0.1, 0.1),
    "roformer": Expected("adam", "inverse-sqrt", 4000, 5e-4, 0, 0.1, 0.1),
    "t5": Expected("adafactor", "inverse-sqrt", 10_000, 0.01, 0, 0, 0.1, more=HELD),
    "bart": Expected("adamw", "linear", 24_000, 6e-4, 0, 0.1, 0.1, steps=500_000),
    "bert": Expected("adamw", "linear", 10_000, 1e-4, 1, 0, 0.1, betas=(0.9, 0.999), steps=1_000_000),
    "roberta": Expected("adamw", "linear", 24_000, 6e-4, 0, 0, 0.1, more={"epsilon": 1e-6}, steps=500_000),
    "electra": Expected("adamw", "linear", 10_000, 5e-4, 1, 0, 0.1, betas=(0.9, 0.999), steps=1_000_000),
    "tagger": Expected("adamw", "linear", 100, 5e-5, 1, 0, 0.1, betas=(0.9, 0.999), steps=1000),
    "classifier": Expected("adamw", "linear", 100, 5e-5, 1, 0, 0.1, betas=(0.9, 0.999), steps=1000),
    "rnn-lm": Expected("sgd", "plateau", 0, 0.1, 0, 0, 0, more={"plateau_factor": 0.5}),
    "transformer-d": Expected("adam", "inverse-sqrt", 4000, NOAM, 0, 0.1, 0.1),
    "gpt": Expected("adamw", "cosine", 2000, 2.5e-4, 1, 0, 0.1, betas=(0.9, 0.999), more={"weight_decay": 0.01}),
    "chat": Expected("adamw", "cosine", 0, 9.65e-6, 1, 0, 0.2, betas=(0.9, 0.95), more={"final_rate_factor": 0.1}),
    "unilm": Expected("adamw", "linear", 40_000, 3e-5, 1, 0.1, 0.1, betas=(0.9, 0.999), steps=770_000),
    "unilm-masked": Expected("adamw", "linear", 40_000, 3e-5, 1, 0.1, 0.1, betas=(0.9, 0.999), steps=770_000),
    "gpt3": Expected("adamw", "cosine", 750, 6e-4, 1, 0, 0.1, betas=(0.9, 0.95), more=LARGE, steps=520_000),
    "palm": Expected("adafactor", "inverse-sqrt", 10_000, 0.01, 1, 0, 0, more=HELD | {"momentum": 0.9}),
    "llama": Expected("adamw", "cosine", 2000, 3e-4, 1, 0, 0, betas=(0.9, 0.95), more=LARGE, steps=250_000),
    "transformer-dmca": Expected("adam", "inverse-sqrt", 4000, NOAM, 0, 0.1, 0.1),
    "moe": Expected("adafactor", "inverse-sqrt", 10_000, 0.01, 0, 0.1, 0.1, more=HELD),
    "moe-2017": Expected(
        "adam", "inverse-sqrt", 2000, 2e-4, 0, 0, 0.4, betas=(0.9, 0.999), more={"hold_steps": 8000, "epsilon": 1e-8}
    ),
    "hard-monotonic": Expected(
        "adam", "plateau", 0, 1e-3, 5, 0, 0.4, betas=(0.9, 0.999), more={"plateau_factor": 0.5, "epsilon": 1e-8}
    ),
    "transformer-dmca-moe": Expected("adam", "inverse-sqrt", 4000, NOAM, 0, 0.1, 0.1),
    "speech": Expected("adam", "inverse-sqrt", 25_000, 10 / math.sqrt(WIDTH * 25_000), 0, 0.1, 0.1),
    "vision": Expected(
        "adamw", "linear", 10_000, 8e-4, 1, 0, 0, betas=(0.9, 0.999), more={"weight_decay": 0.1}, steps=518_000
    ),
}

#: peak rate of the recipe plain at a width of 1, dropout in the size tiny, label smoothing of its objective
PLAIN = {
    "sutskever": (1.0, 0.2, 0.1),
    "cho": (1.0, 0.2, 0.1),
    "bahdanau": (1.0, 0.2, 0.1),
    "bow": (1.0, 0.2, 0.1),
    "luong": (1.0, 0.2, 0.1),
    "gnmt": (1.0, 0.2, 0.1),
    "deep-att": (1.0, 0.1, 0.1),
    "convs2s": (0.2, 0.2, 0.1),
    "bytenet": (0.4, 0.1, 0.1),
    "transformer": (0.4, 0.1, 0.1),
    "shaw": (0.4, 0.1, 0.1),
    "roformer": (0.4, 0.1, 0.1),
    "t5": (0.4, 0.1, 0.1),
    "bart": (0.4, 0.1, 0.1),
    "bert": (0.4, 0.1, 0.0),
    "roberta": (0.4, 0.1, 0.0),
    "electra": (0.4, 0.1, 0.0),
    "tagger": (0.4, 0.1, 0.0),
    "classifier": (0.4, 0.1, 0.0),
    "rnn-lm": (1.0, 0.2, 0.0),
    "transformer-d": (0.4, 0.1, 0.0),
    "gpt": (0.4, 0.1, 0.1),
    "chat": (0.4, 0.1, 0.1),
    "unilm": (0.4, 0.1, 0.1),
    "unilm-masked": (0.1, 0.1, 0.1),
    "gpt3": (0.4, 0.1, 0.1),
    "palm": (0.4, 0.1, 0.1),
    "llama": (0.4, 0.1, 0.1),
    "transformer-dmca": (0.4, 0.1, 0.0),
    "moe": (0.4, 0.1, 0.1),
    "moe-2017": (1.0, 0.2, 0.1),
    "hard-monotonic": (1.0, 0.4, 0.1),
    "transformer-dmca-moe": (0.4, 0.1, 0.0),
    "speech": (0.4, 0.1, 0.1),
    "vision": (0.4, 0.1, 0.1),
}

HOLDS = {"bert": "text", "roberta": "text", "electra": "text", "vision": "features", "speech": "features"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    random, pair = np.random.default_rng(0), SentencePair("x", "y", "corpus", 1)
    examples = [EncodedPair(pair, *(random.integers(4, 50, 6).tolist() for _ in range(2))) for _ in range(50)]
    return write_store(tmp_path_factory.mktemp("store") / "store", [examples], 50)


def resolve(
    store: TokenStore,
    name: str,
    size: str = "tiny",
    settings: dict[str, Any] | None = None,
    device: str = "cpu",
    **training: Any,
) -> tuple[Config, ModelSpec, list[Choice]]:
    """What `choose` makes of a system and settings of the training."""

    def build(chosen: Config) -> ModelSpec:
        return SYSTEMS[name].spec(VOCABULARY, chosen.system.size or "tiny", **chosen.system.settings)

    config = Config(system=SystemConfig(name, size, settings or {}), training=TrainingConfig(**training))
    defaults = Defaults(resolve_objective(config, build(config), HOLDS.get(name, "pairs")))
    choose_settings(defaults, store, device, num_valid=1000, build_spec=build, new_model=True)
    return defaults.config, build(defaults.config), defaults.choices


def test_every_system_is_in_the_tables() -> None:
    assert set(TEXTBOOK) == set(PLAIN) == set(SYSTEMS)


@pytest.mark.parametrize("name", SYSTEMS)
def test_textbook_trains_as_in_the_paper(name: str, store: TokenStore) -> None:
    expected = TEXTBOOK[name]
    config, spec, _ = resolve(store, name, recipe="textbook", steps=expected.steps)
    training = config.training
    assert (training.optimizer, training.schedule, training.warmup_steps) == expected[:3]
    assert training.learning_rate == pytest.approx(expected.rate, rel=1e-12)
    assert (training.clip_norm, training.label_smoothing) == (expected.clip, expected.smoothing)
    assert training.loss_normalization == expected.normalization
    assert (training.beta1, training.beta2) == expected.betas
    assert next(find_specs(spec, Stack)).dropout == expected.dropout
    for setting, value in expected.more.items():
        assert getattr(training, setting) == value, setting


def test_compilation_depends_on_the_tokens_of_a_step_however_many_batches_it_has(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.training.memory_plan.free_memory", lambda device: 80 << 30)
    decisions = []
    for steps in (10**power for power in range(2, 7)):
        one_batch, many_batches = (
            resolve(store, "transformer", device="cuda", steps=steps, batch_tokens=tokens, gradient_accumulation=count)
            for tokens, count in ((64_000, 1), (1000, 64))
        )
        assert one_batch[0].training.compile == many_batches[0].training.compile
        decisions.append(one_batch[0].training.compile)
    assert decisions == sorted(decisions)  # longer trainings are compiled
    assert (decisions[0], decisions[-1]) == (False, True)


@pytest.mark.parametrize("name", ["cho", "bahdanau"])
def test_textbook_has_the_papers_gru_and_the_others_have_torchs(name: str, store: TokenStore) -> None:
    for recipe, cell in (("textbook", "gru-reset-before"), ("plain", "gru"), ("modern", "gru")):
        _, spec, _ = resolve(store, name, recipe=recipe)
        assert next(find_specs(spec, RecurrentDecoder)).cell == next(find_specs(spec, Recurrent)).cell == cell
    _, spec, _ = resolve(store, name, settings={"cell": "gru"}, recipe="textbook")
    assert next(find_specs(spec, RecurrentDecoder)).cell == "gru"


@pytest.mark.parametrize("recipe", ["plain", "modern"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_settings_of_plain_and_modern(name: str, recipe: str, store: TokenStore) -> None:
    rate, dropout, smoothing = PLAIN[name]
    config, spec, _ = resolve(store, name, recipe=recipe)
    training = config.training
    wanted = ("adamw", "inverse-sqrt") if recipe == "plain" else ("muon", "cosine")
    assert (training.optimizer, training.schedule) == wanted
    assert training.learning_rate == (rate if recipe == "plain" else 1.5) / WIDTH
    assert training.warmup_steps == (
        100 if training.steps is None else training.steps // 10
    )  # an epoch is one step here
    assert (training.clip_norm, training.label_smoothing, training.loss_normalization) == (1.0, smoothing, "tokens")
    assert (training.beta1, training.beta2, training.weight_decay) == (0.9, 0.98, 0.01)
    assert next(find_specs(spec, Stack)).dropout == dropout


def test_modern_is_the_default_of_every_system_that_translates_text() -> None:
    plain = {"bert", "roberta", "electra", "tagger", "classifier", "unilm-masked", "vision", "speech"}
    assert {name for name, system in SYSTEMS.items() if system.default_recipe == "plain"} == plain


def test_only_textbook_builds_the_system_of_the_paper(store: TokenStore) -> None:
    directions = {}
    for recipe in ("textbook", "plain"):
        _, spec, _ = resolve(store, "luong", recipe=recipe)
        directions[recipe] = next(find_specs(spec, Recurrent)).direction
    assert directions == {"textbook": "backward", "plain": "both"}
    assert not list(find_specs(resolve(store, "transformer", recipe="textbook")[1], PreNorm))
    assert list(find_specs(resolve(store, "transformer", recipe="plain")[1], PreNorm))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        (
            "luong",
            {"label_smoothing": 0.1, "halving_start_epoch": 5.0, "clip_norm": 1.0, "loss_normalization": "tokens"},
        ),
        (
            "gpt3",
            {"beta2": 0.98, "weight_decay": 0.01, "final_rate_factor": 0.0, "learning_rate": 1e-3, "warmup_steps": 7},
        ),
        ("t5", {"optimizer": "adamw", "warmup_start_factor": 0.0, "schedule": "constant"}),
    ],
)
def test_user_settings_are_kept_even_if_default(name: str, given: dict[str, Any], store: TokenStore) -> None:
    training = resolve(store, name, recipe="textbook", **given)[0].training
    assert {key: getattr(training, key) for key in given} == given


def test_system_settings_are_kept_by_every_recipe(store: TokenStore) -> None:
    for recipe in ("textbook", "plain"):
        config, _, _ = resolve(store, "luong", settings={"encoder_direction": "forward", "dropout": 0.5}, recipe=recipe)
        assert config.system.settings == {"encoder_direction": "forward", "dropout": 0.5}


def test_warmup_is_proportional_to_the_steps_of_the_paper(store: TokenStore) -> None:
    assert resolve(store, "bert", recipe="textbook", steps=5000)[0].training.warmup_steps == 50


def test_learning_rates_of_the_paper_depend_on_the_size(store: TokenStore) -> None:
    narrow = {"model_dim": 64, "heads": 2, "layers": 2}
    rates = {
        size: resolve(store, "gpt3", size, narrow, recipe="textbook", steps=100)[0].training.learning_rate
        for size in ("small", "base", "big")
    }
    assert rates == {"small": 6e-4, "base": 6e-4, "big": 6e-5}


def test_only_the_displayed_learning_rate_is_rounded(store: TokenStore) -> None:
    config, _, choices = resolve(store, "transformer", settings={"model_dim": 96}, recipe="plain")
    assert config.training.learning_rate == 0.4 / 96
    (shown,) = (str(choice) for choice in choices if choice.setting == "training.learning_rate")
    assert shown == "training.learning_rate=0.004167  (0.4 over the width of 96)"


def test_recipe_choice_names_the_schedule(store: TokenStore) -> None:
    _, _, choices = resolve(store, "bahdanau", schedule="constant", steps=100)
    (shown,) = (choice for choice in choices if choice.setting == "training.recipe")
    assert shown.reason.startswith("muon, constant;")


def test_textbook_reports_differences_from_the_paper(store: TokenStore) -> None:
    _, _, choices = resolve(store, "gnmt", recipe="textbook")
    (shown,) = (choice for choice in choices if choice.setting == "training.recipe")
    assert "SGD at a rate of 0.5" in shown.reason


def test_every_paper_setting_is_a_setting() -> None:
    for name, system in SYSTEMS.items():
        replace(TrainingConfig(), **dict(system.paper_training.training_settings))
        for settings in (system.paper_training.system_settings, system.tuned_settings, system.modern_settings):
            assert set(settings) <= set(system.settings()), name


def test_unknown_recipe_is_an_error(store: TokenStore) -> None:
    with pytest.raises(UserError, match="plain"):
        resolve(store, "transformer", recipe="plane")
