"""Choices: what the user has left open, chosen by the amount of data and the device, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dragoman.config import Config
from dragoman.data import TokenStore
from dragoman.errors import UserError
from dragoman.models import DecoderOnly, EncoderDecoder, EncoderOnly, ModelSpec, ReplacedTokens, blueprint
from dragoman.objectives import check, objective
from dragoman.parts.spec import Spec
from dragoman.systems import SYSTEMS

#: what each kind of model learns from such data, unless its system says otherwise
DEFAULTS: dict[type[Spec], dict[str, str]] = {
    EncoderDecoder: {"pairs": "translation", "text": "denoising", "signals": "translation"},
    DecoderOnly: {"pairs": "translation", "text": "language", "turns": "dialogue"},
    EncoderOnly: {"pairs": "tagging", "text": "masked"},
    ReplacedTokens: {"text": "replaced", "pairs": "tagging"},
}


@dataclass(frozen=True)
class Choice:
    """A setting that was chosen, why, and so how to choose otherwise: `--set SETTING=…`."""

    setting: str
    value: object
    reason: str

    def __str__(self) -> str:
        return f"{self.setting}={self.value}  ({self.reason})"


def choose_vocabulary(config: Config, words: int) -> tuple[Config, list[Choice]]:
    """The size of the vocabulary: 8·√words, by which rare pieces are still seen often enough to be learned."""
    if config.text.size is not None or config.text.kind == "byte":
        return config, []
    size = max(500, min(32_000, round(8 * math.sqrt(words), -2)))
    chosen = replace(config, text=replace(config.text, size=int(size)))
    return chosen, [Choice("text.size", int(size), f"8·√words for the {words:,} words of the corpus, at most 32,000")]


def choose_objective(config: Config, spec: ModelSpec, holds: str) -> Config:
    """What to learn from data that holds pairs, text alone or turns, unless it was said."""
    name, settings = config.objective.name, config.objective.settings
    if name is None:
        own = SYSTEMS[config.system.name].objectives if config.system.name in SYSTEMS else {}
        name, chosen = own.get(holds) or (DEFAULTS[type(spec)].get(holds), {})
        if name is None:
            wanted = " or ".join(DEFAULTS[type(spec)])
            raise UserError(
                f"{config.system.name} learns from {wanted}, but the data holds {holds}: give it other files"
            )
        settings = dict(chosen) | settings
    check(name, settings)
    smoothing = config.training.label_smoothing
    training = replace(config.training, label_smoothing=objective(name).smooths if smoothing is None else smoothing)
    return replace(config, objective=replace(config.objective, name=name, settings=settings), training=training)


def choose(
    config: Config, spec: ModelSpec, store: TokenStore, device: str, fresh: bool = True
) -> tuple[Config, list[Choice]]:
    """System size, batch, learning rate and the rest; a system that goes on from another run is left as it is."""
    choices: list[Choice] = []
    pairs, target_tokens = len(store), int(store.target_lengths.sum())
    named = SYSTEMS.get(config.system.name or "")
    size, settings = config.system.size, dict(config.system.settings)
    gpu = device.startswith("cuda")

    def choose_one(setting: str, value: object, reason: str) -> None:
        choices.append(Choice(setting, value, reason))

    if size is None and fresh:
        size = _size(pairs, gpu)
        choose_one("system.size", size, f"for {pairs:,} rows on {'a GPU' if gpu else 'a CPU'}")
    if fresh and "dropout" not in settings and pairs < 100_000 and size != "tiny":
        settings["dropout"] = 0.3
        choose_one("system.settings.dropout", 0.3, f"{pairs:,} rows are few, and are learned by heart without it")
    if fresh and named and "pre_norm" in named.settings() and "pre_norm" not in settings:
        settings["pre_norm"] = True
        choose_one("system.settings.pre_norm", True, "trains without a long warm-up; false is the paper's post-norm")
    training = config.training
    tokens = training.tokens
    if tokens is None:
        tokens = max(_batch(target_tokens, gpu), 2 * config.data.longest + 4)
        choose_one("training.tokens", tokens, "padded tokens a batch, by the amount of data and the device")
    elif tokens < store.longest + 2:
        raise UserError(
            f"training.tokens is {tokens:,}, but the longest sentence, of {store.longest:,} tokens, must fit a batch: "
            "raise it, or lower data.longest"
        )
    places = int(blueprint(spec).width(store.source_lengths + 1, store.target_lengths + 2).sum())
    an_epoch = max(1, math.ceil(places / (0.95 * tokens * training.accumulate)))
    learning_rate = training.learning_rate
    if learning_rate is None:
        rate, width = named.rate if named else 0.4, spec.dim
        if named and size and fresh:
            width = named.width(size, settings)
        if config.training.start_from:
            rate /= 2
        learning_rate = float(f"{rate / width:.2g}")
        choose_one("training.learning_rate", learning_rate, f"{rate:g} over the width of {width}")
    warmup = training.warmup
    if warmup is None:
        warmup = max(100, min(4000, 4 * an_epoch))
        choose_one("training.warmup", warmup, f"four epochs of about {an_epoch:,} steps, but 100 to 4,000")
    every = training.validate_every
    if every is None:
        every = max(50, min(2000, an_epoch))
        choose_one("training.validate_every", every, "steps: about once an epoch")
    steps = training.steps
    if training.schedule == "cosine" and steps is None and training.epochs is not None:
        steps = training.epochs * an_epoch
    if training.schedule == "cosine" and steps is None:
        raise UserError("the cosine schedule must know its end: set training.steps, or choose inverse-sqrt")
    resolved = replace(
        training,
        tokens=tokens,
        learning_rate=learning_rate,
        warmup=warmup,
        validate_every=every,
        steps=steps,
        device=device,
        precision=("bfloat16" if gpu else "float32") if training.precision == "auto" else training.precision,
    )
    return replace(config, system=replace(config.system, size=size, settings=settings), training=resolved), choices


def _size(pairs: int, gpu: bool) -> str:
    if pairs < 10_000 or (not gpu and pairs < 100_000):
        return "tiny"
    if pairs < 500_000 or not gpu:
        return "small"
    return "base"


def _batch(target_tokens: int, gpu: bool) -> int:
    """About 100 steps an epoch, within what the device does well."""
    most = 25_000 if gpu else 4096
    return int(max(1024, min(most, round(target_tokens / 100, -2))))
