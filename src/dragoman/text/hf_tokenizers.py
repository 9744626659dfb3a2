"""Tokenizers of Hugging Face checkpoints, family by family.

A folder has `tokenizer.json`, which is complete, or the files of the family's original implementation. What those files
leave out (segmentation rules, ids of special tokens) is defined here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from dragoman.errors import UserError
from dragoman.text.hf_tokenizer_files import TokenConfig, TokenizerFiles, is_token_id, parse_token
from dragoman.text.imported_tokenizer import HIDDEN, ImportedTokenizer, RemappedTokenizer, load_library
from dragoman.text.sentencepiece_model import SPACE, SentencePieceModel, SentencePieceSegmenter
from dragoman.text.tokenizer import Tokenizer

TOKENIZER_SUFFIXES = (".model", ".spm", ".json")

# Names of the special tokens of families whose files do not define them.
_PLAIN = {"pad": TokenConfig("<pad>"), "unk": TokenConfig("<unk>"), "eos": TokenConfig("</s>")}
_UNK_BOS_EOS = {"unk": TokenConfig("<unk>"), "bos": TokenConfig("<s>"), "eos": TokenConfig("</s>")}
_FAIRSEQ = _PLAIN | {
    **{role: TokenConfig(content) for role, content in (("bos", "<s>"), ("cls", "<s>"), ("sep", "</s>"))},
    "mask": TokenConfig("<mask>", lstrip=True),
}
_BERT = {role: TokenConfig(f"[{role.upper()}]") for role in ("pad", "unk", "cls", "sep", "mask")}
_GPT = {role: TokenConfig("<|endoftext|>") for role in ("unk", "bos", "eos")}
_QWEN = {role: TokenConfig("<|endoftext|>") for role in ("pad", "unk", "eos")}

# Families, by the `model_type` of config.json, that use a file as implemented here.
_T5_TYPES = ("t5", "mt5", "umt5", "longt5", "switch_transformers")
_FAIRSEQ_TYPES = ("mbart", "xlm-roberta")
_BART_TYPES = ("bart", "roberta", "longformer", "led")
_GPT_TYPES = ("gpt2", "gpt_neo", "gptj")
_QWEN_TYPES = ("qwen2",)
_BERT_TYPES = ("bert", "distilbert", "electra", "mobilebert")
_DEFAULT_TOKENS = {
    **dict.fromkeys((*_T5_TYPES, "marian"), _PLAIN),
    **dict.fromkeys((*_FAIRSEQ_TYPES, *_BART_TYPES), _FAIRSEQ),
    **dict.fromkeys((*_BERT_TYPES, "roformer"), _BERT),
    **dict.fromkeys(_GPT_TYPES, _GPT),
    **dict.fromkeys(_QWEN_TYPES, _QWEN),
    **dict.fromkeys(("llama", "mistral", "gemma"), _UNK_BOS_EOS),
}

_MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MBART50_LANGUAGES = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN "
    "te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


#: how Qwen2 splits text before BPE: contractions, words with the character before them, single digits, punctuation
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class MissingTokenizerError(UserError):
    """A checkpoint folder has no tokenizer files."""


def tokenizers_from_folder(
    folder: str | Path, config: Mapping[str, Any] | None = None
) -> tuple[ImportedTokenizer, ImportedTokenizer]:
    """Read the source's and the target's tokenizer of a Hugging Face checkpoint; both may be the same object.

    Args:
        folder: the checkpoint folder; the tokenizer files in it decide how they are read (`_BUILDERS`)
        config: the checkpoint's `config.json`
    """
    files = TokenizerFiles(Path(folder), config or {})
    for names, build in _BUILDERS.items():
        if all(map(files.has, names)):
            tokenizers = build(files)
            return tokenizers[0], tokenizers[-1]  # one for both, or two
    expected = ", ".join(" with ".join(names) for names in _BUILDERS)
    raise MissingTokenizerError(f"{folder} has no supported tokenizer files; expected one of: {expected}")


def tokenizer_from_file(path: Path) -> Tokenizer:
    """Read a SentencePiece model, or a `tokenizer.json` of the `tokenizers` library or of Dragoman, on its own."""
    files = TokenizerFiles(path.parent, config={}, only=path.name)
    if path.suffix != ".json":
        model = SentencePieceModel.read(path)
        return _sentencepiece(files, model, model.pieces, by_role=_UNK_BOS_EOS, special=model.special_pieces)
    document = files.json(path.name)
    if isinstance(document.get("model"), dict) and "dragoman" in document["model"]:
        return Tokenizer.load(path)
    return _from_document(files, document, by_role={})  # the document itself names its special tokens


def with_own_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with Dragoman's special tokens; learned tokenizers have them already."""
    return RemappedTokenizer(tokenizer) if isinstance(tokenizer, ImportedTokenizer) else tokenizer


