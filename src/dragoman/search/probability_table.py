"""A table of log-probabilities in place of a model, so that every step of a search can be followed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import DecodingStart, Model
from dragoman.models.model import first_tokens
from dragoman.parts.mixer import Context, State, map_state
from dragoman.search.engine import SearchEngine, SpecialTokens
from dragoman.search.search_config import DEFAULT_LENGTH_LIMIT, SearchConfig, SearchRequest
from dragoman.search.search_state import Hypothesis

if TYPE_CHECKING:
    from dragoman.search.shortlist import Shortlist

START_SYMBOL, END_SYMBOL, OTHER_WORD = "<s>", "</s>", "…"
NUM_OTHER_WORDS = 2000  # unnamed words that share the remaining probability: none is probable enough to enter a beam


class TableModel(Model):
    """p(next word | prefix) from a table of hypotheses, such as {"he": -0.7, "he hit": -1.7}, with their total log p.

    The probability that remains after the listed continuations of a prefix is distributed over NUM_OTHER_WORDS unnamed
    words. The decoding state of a hypothesis is the list of its tokens.
    """

    def __init__(self, log_probabilities: Mapping[str, float]) -> None:
        """Compute log p(next word | prefix) from the table, which has the total log p of each prefix.

        Words of a prefix are separated by spaces; `</s>` is the end of sentence.
        """
        super().__init__()
        table = {tuple(hypothesis.split()): total for hypothesis, total in log_probabilities.items()}
        words = {word for prefix in table for word in prefix} - {END_SYMBOL}
        self.words = [START_SYMBOL, END_SYMBOL, *sorted(words)]
        self.vocab_size = len(self.words) + NUM_OTHER_WORDS
        self.special_tokens = SpecialTokens(bos=0, eos=1, suppressed=(0,))
        #: log p of every next token, V, by prefix
        self.conditional: dict[tuple[str, ...], Tensor] = {}
        for parent in dict.fromkeys(prefix[:-1] for prefix in table):
            parent_total = table.get(parent, 0.0)  # log p = 0 for the empty prefix
            next_words = {prefix[-1]: total - parent_total for prefix, total in table.items() if prefix[:-1] == parent}
            self.conditional[parent] = self._log_p(" ".join(parent), next_words)
        self.unknown_prefix = self._log_p(prefix="", next_words={})  # log p (V) after a prefix that is not in the table

    def _log_p(self, prefix: str, next_words: Mapping[str, float]) -> Tensor:
        """Return log p (V) of every token of the vocabulary after `prefix`.

        Words in `next_words` have its log p; the remaining probability is distributed over NUM_OTHER_WORDS unnamed
        words, the last ones of the vocabulary. Probabilities with a sum above 1 are a UserError.
        """
        total_probability = sum(math.exp(log_p) for log_p in next_words.values())
        if total_probability > 1 + 1e-9:  # more than a rounding error
            raise UserError(
                f"the words after {prefix!r} have a total probability of {total_probability:.3f}, but it must be at "
                f"most 1: lower the log-probabilities of {', '.join(next_words)}"
            )
        log_p = torch.full((self.vocab_size,), -torch.inf)
        remaining = max(1 - total_probability, 1e-30)  # not 0, whose logarithm is undefined
        log_p[len(self.words) :] = math.log(remaining / NUM_OTHER_WORDS)
        for word, value in next_words.items():
            log_p[self.words.index(word)] = value
        return log_p

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, max_length: int, first: int | Tensor
    ) -> DecodingStart:
        """Return the initial state of a search with `beam` empty hypotheses per source.

        `written` (one row per hypothesis, `max_length` + 1 columns) will hold the token `first` (BOS), then those of
        the hypothesis; −1 marks a position without a token. The table does not depend on the source: only
        the number of sources counts, and `lengths` is unused.
        """
        tokens = first_tokens(first, len(source), source.device).repeat_interleave(beam)
        state: State = {"written": torch.full((len(tokens), max_length + 1), -1)}
        positions = torch.zeros_like(tokens)
        return DecodingStart(memory=None, state=state, tokens=tokens, positions=positions, max_length=max_length + 1)

    def decode(self, target: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """Append a token (`target`, R 1) to each of R hypotheses, at the position `context.layout.positions` (R 1).

        Returns log p of the next tokens, R 1 V, and the new state, in which `written` has the tokens of each
        hypothesis, BOS first and padded with −1.
        """
        assert state is not None
        written = state["written"].scatter(1, context.layout.positions, target)  # R × positions
        prefixes = [self.prefix([token for token in row if token >= 0]) for _, *row in written.tolist()]  # without BOS
        log_p = torch.stack([self.conditional.get(prefix, self.unknown_prefix) for prefix in prefixes])
        return log_p[:, None], {"written": written}

    def reorder_state(self, state: State, rows: Tensor) -> State:
        """Return the state in which hypothesis r has the tokens of hypothesis `rows[r]`, as `rows` (R) says."""
        return map_state(lambda leaf: leaf.index_select(0, rows), state)

    def grow_state(self, state: State, rows: int, max_length: int) -> tuple[State, int]:
        """Return a copy of the state with positions for `max_length` tokens, and this length; `rows` is unused.

        The added positions hold −1, which marks a position without a token.
        """
        return {"written": F.pad(state["written"], (0, max_length - state["written"].shape[1]), value=-1)}, max_length

    def prefix(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Return the words with these token ids, as a tuple; words that the table does not name are "…"."""
        return tuple(self.words[token] if token < len(self.words) else OTHER_WORD for token in tokens)


