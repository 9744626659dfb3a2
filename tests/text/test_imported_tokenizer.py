"""The tokenizer of a checkpoint gives the ids and texts of transformers, from the same folder."""

from __future__ import annotations

import io
import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from dragoman.errors import UserError
from dragoman.text import Tokenizer, alignment_words
from dragoman.text.hf_language_lists import NLLB_LANGUAGES
from dragoman.text.hf_tokenizers import tokenizers_from_folder
from dragoman.text.imported_tokenizer import ImportedTokenizer, RemappedTokenizer

sentencepiece = pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")

CORPUS = [
    "The old lighthouse keeper counts the ships, one by one, and writes them down (in blue ink).",
    "Nobody has counted the keeper's lighthouses; nobody writes down an old ship!",
    "Der alte Wärter zählt die Schiffe: 1, 2, 3 ... 40. Größere Schiffe zählt er zweimal.",
    "Смотритель считает корабли. 守灯人数船。 दीपक जलता है, שומר המגדלור",
    "down by the harbour – naïve café x_1",
    "I'll say it isn't <b>bold</b> [x] {y}",
] * 10
TEXTS = [
    *CORPUS[:6],
    *("", "ship", "Ship", "two  spaces", "a\nb", "a\tb", "\u3000wide", "😀 emoji 👩‍👩‍👧", "xyzzy Ж ж", "wow!! .."),
    *("UPPER lower ÀÉ", "1234567890", "under_score", "don't can't I'm", "a.b,c;d", "日本語の文", "\xa0nbsp"),
]
RARE = ["ﬁne … ①", "e\u0302\u0301 cafe\u0301"]  # which only the normaliser of a SentencePiece model changes

Config = dict[str, Any]


def write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def settle(folder: Path, config: Config, settings: Config) -> Config:
    write(folder / "config.json", config)
    write(folder / "tokenizer_config.json", settings)
    return config