def open_tokenizers(path: Path) -> tuple[Tokenizer, Tokenizer]:
    """Open the source's and the target's tokenizer for training.

    Args:
        path: a SentencePiece model (`.model`, `.spm`), a `tokenizer.json`, or a Hugging Face folder
    """
    expected = "name a run, a SentencePiece .model or a Hugging Face tokenizer.json"
    if not path.exists():
        raise UserError(f"{path} does not exist: {expected}")
    if path.is_dir():
        source, target = tokenizers_from_folder(path)
        first = with_own_special_tokens(source)
        return first, first if target is source else with_own_special_tokens(target)
    if path.suffix not in TOKENIZER_SUFFIXES:
        raise UserError(f"{path} is not a tokenizer: {expected}")
    tokenizer = with_own_special_tokens(tokenizer_from_file(path))
    return tokenizer, tokenizer


def _default_tokens(files: TokenizerFiles, file_names: str, types: Sequence[str]) -> dict[str, TokenConfig]:
    """Return the special tokens, by role, of the model family in `config.json`, which must be one of `types`.

    Other families use files of these names differently, so they are a UserError.
    """
    model_type = files.config.get("model_type", types[0])
    if model_type not in types:
        raise UserError(
            f"{files.folder} has a tokenizer of {model_type!r} in {file_names}, which is not supported: save it as "
            "tokenizer.json with save_pretrained of transformers"
        )
    return _DEFAULT_TOKENS[model_type]


# ---- tokenizer.json


