"""Greedy and beam search over imported checkpoints find what `generate` of transformers finds on the same settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from huggingface_tiny import bart, gpt2, llama, marian, mbart, read, t5
from torch import Tensor

from dragoman.interop.huggingface import Checkpoint
from dragoman.models import Model
from dragoman.search import Beam, Hypothesis, Length, Symbols, search

VOCABULARY = 17
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY}
PLACES: dict[str, Any] = SIZES | {"max_position_embeddings": 32}
#: their cache wants as many layers in the decoder as in the encoder
LAYERS: dict[str, Any] = SIZES | {"decoder_start_token_id": 0, "num_decoder_layers": 2}
OPEN: dict[str, Any] = {"forced_eos_token_id": None}  # END is not put behind what the limit cuts off

#: how a model is made, and what is written into its generation_config.json
FAMILIES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "marian": (lambda: marian(**PLACES), {"bad_words_ids": [[1]]}),
    "marian-open": (lambda: marian(**PLACES), {"bad_words_ids": [[1], [7]]} | OPEN),
    "bart": (lambda: bart(**PLACES), {"forced_bos_token_id": 0}),
    "bart-open": (lambda: bart(**PLACES), OPEN),
    "mbart": (lambda: mbart(**PLACES), {"decoder_start_token_id": 2, "forced_bos_token_id": 5}),
    "mbart-open": (lambda: mbart(**PLACES), {"decoder_start_token_id": 5} | OPEN),
    "t5": (lambda: t5(**LAYERS), {}),
    "t5-gated": (lambda: t5(**LAYERS, feed_forward_proj="gated-gelu", tie_word_embeddings=False), {}),
    "gpt2": (lambda: gpt2(**SIZES, n_positions=32), {}),
    "llama": (lambda: llama(**SIZES), {}),
}
DECODERS = ("gpt2", "llama")
PENALTIES = (0.0, 0.6, 1.0, 2.0)  # each with random weights of its own
BEAMS = (2, 4, 5)
LONGEST = 9
LENGTHS = (6, 3, 1, 5, 2)  # of sources and prompts
EARLY: dict[Any, Literal["complete", "hopeless", "steps"]] = {True: "complete", False: "hopeless", "never": "steps"}
Found = list[
    list[tuple[list[int], bool]]
]  # of each source: the tokens of its hypotheses, and whether they are finished


@dataclass
class Pair:
    """The same model, theirs and ours, and what both are asked."""

    theirs: Any
    ours: Model
    checkpoint: Checkpoint
    decoder: bool
    ids: list[list[int]]

    @property
    def closed(self) -> bool:
        """Is END put behind what the limit cuts off?"""
        return self.checkpoint.search.get("forced_eos_token_id") is not None

    def generate(self, longest: int, beams: int, **settings: Any) -> tuple[Found, Tensor]:
        """What they find, all beams of it, and its scores."""
        pad, width = self.checkpoint.framing.pad, max(LENGTHS)
        fill = [[pad] * (width - len(ids)) for ids in self.ids]  # prompts are padded on the left
        tokens = [[*some, *ids] if self.decoder else [*ids, *some] for ids, some in zip(self.ids, fill)]
        real = [[0] * len(some) + [1] * len(ids) for ids, some in zip(self.ids, fill)]
        mask = torch.tensor(real) if self.decoder else torch.tensor(real).flip(1)
        made = self.theirs.generate(
            input_ids=torch.tensor(tokens),
            attention_mask=mask,
            max_new_tokens=longest,
            num_beams=beams,
            num_return_sequences=beams,
            do_sample=False,
            pad_token_id=pad,
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        )
        end, start = self.checkpoint.framing.end, width if self.decoder else 1
        rows = [_until(row, end, longest) for row in made.sequences[:, start:].tolist()]
        found = [rows[i : i + beams] for i in range(0, len(rows), beams)]
        return found, made.sequences_scores.unflatten(0, (-1, beams)) if beams > 1 else torch.zeros(0)

    def search(self, longest: int, **settings: Any) -> list[list[Hypothesis]]:
        framing = self.checkpoint.framing
        start: int | Tensor = framing.start
        source = self.ids
        if self.decoder:  # the last token of a prompt starts what is written
            start, source = torch.tensor([ids[-1] for ids in self.ids]), [ids[:-1] for ids in self.ids]
        lengths = torch.tensor([len(ids) for ids in source])
        padded = [[*ids, *[framing.pad] * (int(lengths.max()) - len(ids))] for ids in source]
        symbols = Symbols(start, framing.end, framing.banned, framing.forced, self.closed)
        beam = Beam(length=Length(0, longest, longest), **settings)
        return search(self.ours, torch.tensor(padded), lengths, symbols, beam, torch.arange(len(source)))


def _until(row: list[int], end: int, longest: int) -> tuple[list[int], bool]:
    return (row[: row.index(end)], True) if end in row else (row[:longest], False)


def pair(name: str, seed: int, folder: Path) -> Pair:
    torch.manual_seed(seed)
    build, generation = FAMILIES[name]
    theirs = build()
    for setting, value in generation.items():
        setattr(theirs.generation_config, setting, value)
    _speak_up(theirs, theirs.generation_config.eos_token_id)
    checkpoint, ours = read(theirs, folder)
    words = [token for token in range(VOCABULARY) if token not in (checkpoint.framing.pad, checkpoint.framing.end)]
    chosen = torch.randint(len(words), (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(seed))
    ids = [[words[n] for n in row[:length]] for row, length in zip(chosen.tolist(), LENGTHS)]
    return Pair(theirs, ours, checkpoint, name in DECODERS, ids)


@torch.no_grad()
def _speak_up(model: Any, end: int) -> None:
    """Opinions strong enough to tell hypotheses apart, and an END that now wins and now loses."""
    weight = model.get_output_embeddings().weight
    weight.mul_(2.5)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.mul_(0.3)[:, end] += 2.0
    else:
        weight[end] *= 2.5


def plain(hypotheses: list[list[Hypothesis]]) -> Found:
    return [[(h.tokens, h.finished) for h in some] for some in hypotheses]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_and_beam_outputs_equal_generate(name: str, tmp_path: Path) -> None:
    """All hypotheses in their order and their scores, for every width, length penalty and stopping rule."""
    torch.set_num_threads(1)
    seen: Found = []
    apart = dict.fromkeys(EARLY, 0)  # how often a stopping rule finds what another does not
    for seed, alpha in enumerate(PENALTIES):
        models = pair(name, seed, tmp_path / str(seed))
        greedy, _ = models.generate(LONGEST, 1)
        assert plain(models.search(LONGEST, size=1)) == greedy
        for beams in BEAMS:
            results = []
            for early, stop in EARLY.items():
                found, scores = models.generate(LONGEST, beams, length_penalty=alpha, early_stopping=early)
                settings = {"size": beams, "best": beams, "length_penalty": alpha}
                ours = models.search(LONGEST, **settings, stop=stop, unfinished="beside")
                assert plain(ours) == found
                normalized = torch.tensor([[h.normalized for h in some] for some in ours])
                torch.testing.assert_close(normalized, scores, atol=1e-4, rtol=0)
                results.append(found)
                apart[early] += found != results[0]
            seen += found
    assert apart[False]
    assert apart["never"]
    whole = {len(tokens) for some in seen for tokens, finished in some if finished}
    assert len(whole - {LONGEST - 1}) > 1, "hypotheses must end before the limit, at more lengths than one"
    at_the_limit = [finished for some in seen for tokens, finished in some if len(tokens) >= LONGEST - 1]
    assert at_the_limit
    assert all(at_the_limit) == models.closed


def test_a_source_alone_gives_what_it_gives_among_others(tmp_path: Path) -> None:
    models = pair("t5", 0, tmp_path)
    settings = {"size": 4, "best": 4, "stop": "hopeless", "unfinished": "beside"}
    together = plain(models.search(LONGEST, **settings))
    for ids, expected in zip(models.ids, together):
        alone = Pair(models.theirs, models.ours, models.checkpoint, False, [ids])
        assert plain(alone.search(LONGEST, **settings)) == [expected]
