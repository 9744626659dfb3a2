"""eole's model, loss and optimizer, as its own trainer uses them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from peers.missing import placeholder_modules
from peers.protocol import CLIP, LABEL_SMOOTHING, PAD, RATE, PaddedBatch, Precision, Sizes, Step

# tokenizers, kernels for quantized inference and metrics, which its modules import at the top
with placeholder_modules(
    "pyonmttok", "triton", "triton.language", "ctranslate2", "configargparse", "sacrebleu", "rapidfuzz", "six"
):
    from eole.config.models import RnnModelConfig, TransformerModelConfig
    from eole.config.training import TrainingConfig
    from eole.models.model import EncoderDecoderModel
    from eole.trainer import BatchProcessor
    from eole.utils import Statistics
    from eole.utils.loss import LossCompute
    from eole.utils.misc import configure_cuda_backends
    from eole.utils.optimizers import Optimizer


class NumberVocabulary:
    """A vocabulary of numbers with the special tokens that eole looks up."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, word: str) -> int:
        return {"<blank>": PAD, "<pad>": PAD, "<unk>": 1, "<s>": 2, "</s>": 3}[word]


def trainer(sizes: Sizes, device: str, precision: Precision) -> Step:
    shared: dict[str, Any] = {
        "layers": sizes.layers,
        "hidden_size": sizes.width,
        "share_embeddings": True,
        "share_decoder_embeddings": True,
    }
    if sizes.kind == "transformer":
        positions = {"word_vec_size": sizes.width, "position_encoding_type": "SinusoidalInterleaved"}
        model_config = TransformerModelConfig(
            heads=sizes.heads, transformer_ff=sizes.inner, embeddings=positions, **shared
        )
    else:
        words = {"word_vec_size": sizes.width}
        decoder = {"global_attention": "general"}
        model_config = RnnModelConfig(rnn_type="LSTM", input_feed=1, embeddings=words, decoder=decoder, **shared)
    training = TrainingConfig(
        optim="adam",
        learning_rate=RATE,
        adam_beta2=0.98,
        max_grad_norm=CLIP,
        label_smoothing=LABEL_SMOOTHING,
        dropout=[sizes.dropout],
        attention_dropout=[0.0],
        param_init_method="xavier_uniform",
        compute_dtype="bf16" if precision == "bfloat16" else "fp32",
        gpu_ranks=[0] if device == "cuda" else [],
        world_size=1,
    )
    config = SimpleNamespace(model=model_config, training=training)
    vocabulary = NumberVocabulary(sizes.vocabulary)
    words_by_side = {"src": vocabulary, "tgt": vocabulary, "specials": {"pad_token": "<blank>"}}
    if device == "cuda":
        configure_cuda_backends()
        torch.set_autocast_dtype("cuda", torch.bfloat16)  # its mixed precision would be float16
    model = EncoderDecoderModel.for_training(model_config, words_by_side, training, None, 0 if device == "cuda" else -1)
    model.train()
    optimizer = Optimizer.from_config(model, config)
    loss = LossCompute.from_config(config, model, words_by_side, train=True).to(device)
    processor = BatchProcessor(model, loss, optimizer, 1, "data_parallel", False, False, 1.0, 1)

    def step(batch: PaddedBatch) -> None:
        tokens = batch.tokens
        batch = batch.to(device)
        toolkit_batch: dict[str, Any] = {"src": batch.source, "srclen": batch.source_lengths, "tgt": batch.target}
        toolkit_batch |= {"images": None, "prefix_len": None, "cid": [], "cid_line_number": []}
        optimizer.zero_grad(set_to_none=True)
        if not processor.process_batch(toolkit_batch, tokens, 1, Statistics(), Statistics()):
            raise MemoryError("eole skipped a batch")
        optimizer.step()

    return step