def spm(path: Path, **settings: Any) -> list[str]:
    """Trains a SentencePiece model; its pieces."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=content, minloglevel=2, hard_vocab_limit=False, **settings
    )
    path.write_bytes(content.getvalue())
    model = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
    return [model.id_to_piece(number) for number in range(model.vocab_size())]


def t5(folder: Path) -> Config:
    spm(folder / "spiece.model", vocab_size=300, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    config = {"model_type": "t5", "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    return settle(folder, config, {"tokenizer_class": "T5Tokenizer"})


def llama(folder: Path) -> Config:
    rewriting = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    pieces = {"model_type": "bpe", "byte_fallback": True, "split_digits": True, "allow_whitespace_only_pieces": True}
    spm(folder / "tokenizer.model", vocab_size=600, character_coverage=0.98, **rewriting, **pieces)
    config = {"model_type": "llama", "bos_token_id": 1, "eos_token_id": 2}
    return settle(folder, config, {"tokenizer_class": "LlamaTokenizer"})


def fairseq(kind: str, name: str) -> Callable[[Path], Config]:
    def build(folder: Path) -> Config:
        spm(folder / "sentencepiece.bpe.model", vocab_size=300)
        config = {"model_type": kind, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
        return settle(folder, config, {"tokenizer_class": name})

    return build


def marian(folder: Path, separate: bool = False) -> Config:
    """Two models with pieces in common; the vocabularies leave some of them out, and have others."""
    sides = [
        spm(folder / "source.spm", vocab_size=200)[3:],
        spm(folder / "target.spm", vocab_size=230, character_coverage=0.98)[3:],
    ]
    for name, pieces in zip(("vocab.json", "target_vocab.json"), sides if separate else [sides[0] + sides[1]]):
        kept = [piece for n, piece in enumerate(sorted({*pieces})) if n % 20]
        numbers = ["</s>", "<unk>", ">>deu<<", *reversed(kept), "only here", "<pad>"]
        write(folder / name, {piece: number for number, piece in enumerate(numbers)})
    pad = len(json.loads((folder / "vocab.json").read_text(encoding="utf-8"))) - 1
    config = {"model_type": "marian", "pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad}
    settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}
    return settle(folder, config, settings | {"separate_vocabs": separate})


def bert(lower: bool, kind: str = "bert", name: str = "BertTokenizer") -> Callable[[Path], Config]:
    def build(folder: Path) -> Config:
        library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        library.normalizer = normalizers.BertNormalizer(lowercase=lower)
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        symbols = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        library.train_from_iterator(
            CORPUS, trainers.WordPieceTrainer(vocab_size=250, special_tokens=symbols, show_progress=False)
        )
        numbers = library.get_vocab()
        lines = "".join(f"{piece}\n" for piece in sorted(numbers, key=numbers.__getitem__))
        (folder / "vocab.txt").write_text(lines, encoding="utf-8")
        config = {"model_type": kind, "pad_token_id": 0}
        return settle(folder, config, {"tokenizer_class": name, "do_lower_case": lower})

    return build


FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_level(kind: str, name: str, symbols: list[str], prefix: bool = False) -> Callable[[Path], Config]:
    def build(folder: Path) -> Config:
        library = tokenizers.Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=symbols, initial_alphabet=alphabet, show_progress=False
        )
        library.train_from_iterator(CORPUS, trainer)
        model = json.loads(library.to_str())["model"]
        write(folder / "vocab.json", model["vocab"])
        merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
        (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
        config = {"model_type": kind, "bos_token_id": 0, "eos_token_id": 2 if "</s>" in symbols else 0}
        return settle(folder, config, {"tokenizer_class": name, "add_prefix_space": prefix})

    return build


FAMILIES: dict[str, Callable[[Path], Config]] = {
    "t5": t5,
    "llama": llama,
    "mbart": fairseq("mbart", "MBartTokenizer"),
    "mbart50": fairseq("mbart", "MBart50Tokenizer"),
    "xlm-r": fairseq("xlm-roberta", "XLMRobertaTokenizer"),
    "marian": marian,
    "bert": bert(lower=True),
    "bert cased": bert(lower=False),
    "gpt2": byte_level("gpt2", "GPT2Tokenizer", ["<|endoftext|>"]),
    "roberta": byte_level("roberta", "RobertaTokenizer", FAIRSEQ),
    "bart": byte_level("bart", "BartTokenizer", FAIRSEQ, prefix=True),
    "distilbert": bert(True, "distilbert", "DistilBertTokenizer"),
    "qwen2": byte_level("qwen2", "Qwen2Tokenizer", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
}


@pytest.mark.parametrize("family", ["gpt2", "roberta", "bart", "t5", "bert"])
def test_phrases_are_encoded_as_within_a_text(family: str, tmp_path: Path) -> None:
    """The tokens of a phrase are those that it has after another word."""
    imported = tokenizers_from_folder(tmp_path, FAMILIES[family](tmp_path))[1]
    for tokenizer in (imported, RemappedTokenizer(imported)):
        assert tokenizer.encode("the the")[-1:] == tokenizer.encode_within_text("the")[-1:]
        assert tokenizer.encode("ship the")[len(tokenizer.encode("ship")) :] == tokenizer.encode_within_text("the")


FORMS = [
    (family, form) for family in FAMILIES for form in ("files", "document") if (family, form) != ("marian", "document")
]


def theirs(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another package is recommended
        return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Config]]:
    """The folder of a family, with its own files or with one document, and what config.json says in it."""
    known: dict[tuple[str, str], tuple[Path, Config]] = {}

    def make(family: str, form: str = "files") -> tuple[Path, Config]:
        if (family, form) not in known:
            folder = tmp_path_factory.mktemp("checkpoint")
            config = FAMILIES[family](folder)
            if form == "document":
                document = tmp_path_factory.mktemp("document")
                theirs(folder).save_pretrained(document)
                write(document / "config.json", config)
                assert (document / "tokenizer.json").exists()
                folder = document
            known[family, form] = folder, config
        return known[family, form]

    return make


@pytest.fixture(params=FORMS, ids=" ".join)
def pair(
    request: pytest.FixtureRequest, made: Callable[[str, str], tuple[Path, Config]]
) -> tuple[ImportedTokenizer, Any]:
    folder, config = made(*request.param)
    return tokenizers_from_folder(folder, config)[0], theirs(folder)


Pair = tuple[ImportedTokenizer, Any]


def test_ids_equal_those_of_transformers(pair: Pair) -> None:
    ours, other = pair
    for text in TEXTS:
        assert ours.encode(text) == other(text, add_special_tokens=False)["input_ids"], text
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]


def test_decoded_texts_equal_those_of_transformers(pair: Pair) -> None:
    ours, other = pair
    rng = random.Random(5)
    rows = [ours.encode(text) for text in TEXTS] + [
        rng.choices(range(ours.vocab_size), k=rng.randrange(12)) for _ in range(99)
    ]
    for ids in rows:
        text = other.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == text, ours.tokens(ids)


def test_special_tokens_equal_those_of_transformers(pair: Pair) -> None:
    ours, other = pair
    found = {role: getattr(other, f"{role}_token_id") for role in ("pad", "unk", "bos", "eos", "cls", "sep", "mask")}
    assert {role: ours.role_ids[role] for role, number in found.items() if number is not None} == {
        role: number for role, number in found.items() if number is not None
    }
    assert (ours.mask, ours.sep, ours.cls) == (found["mask"], found["sep"], found["cls"])
    assert {*other.all_special_ids} <= ours.all_special_ids
    assert ours.vocab_size == len(other)


def test_special_tokens_are_never_found_in_plain_text(pair: Pair) -> None:
    ours, _ = pair
    for text in (*ours.special_token_ids, " ".join(ours.special_token_ids), "".join(ours.special_token_ids)):
        assert {*ours.encode(text)} & ours.all_special_ids <= {ours.unk}, text


def test_special_tokens_are_found_with_parse_special(pair: Pair) -> None:
    ours, other = pair
    for name, number in ours.special_token_ids.items():
        assert ours.encode(name, parse_special=True) == [number]
    if "<extra_id_0>" in ours.special_token_ids:
        text = "The <extra_id_0> keeper<extra_id_1> counts ships.<extra_id_99>"
        assert ours.encode(text, parse_special=True) == other(text, add_special_tokens=False)["input_ids"]
    if ours.mask is not None:
        ids = ours.encode(f"The old {other.mask_token} counts {other.mask_token}.", parse_special=True)
        assert ids.count(ours.mask) == 2
        assert ids == ours.encode_masked("The old \x01 counts \x01.", "\x01")


def test_saved_and_loaded_tokenizers_are_equal(pair: Pair, tmp_path: Path) -> None:
    ours, _ = pair
    ours.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(again, ImportedTokenizer)
    assert (again.kind, again.marker) == ("imported", "initial")
    for name in (
        "vocab_size",
        "pad",
        "unk",
        "bos",
        "eos",
        "mask",
        "sep",
        "cls",
        "role_ids",
        "special_token_ids",
        "all_special_ids",
    ):
        assert getattr(again, name) == getattr(ours, name)
    assert json.loads(again.to_json())["model"]["dragoman"] == json.loads(ours.to_json())["model"]["dragoman"]
    for text in TEXTS + RARE:
        ids = ours.encode(text)
        assert again.encode(text) == ids
        assert again.decode(ids) == ours.decode(ids)
        assert again.tokens(ids) == ours.tokens(ids)
        assert again.encode(f"{text}</s>", parse_special=True) == ours.encode(f"{text}</s>", parse_special=True)


def test_each_token_has_a_word(pair: Pair) -> None:
    ours, _ = pair
    for text in (*CORPUS[:6], " ".join(CORPUS)):
        ids = ours.encode(text)
        found, counted = ours.word_ids(ids), alignment_words(ours.decode(ids))
        seen = [word for word in found if word >= 0]
        assert seen == sorted(seen)
        assert {n for n, word in enumerate(counted) if len(word) > 3} <= {*seen} <= {*range(len(counted))}
    around = [*ours.all_special_ids][:1] + ours.encode("blue ink") + [*ours.all_special_ids][:1]
    assert ours.word_ids(around) == [-1, *ours.word_ids(around[1:-1]), -1]
    assert ours.word_ids([]) == []


def test_unencodable_characters_are_replaced(pair: Pair) -> None:
    ours, _ = pair
    assert ours.encode("a\ud800b\uffff") == ours.encode("a\ufffdb\ufffd")


def test_ids_outside_the_vocabulary_give_no_text(pair: Pair) -> None:
    ours, _ = pair
    ids = ours.encode("blue ink")
    assert ours.decode([*ids, ours.vocab_size + 5]) == ours.decode(ids)
    assert ours.tokens([ours.vocab_size + 5]) == [f"<{ours.vocab_size + 5}>"]
    assert ours.word_ids([ours.vocab_size + 5]) == [-1]


# ---- what is special in a family


def test_readable_tokens_show_spaces(made: Callable[..., tuple[Path, Config]]) -> None:
    for family in ("gpt2", "llama"):
        ours, _ = tokenizers_from_folder(*made(family))
        assert ours.tokens(ours.encode("the lighthouse"))[-1] == "▁lighthouse"
    folder, config = made("bert")
    ids = tokenizers_from_folder(folder, config)[0].encode("The shipping lighthouses")
    assert tokenizers_from_folder(folder, config)[0].tokens(ids) == theirs(folder).convert_ids_to_tokens(ids)


def test_tokens_have_the_indices_of_their_words(made: Callable[..., tuple[Path, Config]]) -> None:
    expected = {"▁": -1, "old": 0, "▁old": 0, "▁lighthouse": 1, "lighthouse": 1, ",": 1, "守": 2, "!": 2}
    expected |= {"o": 0, "ld": 0, "<0xE5>": 2, "<0xAE>": 2, "<0x88>": 2}
    for family in ("t5", "llama", "bert", "gpt2", "xlm-r", "roberta"):
        ours, _ = tokenizers_from_folder(*made(family))
        ids = ours.encode("old lighthouse, 守!")
        assert ours.word_ids(ids) == [expected[piece] for piece in ours.tokens(ids)]


def test_t5_sentinels_have_the_last_ids_in_reverse_order(
    made: Callable[..., tuple[Path, Config]], tmp_path: Path
) -> None:
    ours, target = tokenizers_from_folder(*made("t5"))
    assert ours is target
    assert [ours.special_token_ids[f"<extra_id_{n}>"] for n in (0, 1, 99)] == [
        ours.vocab_size - 1,
        ours.vocab_size - 2,
        ours.vocab_size - 100,
    ]
    assert (ours.pad, ours.eos, ours.unk, ours.bos) == (0, 1, 2, 0)
    folder, config = made("t5")
    (tmp_path / "spiece.model").write_bytes((folder / "spiece.model").read_bytes())
    settle(tmp_path, config, {"extra_ids": 3})
    assert tokenizers_from_folder(tmp_path, config)[0].vocab_size == ours.vocab_size - 97


def test_every_gap_needs_a_sentinel(made: Callable[..., tuple[Path, Config]]) -> None:
    tokenizer, _ = tokenizers_from_folder(*made("t5"))
    first, second = tokenizer.special_token_ids["<extra_id_0>"], tokenizer.special_token_ids["<extra_id_1>"]
    expected = tokenizer.encode("the <extra_id_0> ship <extra_id_1> down", parse_special=True)
    assert tokenizer.encode_with_sentinels("the \x01 ship \x01 down", "\x01", [first, second, 7]) == expected
    with pytest.raises(UserError, match="a text has 2 gaps, but the model can fill at most 1 gaps"):
        tokenizer.encode_with_sentinels("the \x01 ship \x01 down", "\x01", [first])


@pytest.mark.parametrize("form", ["files", "document"])
@pytest.mark.parametrize("family", ["mbart", "mbart50"])
def test_language_ids_equal_those_of_transformers(
    made: Callable[..., tuple[Path, Config]], family: str, form: str
) -> None:
    folder, config = made(family, form)
    ours, other = tokenizers_from_folder(folder, config)[0], theirs(folder)
    for code, number in other.lang_code_to_id.items():
        assert ours.special_token_ids[code] == number
    assert ours.decode([ours.special_token_ids["de_DE"], *ours.encode("blue ink")]) == "blue ink"


@pytest.mark.parametrize("family", ["t5", "llama", "mbart", "mbart50", "xlm-r"])
def test_segmentation_equals_that_of_sentencepiece(made: Callable[..., tuple[Path, Config]], family: str) -> None:
    """Where transformers' own reading of the file leaves the normaliser or a space out, SentencePiece decides."""
    folder, config = made(family)
    ours = tokenizers_from_folder(folder, config)[0]
    path = next(path for path in folder.iterdir() if path.suffix == ".model")
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for text in (*TEXTS, *RARE, " leading", "trailing ", "....... !!!!!"):
        pieces = model.encode(text, out_type=str)
        assert [p if q != "<unk>" else q for p, q in zip(pieces, ours.tokens(ours.encode(text)))] == ours.tokens(
            ours.encode(text)
        )
        assert len(ours.encode(text)) == len(pieces)


