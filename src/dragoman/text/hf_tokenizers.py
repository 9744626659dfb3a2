"""The forms in which checkpoints of Hugging Face keep their tokenizers, and how each family's are read.

A folder has ``tokenizer.json``, which says everything, or the files of the family's first program, for which one must
know the rest: how text is cut, and which numbers the symbols have. What a family does beyond its files is written here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from dragoman.errors import UserError
from dragoman.text import sentencepiece_model as sentencepiece
from dragoman.text.cutting import HIDDEN, Cutter
from dragoman.text.hf_tokenizer_files import TokenConfig, TokenizerFiles, is_number, token_of
from dragoman.text.rewriting import SPACE, rules
from dragoman.text.sentencepiece_model import CONTROL, UNKNOWN

# What the symbols are called where no file says so.
_PLAIN = {"pad": TokenConfig("<pad>"), "unk": TokenConfig("<unk>"), "eos": TokenConfig("</s>")}
_LLAMA = {"unk": TokenConfig("<unk>"), "bos": TokenConfig("<s>"), "eos": TokenConfig("</s>")}
_FAIRSEQ = _PLAIN | {
    "bos": TokenConfig("<s>"),
    "cls": TokenConfig("<s>"),
    "sep": TokenConfig("</s>"),
    "mask": TokenConfig("<mask>", left=True),
}
_BERT = {role: TokenConfig(f"[{role.upper()}]") for role in ("pad", "unk", "cls", "sep", "mask")}
_GPT = {role: TokenConfig("<|endoftext|>") for role in ("unk", "bos", "eos")}

# The families that use a file in the way that is known here.
_T5_TYPES = ("t5", "mt5", "umt5", "longt5", "switch_transformers")
_FAIRSEQ_TYPES = ("mbart", "xlm-roberta")
_BART_TYPES = ("bart", "roberta", "longformer", "led")
_GPT_TYPES = ("gpt2", "gpt_neo", "gptj")
_BERT_TYPES = ("bert", "distilbert", "electra", "mobilebert")
_NAMES = {
    **dict.fromkeys((*_T5_TYPES, "marian"), _PLAIN),
    **dict.fromkeys((*_FAIRSEQ_TYPES, *_BART_TYPES), _FAIRSEQ),
    **dict.fromkeys((*_BERT_TYPES, "roformer"), _BERT),
    **dict.fromkeys(_GPT_TYPES, _GPT),
    **dict.fromkeys(("llama", "mistral", "gemma"), _LLAMA),
}

_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MORE_LANGUAGES = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN "
    "te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


class MissingTokenizerError(UserError):
    """There is no tokenizer at all."""


@dataclass(frozen=True)
class SpecialToken:
    """A special symbol, and whether it takes the white space on its left and right with it."""

    name: str
    number: int
    left: bool = False
    right: bool = False


@dataclass(frozen=True)
class TokenizerComponents:
    """What a tokenizer is made of."""

    library: tokenizers.Tokenizer
    names: dict[int, str]
    symbols: list[SpecialToken]
    roles: dict[str, int]
    cutter: Cutter | None = None  # cuts instead of the library
    codes: dict[str, int] = field(default_factory=dict)  # symbols that are found at the beginning of any text


Both = tuple[TokenizerComponents, TokenizerComponents]


def read(folder: Path, config: Mapping[str, Any]) -> Both:
    """What the source's and the target's tokenizers are made of; the same object where they are one."""
    files = TokenizerFiles(folder, config)
    for names, build in _WAYS.items():
        if all(map(files.has, names)):
            return build(files)
    ways = ", ".join(" with ".join(names) for names in _WAYS)
    raise MissingTokenizerError(f"{folder} has no tokenizer that is known here; these were looked for: {ways}")


class _SingleFile(TokenizerFiles):
    """A tokenizer's file on its own: nothing beside it is read."""

    def has(self, name: str) -> bool:
        return False


def read_sentencepiece(path: Path) -> TokenizerComponents:
    """What a tokenizer is made of that is a SentencePiece model alone."""
    model, files = sentencepiece.read(path), _SingleFile(path.parent, {})
    return _in_order(files, model, [piece.text for piece in model.pieces], [], _LLAMA)[0]


