"""This machine's training speed on synthetic sentences, beside Hugging Face's Marian of the same sizes."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from dragoman.config import TrainingConfig
from dragoman.data import Batch, Batches, DataPosition, EncodedPair, SentencePair, TokenStore, prefetch, write_store
from dragoman.errors import UserError
from dragoman.models import EncoderDecoder, ModelSpec, count_parameters
from dragoman.models.flops import training_flops
from dragoman.objectives import TaskContext, build_objective
from dragoman.parts.attention import SelfAttention
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.spec import find_specs
from dragoman.run.device_info import device_name, synchronize
from dragoman.systems import VocabularySizes, get_system
from dragoman.text import BOS, EOS, PAD, SPECIAL_TOKENS, learn_tokenizer
from dragoman.training.accumulation import iterate_steps
from dragoman.training.compiling import prepare_compiler
from dragoman.training.optimizer import build_optimizer
from dragoman.training.profiling import matmul_speed
from dragoman.training.train_step import LossModule, TrainStep

Step = Callable[[], int]  # one step, which answers how many target tokens it learned from
LABEL_SMOOTHING, CLIP, RATE = 0.1, 1.0, 3e-4
ROUNDS = 3


@dataclass(frozen=True)
class Speed:
    """Target tokens a second, no padding, in the median of some rounds."""

    system: str
    size: str
    parameters: int
    tokens: int  # a batch
    tokens_per_second: float
    first_step: float  # seconds
    tflops: float
    share_of_matmul: float
    marian: float | None  # tokens a second; None where it is not installed or not the same model
    times_as_fast: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Machine:
    device: str
    torch: str
    precision: str
    matmul_tflops: float


def about(device: torch.device, precision: str) -> Machine:
    return Machine(device_name(device), torch.__version__, precision, matmul_speed(device, precision) / 1e12)


def measure(
    name: str, size: str, *, tokens: int, vocabulary: int, steps: int, device: torch.device, here: Machine
) -> Speed:
    """Ours and Marian take turns, so that whatever else happens on the machine happens to both."""
    spec = get_system(name).spec(VocabularySizes(vocabulary, vocabulary, joint=True), size)
    if not isinstance(spec, EncoderDecoder) or spec.input is not None:
        raise UserError(f"speeds are measured of systems that translate text, but {name} is none: choose another")
    with tempfile.TemporaryDirectory() as folder:
        store = synthetic(Path(folder) / "store", vocabulary, pairs=max(2000, 12 * tokens * steps // 28))
        start = time.perf_counter()
        own = our_steps(spec, store, tokens, device, here.precision)
        own()
        synchronize(device)
        first = time.perf_counter() - start
        others = [own]
        if name == "transformer" and importlib.util.find_spec("transformers"):
            others.append(marian_steps(spec, store, tokens, device, here.precision))
        for step in others:
            for _ in range(4 if device.type == "cuda" else 1):
                step()
        rounds = [[_rate(step, steps, device) for step in others] for _ in range(ROUNDS)]
        lengths = store.length_counts()
    operations = _operations(spec, lengths.source, lengths.target, lengths.pairs)
    ours = median(rates[0] for rates in rounds)
    tflops = ours * operations / 1e12
    beside = len(others) > 1
    return Speed(
        name,
        size,
        count_parameters(spec),
        tokens,
        ours,
        first,
        tflops,
        tflops / here.matmul_tflops,
        median(rates[1] for rates in rounds) if beside else None,
        median(rates[0] / rates[1] for rates in rounds) if beside else None,
    )


def _rate(step: Step, count: int, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    done = sum(step() for _ in range(count))
    synchronize(device)
    return done / max(1e-9, time.perf_counter() - start)


def _operations(spec: ModelSpec, source: Any, target: Any, pairs: Any, sample: int = 16) -> float:
    """Floating-point operations that a target token costs, by the lengths of some pairs."""
    drawn = np.random.default_rng(0).choice(len(pairs), min(sample, len(pairs)), p=pairs / pairs.sum())
    lengths = [(int(source[i]) + 1, int(target[i]) + 1) for i in drawn]
    return sum(training_flops(spec, *pair) for pair in lengths) / sum(of_target for _, of_target in lengths)


def synthetic(folder: Path, vocabulary: int, pairs: int, seed: int = 1) -> TokenStore:
    """Random ids in sentence-like lengths: log-normal, 28 tokens on average, 4 to 100, both sides of a pair alike."""
    random = np.random.default_rng(seed)
    both = random.standard_normal((pairs, 1)) * np.sqrt(0.9) + random.standard_normal((pairs, 2)) * np.sqrt(0.1)
    lengths = np.clip(np.rint(28 * np.exp(0.55 * both - 0.55**2 / 2)), 4, 100).astype(int)
    nothing = SentencePair("", "", "", 0)  # the ids are all that a store keeps

    def ids(length: int) -> list[int]:
        return random.integers(len(SPECIAL_TOKENS), vocabulary, length).tolist()

    return write_store(folder, [[EncodedPair(nothing, ids(s), ids(t)) for s, t in lengths.tolist()]], vocabulary)


def our_steps(spec: ModelSpec, store: TokenStore, tokens: int, device: torch.device, precision: str) -> Step:
    """As the training loop does them: batches are made while the last one is computed."""
    gpu = device.type == "cuda"
    torch.manual_seed(1)
    model = spec.build().to(device).train()
    nothing, framing = learn_tokenizer((), "byte"), spec.default_framing
    objective = build_objective("translation", TaskContext(model, nothing, nothing, framing, LABEL_SMOOTHING), {})
    packed = gpu and objective.supports_packing
    if packed:
        prepare_compiler()
    stepper = TrainStep(
        LossModule(model, objective),
        build_optimizer(model, TrainingConfig(optimizer="adam", beta2=0.98)),
        None,
        device=device,
        seed=1,
        clip_norm=CLIP,
        precision=precision,
        use_compile=packed,
        use_cuda_graphs=True,
    )
    batches = Batches(
        store,
        tokens,
        seed=1,
        row_length=objective.row_length,
        packed_lengths=objective.packed_lengths if packed else None,
        pad_to_multiples=(32, 4) if gpu else (1, 1),
    )
    stream = prefetch(iterate_steps(batches, DataPosition(), 1, pinned=gpu), depth=4)
    done = 0

    def step() -> int:
        nonlocal done
        group, done = next(stream), done + 1
        stepper(group.batches, done, RATE, group.target_tokens)
        return group.target_tokens

    return step


def marian_steps(spec: EncoderDecoder, store: TokenStore, tokens: int, device: torch.device, precision: str) -> Step:
    """Hugging Face's Marian of the same sizes in a plain loop over the same batches, padded and made beforehand."""
    from transformers import MarianConfig, MarianMTModel

    heads = next(find_specs(spec.encoder, SelfAttention)).heads
    inner = next(find_specs(spec.encoder, FeedForward)).inner_dim or 4 * spec.dim
    config = MarianConfig(
        vocab_size=spec.target_vocab_size,
        d_model=spec.dim,
        encoder_layers=spec.encoder.depth,
        decoder_layers=spec.decoder.depth,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        dropout=spec.encoder.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        max_position_embeddings=512,
        scale_embedding=True,
        use_cache=False,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )
    model: torch.nn.Module = MarianMTModel(config)
    model.to(device).train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, RATE, betas=(0.9, 0.98), fused=True)
    some = Batches(store, tokens, seed=1).iterate_from()
    ready: Iterator[Batch] = cycle([next(some)[0] for _ in range(50)])

    def step() -> int:
        batch = next(ready).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            seen = batch.source != PAD
            logits = model(input_ids=batch.source, attention_mask=seen, decoder_input_ids=batch.target).logits
            loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), label_smoothing=LABEL_SMOOTHING)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return batch.target_tokens

    return step