def _tokenizer_json(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Read tokenizer.json, a complete file of the `tokenizers` library, of any family."""
    by_role = files.tokens_by_role(_DEFAULT_TOKENS.get(str(files.config.get("model_type")), {}))
    return [_from_document(files, files.json("tokenizer.json"), by_role)]


def _from_document(
    files: TokenizerFiles, document: dict[str, Any], by_role: Mapping[str, TokenConfig]
) -> ImportedTokenizer:
    """Read a document of the `tokenizers` library, without truncation, padding and special tokens around a text.

    Special tokens are those of `by_role` (by a role such as "pad" or "eos"), of the folder's configuration files, and
    those that the document itself declares. They get names that no text contains, so that text never becomes one.
    """
    origin = f"the tokenizer of {files.folder}"
    document |= dict.fromkeys(("truncation", "padding", "post_processor"))
    try:
        vocabulary, added = document["model"]["vocab"], document.get("added_tokens") or []
        if isinstance(vocabulary, list):  # of tokens with their scores
            vocabulary = {entry[0]: index for index, entry in enumerate(vocabulary)}
        ids = {**vocabulary}
        all_ids = ids | {token["content"]: token["id"] for token in added}
        if not all(isinstance(name, str) and is_token_id(token_id) for name, token_id in all_ids.items()):
            raise ValueError("a token has no name or no number as its id")
        special = {token.content: token for token in (*by_role.values(), *files.additional_tokens())}
        for token in added:
            token["special"] = bool(token["special"]) or token["content"] in special
        special |= {token["content"]: parsed for token in added if token["special"] and (parsed := parse_token(token))}
        is_bpe = "merges" in document["model"]
        _hide_special_tokens(document, {} if is_bpe else {name: ids[name] for name in special if name in ids})
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"{origin} is damaged: {error}") from None
    library = load_library(document, origin)
    if any(library.token_to_id(token["content"]) != token["id"] for token in document["added_tokens"]):
        raise UserError(f"{origin} is damaged: the ids of its added tokens are not consecutive")
    names = {token_id: name for name, token_id in all_ids.items()}
    special_tokens = {all_ids[name]: token for name, token in special.items() if name in all_ids}
    return ImportedTokenizer(library, names, special_tokens, files.role_ids(by_role, all_ids))


def _hide_special_tokens(document: dict[str, Any], tokens: Mapping[str, int]) -> None:
    """Rename tokens to names that no text contains: all models but BPE would find special tokens in a text."""
    model = document["model"]
    for name, token_id in tokens.items():
        if isinstance(model["vocab"], list):
            model["vocab"][token_id] = [f"{HIDDEN}{token_id}", 0.0]
        else:
            model["vocab"][f"{HIDDEN}{token_id}"] = model["vocab"].pop(name)
    if model.get("unk_token") in tokens:
        model["unk_token"] = f"{HIDDEN}{tokens[model['unk_token']]}"
    document["added_tokens"] = [token for token in document.get("added_tokens") or [] if token["content"] not in tokens]


# ---- WordPiece and byte-level BPE


def _word_piece(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """BERT: words split at white space and punctuation, then into the longest pieces (Devlin et al. 2019)."""
    by_role, settings = files.tokens_by_role(_default_tokens(files, "vocab.txt", _BERT_TYPES)), files.settings
    lines = files.text("vocab.txt").removesuffix("\n").split("\n")
    vocabulary = {line.rstrip(): token_id for token_id, line in enumerate(lines)}
    unk = by_role["unk"].content if "unk" in by_role else ""
    if unk not in vocabulary:
        raise UserError(f"{files.folder / 'vocab.txt'} is damaged: it has no token {unk!r} for unknown words")
    library = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unk))
    chinese, lowercase = (settings.get(key) is not False for key in ("tokenize_chinese_chars", "do_lower_case"))
    strip_accents = None if (strip := settings.get("strip_accents")) is None else bool(strip)
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return _from_library(files, library, by_role)


def _byte_level(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """GPT-2, RoBERTa, BART and Qwen2: BPE over bytes that are written as letters (Radford et al. 2019, section 2.2)."""
    types = (*_GPT_TYPES, *_BART_TYPES, *_QWEN_TYPES)
    by_role = files.tokens_by_role(_default_tokens(files, "vocab.json with merges.txt", types))
    lines = [line for line in files.text("merges.txt").split("\n") if line and not line.startswith("#version")]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    vocabulary = files.vocabulary("vocab.json")
    try:
        model = models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="")
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f"{files.folder / 'merges.txt'} does not fit vocab.json: {error}") from None
    library = tokenizers.Tokenizer(model)
    add_prefix_space = files.settings.get("add_prefix_space") is True
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    if files.config.get("model_type") in _QWEN_TYPES:
        library.normalizer = normalizers.NFC()
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN_PATTERN), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False),
            ]
        )
    library.decoder = decoders.ByteLevel()
    return _from_library(files, library, by_role)


def _from_library(
    files: TokenizerFiles, library: tokenizers.Tokenizer, by_role: Mapping[str, TokenConfig]
) -> list[ImportedTokenizer]:
    """Convert a tokenizer of the `tokenizers` library, and add the tokens that the folder's files add to it.

    `by_role` has the special tokens with a role, such as "pad" or "eos".
    """
    document = json.loads(library.to_str())
    document["added_tokens"] = [
        {"id": token_id, "single_word": False, "normalized": False, **asdict(token)}
        for token_id, token in sorted(files.added_tokens().items())
    ]
    return [_from_document(files, document, by_role)]


# ---- SentencePiece


def _marian(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Marian: one model for each language, and a vocabulary file that maps pieces to ids."""
    target_vocabulary = "target_vocab.json" if files.settings.get("separate_vocabs") else "vocab.json"
    sides = (("vocab.json", "source.spm"), (target_vocabulary, "target.spm"))
    return [_marian_side(files, files.vocabulary(vocabulary), model) for vocabulary, model in sides]


def _marian_side(files: TokenizerFiles, ids: dict[str, int], file_name: str) -> ImportedTokenizer:
    """Read one language's SentencePiece model, whose pieces have the given ids."""
    by_role, model = files.tokens_by_role(_PLAIN), SentencePieceModel.read(files.folder / file_name)
    if "unk" not in by_role or by_role["unk"].content not in ids:
        raise UserError(f"the vocabulary of {files.folder / file_name} is damaged: it has no token '<unk>'")
    strip = decoders.Replace(Regex(r"\A\s+|\s+\z"), "")
    decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), strip])
    codes = {code: token_id for code, token_id in ids.items() if code.startswith(">>") and code.endswith("<<")}
    names = {token_id: token for token, token_id in ids.items()}
    return _sentencepiece(files, model, names, by_role, decoder=decoder, language_codes=codes)