def read_document(path: Path) -> dict[str, Any]:
    """The JSON of a tokenizer's file."""
    return _SingleFile(path.parent, {}).json(path.name)


def from_document(path: Path, document: dict[str, Any]) -> TokenizerComponents:
    """What a tokenizer is made of that is a document of the ``tokenizers`` library alone."""
    return _from_document(_SingleFile(path.parent, {}), document, {})


def _defaults(files: TokenizerFiles, what: str, types: Sequence[str]) -> dict[str, TokenConfig]:
    """The family's names; other families may mean something else by files of the same name."""
    found = files.config.get("model_type", types[0])
    if found not in types:
        raise UserError(
            f"{files.folder} keeps a tokenizer of {found!r} in {what}, in a way that is not known here: save it as "
            "tokenizer.json, as transformers does with save_pretrained"
        )
    return _NAMES[found]


# ---- one document


def _whole(files: TokenizerFiles) -> Both:
    by_role = files.by_role(_NAMES.get(str(files.config.get("model_type")), {}))
    parts = _from_document(files, files.json("tokenizer.json"), by_role)
    return parts, parts


def _from_document(
    files: TokenizerFiles, document: dict[str, Any], by_role: Mapping[str, TokenConfig]
) -> TokenizerComponents:
    """A document of the ``tokenizers`` library, as far as it cuts plain text.

    What stands around a text, how long it may get and what it is filled up with are decided elsewhere.
    """
    origin = f"the tokenizer of {files.folder}"
    document |= dict.fromkeys(("truncation", "padding", "post_processor"))
    try:
        vocabulary, added = document["model"]["vocab"], document.get("added_tokens") or []
        inside = {one[0]: n for n, one in enumerate(vocabulary)} if isinstance(vocabulary, list) else {**vocabulary}
        numbers = inside | {token["content"]: token["id"] for token in added}
        if not all(isinstance(name, str) and is_number(number) for name, number in numbers.items()):
            raise ValueError("a piece has no name or number")
        known = {token.name: token for token in (*by_role.values(), *files.others())}
        for one in added:
            one["special"] = bool(one["special"]) or one["content"] in known
        known |= {one["content"]: token for one in added if one["special"] and (token := token_of(one))}
        hidden = {} if "merges" in document["model"] else {name: inside[name] for name in known if name in inside}
        _hide(document, hidden)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"{origin} is damaged: {error}") from None
    library = load_library(document, origin)
    if any(library.token_to_id(one["content"]) != one["id"] for one in document["added_tokens"]):
        raise UserError(f"{origin} is damaged: its added tokens are not numbered one after the other")
    names = {number: name for name, number in numbers.items()}
    return TokenizerComponents(library, names, _symbols(known.values(), numbers), files.roles(by_role, numbers))


def _hide(document: dict[str, Any], symbols: Mapping[str, int]) -> None:
    """Gives symbols names that are in no text, for models other than byte pairs would find them there."""
    model = document["model"]
    for name, number in symbols.items():
        if isinstance(model["vocab"], list):
            model["vocab"][number] = [f"{HIDDEN}{number}", 0.0]
        else:
            model["vocab"][f"{HIDDEN}{number}"] = model["vocab"].pop(name)
    if model.get("unk_token") in symbols:
        model["unk_token"] = f"{HIDDEN}{symbols[model['unk_token']]}"
    document["added_tokens"] = [one for one in document.get("added_tokens") or [] if one["content"] not in symbols]


def load_library(document: Mapping[str, Any], origin: str) -> tokenizers.Tokenizer:
    """The library's tokenizer; errors call it ``origin``."""
    try:
        _check_tables(document.get("normalizer"))
        return tokenizers.Tokenizer.from_str(json.dumps(document))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises nothing more precise, and its panics are no Exceptions
        raise UserError(f"{origin} is damaged: {' '.join(str(error).split())}") from None


def _check_tables(normalizer: object) -> None:
    """The library, and the program with it, breaks off at a table of characters that is damaged."""
    if isinstance(normalizer, dict):
        if table := normalizer.get("precompiled_charsmap"):
            rules(base64.b64decode(table))
        for one in normalizer.get("normalizers") or ():
            _check_tables(one)


def _symbols(tokens: Iterable[TokenConfig], numbers: Mapping[str, int]) -> list[SpecialToken]:
    return [SpecialToken(t.name, numbers[t.name], t.left, t.right) for t in tokens if t.name in numbers]