@pytest.mark.parametrize("separate", [False, True], ids=["joint", "separate"])
def test_marian_has_a_tokenizer_for_each_language(tmp_path: Path, separate: bool) -> None:
    config = marian(tmp_path, separate)
    source, target = tokenizers_from_folder(tmp_path, config)
    other = theirs(tmp_path)
    assert source is not target
    for text in (*TEXTS, *RARE, " leading", "....... !!!!!", "only here"):
        ids = source.encode(text)
        assert ids == other(text, add_special_tokens=False)["input_ids"], text
        written = target.encode(text)
        assert written == other(text_target=text, add_special_tokens=False)["input_ids"], text
        decoded = other.decode(written, skip_special_tokens=True, use_source_tokenizer=False)
        assert target.decode(written) == decoded
        again = Tokenizer.from_json(target.to_json())
        assert (again.encode(text), again.decode(written)) == (written, decoded)
    assert (source.pad, source.eos, source.unk) == (config["pad_token_id"], 0, 1)
    assert source.bos == config["decoder_start_token_id"]


def test_marian_recognizes_a_language_code_at_the_beginning(made: Callable[..., tuple[Path, Config]]) -> None:
    folder, config = made("marian")
    source, other = tokenizers_from_folder(folder, config)[0], theirs(folder)
    text = ">>deu<< Nobody counts"
    assert (
        source.encode(text)
        == other(text, add_special_tokens=False)["input_ids"]
        == [2, *source.encode("Nobody counts")]
    )
    unknown = source.encode(">>xxx<< a")  # no language, but a text like others
    assert len(unknown) > 5