class ProbabilityTable:
    """A model given by a table of hypotheses and their log-probabilities, which every search can decode.

    Examples:
        >>> from dragoman.search import ProbabilityTable
        >>> table = ProbabilityTable({"a": -0.9, "b": -0.6, "b </s>": -2.6, "a c": -1.0, "a c </s>": -1.1})
        >>> [(table.text(best), round(best.score, 2)) for best in table.search(dragoman.Beam(2, n_best=2))]
        [('a c', -1.1), ('b', -2.6)]
    """

    shortlist: Shortlist | None = None
    engine_cache: dict[Any, SearchEngine] | None = None
    compile_steps = False
    length_limit = DEFAULT_LENGTH_LIMIT

    def __init__(self, log_probabilities: Mapping[str, float]) -> None:
        """Build a model from a table of prefixes and their total log p, such as {"he": -0.7, "he hit </s>": -1.9}.

        The other attributes are those that a search expects of a run (`DecodingRun`), which the table stands in for.
        """
        self.model = TableModel(log_probabilities)
        self.special_tokens = self.model.special_tokens
        self.models: list[Model] = [self.model]
        self.inference_models = self.models
        self.target_tokenizer: Any = self  # a search without constraints only calls its method `tokens`

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the words with these token ids, as a tokenizer does."""
        return list(self.model.prefix(ids))

    def request(self) -> SearchRequest:
        """Return the request for a search of one source, whose tokens do not matter: the table ignores them."""
        source, lengths, keys = torch.zeros(1, 1).long(), torch.ones(1).long(), torch.zeros(1).long()
        return SearchRequest(source=source, lengths=lengths, keys=keys)

    def search(self, config: SearchConfig) -> list[Hypothesis]:
        """Return the hypotheses that a search with these settings finds, best first."""
        return config.decode(self, self.request())[0]

    def text(self, hypothesis: Hypothesis) -> str:
        """Return the words of a hypothesis, separated by spaces."""
        return " ".join(self.tokens(hypothesis.tokens))

    @property
    def inference_weights(self) -> Callable[[Model], Model]:
        """The function that converts a model for inference: the identity, since a table has no weights."""
        return lambda model: model

    def open_run(self, other: Any, reverse: bool = False) -> Any:
        """Raise a UserError: searches that need another run, such as a draft model, do not work with a table."""
        raise UserError(
            "a probability table replaces the model and cannot be combined with other models, such as a draft model: "
            "use the search Beam, ExactSearch or Sample"
        )

    def check_same_vocabulary(self, other: Any, reason: str) -> None:
        """Raise a UserError, as `open_run` does: a table works with no search that needs another run."""
        self.open_run(other)
