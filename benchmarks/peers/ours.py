"""Dragoman's training step, end to end: batches are made from a token store while the last one is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from dragoman.config import TrainingConfig
from dragoman.data import Batches, DataPosition, TokenStore, prefetch
from dragoman.memory import keep_freed_memory
from dragoman.models import EncoderDecoder
from dragoman.objectives import TaskContext, build_objective
from dragoman.systems import VocabularySizes, get_system
from dragoman.text.framing import ENCODER_DECODER_FRAMING
from dragoman.text.tokenizer import learn_tokenizer
from dragoman.training.accumulation import iterate_steps
from dragoman.training.optimizer import build_optimizer
from dragoman.training.train_step import TrainStep
from peers.protocol import CLIP, LABEL_SMOOTHING, RATE, Precision, Sizes


def spec(sizes: Sizes) -> EncoderDecoder:
    words = VocabularySizes(sizes.vocabulary, sizes.vocabulary, joint=True)
    settings = {"model_dim": sizes.width, "layers": sizes.layers, "dropout": sizes.dropout, "tie_output": True}
    if sizes.kind == "transformer":
        settings |= {"heads": sizes.heads, "ffn_dim": sizes.inner}
    made = get_system(sizes.kind).spec(words, **settings)
    assert isinstance(made, EncoderDecoder)
    return made


def trainer(sizes: Sizes, device: str, precision: Precision, store: Path, tokens: int) -> Callable[[], int]:
    """A step on the next batch, as the training loop does it, which answers how many target tokens it learned from."""
    gpu = device == "cuda"
    if not gpu:
        keep_freed_memory()
    torch.manual_seed(1)
    model = spec(sizes).build().to(device).train()
    nothing = learn_tokenizer(
        (), "byte"
    )  # the objective is given tokenizers, and uses them only for what is not asked here
    objective = build_objective(
        "translation", TaskContext(model, nothing, nothing, ENCODER_DECODER_FRAMING, LABEL_SMOOTHING), {}
    )
    packed = gpu and objective.supports_packing
    stepper = TrainStep(
        objective,
        build_optimizer(model, TrainingConfig(optimizer="adam", beta2=0.98)),
        None,
        device=torch.device(device),
        seed=1,
        clip_norm=CLIP,
        precision=precision,
        use_compile=packed,
        use_cuda_graphs=True,
    )
    batches = Batches(
        TokenStore(store),
        tokens,
        seed=1,
        rows=objective.row_format,
        packed=packed,
        pad_to_multiples=(32, 4) if gpu else (1, 1),
    )
    stream = prefetch(iterate_steps(batches, DataPosition(), 1, pinned=gpu), depth=4)
    done = 0

    def step() -> int:
        nonlocal done
        group = next(stream)
        done += 1
        stepper(group.batches, done, RATE, group.target_tokens)
        return group.target_tokens

    return step
