"""The most probable words at a position of a translation, each with the translation that continues from there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dragoman.errors import UserError
from dragoman.lens.sentence_inspector import without_forced_bos
from dragoman.run import Run, Source
from dragoman.run.pair_scoring import hypothesis_token_scores
from dragoman.run.sources import is_empty
from dragoman.search import Beam, Constraints, Hypothesis, SearchRequest
from dragoman.text import alignment_words


@dataclass(frozen=True)
class WordAlternative:
    """A word that may follow a prefix.

    Attributes:
        word: the word with the punctuation that is attached to it; empty: the translation ends here
        token_ids: its tokens, the last one EOS if the translation ends here
        probability: p(word | prefix, source), the product over its tokens
        text: the translation that begins with the prefix and this word, continued by greedy search
    """

    word: str
    token_ids: tuple[int, ...]
    probability: float
    text: str


@torch.inference_mode()
def word_alternatives(run: Run, source: Source, prefix: Sequence[int], count: int) -> list[WordAlternative]:
    """Return up to `count` different words that may follow a prefix of a translation of `source`, most probable first.

    `prefix` has the token ids of the target so far. A word begins with one of the `count` most probable next tokens,
    and greedy search completes it and the translation. If EOS is among these tokens, an alternative with an empty word
    is the translation that ends here. An empty source, and a prefix that contains EOS, are a UserError.
    """
    if is_empty(source):
        raise UserError(
            "words of a translation have no alternatives if the source sentence is empty: give another sentence"
        )
    # `forced_bos` are the tokens, such as a language code, that every translation begins with
    prefix = without_forced_bos(run, prefix)
    eos = run.framing.eos
    if eos in prefix:
        raise UserError("the target prefix contains EOS, after which no word follows: remove EOS from the prefix")
    ids, lengths = run.pad_batch(run.encode_sources([source]))
    target_ids = torch.tensor([[run.framing.bos, *run.framing.forced_bos, *prefix]], device=run.device)
    logits = run.logits(ids, target_ids)[0, -1].float()  # of the next token: V
    logits[list(run.special_tokens.suppressed)] = -math.inf  # tokens that are never generated, such as padding
    probabilities = logits.softmax(-1)
    top_tokens = probabilities.topk(min(count, len(probabilities))).indices.tolist()
    first_tokens = [token for token in top_tokens if token != eos]
    alternatives = []
    if eos in top_tokens:
        text, probability = run.target_tokenizer.decode(prefix), float(probabilities[eos])
        alternatives.append(WordAlternative(word="", token_ids=(eos,), probability=probability, text=text))
    if first_tokens:  # decode as a batch: the same source for each first token
        request = SearchRequest(
            ids.expand(len(first_tokens), -1),
            lengths.expand(len(first_tokens)),
            keys=torch.arange(len(first_tokens)),
            texts=[source] * len(first_tokens),
            constraints=Constraints(prefixes=[[*prefix, token] for token in first_tokens]),
        )
        greedy = replace(Beam(1), length_limit=run.length_limit)
        hypotheses = [ranked[0] for ranked in greedy.decode(run, request)]
        # log p of each token; one hypothesis for each source of the batch
        scores = hypothesis_token_scores(run, request.source, request.lengths, [[best] for best in hypotheses])
        alternatives += [_first_word(run, best, log_p, len(prefix)) for best, (log_p,) in zip(hypotheses, scores)]
    best_of_word: dict[str, WordAlternative] = {}  # two tokens may begin the same word
    for alternative in sorted(alternatives, key=lambda alternative: -alternative.probability):
        best_of_word.setdefault(alternative.word, alternative)
    return list(best_of_word.values())


def _first_word(run: Run, hypothesis: Hypothesis, log_p: Sequence[float], prefix_length: int) -> WordAlternative:
    """Return the word of a hypothesis that begins after its first `prefix_length` tokens, with its probability.

    `log_p` has the log-probability of each token of the hypothesis, which begins with the tokens `forced_bos` that
    every translation has.
    """
    tokenizer = run.target_tokenizer
    begin = len(run.framing.forced_bos) + prefix_length  # tokens begin … end − 1 are those of the word
    word_ids = tokenizer.word_ids(hypothesis.tokens)  # for each token the index of its word, −1 for tokens of no word
    # the word has all tokens with the word of the first one; if that has none, such as a lone space, it belongs to the
    # word after it
    end = begin + 1
    while end < len(word_ids) and (word_ids[end] == word_ids[begin] or word_ids[begin] < 0):
        if word_ids[begin] < 0 <= word_ids[end - 1] != word_ids[end]:  # the word after the space ends
            break
        end += 1
    text = tokenizer.decode(hypothesis.tokens)
    words, number = alignment_words(text), max(word_ids[begin:end])  # index of the word, −1 if there is none
    word = words[number] if 0 <= number < len(words) else tokenizer.decode(hypothesis.tokens[begin:end]).strip()
    token_ids, probability = tuple(hypothesis.tokens[begin:end]), math.exp(sum(log_p[begin:end]))
    return WordAlternative(word, token_ids=token_ids, probability=probability, text=text)
