"""Tiny random models of transformers beside ours of the same weights, asked for the same thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_tiny import bart, gpt2, llama, m2m100, marian, mbart, mistral, pegasus, qwen2, read, t5, umt5
from torch import Tensor, nn

from dragoman.interop.huggingface import ConvertedCheckpoint
from dragoman.models import Model
from dragoman.search import Beam, Hypothesis, LengthLimit, SpecialTokens, build_engine
from dragoman.search.configs import EarlyStopping
from dragoman.search.engine import LogitsProcessor
from dragoman.search.search_state import ConstraintTensors

OPEN: dict[str, Any] = {"forced_eos_token_id": None}  # END is not put behind what the limit cuts off
UNTIED: dict[str, Any] = {"tie_word_embeddings": False}  # else random models write each word again and again
#: their cache wants as many layers in the decoder as in the encoder
LAYERS: dict[str, Any] = {**UNTIED, "decoder_start_token_id": 0, "num_decoder_layers": 2, "d_model": 24, "d_ff": 48}
PLACES: dict[str, Any] = {
    **UNTIED,
    "max_position_embeddings": 32,
    "d_model": 24,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "decoder_layers": 2,
}

#: a layer that sees everything, and two that see three tokens
WINDOWS = {
    **{"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1, "num_hidden_layers": 3},
    "num_key_value_heads": 2,
}

#: how a model is made, and what is written into its generation_config.json
FAMILIES: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "marian": (marian, PLACES, {"bad_words_ids": [[1]]}),
    "marian-open": (marian, PLACES, {"bad_words_ids": [[1], [7]]} | OPEN),
    "bart": (bart, PLACES, {"forced_bos_token_id": 0}),
    "bart-open": (bart, PLACES, OPEN),
    "mbart": (mbart, PLACES, {"decoder_start_token_id": 2, "forced_bos_token_id": 5}),
    "mbart-open": (mbart, PLACES, {"decoder_start_token_id": 5} | OPEN),
    "m2m100": (m2m100, PLACES, {"forced_bos_token_id": 5, "bad_words_ids": [[1]]}),  # padding has no position
    "pegasus": (pegasus, PLACES | {"decoder_attention_heads": 3}, {}),
    "umt5": (umt5, LAYERS, {}),
    "t5": (t5, LAYERS, {}),
    "t5-gated": (t5, LAYERS | {"feed_forward_proj": "gated-gelu"}, {}),
    "gpt2": (gpt2, UNTIED | {"n_positions": 32, "n_embd": 24}, {}),
    "llama": (llama, {}, {}),
    "mistral": (mistral, {"sliding_window": 4}, {}),  # texts are longer than the window
    "qwen2": (qwen2, WINDOWS, {}),
}
DECODERS = ("gpt2", "llama", "mistral", "qwen2")
REPRESENTATIVES = ("marian", "bart-open", "t5", "gpt2")  # with END forced at the limit and without, one a kind of model


def representative(families: Iterable[str]) -> list[Any]:
    """The names as parameters of a test; those that are no representatives run in `make laws` alone."""
    return [name if name in REPRESENTATIVES else pytest.param(name, marks=pytest.mark.exhaustive) for name in families]


SEQ2SEQ = [name for name in FAMILIES if name not in DECODERS]
#: values of `early_stopping`, which mean the same in `generate` and here
EARLY: tuple[EarlyStopping, ...] = (True, False, "never")
#: how strongly parts speak, by the beginning of their names: words strongly, sources no more than words
GAINS = {"shared": 4.0, "embed_tokens": 4.0, "v": 0.6}
OTHERS = 2.0
#: the norms after which nothing but the output layer comes
LAST = ("layers.1.final_layer_norm", "decoder.layer_norm", "decoder.final_layer_norm", "ln_f", "model.norm")
IGNORE_INDEX = -1e5  # no hypothesis of a few tokens costs as much

Found = list[list[tuple[list[int], bool]]]  # of each source: the tokens of its hypotheses, and are they finished?


@dataclass
class Pair:
    """The same model, theirs and ours, and what both are asked."""

    theirs: Any
    ours: Model
    checkpoint: ConvertedCheckpoint
    decoder: bool
    ids: list[list[int]]

    @property
    def closed(self) -> bool:
        """Is END put behind what the limit cuts off?"""
        return self.checkpoint.generation.get("forced_eos_token_id") is not None

    @property
    def symbols(self) -> SpecialTokens:
        framing = self.checkpoint.framing
        return SpecialTokens(framing.bos, framing.eos, framing.suppressed, framing.forced_bos, self.closed)

    @property
    def source(self) -> tuple[Tensor, Tensor]:
        """Padded on the right, and its lengths; the last token of a prompt starts what is written."""
        rows = [ids[:-1] for ids in self.ids] if self.decoder else self.ids
        lengths = torch.tensor([len(ids) for ids in rows])
        pad = self.checkpoint.framing.pad
        return torch.tensor([[*ids, *[pad] * (int(lengths.max()) - len(ids))] for ids in rows]), lengths

    def generate(self, longest: int, beams: int, best: int | None = None, **settings: Any) -> tuple[Found, Any]:
        """What they find, the best of it, and all that they say of it."""
        pad, width, best = self.checkpoint.framing.pad, max(map(len, self.ids)), best or beams
        fill = [[pad] * (width - len(ids)) for ids in self.ids]  # prompts are padded on the left
        tokens = [[*some, *ids] if self.decoder else [*ids, *some] for ids, some in zip(self.ids, fill)]
        real = [[0] * len(some) + [1] * len(ids) for ids, some in zip(self.ids, fill)]
        mask = torch.tensor(real) if self.decoder else torch.tensor([row[::-1] for row in real])
        made = self.theirs.generate(
            input_ids=torch.tensor(tokens),
            attention_mask=mask,
            num_beams=beams,
            num_return_sequences=best,
            do_sample=False,
            pad_token_id=pad,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **({"max_new_tokens": longest} | settings),
        )
        end, start = self.checkpoint.framing.eos, width if self.decoder else 1
        rows = [_until(row, end, longest) for row in made.sequences[:, start:].tolist()]
        return [rows[i : i + best] for i in range(0, len(rows), best)], made

    def search(
        self,
        longest: int,
        rules: Sequence[LogitsProcessor] = (),
        constraints: ConstraintTensors | None = None,
        banned: Sequence[int] = (),
        least: int = 0,
        **settings: Any,
    ) -> list[list[Hypothesis]]:
        symbols, (source, lengths) = self.symbols, self.source
        start: int | Tensor = torch.tensor([ids[-1] for ids in self.ids]) if self.decoder else symbols.bos
        symbols = SpecialTokens(
            start, symbols.eos, (*symbols.suppressed, *banned), symbols.forced_bos, symbols.force_eos_at_limit
        )
        length = LengthLimit(0, longest, longest, least)
        limits = length.max_lengths(lengths, [self.ours])
        searching = build_engine([self.ours], symbols, Beam(length_limit=length, **settings), rules)
        return searching.search(source, lengths, limits, torch.arange(len(source)), constraints)


def _until(row: list[int], end: int, longest: int) -> tuple[list[int], bool]:
    return (row[: row.index(end)], True) if end in row else (row[:longest], False)


def pair(name: str, seed: int, folder: Path, lengths: Sequence[int], vocabulary: int, **generation: Any) -> Pair:
    """A family's model, and a source or a prompt of each length."""
    torch.manual_seed(seed)
    build, sizes, own = FAMILIES[name]
    theirs = build(vocab_size=vocabulary, **sizes)
    for setting, value in (own | generation).items():
        setattr(theirs.generation_config, setting, value)
    liven(theirs, theirs.generation_config.eos_token_id)
    checkpoint, ours = read(theirs, folder)
    words = [token for token in range(vocabulary) if token not in (checkpoint.framing.pad, checkpoint.framing.eos)]
    chosen = torch.randint(len(words), (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    ids = [[words[n] for n in row[:length]] for row, length in zip(chosen.tolist(), lengths)]
    return Pair(theirs, ours, checkpoint, name in DECODERS, ids)


@torch.no_grad()
def liven(model: Any, end: int) -> None:
    """Weights with which sources, words and places matter, strong opinions, and an END that now wins and now loses."""
    for name, weight in model.named_parameters():
        path, kind = name.rsplit(".", 1)
        if weight.dim() == 1:
            mean = 1.5 if path.endswith(LAST) else 1.0
            nn.init.normal_(weight, mean if kind == "weight" else 0.0, 0.1)
        elif weight.requires_grad and "relative" not in name:
            part = path.split(".")[-1]
            gain = next((gain for begin, gain in GAINS.items() if part.startswith(begin)), OTHERS)
            nn.init.normal_(weight, std=gain * weight.shape[1] ** -0.5)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(std=0.3)[:, end] += 3.0
    else:
        model.get_output_embeddings().weight[end] *= 2.0


def plain(hypotheses: list[list[Hypothesis]]) -> Found:
    return [[(h.tokens, h.finished) for h in some] for some in hypotheses]


def assert_same(ours: list[list[Hypothesis]], found: Found, scores: Tensor | None) -> None:
    """The same hypotheses in the same order, with the same scores where they have any.

    Where there are fewer than were asked for theirs are filled up with copies of no sense, at −10⁹ before penalties.
    """
    if scores is None:
        assert plain(ours) == found
        return
    said = scores.view(len(found), -1).tolist()
    real = [[(one, score) for one, score in zip(*both) if score > IGNORE_INDEX] for both in zip(found, said)]
    assert plain(ours) == [[one for one, _ in some] for some in real]
    normalized = torch.tensor([h.normalized_score for some in ours for h in some])
    expected = torch.tensor([score for some in real for _, score in some])
    torch.testing.assert_close(normalized, expected, atol=1e-4, rtol=1e-5)