# ---- words and bytes


def _word_pieces(files: TokenizerFiles) -> Both:
    """BERT: words cut at white space and punctuation, then into the longest pieces (Devlin et al. 2019)."""
    by_role, settings = files.by_role(_defaults(files, "vocab.txt", _BERT_TYPES)), files.settings
    lines = files.text("vocab.txt").removesuffix("\n").split("\n")
    vocabulary = {line.rstrip(): number for number, line in enumerate(lines)}
    unknown = by_role["unk"].name if "unk" in by_role else ""
    if unknown not in vocabulary:
        raise UserError(f"{files.folder / 'vocab.txt'} is damaged: it has no {unknown!r} for what is unknown")
    library = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    accents = settings.get("strip_accents")
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
        strip_accents=None if accents is None else bool(accents),
        lowercase=settings.get("do_lower_case") is not False,
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return _from_library(files, library, by_role)


def _byte_level(files: TokenizerFiles) -> Both:
    """GPT-2, RoBERTa and BART: byte pairs over bytes that are written as letters (Radford et al. 2019, section 2.2)."""
    by_role = files.by_role(_defaults(files, "vocab.json with merges.txt", (*_GPT_TYPES, *_BART_TYPES)))
    lines = [line for line in files.text("merges.txt").split("\n") if line and not line.startswith("#version")]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    try:
        model = models.BPE(files.numbers("vocab.json"), merges, continuing_subword_prefix="", end_of_word_suffix="")
    except UserError:
        raise
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f"{files.folder / 'merges.txt'} does not fit vocab.json: {error}") from None
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=files.settings.get("add_prefix_space") is True)
    library.decoder = decoders.ByteLevel()
    return _from_library(files, library, by_role)


def _from_library(files: TokenizerFiles, library: tokenizers.Tokenizer, by_role: Mapping[str, TokenConfig]) -> Both:
    """A library that was put together here, with the tokens that were added to its vocabulary."""
    document = json.loads(library.to_str())
    document["added_tokens"] = [
        {
            "id": number,
            "content": token.name,
            "special": token.special,
            "lstrip": token.left,
            "rstrip": token.right,
            "single_word": False,
            "normalized": False,
        }
        for number, token in sorted(files.added().items())
    ]
    parts = _from_document(files, document, by_role)
    return parts, parts


# ---- SentencePiece


def _marian(files: TokenizerFiles) -> Both:
    """Marian: a model for each language, whose pieces are numbered by a vocabulary beside them."""
    by_role = files.by_role(_PLAIN)
    vocabulary = "target_vocab.json" if files.settings.get("separate_vocabs") else "vocab.json"
    source = _marian_side(files, files.numbers("vocab.json"), "source.spm", by_role)
    return source, _marian_side(files, files.numbers(vocabulary), "target.spm", by_role)


def _marian_side(
    files: TokenizerFiles, numbers: dict[str, int], name: str, by_role: Mapping[str, TokenConfig]
) -> TokenizerComponents:
    model = sentencepiece.read(files.folder / name)
    if "unk" not in by_role or by_role["unk"].name not in numbers:
        raise UserError(f"the vocabulary of {files.folder / name} is damaged: it has no '<unk>' for what is unknown")
    placed = [numbers.get(piece.text) for piece in model.pieces]
    placed[model.unknown] = numbers[by_role["unk"].name]
    known = {token.name for token in by_role.values()} | {piece.text for piece in model.pieces}
    others = {piece: number for piece, number in numbers.items() if piece not in known}
    names = {number: piece for piece, number in numbers.items()}
    parts = _from_pieces(files, model, names, by_role, placed, others=others)
    strip = decoders.Replace(Regex(r"\A\s+|\s+\z"), "")
    parts.library.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), strip])
    codes = {code: n for code, n in numbers.items() if code.startswith(">>") and code.endswith("<<")}
    return replace(parts, codes=codes)