def _t5(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """T5: the ids of the SentencePiece model, then the sentinels in reverse order."""
    by_role = files.tokens_by_role(_default_tokens(files, "spiece.model", _T5_TYPES))
    model, num_sentinels = SentencePieceModel.read(files.folder / "spiece.model"), files.settings.get("extra_ids", 100)
    if not is_token_id(num_sentinels) or num_sentinels > 10_000:
        raise UserError(
            f"{files.folder / 'tokenizer_config.json'} is damaged: extra_ids, the number of sentinel tokens, is "
            f"{num_sentinels!r}"
        )
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(num_sentinels))]
    special = [*model.special_pieces, *sentinels]
    return [_sentencepiece(files, model, [*model.pieces, *sentinels], by_role, special)]


def _llama(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """LLaMA: ids are those of the SentencePiece model."""
    model = SentencePieceModel.read(files.folder / "tokenizer.model")
    if (prefix := files.settings.get("add_prefix_space")) is not None:
        model = model.with_prefix_space(bool(prefix))
    by_role = files.tokens_by_role(_DEFAULT_TOKENS.get(str(files.config.get("model_type")), _UNK_BOS_EOS))
    return [_sentencepiece(files, model, model.pieces, by_role, model.special_pieces)]


def _fairseq(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """mBART and XLM-R: fairseq's four special tokens instead of the model's three; languages and mask at the end."""
    defaults = _default_tokens(files, "sentencepiece.bpe.model", _FAIRSEQ_TYPES)
    by_role = defaults | files.tokens_by_role(defaults)
    model = SentencePieceModel.read(files.folder / "sentencepiece.bpe.model")
    if model.special_pieces[:3] != model.pieces[:3]:
        raise UserError(f"{files.folder / 'sentencepiece.bpe.model'} must begin with <unk>, <s> and </s>")
    languages: list[str] = []
    if files.config.get("model_type", "mbart") == "mbart":
        tokenizer_class = str(files.settings.get("tokenizer_class") or files.config.get("tokenizer_class"))
        languages = _MBART_LANGUAGES.split()
        languages += _MBART50_LANGUAGES.split() if tokenizer_class.startswith("MBart50") else []
    first = [by_role[role].content for role in ("bos", "pad", "eos", "unk")]
    last = [*languages, by_role["mask"].content]
    names = [*first, *model.pieces[3:], *last]  # in the order of their ids
    return [_sentencepiece(files, model, names, by_role, special=[*first, *last])]


def _sentencepiece(
    files: TokenizerFiles,
    model: SentencePieceModel,
    names: Sequence[str] | dict[int, str],
    by_role: Mapping[str, TokenConfig],
    special: Iterable[str] = (),
    decoder: decoders.Decoder | None = None,
    language_codes: Mapping[str, int] | None = None,
) -> ImportedTokenizer:
    """Combine a SentencePiece model with a vocabulary.

    Args:
        names: the token of each id.
        by_role: special tokens with a role, such as "pad" or "eos".
        special: names of all special tokens.
        decoder: joins tokens to text; by default that of the model.
        language_codes: ids of codes such as >>deu<< at the beginning of a text.
    """
    tokens = (*map(TokenConfig, special), *by_role.values(), *files.additional_tokens())
    special_tokens, added = {token.content: token for token in tokens}, files.added_tokens()
    special_tokens |= {token.content: token for token in added.values() if token.special}
    names = names if isinstance(names, dict) else dict(enumerate(names))
    names |= {token_id: token.content for token_id, token in added.items()}
    ids = {name: token_id for token_id, name in names.items()}
    model = model.with_user_defined([token.content for token in added.values() if token.content not in special_tokens])
    unk = ids[by_role["unk"].content if "unk" in by_role and by_role["unk"].content in ids else model.unk_piece]
    library = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=names[unk]))
    library.decoder = decoder or model.decoder()
    special_ids = {ids[name]: token for name, token in special_tokens.items() if name in ids}
    segmenter = SentencePieceSegmenter.without_special(model, names, special_tokens, unk)
    return ImportedTokenizer(library, names, special_ids, files.role_ids(by_role, ids), segmenter, language_codes)


_BUILDERS: dict[tuple[str, ...], Callable[[TokenizerFiles], list[ImportedTokenizer]]] = {
    ("tokenizer.json",): _tokenizer_json,
    ("source.spm", "target.spm", "vocab.json"): _marian,
    ("spiece.model",): _t5,
    ("sentencepiece.bpe.model",): _fairseq,
    ("tokenizer.model",): _llama,
    ("vocab.json", "merges.txt"): _byte_level,
    ("vocab.txt",): _word_piece,
}