def test_added_tokens_keep_their_ids(made: Callable[..., tuple[Path, Config]], tmp_path: Path) -> None:
    for family in ("bert", "gpt2", "llama"):
        folder, config = made(family)
        size = tokenizers_from_folder(folder, config)[0].vocab_size
        copy = tmp_path / family
        copy.mkdir()
        for path in folder.iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
        flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
        added = {
            str(size): {"content": "<|turn|>", "special": True, **flags},
            str(size + 1): {"content": "(!)", "special": False, **flags},
        }
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        write(copy / "tokenizer_config.json", settings | {"added_tokens_decoder": added, "pad_token": "<|turn|>"})
        ours, other = tokenizers_from_folder(copy, config)[0], theirs(copy)
        assert ours.vocab_size == len(other) == size + 2
        assert ours.pad == other.pad_token_id == size
        assert ours.encode("a<|turn|>", parse_special=True)[-1] == size
        assert size not in ours.encode("a<|turn|>")
        text = "ink(!)"
        assert ours.encode(text) == other(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text)[-1] == size + 1


def test_framing_truncation_and_padding_of_a_document_are_ignored(
    made: Callable[..., tuple[Path, Config]], tmp_path: Path
) -> None:
    folder, config = made("bert", "document")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.enable_truncation(2)
    library.enable_padding(length=20)
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    library.save(str(tmp_path / "tokenizer.json"))
    ours = tokenizers_from_folder(tmp_path, config)[0]
    assert ours.encode(TEXTS[0]) == tokenizers_from_folder(folder, config)[0].encode(TEXTS[0])
    assert (ours.cls, ours.sep, ours.mask, ours.pad) == (2, 3, 4, 0)  # as the family names them


