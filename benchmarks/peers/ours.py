"""Dragoman's training step, including its data pipeline."""

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
from dragoman.training.optimizer import build_optimizer
from dragoman.training.parallel import ProcessGroup, make_strategy
from dragoman.training.train_step import TrainStep, iterate_steps
from peers.protocol import CLIP, LABEL_SMOOTHING, RATE, Precision, Sizes


def spec(sizes: Sizes) -> EncoderDecoder:
    vocabulary = VocabularySizes(sizes.vocabulary, sizes.vocabulary, joint=True)
    settings = {"model_dim": sizes.width, "layers": sizes.layers, "dropout": sizes.dropout, "tied_embeddings": True}
    if sizes.kind == "transformer":
        settings |= {"heads": sizes.heads, "ffn_dim": sizes.inner}
    system_spec = get_system(sizes.kind).spec(vocabulary, **settings)
    assert isinstance(system_spec, EncoderDecoder)
    return system_spec


def trainer(
    sizes: Sizes,
    device: str,
    precision: Precision,
    store: Path,
    tokens: int,
    processes: ProcessGroup | None = None,
) -> Callable[[], int]:
    """Return a function that trains on the next batch of this process and returns its number of target tokens."""
    gpu = device == "cuda"
    if not gpu:
        keep_freed_memory()
    torch.manual_seed(1)
    model = spec(sizes).build().to(device).train()
    tokenizer = learn_tokenizer((), "byte")  # the objective does not use it in training
    objective = build_objective(
        "translation", TaskContext(model, tokenizer, tokenizer, ENCODER_DECODER_FRAMING, LABEL_SMOOTHING), {}
    )
    packed = gpu and objective.supports_packing
    config = TrainingConfig(optimizer="adam", beta2=0.98, seed=1, clip_norm=CLIP, precision=precision, compile=packed)
    processes = processes or ProcessGroup()
    strategy = make_strategy("replicated", processes, torch.device(device))
    strategy.distribute(model)
    train_step = TrainStep(objective, build_optimizer(model, config), config, strategy, packed=packed)
    batches = Batches(
        TokenStore(store),
        tokens,
        seed=1,
        rows=objective.row_format,
        packed=packed,
        pad_to_multiples=(32, 4) if gpu else (1, 1),
    )
    stream = prefetch(iterate_steps(batches, DataPosition(), processes.world_size, processes, pinned=gpu), depth=4)
    step_number = 0

    def step() -> int:
        nonlocal step_number
        batches_of_step = next(stream)
        step_number += 1
        (all_tokens,) = processes.all_reduce_sum([batches_of_step.target_tokens])
        train_step(batches_of_step.batches, step_number, RATE, int(all_tokens))
        return batches_of_step.target_tokens

    return step
