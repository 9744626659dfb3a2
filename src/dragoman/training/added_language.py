"""A new language for a trained model: its code, missing subwords, and embeddings that start from the nearest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dragoman.config import Config
from dragoman.data.compression import without_compression_suffix
from dragoman.data.corpus_passes import Log
from dragoman.errors import UserError
from dragoman.models import ModelSpec, meta_model
from dragoman.text import Framing, Tokenizer
from dragoman.text.language_codes import LanguageCodes, described
from dragoman.training.warm_start import ParentRun

MAX_NEW_PIECES = 2000  # by default
SHOWN_PIECES = 12  # in the log

Texts = Callable[[], Iterable[str]]
#: for each new row of a table, in order, the rows whose mean it starts from
NewRows = list[list[int]]


def add_language(parent: ParentRun, config: Config, sources: Texts, targets: Texts, log: Log) -> ParentRun:
    """Return the model to start from with the new language `text.add_language`.

    Its code and the pieces that the tokenizers lack are appended to vocabularies and embeddings: all tokens keep their
    ids and logits, and text without missing characters its segmentation.

    Args:
        sources, targets: read the training text in the new language; nothing for a side in another language.
    """
    language, limit = config.text.add_language or "", config.text.max_new_pieces
    _check_can_be_added(parent, config)
    is_target = next(iter(targets()), None) is not None
    is_source = next(iter(sources()), None) is not None
    if not (is_source or is_target):
        raise UserError(
            f"no corpus is in the new language {language!r}: name it with --from, --to or --languages, as in "
            f"--add-language {language} --to {language}"
        )
    extension = VocabularyExtension(parent, MAX_NEW_PIECES if limit is None else limit)
    if is_source:
        extension.add_pieces("source", sources())
    if is_target:
        extension.add_pieces("target", targets())
    framing, origin = parent.framing, "no code is needed"
    if is_target or (framing.languages is not None and framing.languages.reads_source_code):
        similar_language, codes = _similar_language_and_codes(parent, config)
        side = "source" if codes.target_position == "source_prefix" else "target"
        code_id = extension.add_code(language, similar_id=codes.ids[similar_language], side=side)
        codes = replace(codes, ids=dict(codes.ids) | {language: code_id})
        suppressed = () if codes.target_position == "forced_bos" else (code_id,)  # a forced token must be possible
        framing = replace(framing, languages=codes, suppressed=(*framing.suppressed, *suppressed))
        origin = f"its code starts as that of {similar_language}"
    log(f"new language {language}: {origin}")
    pieces = list(dict.fromkeys(extension.pieces))
    shown = " ".join(pieces[:SHOWN_PIECES]) + (" …" if len(pieces) > SHOWN_PIECES else "")
    added = f"{len(pieces):,} pieces are added, as means of those that they were split into: {shown}"
    log(f"  {added}" if pieces else "  no pieces are added: the tokenizer represents the text, or cannot be extended")
    return replace(
        parent,
        spec=extension.spec(),
        framing=framing,
        tokenizers=extension.tokenizers,
        weights=extension.weights,
        extended=extension.table_names(),
    )


class VocabularyExtension:
    """Tokens appended to the vocabularies of a model; tokens of a joint vocabulary are appended to both sides."""

    def __init__(self, parent: ParentRun, limit: int) -> None:
        """Start without new tokens; at most `limit` pieces are added to each tokenizer."""
        self.parent, self.limit = parent, limit
        self.tokenizers = parent.tokenizers
        self.is_joint = parent.tokenizers[0] is parent.tokenizers[1]
        self.old_sizes = dict(zip(("source", "target"), parent.spec.vocabulary_sizes))
        self.new_rows: dict[str, NewRows] = {"source": [], "target": []}
        self.pieces: list[str] = []

    def add_pieces(self, side: str, texts: Iterable[str]) -> None:
        """Add the pieces that the tokenizer of a side lacks for some texts."""
        index = ("source", "target").index(side)
        old, original = self.tokenizers[index], self.parent.tokenizers[index]
        first_id = self._vocab_size(side)
        if not old.supports_ids(first_id):  # the model has tokens that the tokenizer does not know
            return
        extended, pieces = old.with_missing_pieces(texts, self.limit, first_id)
        for piece in pieces.values():
            self._append_token(side, [i for i in original.piece_ids(piece) if i != original.unk])
        self.pieces += pieces.values()
        self._replace_tokenizer(index, extended)

    def add_code(self, language: str, similar_id: int, side: str) -> int:
        """Add the code of a language to a side, where it starts as the token `similar_id`, and return its id."""
        code_id, index = self._vocab_size(side), ("source", "target").index(side)
        self._append_token(side, [similar_id])
        self._replace_tokenizer(index, self.tokenizers[index].with_language_code(language, code_id))
        return code_id

    def spec(self) -> ModelSpec:
        """Return the spec of the model with the larger vocabularies."""
        return self.parent.spec.with_vocabulary_sizes(self._vocab_size("source"), self._vocab_size("target"))

    def weights(self) -> dict[str, Tensor]:
        """Return the weights with a row for every new token.

        It starts as the mean of the rows that `new_rows` names, or of all rows if there are none.
        """
        weights = dict(self.parent.weights())
        for name, side in self._tables().items():
            table = weights[name]
            if rows := self.new_rows[side]:
                new = [table[origins].mean(0) if origins else table.mean(0) for origins in rows]
                weights[name] = torch.cat([table, torch.stack(new).to(table.dtype)])
        return weights

    def table_names(self) -> tuple[str, ...]:
        """Return the names of the weights that have new rows."""
        return tuple(name for name, side in self._tables().items() if self.new_rows[side])

    def _tables(self) -> dict[str, str]:
        """Return the side of each weight with one row per token, by name: embeddings, output layer and its bias."""
        model = meta_model(self.parent.spec)
        tables = dict(zip(("source", "target"), model.embedding_tables))
        sides = {id(table.weight): side for side, table in tables.items() if table is not None}
        sides |= {id(weight): "target" for weight in (model.output.weight, model.output.bias) if weight is not None}
        return {name: sides[id(weight)] for name, weight in model.named_parameters() if id(weight) in sides}

    def _append_token(self, side: str, similar_ids: list[int]) -> None:
        """Append a token, to both sides of a joint vocabulary; it starts as the mean of the tokens `similar_ids`."""
        for name in ("source", "target") if self.is_joint else (side,):
            self.new_rows[name].append(similar_ids)

    def _vocab_size(self, side: str) -> int:
        """Return the present size of the vocabulary of a side."""
        return self.old_sizes[side] + len(self.new_rows[side])

    def _replace_tokenizer(self, index: int, tokenizer: Tokenizer) -> None:
        """Replace the tokenizer of a side, or of both if they are one."""
        source, target = self.tokenizers
        self.tokenizers = (
            (tokenizer, tokenizer) if self.is_joint else (tokenizer, target) if index == 0 else (source, tokenizer)
        )


def _check_can_be_added(parent: ParentRun, config: Config) -> None:
    """Raise a UserError if the language is not new, or the model cannot be extended."""
    language, codes = config.text.add_language or "", parent.framing.languages
    if codes is not None and language in codes.ids:
        raise UserError(f"{parent.folder} knows the language {language} already: leave out --add-language")
    parent.spec.with_vocabulary_sizes(*parent.spec.vocabulary_sizes)  # raises an error for other kinds of models


def _similar_language_and_codes(parent: ParentRun, config: Config) -> tuple[str, LanguageCodes]:
    """Return the language whose code the new one starts from, and the codes of all languages of the model.

    A model of one language pair has none: its target language gets BOS as its code, so that nothing changes for it.
    """
    framing: Framing = parent.framing
    similar_language = config.text.similar_language
    if framing.languages is not None:
        chosen = similar_language or framing.languages.target
        if chosen is None:
            raise UserError(
                "a new language starts from the code of a similar one: name one of the model's languages with --like, "
                f"such as {described(framing.languages.ids)}"
            )
        return framing.languages.find(chosen), framing.languages
    data = parent.config.data
    target_language = similar_language or data.target_language or _first_extension(data.target)
    if not target_language:
        raise UserError(
            f"the target language of {parent.folder} is not known: name it with --like, so that it can be chosen later"
        )
    ids = {target_language: framing.bos}
    return target_language, LanguageCodes(ids, source_position="none", target_position="bos", target=target_language)


def _first_extension(files: Iterable[str]) -> str:
    """Return the extension of the first file, without that of a compression; empty without files."""
    return next((Path(without_compression_suffix(Path(file).name)).suffix.removeprefix(".") for file in files), "")