def test_the_mask_includes_its_space_if_the_files_say_so(
    made: Callable[..., tuple[Path, Config]], tmp_path: Path
) -> None:
    folder, config = made("roberta")
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"})
    write(tmp_path / "special_tokens_map.json", {"mask_token": mask})
    document = tmp_path / "document"
    transformers.RobertaTokenizer.from_pretrained(
        tmp_path, mask_token=tokenizers.AddedToken("<mask>", lstrip=True, special=True)
    ).save_pretrained(document)
    text = "The old <mask> counts<mask> ships."
    for place in (tmp_path, document):
        ours = tokenizers_from_folder(place, config)[0]
        assert ours.encode(text, parse_special=True) == theirs(document)(text, add_special_tokens=False)["input_ids"]


# ---- M2M-100, NLLB, Pegasus and ByT5

DIFFICULT = [
    *(" leading", "a  b   c", "\u200bzero", "a\x00b\x07c", "\r\nx", "a\u00adb", "½ ﬁ", "👨‍👩‍👧‍👦🇷🇼"),
    *("مرحبا بالعالم", "ናይ", "नमस्ते दुनिया", "ភាសាខ្មែរ", "eng_Latn in text", "__en__ hi", "en_XX ro_RO", "<extra_id_5>"),
]


def m2m100(folder: Path) -> Config:
    """A vocabulary without some pieces of the model, in another order."""
    pieces = [piece for n, piece in enumerate(spm(folder / "sentencepiece.bpe.model", vocab_size=300)[3:]) if n % 20]
    write(folder / "vocab.json", {piece: n for n, piece in enumerate([*FAIRSEQ[:4], *reversed(pieces)])})
    config = {"model_type": "m2m_100", "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    return settle(folder, config, {"tokenizer_class": "M2M100Tokenizer"})


def nllb(folder: Path) -> Config:
    """As published: a document of BPE, with the languages and then the mask among its added tokens."""
    spm(folder / "sentencepiece.bpe.model", vocab_size=300, model_type="bpe")
    config = {"model_type": "m2m_100", "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    settle(folder, config, {"tokenizer_class": "NllbTokenizer"})
    document = json.loads(theirs(folder).backend_tokenizer.to_str())
    first, template = len(document["model"]["vocab"]), document["added_tokens"][0]
    codes = [*NLLB_LANGUAGES, "<mask>"]
    known = [token for token in document["added_tokens"] if token["content"] not in codes]
    added = [template | {"id": n, "content": code, "lstrip": code == "<mask>"} for n, code in enumerate(codes, first)]
    write(folder / "tokenizer.json", document | {"added_tokens": known + added})
    write(folder / "special_tokens_map.json", {"additional_special_tokens": codes[:-1], "mask_token": "<mask>"})
    return config


def pegasus(folder: Path) -> Config:
    spm(folder / "spiece.model", vocab_size=300, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    config = {"model_type": "pegasus", "pad_token_id": 0, "eos_token_id": 1}
    return settle(folder, config, {"tokenizer_class": "PegasusTokenizer"})


def byt5(folder: Path) -> Config:
    return settle(folder, {"model_type": "t5", "pad_token_id": 0}, {"tokenizer_class": "ByT5Tokenizer"})


def same_ids(ours: Tokenizer, other: Any, texts: list[str]) -> None:
    for text in texts:
        ids = other(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text) == ids, text
        decoded = other.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == decoded, text


@pytest.mark.parametrize("build", [m2m100, nllb, pegasus, byt5])
def test_multilingual_and_byte_tokenizers_equal_those_of_transformers(build: Any, tmp_path: Path) -> None:
    config = build(tmp_path)
    ours, other = tokenizers_from_folder(tmp_path, config)[0], theirs(tmp_path)
    for tokenizer in (ours, Tokenizer.from_json(ours.to_json())):
        same_ids(tokenizer, other, [*TEXTS, *RARE, *DIFFICULT])
    for token in other.all_special_tokens:
        assert ours.special_token_ids[token] == other.convert_tokens_to_ids(token)
    other.save_pretrained(tmp_path / "saved")  # as this version of transformers writes it
    write(tmp_path / "saved" / "config.json", config)
    same_ids(tokenizers_from_folder(tmp_path / "saved", config)[0], other, DIFFICULT)


def test_ids_of_nllb_without_a_document_are_those_of_the_published_one(tmp_path: Path) -> None:
    config = nllb(tmp_path)
    document = tokenizers_from_folder(tmp_path, config)[0]
    (tmp_path / "tokenizer.json").unlink()
    files = tokenizers_from_folder(tmp_path, config)[0]
    assert files.special_token_ids.items() >= document.special_token_ids.items()
    for text in [*TEXTS, *RARE, *DIFFICULT]:
        assert files.encode(text) == document.encode(text), text


def test_an_export_of_byt5_has_a_tokenizer_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    config = {"model_type": "t5", "tokenizer_class": "ByT5Tokenizer"}  # all that some published folders have
    tokenizers_from_folder(tmp_path / "a", config)[0].original_files.write(tmp_path / "b")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    assert theirs("hé").input_ids[:3] == tokenizers_from_folder(tmp_path / "b")[0].encode("hé")


def test_bytes_of_byt5_are_readable_and_show_words(tmp_path: Path) -> None:
    ours = tokenizers_from_folder(tmp_path, byt5(tmp_path))[0]
    assert ours.encode("hé") == [ord("h") + 3, 0xC3 + 3, 0xA9 + 3]  # three special tokens, then UTF-8
    assert (ours.pad, ours.eos, ours.unk, ours.special_token_ids["<extra_id_0>"], ours.vocab_size) == (
        0,
        1,
        2,
        259,
        384,
    )
    assert ours.word_ids(ours.encode("a dé")) == [0, -1, 1, 1, 1]


def test_damaged_settings_of_new_families(tmp_path: Path) -> None:
    config = pegasus(tmp_path)
    write(tmp_path / "tokenizer_config.json", {"offset": -1})
    with pytest.raises(UserError, match="offset, the number of tokens before the pieces, is -1"):
        tokenizers_from_folder(tmp_path, config)
    config = m2m100(tmp_path)
    (tmp_path / "spiece.model").unlink()
    write(tmp_path / "tokenizer_config.json", {"language_codes": "wmt22"})
    with pytest.raises(UserError, match="did you mean 'wmt21'"):
        tokenizers_from_folder(tmp_path, config)


# ---- what may be wrong


def test_missing_files_are_listed(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        tokenizers_from_folder(tmp_path, {})
    for name in ("tokenizer.json", "source.spm with target.spm", "spiece.model", "merges.txt", "vocab.txt"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("file", "kind"),
    [("spiece.model", "albert"), ("sentencepiece.bpe.model", "camembert"), ("vocab.txt", "roformer")],
)
def test_families_that_use_a_file_differently_are_refused(tmp_path: Path, file: str, kind: str) -> None:
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        tokenizers_from_folder(tmp_path, {"model_type": kind})


DAMAGED: list[tuple[dict[str, object], str]] = [
    ({"tokenizer.json": "no JSON"}, "not JSON"),
    ({"tokenizer.json": "[" * 100_000}, "not JSON"),
    ({"tokenizer.json": []}, "object"),
    ({"tokenizer.json": {}}, "damaged"),
    ({"tokenizer.json": {"model": {"type": "BPE", "vocab": {"a": 1 << 40}, "merges": []}}}, "number"),
    ({"tokenizer.json": {"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}}, "number"),
    ({"tokenizer.json": {"model": {"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]}}}, "damaged"),
    ({"tokenizer.json": {"model": {"type": "Nothing", "vocab": {"a": 0}}}}, "damaged"),
    (
        {
            "tokenizer.json": {
                "model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]},
                "normalizer": {"type": "Sequence", "normalizers": [{"precompiled_charsmap": "////f2FiYw=="}]},
            }
        },
        "table",
    ),
    ({"tokenizer.json": {"model": {"type": "WordLevel", "vocab": {"a": 0}}}, "tokenizer_config.json": "{"}, "config"),
    ({"vocab.json": {"a": 0}, "merges.txt": "a b\n"}, "does not fit"),
    ({"vocab.json": {"a": 0, "b": 0}, "merges.txt": ""}, "several"),
    ({"vocab.json": {"a": -1}, "merges.txt": ""}, "number"),
    ({"vocab.json": {"a": 1 << 60}, "merges.txt": ""}, "number"),
    ({"vocab.txt": "a\nb\n"}, "UNK"),
    ({"source.spm": "", "target.spm": "", "vocab.json": {"<unk>": 0}}, "SentencePiece"),
    ({"tokenizer.model": "x"}, "SentencePiece"),
]


@pytest.mark.parametrize(("files", "says"), DAMAGED)
def test_damaged_files_are_answered_in_a_sentence(tmp_path: Path, files: dict[str, object], says: str) -> None:
    for name, content in files.items():
        if isinstance(content, str):
            (tmp_path / name).write_text(content, encoding="utf-8")
        else:
            write(tmp_path / name, content)
    with pytest.raises(UserError, match=says) as caught:
        tokenizers_from_folder(tmp_path, {})
    assert "\n" not in str(caught.value)


def test_a_too_large_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="a tokenizer file may have at most 536,870,912"):
        tokenizers_from_folder(tmp_path, {})


def test_a_damaged_saved_tokenizer_is_answered_in_a_sentence(made: Callable[..., tuple[Path, Config]]) -> None:
    ours = tokenizers_from_folder(*made("t5"))[0]
    for name, value in [
        *(("names", []), ("special_tokens", [{}]), ("role_ids", None), ("language_codes", {"a": "b"})),
        *(("sentencepiece", {"model": "?", "unk": 0}), ("sentencepiece", []), ("names", {"x": "y"})),
    ]:
        document = json.loads(ours.to_json())
        document["model"]["dragoman"][name] = value
        if name == "sentencepiece" and value == []:
            document["model"]["dragoman"].pop(name)
        with pytest.raises(UserError, match="damaged"):
            Tokenizer.from_json(json.dumps(document), "this file")
