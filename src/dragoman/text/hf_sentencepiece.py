"""SentencePiece tokenizers of Hugging Face checkpoints without `tokenizer.json`: the ids that families give pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tokenizers
from tokenizers import Regex, decoders, models

from dragoman.errors import UserError, unknown_name
from dragoman.text.hf_language_lists import M2M100_LANGUAGES, MBART50_LANGUAGES, MBART_LANGUAGES, NLLB_LANGUAGES
from dragoman.text.hf_tokenizer_families import (
    FAIRSEQ_TYPES,
    M2M100_TOKENS,
    PEGASUS_TOKENS,
    PLAIN_TOKENS,
    T5_TYPES,
    UNK_BOS_EOS,
    TokenizerFamily,
    known_family,
    tokenizer_family,
)
from dragoman.text.hf_tokenizer_files import TokenConfig, TokenizerFiles, is_token_id, parse_token
from dragoman.text.imported_tokenizer import ImportedTokenizer
from dragoman.text.sentencepiece_model import SPACE, SentencePieceModel, SentencePieceSegmenter

MAX_EXTRA_TOKENS = 10_000  # special tokens whose number is a setting


def _damaged_setting(files: TokenizerFiles, name: str, meaning: str, value: object) -> UserError:
    """Return the error for the setting `name` of tokenizer_config.json, whose `value` is invalid.

    `meaning` says what the setting is, for the message.
    """
    return UserError(
        f"{files.folder / 'tokenizer_config.json'} is damaged: {name}, {meaning}, is {value!r}; download it again"
    )


def read_marian(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Read the tokenizers of Marian, source and target: a SentencePiece model for each, and files with the ids."""
    target_vocabulary = "target_vocab.json" if files.settings.get("separate_vocabs") else "vocab.json"
    source = _marian_side(files, ids=files.vocabulary("vocab.json"), file_name="source.spm")
    target = _marian_side(files, ids=files.vocabulary(target_vocabulary), file_name="target.spm")
    return [source, target]


def _marian_side(files: TokenizerFiles, ids: dict[str, int], file_name: str) -> ImportedTokenizer:
    """Read Marian's tokenizer of the source or target.

    `file_name` has the SentencePiece model, `ids` are the ids of its pieces and of all other tokens.
    """
    by_role, model = files.tokens_by_role(PLAIN_TOKENS), SentencePieceModel.read(files.folder / file_name)
    if "unk" not in by_role or by_role["unk"].content not in ids:
        raise UserError(
            f"the vocabulary of {files.folder / file_name} is damaged: it has no token '<unk>'; download it again"
        )
    # language codes such as >>deu<<
    codes = {token: token_id for token, token_id in ids.items() if token.startswith(">>") and token.endswith("<<")}
    names = {token_id: token for token, token_id in ids.items()}
    return combine_sentencepiece(
        files, model, names=names, by_role=by_role, decoder=stripping_decoder(), language_codes=codes
    )


def stripping_decoder() -> decoders.Decoder:
    """Return a decoder that joins pieces of SentencePiece to a text, and removes white space around it."""
    strip = decoders.Replace(Regex(r"\A\s+|\s+\z"), "")
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), strip])


def read_m2m100(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Read the tokenizer of M2M-100, in a list: a file maps pieces to ids, and language codes such as __en__ follow."""
    by_role, ids = files.tokens_by_role(M2M100_TOKENS), files.vocabulary("vocab.json")  # roles such as "pad"
    model = SentencePieceModel.read(files.folder / "sentencepiece.bpe.model")
    if missing := [token.content for token in by_role.values() if token.content not in ids]:
        raise UserError(f"{files.folder / 'vocab.json'} is damaged: it has no token {missing[0]!r}; download it again")
    list_name = files.settings.get("language_codes") or "m2m100"
    if list_name not in M2M100_LANGUAGES:
        raise unknown_name("list of language_codes in tokenizer_config.json", str(list_name), M2M100_LANGUAGES)
    codes = [f"__{code}__" for code in M2M100_LANGUAGES[list_name]]
    names = {token_id: token for token, token_id in ids.items()} | dict(enumerate(codes, len(ids)))
    return [
        combine_sentencepiece(files, model, names=names, by_role=by_role, special=codes, decoder=stripping_decoder())
    ]


def read_spiece(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Read the tokenizer of T5 or Pegasus, in a list; both have their SentencePiece model in spiece.model."""
    return read_pegasus(files) if files.config.get("model_type") == "pegasus" else read_t5(files)


def read_pegasus(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Read the tokenizer of Pegasus, in a list: it serves source and target.

    Its first ids are padding, EOS, two masks and `offset` − 2 unused tokens; the first two pieces of the SentencePiece
    model, its own padding and EOS, are left out.
    """
    by_role, offset = files.tokens_by_role(PEGASUS_TOKENS), files.settings.get("offset", 103)
    if not is_token_id(offset) or not 2 <= offset <= MAX_EXTRA_TOKENS:
        raise _damaged_setting(files, "offset", "the number of tokens before the pieces", offset)
    model = SentencePieceModel.read(files.folder / "spiece.model")
    sentence_mask = parse_token(files.settings.get("mask_token_sent", "<mask_1>"))
    masks = [token.content for token in (sentence_mask, by_role.get("mask")) if token is not None]
    unused = [f"<unk_{number}>" for number in range(2, offset)]
    first = [by_role["pad"].content, by_role["eos"].content, *masks, *unused]
    names, special = [*first, *model.pieces[2:]], [*first, *model.special_pieces]
    return [combine_sentencepiece(files, model, names=names, by_role=by_role, special=special)]


def read_t5(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Read the tokenizer of T5, in a list: the ids of the SentencePiece model, then the sentinels in reverse order."""
    by_role = files.tokens_by_role(known_family(files, "spiece.model", T5_TYPES).tokens)  # roles such as "pad"
    model = SentencePieceModel.read(files.folder / "spiece.model")
    num_sentinels = files.settings.get("extra_ids", 100)
    if not is_token_id(num_sentinels) or num_sentinels > MAX_EXTRA_TOKENS:
        raise _damaged_setting(files, "extra_ids", "the number of sentinel tokens", num_sentinels)
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(num_sentinels))]
    special = [*model.special_pieces, *sentinels]
    return [combine_sentencepiece(files, model, names=[*model.pieces, *sentinels], by_role=by_role, special=special)]