def _t5(files: TokenizerFiles) -> Both:
    """T5: the model's own numbers, then its sentinels, of which the last is the first to be used."""
    by_role = files.by_role(_defaults(files, "spiece.model", _T5_TYPES))
    model, extra = sentencepiece.read(files.folder / "spiece.model"), files.settings.get("extra_ids", 100)
    if not is_number(extra) or extra > 10_000:
        raise UserError(f"{files.folder / 'tokenizer_config.json'} is damaged: extra_ids is {extra!r}")
    sentinels = [f"<extra_id_{n}>" for n in range(extra - 1, -1, -1)]
    return _in_order(files, model, [piece.text for piece in model.pieces], sentinels, by_role)


def _llama(files: TokenizerFiles) -> Both:
    """LLaMA: the model's own numbers."""
    model = sentencepiece.read(files.folder / "tokenizer.model")
    if (prefix := files.settings.get("add_prefix_space")) is not None:
        model = replace(model, rewriting=replace(model.rewriting, prefix=bool(prefix)))
    by_role = files.by_role(_NAMES.get(str(files.config.get("model_type")), _LLAMA))
    return _in_order(files, model, [piece.text for piece in model.pieces], [], by_role)


def _fairseq(files: TokenizerFiles) -> Both:
    """mBART and XLM-R: fairseq's four symbols instead of the model's three, and languages and the mask at the end."""
    defaults = _defaults(files, "sentencepiece.bpe.model", _FAIRSEQ_TYPES)
    by_role = defaults | files.by_role(defaults)
    model = sentencepiece.read(files.folder / "sentencepiece.bpe.model")
    if [piece.kind for piece in model.pieces[:3]] != [UNKNOWN, CONTROL, CONTROL]:
        raise UserError(f"{files.folder / 'sentencepiece.bpe.model'} must begin with <unk>, <s> and </s>")
    languages: list[str] = []
    if files.config.get("model_type", "mbart") == "mbart":
        kind = str(files.settings.get("tokenizer_class") or files.config.get("tokenizer_class"))
        languages = _LANGUAGES.split() + (_MORE_LANGUAGES.split() if kind.startswith("MBart50") else [])
    first = [by_role[role].name for role in ("bos", "pad", "eos", "unk")]
    names = [*first, *(piece.text for piece in model.pieces[3:])]
    last = [*languages, by_role["mask"].name]
    return _in_order(files, model, names, last, by_role, [3, 0, 2, *range(4, len(names))])


def _in_order(
    files: TokenizerFiles,
    model: sentencepiece.Model,
    pieces: Sequence[str],
    more: Sequence[str],
    by_role: Mapping[str, TokenConfig],
    placed: Sequence[int] | None = None,
) -> Both:
    """Pieces numbered one after the other, and more symbols after them."""
    placed = range(len(model.pieces)) if placed is None else placed
    control = [pieces[n] for piece, n in zip(model.pieces, placed) if piece.kind in (UNKNOWN, CONTROL)]
    parts = _from_pieces(files, model, dict(enumerate([*pieces, *more])), by_role, placed, [*control, *more])
    return parts, parts


def _from_pieces(
    files: TokenizerFiles,
    model: sentencepiece.Model,
    names: dict[int, str],
    by_role: Mapping[str, TokenConfig],
    placed: Sequence[int | None],
    more: Iterable[str] = (),
    others: Mapping[str, int] = MappingProxyType({}),
) -> TokenizerComponents:
    """A SentencePiece model whose pieces have the numbers `placed`, in a vocabulary of `names`."""
    known = {token.name: token for token in (*map(TokenConfig, more), *by_role.values(), *files.others())}
    added = files.added()
    names |= {number: token.name for number, token in added.items()}
    known |= {token.name: token for token in added.values() if token.special}
    numbers = {name: number for number, name in names.items()}
    found = {token.name: number for number, token in added.items() if token.name not in known}
    cutter = sentencepiece.cutter(model, placed, max(names) + 1, found, others)
    return TokenizerComponents(
        cutter.library, names, _symbols(known.values(), numbers), files.roles(by_role, numbers), cutter
    )


_WAYS: dict[tuple[str, ...], Callable[[TokenizerFiles], Both]] = {
    ("tokenizer.json",): _whole,
    ("source.spm", "target.spm", "vocab.json"): _marian,
    ("spiece.model",): _t5,
    ("sentencepiece.bpe.model",): _fairseq,
    ("tokenizer.model",): _llama,
    ("vocab.json", "merges.txt"): _byte_level,
    ("vocab.txt",): _word_pieces,
}
