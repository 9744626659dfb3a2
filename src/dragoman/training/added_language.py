"""A new language for a trained model: its code, missing subwords, and embeddings that start from the nearest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from dragoman.config import Config
from dragoman.data.compression import file_extension
from dragoman.data.corpus_passes import Log
from dragoman.errors import UserError
from dragoman.models import ModelSpec, meta_model
from dragoman.text import Framing, Tokenizer
from dragoman.text.language_codes import LanguageCodes, described
from dragoman.training.warm_start import ParentRun

DEFAULT_MAX_NEW_PIECES = 2000  # per tokenizer
MAX_LOGGED_PIECES = 12

Texts = Callable[[], Iterable[str]]


def add_language(parent: ParentRun, config: Config, sources: Texts, targets: Texts, log: Log) -> ParentRun:
    """Return a copy of the model to start from (`parent`) that also knows the language code `text.add_language`.

    The code, such as "de", and the subwords ("pieces") that the tokenizers lack are appended to vocabularies and
    embeddings. All other tokens keep their ids and logits, and a text is segmented as before unless it has characters
    that the tokenizer could not represent.

    Args:
        parent: the trained model, with its spec, weights, tokenizers and framing (special tokens of each sequence).
        config: `text.max_new_pieces` limits the new pieces of each tokenizer; None: `DEFAULT_MAX_NEW_PIECES`, 2,000.
        sources, targets: functions that return the training sources and targets that are in the new language; no text
            if this side of the corpus is in another language.
        log: prints a line.
    """
    language, limit = config.text.add_language or "", config.text.max_new_pieces
    _check_can_be_added(parent, config)
    is_target = next(iter(targets()), None) is not None  # some targets are in the new language
    is_source = next(iter(sources()), None) is not None
    if not (is_source or is_target):
        raise UserError(
            f"no training corpus is in the new language {language!r} of --add-language: name it as the language of a "
            f"corpus with --from, --to or --languages, as in --add-language {language} --to {language}"
        )
    extension = VocabularyExtension(parent, max_new_pieces=DEFAULT_MAX_NEW_PIECES if limit is None else limit)
    if is_source:
        extension.add_pieces("source", sources())
    if is_target:
        extension.add_pieces("target", targets())
    framing, code_origin = parent.framing, "no code is needed"  # framing: special tokens around source and target
    # the model must be told the target language, and some models are told the source language, too
    if is_target or (framing.languages is not None and framing.languages.reads_source_code):
        similar_language, codes = _similar_language_and_codes(parent, config)
        # "source_prefix": the code of the target language precedes the source
        side = "source" if codes.target_position == "source_prefix" else "target"
        code_id = extension.add_code(language, similar_id=codes.ids[similar_language], side=side)
        codes = replace(codes, ids=dict(codes.ids) | {language: code_id})
        # a search never generates the code, unless it is forced as the first token after BOS
        suppressed = () if codes.target_position == "forced_bos" else (code_id,)
        framing = replace(framing, languages=codes, suppressed=(*framing.suppressed, *suppressed))
        code_origin = f"its code starts as that of {similar_language}"
    log(f"new language {language}: {code_origin}")
    pieces = list(dict.fromkeys(extension.pieces))  # once, if they were added to both sides
    if pieces:
        examples = " ".join(pieces[:MAX_LOGGED_PIECES]) + (" …" if len(pieces) > MAX_LOGGED_PIECES else "")
        log(f"  {len(pieces):,} pieces are added, each the mean of those that it was split into: {examples}")
    else:
        log("  no pieces are added: the tokenizer represents the text, or cannot be extended")
    return replace(
        parent,
        spec=extension.spec(),
        framing=framing,
        tokenizers=extension.tokenizers,
        weights=extension.weights,  # a function: new rows are computed when the weights are read
        extended=extension.extended_weight_names(),
    )


class VocabularyExtension:
    """Tokens appended to the vocabularies of a model; tokens of a joint vocabulary are appended to both sides."""

    def __init__(self, parent: ParentRun, max_new_pieces: int) -> None:
        """Start with the vocabularies of the trained model `parent`; at most `max_new_pieces` per tokenizer are added.

        `similar_ids` has for each side ("source", "target") one list per new token, in the order of the new ids: the
        ids of the old tokens whose mean embedding the new token starts from.
        """
        self.parent, self.max_new_pieces = parent, max_new_pieces
        self.tokenizers = parent.tokenizers  # of source and target
        self.is_joint = parent.tokenizers[0] is parent.tokenizers[1]
        self.old_sizes = dict(zip(("source", "target"), parent.spec.vocabulary_sizes))
        self.similar_ids: dict[str, list[list[int]]] = {"source": [], "target": []}
        self.pieces: list[str] = []  # that were added to either side

    def add_pieces(self, side: str, texts: Iterable[str]) -> None:
        """Add the subwords ("pieces") that `texts` need and the tokenizer of `side` (source or target) lacks.

        A new piece starts as the mean of the old tokens, without the unknown one, that the original tokenizer splits it
        into. Nothing is added if the tokenizer cannot give new pieces the next free ids of the model.
        """
        index = ("source", "target").index(side)
        tokenizer, original = self.tokenizers[index], self.parent.tokenizers[index]
        first_id = self._vocab_size(side)
        if not tokenizer.can_assign_ids_from(first_id):
            return
        extended, piece_by_id = tokenizer.with_missing_pieces(texts, limit=self.max_new_pieces, first_id=first_id)
        for piece in piece_by_id.values():
            self._append_token(side, similar_ids=[i for i in original.piece_ids(piece) if i != original.unk])
        self.pieces += piece_by_id.values()
        self._replace_tokenizer(index, extended)

    def add_code(self, language: str, similar_id: int, side: str) -> int:
        """Append the code of `language` to the vocabulary of `side` (source or target), and return its new token id.

        Its embedding starts as that of the token `similar_id`, the code of a similar language.
        """
        code_id, index = self._vocab_size(side), ("source", "target").index(side)
        self._append_token(side, similar_ids=[similar_id])
        self._replace_tokenizer(index, self.tokenizers[index].with_language_code(language, code_id))
        return code_id

    def spec(self) -> ModelSpec:
        """Return the hyper-parameters of the parent model, with the larger vocabularies."""
        return self.parent.spec.with_vocabulary_sizes(self._vocab_size("source"), self._vocab_size("target"))

    def weights(self) -> dict[str, Tensor]:
        """Return the weights of the parent model by name; embeddings and output layer get a row for every new token.

        A new row is the mean of the rows of the old tokens that the new one is similar to (`similar_ids`), or of all
        rows if there are none.
        """
        weights = dict(self.parent.weights())
        for name, side in self._vocabulary_weights().items():
            if new_tokens := self.similar_ids[side]:
                table = weights[name]  # tokens × width, or tokens
                new_rows = [table[similar_ids or slice(None)].mean(0) for similar_ids in new_tokens]
                weights[name] = torch.cat([table, torch.stack(new_rows).to(table.dtype)])
        return weights

    def extended_weight_names(self) -> tuple[str, ...]:
        """Return the names of the weights that have rows for new tokens, such as those of the embeddings."""
        return tuple(name for name, side in self._vocabulary_weights().items() if self.similar_ids[side])

    def _vocabulary_weights(self) -> dict[str, str]:
        """Return the names of all weights with one row per token, each with its side ("source" or "target").

        These are the embedding tables, and the weight and bias of the output layer, which belong to the target.
        """
        model = meta_model(self.parent.spec)
        tables = dict(zip(("source", "target"), model.embedding_tables))
        # by the identity of the weight, because tied weights are one object with one name
        sides = {id(table.weight): side for side, table in tables.items() if table is not None}
        sides |= {id(weight): "target" for weight in (model.output.weight, model.output.bias) if weight is not None}
        return {name: sides[id(weight)] for name, weight in model.named_parameters() if id(weight) in sides}

    def _append_token(self, side: str, similar_ids: list[int]) -> None:
        """Append a token to the vocabulary of a side, or of both if they share one.

        Its embedding starts as the mean of those of the tokens `similar_ids`.
        """
        for name in ("source", "target") if self.is_joint else (side,):
            self.similar_ids[name].append(similar_ids)

    def _vocab_size(self, side: str) -> int:
        """Return the vocabulary size of "source" or "target", including the tokens added so far."""
        return self.old_sizes[side] + len(self.similar_ids[side])

    def _replace_tokenizer(self, index: int, tokenizer: Tokenizer) -> None:
        """Replace the tokenizer of the source (`index` 0) or target (1), or of both if they share one."""
        source, target = self.tokenizers
        if self.is_joint:
            self.tokenizers = tokenizer, tokenizer
        else:
            self.tokenizers = (tokenizer, target) if index == 0 else (source, tokenizer)


def _check_can_be_added(parent: ParentRun, config: Config) -> None:
    """Raise a UserError if the model `parent` knows the language `text.add_language`, or has a fixed vocabulary."""
    language, codes = config.text.add_language or "", parent.framing.languages  # None for a model of one language pair
    if codes is not None and language in codes.ids:
        raise UserError(f"{parent.folder} knows the language {language} already: leave out --add-language")
    parent.spec.with_vocabulary_sizes(*parent.spec.vocabulary_sizes)  # raises a UserError if they cannot be changed


def _similar_language_and_codes(parent: ParentRun, config: Config) -> tuple[str, LanguageCodes]:
    """Return a language of the model from which a new language starts, and the codes of all languages of the model.

    The language is `text.similar_language` (option --like), or else the model's target language; a UserError is raised
    if both are unknown. A model of one language pair has no codes: its target language then gets BOS as its code, so
    that nothing changes for it.
    """
    framing: Framing = parent.framing  # special tokens around source and target
    similar_language = config.text.similar_language
    if framing.languages is not None:
        similar_language = similar_language or framing.languages.target
        if similar_language is None:
            raise UserError(
                "the embedding of a new language's code starts as a copy of that of a similar language: name one of "
                f"the model's languages with --like, such as {described(framing.languages.ids)}"
            )
        return framing.languages.find(similar_language), framing.languages
    data = parent.config.data
    target_language = similar_language or data.target_language or _first_extension(data.target)
    if not target_language:
        raise UserError(
            "--add-language also gives a code to the language into which the model translates so far, but "
            f"{parent.folder} does not say which language that is: name it with --like, such as --like de"
        )
    ids = {target_language: framing.bos}
    # sources have no code; the code of a target takes the place of BOS
    return target_language, LanguageCodes(ids, source_position="none", target_position="bos", target=target_language)


def _first_extension(files: Iterable[str]) -> str:
    """Return the extension of the first file, such as "de" for train.de or train.de.gz; empty without files."""
    return next(map(file_extension, files), "")