def read_llama(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Read the tokenizer of LLaMA, in a list; its ids are those of the SentencePiece model."""
    model = SentencePieceModel.read(files.folder / "tokenizer.model")
    if (add_prefix_space := files.settings.get("add_prefix_space")) is not None:
        model = model.with_prefix_space(bool(add_prefix_space))
    by_role = files.tokens_by_role(tokenizer_family(files, default=TokenizerFamily(tokens=UNK_BOS_EOS)).tokens)
    return [combine_sentencepiece(files, model, names=model.pieces, by_role=by_role, special=model.special_pieces)]


def read_fairseq(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Read the tokenizer of mBART, NLLB or XLM-R, in a list: it serves source and target.

    fairseq's four special tokens take the place of the SentencePiece model's three; languages and mask are at the end.
    """
    defaults = known_family(files, "sentencepiece.bpe.model", FAIRSEQ_TYPES).tokens
    by_role = defaults | files.tokens_by_role(defaults)  # defaults also for roles that a file sets to null
    model = SentencePieceModel.read(files.folder / "sentencepiece.bpe.model")
    if model.special_pieces[:3] != model.pieces[:3]:
        raise UserError(
            f"the pieces of {files.folder / 'sentencepiece.bpe.model'} must begin with <unk>, <s> and </s>, but do "
            "not: download it again"
        )
    model_type = files.config.get("model_type", "mbart")
    languages: tuple[str, ...] = ()  # XLM-R has no language codes
    if model_type == "mbart":
        languages = MBART50_LANGUAGES if files.tokenizer_class.startswith("MBart50") else MBART_LANGUAGES
    elif model_type == "m2m_100":
        languages = NLLB_LANGUAGES
    first_tokens = [by_role[role].content for role in ("bos", "pad", "eos", "unk")]
    last_tokens = [*languages, by_role["mask"].content]
    names = [*first_tokens, *model.pieces[3:], *last_tokens]  # in the order of their ids
    return [combine_sentencepiece(files, model, names=names, by_role=by_role, special=[*first_tokens, *last_tokens])]


def combine_sentencepiece(
    files: TokenizerFiles,
    model: SentencePieceModel,
    names: Sequence[str] | dict[int, str],
    by_role: Mapping[str, TokenConfig],
    special: Iterable[str] = (),
    decoder: decoders.Decoder | None = None,
    language_codes: Mapping[str, int] | None = None,
) -> ImportedTokenizer:
    """Combine a SentencePiece model, which segments text, with the ids that a checkpoint gives its pieces.

    Args:
        files: the checkpoint's tokenizer files, which may add tokens.
        model: segments text into pieces.
        names: the token (its text) of each id.
        by_role: special tokens with a role, such as "pad" or "eos".
        special: texts of further special tokens.
        decoder: joins tokens to text; None: that of the model.
        language_codes: ids of codes such as >>deu<< at the beginning of a text; None: there are none.

    Pieces of the model without an id become the unknown token: that of `by_role`, or the model's own.
    """
    added = files.added_tokens()  # by id
    tokens = [*map(TokenConfig, special), *by_role.values(), *files.additional_tokens()]
    tokens += [token for token in added.values() if token.special]
    special_tokens = {token.content: token for token in tokens}
    name_of_id = names if isinstance(names, dict) else dict(enumerate(names))
    name_of_id |= {token_id: token.content for token_id, token in added.items()}
    ids = {name: token_id for token_id, name in name_of_id.items()}
    # added tokens that are not special are found in a text, wherever they occur
    model = model.with_user_defined([token.content for token in added.values() if token.content not in special_tokens])
    has_unk = "unk" in by_role and by_role["unk"].content in ids
    unk = ids[by_role["unk"].content if has_unk else model.unk_piece]
    library = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=name_of_id[unk]))  # it only joins tokens
    library.decoder = decoder or model.decoder()
    return ImportedTokenizer(
        library,
        name_of_id,
        special_tokens={ids[name]: token for name, token in special_tokens.items() if name in ids},
        role_ids=files.role_ids(by_role, ids),
        segmenter=SentencePieceSegmenter.without_special(model, name_of_id, special_tokens, unk),
        language_codes=language_codes,
    )
