"""Dragoman's training step, end to end: batches are made from a token store while the last one is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from dragoman.config import TrainingConfig
from dragoman.data import Batches, Position, TokenStore, prefetch
from dragoman.memory import keep_freed_memory
from dragoman.models import EncoderDecoder
from dragoman.objectives import Material, make
from dragoman.systems import Vocabulary, system
from dragoman.text.framing import ENCODER_DECODER
from dragoman.text.tokenizer import learn
from dragoman.training.groups import groups
from dragoman.training.optimizer import make_optimizer
from dragoman.training.step import Learner, Stepper
from peers.protocol import CLIP, LABEL_SMOOTHING, RATE, Precision, Sizes


def spec(sizes: Sizes) -> EncoderDecoder:
    words = Vocabulary(sizes.vocabulary, sizes.vocabulary, joint=True)
    settings = {"width": sizes.width, "layers": sizes.layers, "dropout": sizes.dropout, "tied": True}
    if sizes.kind == "transformer":
        settings |= {"heads": sizes.heads, "inner": sizes.inner}
    made = system(sizes.kind).spec(words, **settings)
    assert isinstance(made, EncoderDecoder)
    return made


def trainer(sizes: Sizes, device: str, precision: Precision, store: Path, tokens: int) -> Callable[[], int]:
    """A step on the next batch, as the training loop does it, which answers how many target tokens it learned from."""
    gpu = device == "cuda"
    if not gpu:
        keep_freed_memory()
    torch.manual_seed(1)
    model = spec(sizes).build().to(device).train()
    nothing = learn((), "byte")  # the objective is given tokenizers, and uses them only for what is not asked here
    objective = make("translation", Material(model, nothing, nothing, ENCODER_DECODER, LABEL_SMOOTHING), {})
    packed = gpu and objective.packs
    stepper = Stepper(
        Learner(model, objective),
        make_optimizer(model, TrainingConfig(optimizer="adam", beta2=0.98)),
        None,
        device=torch.device(device),
        seed=1,
        clip=CLIP,
        precision=precision,
        compiles=packed,
        replays=True,
    )
    batches = Batches(
        TokenStore(store),
        tokens,
        seed=1,
        width=objective.width,
        sizes=objective.sizes if packed else None,
        multiples=(32, 4) if gpu else (1, 1),
    )
    stream = prefetch(groups(batches, Position(), 1, pinned=gpu), depth=4)
    done = 0

    def step() -> int:
        nonlocal done
        group = next(stream)
        done += 1
        stepper(group.batches, done, RATE, group.answers)
        return group.answers

    return step
