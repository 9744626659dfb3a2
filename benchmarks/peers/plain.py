"""The Transformer in plain PyTorch, as a tutorial writes it: the reference of `benchmarks/check_speed.py`."""

from __future__ import annotations

import json
import math

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from peers.protocol import CLIP, LABEL_SMOOTHING, PAD, RATE, PaddedBatch, Precision, Sizes, Step
from peers.searching import Translate, WorkerSettings

MAX_POSITIONS = 512


def sinusoids(width: int) -> Tensor:
    """Return the position encodings of Vaswani et al. (2017), all sines before all cosines: positions × width."""
    exponents = torch.arange(0, width, 2) / width
    angles = torch.arange(MAX_POSITIONS)[:, None] / 10_000**exponents
    return torch.cat([angles.sin(), angles.cos()], 1)


class PlainTransformer(nn.Module):
    """`nn.Transformer` with one embedding matrix for source, target and output."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        layers = (sizes.layers, sizes.layers, sizes.inner, sizes.dropout)
        self.transformer = nn.Transformer(sizes.width, sizes.heads, *layers, batch_first=True)
        self.embedding, self.dropout = nn.Embedding(sizes.vocabulary, sizes.width), nn.Dropout(sizes.dropout)
        self.register_buffer("positions", sinusoids(sizes.width))

    def embed(self, tokens: Tensor) -> Tensor:
        """B T → B T D."""
        scaled = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(scaled + self.positions[: tokens.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Source B S and decoder input B T → logits B T V."""
        padding, length = source == PAD, target.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        masks = {"tgt_mask": future, "src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        output = self.transformer(self.embed(source), self.embed(target), **masks, tgt_is_causal=True)
        return F.linear(output, self.embedding.weight)


def trainer(sizes: Sizes, device: str, precision: Precision) -> Step:
    model = PlainTransformer(sizes).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), RATE, betas=(0.9, 0.98))

    def step(batch: PaddedBatch) -> None:
        batch = batch.to(device)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(batch.source, batch.target[:, :-1]).flatten(0, 1)
            labels = batch.target[:, 1:].flatten()
            loss = F.cross_entropy(logits, labels, ignore_index=PAD, label_smoothing=LABEL_SMOOTHING)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


class PlainMarian:
    """A Marian checkpoint: encoder, and decoder with key–value caches that grow by concatenation."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.weights = load_file(settings.folder / "model.safetensors", settings.device)
        self.config = json.loads((settings.folder / "config.json").read_text())
        self.width, self.heads = self.config["d_model"], self.config["decoder_attention_heads"]
        self.embedding = self.weights["model.shared.weight"]
        self.positions = sinusoids(self.width).to(settings.device)

    def embed(self, tokens: Tensor, first_position: int = 0) -> Tensor:
        """B T → B T D; the first column of tokens is at `first_position`."""
        positions = self.positions[first_position : first_position + tokens.shape[1]]
        return F.embedding(tokens, self.embedding) * math.sqrt(self.width) + positions

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def split(self, x: Tensor) -> Tensor:
        """B T D → B H T E."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def keys_and_values(self, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
        return self.split(self.linear(x, f"{name}.k_proj")), self.split(self.linear(x, f"{name}.v_proj"))

    def attention(self, x: Tensor, keys: Tensor, values: Tensor, name: str) -> Tensor:
        """x, B T D, plus its attention to keys and values B H S E, normalized."""
        output = F.scaled_dot_product_attention(self.split(self.linear(x, f"{name}.q_proj")), keys, values)
        return self.norm(x + self.linear(output.transpose(1, 2).flatten(2), f"{name}.out_proj"), f"{name}_layer_norm")

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (self.width,), self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def feedforward(self, x: Tensor, layer: str) -> Tensor:
        output = self.linear(F.relu(self.linear(x, f"{layer}.fc1")), f"{layer}.fc2")
        return self.norm(x + output, f"{layer}.final_layer_norm")

    def encode(self, source: Tensor) -> Tensor:
        """Sources of equal length, B S → B S D."""
        x = self.embed(source)
        for number in range(self.config["encoder_layers"]):
            layer = f"model.encoder.layers.{number}"
            x = self.attention(x, *self.keys_and_values(x, f"{layer}.self_attn"), f"{layer}.self_attn")
            x = self.feedforward(x, layer)
        return x

    def decode(
        self, tokens: Tensor, step: int, caches: list[tuple[Tensor, Tensor]], memory: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """The last tokens, R 1 → log-probabilities R V of the next ones; extends the caches of all layers."""
        x = self.embed(tokens, step)
        for number, encoded in enumerate(memory):
            layer = f"model.decoder.layers.{number}"
            pair = self.keys_and_values(x, f"{layer}.self_attn")
            if step > 0:
                pair = tuple(torch.cat([old, new], 2) for old, new in zip(caches[number], pair))
            caches[number] = pair
            x = self.attention(x, *pair, f"{layer}.self_attn")
            x = self.attention(x, *encoded, f"{layer}.encoder_attn")
            x = self.feedforward(x, layer)
        logits = F.linear(x[:, 0], self.embedding, self.weights["final_logits_bias"][0])
        logits[:, [self.config["pad_token_id"], self.config["eos_token_id"]]] = -torch.inf  # of fixed length
        return logits.log_softmax(-1)


def translator(settings: WorkerSettings, variant: str) -> Translate:
    """Beam search of exactly `settings.tokens` tokens; greedy search is a beam of one."""
    torch.set_num_threads(settings.threads)
    model = PlainMarian(settings)

    @torch.inference_mode()
    def translate(sources: list[list[int]], beam: int) -> list[list[int]]:
        source = torch.tensor(sources, device=settings.device)
        encoded = model.encode(source).repeat_interleave(beam, 0)
        layers = range(model.config["decoder_layers"])
        memory = [model.keys_and_values(encoded, f"model.decoder.layers.{n}.encoder_attn") for n in layers]
        caches = list(memory)  # replaced in the first step
        batch = len(sources)
        tokens = torch.full((batch * beam, 1), model.config["decoder_start_token_id"], device=settings.device)
        scores = torch.full((batch, beam), -torch.inf, device=settings.device)
        scores[:, 0] = 0.0  # all hypotheses are equal at first
        first_rows = torch.arange(batch, device=settings.device)[:, None] * beam
        for step in range(settings.tokens):
            log_probs = model.decode(tokens[:, -1:], step, caches, memory)
            totals = (scores[..., None] + log_probs.unflatten(0, (batch, beam))).flatten(1)
            scores, chosen = totals.topk(beam)
            vocabulary = log_probs.shape[-1]
            rows = (first_rows + chosen // vocabulary).flatten()
            tokens = torch.cat([tokens[rows], (chosen % vocabulary).flatten()[:, None]], 1)
            if beam > 1:
                caches = [(keys[rows], values[rows]) for keys, values in caches]
        return tokens[::beam, 1:].tolist()

    return translate
