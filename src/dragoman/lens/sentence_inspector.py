"""Looking into a sentence: from a run and a text to everything that can be seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from dragoman.errors import UserError
from dragoman.lens.beam_recorder import recorded_search
from dragoman.lens.forward_pass import RecordedForward, record_forward
from dragoman.lens.inspection_types import (
    AttentionKind,
    AttentionMap,
    Inspection,
    LayerPrediction,
    TokenAlternative,
    TokenizedText,
    TokenPrediction,
)
from dragoman.lens.word_attention import word_labels
from dragoman.parts.embedding import IdentityOutput
from dragoman.parts.long_attention import CompressedAttentionMixer
from dragoman.run import Run, Source
from dragoman.run.sources import is_empty
from dragoman.run.translation_constraints import Constraints, TargetPrefix
from dragoman.search import Beam, Sample, SearchConfig
from dragoman.search.forced_decoding import TokenWordMap, cross_attention, word_alignment
from dragoman.text import Tokenizer

#: objectives whose runs read a text for its own sake
#: what a discriminator says of a token
REPLACED = ("replaced", "as it was")

Names = tuple[Sequence[str], Sequence[str]]  # of the rows and of the columns of an attention


def inspect_sentence(
    run: Run,
    source: Source,
    target: str | None = None,
    *,
    search: SearchConfig | None = None,
    prefix: TargetPrefix | None = None,
    alternatives: int = 5,
) -> Inspection:
    """What a run does with a sentence: for a given translation, or for the one that it finds.

    A translation that is searched for may be told how to begin, by a text or by tokens, the last of which may be END. A
    language model reads the text alone, unless a search says how it is to be gone on with; an encoder alone labels it.
    """
    if is_empty(source):
        raise UserError("there is nothing to look into: give a sentence that has words")
    if alternatives < 1:
        raise UserError(f"at least 1 alternative must be shown, but {alternatives} were asked for")
    searched = search is not None or prefix is not None
    if target is not None and searched:
        raise UserError("a translation that is given is not searched for: leave out the search and the prefix")
    eye = SentenceInspector(run, alternatives)
    if not run.model.can_generate:
        if target is not None or searched:
            raise UserError(f"{run.folder} holds an encoder alone, which labels its source and writes nothing")
        return eye.inspect_labels(source)
    if (
        isinstance(source, str)
        and run.objective is not None
        and run.is_language_model
        and target is None
        and not searched
    ):
        return eye.inspect_text(source)
    ids = run.encode_sources([source])[0]
    if target is not None:
        return eye.inspect_translation(source, ids, run.target_tokenizer.encode(target), finished=True)
    if prefix is not None and not isinstance(prefix, str):
        prefix = _without_forced(run, prefix)
        if prefix and prefix[-1] == run.framing.eos:  # nothing is left to search for
            return eye.inspect_translation(source, ids, list(prefix[:-1]), finished=True)
    settings = search or run.default_search
    if isinstance(settings, (Beam, Sample)):
        wishes = Constraints(None if prefix is None else [prefix])
        best, tree = recorded_search(run, *run.pad_batch([ids], run.framing.pad), settings, wishes)
        return replace(eye.inspect_translation(source, ids, best.tokens, best.finished), from_search=True, beam=tree)
    if prefix is not None and not isinstance(prefix, str):
        raise UserError("tokens to begin with are for beams and samples: give the text of the beginning instead")
    found = run.translate([source], search=settings, prefixes=None if prefix is None else [prefix], alignment=False)[0]
    tokens = run.target_tokenizer.tokens_to_ids(found.tokens)
    return replace(eye.inspect_translation(source, ids, tokens, found.finished), from_search=True)


def _without_forced(run: Run, tokens: Sequence[int]) -> list[int]:
    """Tokens to begin with, without those that every translation begins with; those that are none are refused."""
    forced, banned = run.framing.forced_bos, run.special_tokens.suppressed
    own = list(tokens[len(forced) :] if tuple(tokens[: len(forced)]) == tuple(forced) else tokens)
    for place, token in enumerate(own):
        last = token == run.framing.eos and place == len(own) - 1
        if not 0 <= token < run.target_tokenizer.vocab_size or (not last and token in (*banned, run.framing.eos)):
            raise UserError(f"a translation cannot begin with the token {token}: it is none that can be written there")
    return own


@dataclass(frozen=True)
class SentenceInspector:
    """Looks into the sentences of one run."""

    run: Run
    max_alternatives: int

    def inspect_translation(self, source: Source, ids: Sequence[int], tokens: list[int], finished: bool) -> Inspection:
        """A source, its ids with the symbols around them, and a target without them."""
        run, framing, tokenizer = self.run, self.run.framing, self.run.target_tokenizer
        written = [*tokens, framing.eos] if finished else tokens
        if not written:
            raise UserError("there is nothing to look into: nothing was written")
        fed = [framing.bos, *written[:-1]]
        done = record_forward(run.model, *run.pad_batch([ids], framing.pad), *run.pad_batch([fed], framing.pad))
        cross = cross_attention(run.model, {path: weights[None] for path, weights in done.attention_weights.items()})
        before = self._source(source, ids, cross)
        after, given = _side(tokenizer, written, tokenizer.decode(tokens)), tokenizer.tokens(fed)
        names: dict[str, Names] = {
            "encoder": (before.tokens, before.tokens),
            "decoder": (after.tokens, given),
            "cross": (after.tokens, before.tokens),
        }
        if run.model.is_decoder_only:
            names = {"decoder": ((*before.tokens[1:], given[0], *after.tokens), (*before.tokens, *given))}
        seen = self._seen(done, written, _namer(tokenizer), names)
        if cross is not None:
            sides = (TokenWordMap.from_tokens(list(side.word_ids), side.tokens) for side in (before, after))
            links = word_alignment(cross[0], *sides)
            seen = replace(seen, alignment=links, cross_attention=cross[0])
        return replace(seen, source=before, target=after, finished=finished)

    def inspect_text(self, text: str) -> Inspection:
        """A text that a decoder reads for its own sake."""
        framing, tokenizer = self.run.framing, self.run.target_tokenizer
        begin = framing.source_prefix or (framing.bos,)
        whole = [*begin, *tokenizer.encode(text), framing.eos]
        fed, expected = whole[:-1], whole[1:]
        done = record_forward(
            self.run.model, *self.run.pad_batch([[]], framing.pad), *self.run.pad_batch([fed], framing.pad)
        )
        side = _side(tokenizer, expected, text)
        seen = self._seen(done, expected, _namer(tokenizer), {"decoder": (side.tokens, tokenizer.tokens(fed))})
        score = sum(step.log_probability for step in seen.steps[len(begin) - 1 :])
        return replace(seen, target=side, score=score)

    def inspect_labels(self, source: Source) -> Inspection:
        """What an encoder alone says of every token: the word that it would put there, its tag, or whether it fits."""
        run, labels = self.run, self.run.model.vocab_size
        ids = run.encode_sources([source])[0]
        padded, lengths = run.pad_batch([ids], run.framing.pad)
        done = record_forward(run.model, padded, lengths, padded[:, :0], lengths * 0)
        before = self._source(source, ids, None)
        names: dict[str, Names] = {"encoder": (before.tokens, before.tokens)}
        name: Callable[[int], str] = _namer(run.target_tokenizer)
        if labels == 1:  # log σ(x) is the first of log softmax(x, 0)
            layers = {layer: pad(logits, (0, 1)) for layer, logits in done.layer_logits.items()}
            done, name = RecordedForward(pad(done.logits, (0, 1)), done.attention_weights, layers), REPLACED.__getitem__
        answers = done.logits.argmax(-1).tolist()
        if isinstance(run.model.output, IdentityOutput):  # states, which are no answers
            return replace(self._seen(done, answers, str, names), source=before, score=0.0, steps=(), layers=())
        if labels > 1 and run.target_tokenizer is run.source_tokenizer:  # is the word that stands there the likeliest?
            answers = [best if own == run.source_tokenizer.mask else own for best, own in zip(answers, ids)]
        return replace(self._seen(done, answers, name, names), source=before)

    def _seen(
        self, done: RecordedForward, expected: Sequence[int], name: Callable[[int], str], names: Mapping[str, Names]
    ) -> Inspection:
        """All that does not depend on where the tokens came from."""
        steps = token_predictions(done.logits, expected, name, self.max_alternatives)
        layers = (
            LayerPrediction(layer, token_predictions(logits, expected, name, self.max_alternatives))
            for layer, logits in done.layer_logits.items()
        )
        return Inspection(
            self.run.config.system.name or "",
            self.run.checkpoint,
            attention=self._looks(done.attention_weights, names),
            score=sum(step.log_probability for step in steps),
            steps=steps,
            layers=tuple(layers),
        )

    def _looks(self, recorded: Mapping[str, Tensor], names: Mapping[str, Names]) -> tuple[AttentionMap, ...]:
        found: list[AttentionMap] = []
        for path, weights in recorded.items():
            in_encoder, model = "encoder" in path.split("."), self.run.model
            kind: AttentionKind = "cross" if path in model.memory_paths else "encoder" if in_encoder else "decoder"
            queries, keys = names[kind]
            part = model.get_submodule(path)
            if isinstance(part, CompressedAttentionMixer):
                keys = _compressed(keys, part.stride, weights.shape[-1])
            layer = 1 + sum(looks.kind == kind for looks in found)
            found.append(
                AttentionMap(path, kind, layer, tuple(queries), tuple(keys), weights, tuple(attention_entropy(weights)))
            )
        return tuple(found)

    def _source(self, source: Source, ids: Sequence[int], cross: Tensor | None) -> TokenizedText:
        if isinstance(source, str):
            return _side(self.run.source_tokenizer, ids, source)
        places = len(ids) if cross is None else cross.shape[-1]  # as many as the encoder makes of the vectors
        return TokenizedText("", tuple(str(place) for place in range(1, places + 1)), (), (-1,) * places)


def _side(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> TokenizedText:
    of_piece = tokenizer.word_ids(ids)
    place = {word: n for n, word in enumerate(sorted(set(of_piece) - {-1}))} | {-1: -1}
    words = word_labels(tokenizer.decode(ids), of_piece) if len(place) > 1 else []
    return TokenizedText(text, tuple(tokenizer.tokens(ids)), tuple(words), tuple(place[word] for word in of_piece))


def _namer(tokenizer: Tokenizer) -> Callable[[int], str]:
    """What tokens are called; an output layer may tell more of them apart than the tokenizer knows."""
    return lambda token: tokenizer.tokens([token])[0] if token < tokenizer.vocab_size else f"#{token}"


def _compressed(keys: Sequence[str], stride: int, cells: int) -> tuple[str, ...]:
    """The names of keys that stand for `stride` pieces each; the first stands for nothing."""
    return ("(nothing)", *("".join(keys[n * stride : (n + 1) * stride]) for n in range(cells - 1)))


def attention_entropy(weights: Tensor) -> list[float]:
    """H T S → of each head, in bits: the mean over rows of −Σ w log₂ w."""
    return (torch.special.entr(weights).sum(-1).mean(-1) / math.log(2)).tolist()


def token_predictions(
    logits: Tensor, token_ids: Sequence[int], token_name: Callable[[int], str], max_alternatives: int
) -> tuple[TokenPrediction, ...]:
    """T V logits and the T tokens that were chosen."""
    log_p = logits.log_softmax(-1)
    own = log_p.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])  # T 1
    ranks = 1 + (log_p > own).sum(-1)
    entropy = torch.special.entr(log_p.exp()).sum(-1) / math.log(2)
    top = log_p.topk(min(max_alternatives, log_p.shape[-1]), dim=-1)
    columns = (column.tolist() for column in (own[:, 0], ranks, entropy, top.indices, top.values.exp()))
    return tuple(
        TokenPrediction(
            token_name(token),
            token,
            math.exp(log_probability),
            log_probability,
            rank,
            bits,
            tuple(
                TokenAlternative(token_name(other), other, probability) for other, probability in zip(others, likely)
            ),
        )
        for token, log_probability, rank, bits, others, likely in zip(token_ids, *columns)
    )
