"""Choices: what the user has left open, chosen by the amount of data and the device, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.systems import system


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


def choose(config: Config, pairs: int, target_tokens: int, device: str) -> tuple[Config, list[Choice]]:
    """System size, batch, learning rate and the rest."""
    choices: list[Choice] = []
    named = system(config.system.name)  # a misspelt name is an error here, before anything is chosen
    size, settings = config.system.size, dict(config.system.settings)
    gpu = device.startswith("cuda")

    def choose_one(setting: str, value: object, reason: str) -> None:
        choices.append(Choice(setting, value, reason))

    if size is None:
        size = _size(pairs, gpu)
        choose_one("system.size", size, f"for {pairs:,} pairs on {'a GPU' if gpu else 'a CPU'}")
    if "dropout" not in settings and pairs < 100_000 and size != "tiny":
        settings["dropout"] = 0.3
        choose_one("system.settings.dropout", 0.3, f"{pairs:,} pairs are few, and are learned by heart without it")
    if "pre_norm" in named.settings() and "pre_norm" not in settings:
        settings["pre_norm"] = True
        choose_one("system.settings.pre_norm", True, "trains without a long warm-up; false is the paper's post-norm")
    training = config.training
    tokens = training.tokens
    if tokens is None:
        tokens = max(_batch(target_tokens, gpu), config.data.longest + 2)
        choose_one("training.tokens", tokens, "padded tokens a batch, by the amount of data and the device")
    elif tokens < config.data.longest + 2:
        raise UserError(
            f"training.tokens is {tokens:,}, but a sentence of data.longest {config.data.longest:,} tokens must fit a "
            "batch: raise the one or lower the other"
        )
    an_epoch = max(1, math.ceil(target_tokens / (0.85 * tokens * training.accumulate)))
    learning_rate = training.learning_rate
    if learning_rate is None:
        width = named.width(size, settings)
        learning_rate = float(f"{named.rate / width:.2g}")
        choose_one("training.learning_rate", learning_rate, f"{named.rate:g} over the width of {width}")
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
