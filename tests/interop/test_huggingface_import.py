"""A checkpoint becomes a run folder that is used like any other."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import typer
from huggingface_pairs import liven
from huggingface_tiny import bart, bert, change, gpt2, llama, marian, mbart, t5, transformers
from tokenizers import models, pre_tokenizers, processors
from typer.testing import CliRunner

import dragoman
from dragoman import checkpoint
from dragoman.cli.import_ import import_
from dragoman.cli.search_options import SearchOptions
from dragoman.config import SearchDefaults
from dragoman.errors import UserError
from dragoman.interop.huggingface import import_checkpoint, read_checkpoint
from dragoman.search import Beam, Hypothesis, Rerank, Speculative
from dragoman.text.framing import Framing

SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
WORDS = [*"abcdefghijklmnopqrst", "en_XX", "ro_RO"]


def add_tokenizer(folder: Path, template: str | None = "<s> $A </s>", words: list[str] = WORDS, **more: Any) -> Any:
    """A tokenizer of letters, saved as transformers saves it; what it puts around a text is the template's."""
    numbers = {piece: n for n, piece in enumerate([*SYMBOLS, *words])}
    library = tokenizers.Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template:
        special = [(name, numbers[name]) for name in template.split() if name != "$A"]
        library.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    roles = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), SYMBOLS))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **roles, **more)
    fast.save_pretrained(folder)
    return fast


def imported(folder: Path, run: Path) -> dragoman.Run:
    import_checkpoint(folder, run, lambda text: None)
    return dragoman.load(run, device="cpu")


def test_a_run_gives_the_same_logits_and_the_same_text(tmp_path: Path) -> None:
    model = bart(forced_eos_token_id=None)
    model.generation_config.forced_bos_token_id = 0
    model.generation_config.num_beams = 3
    model.generation_config.max_length = 9
    model.save_pretrained(tmp_path / "bart")
    fast = add_tokenizer(tmp_path / "bart")
    run = imported(tmp_path / "bart", tmp_path / "run")
    source, target = torch.tensor([[0, 6, 7, 8, 2], [0, 9, 2, 1, 1]]), torch.tensor([[2, 0, 7], [2, 0, 8]])
    expected = model(input_ids=source, attention_mask=(source != 1).long(), decoder_input_ids=target).logits
    torch.testing.assert_close(run.logits(source, target), expected.detach(), atol=1e-5, rtol=1e-5)
    assert (run.config.search.beam_size, run.config.search.max_target_length) == (3, 8)  # they count the start in
    texts = ["a b c d e", "f g"]
    rows = fast(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    written = model.generate(**rows, num_beams=1, do_sample=False, max_length=9)
    ours = run.translate(texts, beam_size=1)
    assert [one.text for one in ours] == fast.batch_decode(written, skip_special_tokens=True)
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"000000", "best", "last"}


def lively_bart(folder: Path, **generation: Any) -> tuple[Any, Any, dragoman.Run]:
    """A BART of which much is asked when it generates, its tokenizer, and the run that it becomes."""
    torch.manual_seed(3)
    model = bart(max_position_embeddings=40, tie_word_embeddings=False)
    liven(model, 2)
    for name, value in ({"forced_bos_token_id": 0} | generation).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder / "bart")
    return model, add_tokenizer(folder / "bart"), imported(folder / "bart", folder / "run")


@pytest.mark.parametrize("early", [True, False])
def test_generation_settings_become_search_settings(early: bool, tmp_path: Path) -> None:
    wanted = {"max_length": 14, "min_length": 5, "no_repeat_ngram_size": 2, "num_beams": 4, "length_penalty": 2.0}
    model, fast, run = lively_bart(tmp_path, early_stopping=early, **wanted)
    texts = ["a b c d e", "f g", "h", "q p o n m l", "i j k a a a a"]
    rows = fast(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    written = fast.batch_decode(model.generate(**rows), skip_special_tokens=True)
    assert [one.text for one in run.translate(texts)] == written
    assert len(set(written)) > 3
    search = run.config.search
    assert (search.min_length, search.no_repeat_ngram_size, search.max_target_length, search.length_ratio) == (
        4,
        2,
        13,
        0.0,
    )


def test_prefix_follows_forced_bos(tmp_path: Path) -> None:
    _, _, run = lively_bart(tmp_path, max_length=8)
    found = run.translate(["a b c", "d e f", "g"], beam_size=3, prefixes=["k l", "", "m"])
    assert [one.tokens[0] for one in found] == ["<s>"] * 3
    assert (found[0].tokens[1:3], found[2].tokens[1]) == (["k", "l"], "m")
    assert found[1].text == run.translate(["d e f"], beam_size=3)[0].text
    run.translate(["a"], prefixes=["a b c d e"])
    with pytest.raises(UserError, match="a target prefix has 6 tokens, but the translation may have at most 5"):
        run.translate(["a"], prefixes=["a b c d e f"])


def test_a_checkpoint_folder_is_opened_wherever_a_run_is(tmp_path: Path) -> None:
    """As a member of an ensemble, as a draft model and as a reranker, without importing it first."""
    _, _, run = lively_bart(tmp_path, max_length=8)
    folder, texts = str(tmp_path / "bart"), ["a b c", "d e f"]
    greedy = [one.text for one in run.translate(texts, beam_size=1)]
    drafted = run.translate(texts, search=Speculative(folder, 3, replace(run.beam_config(1), length_penalty=0.0)))
    assert [one.text for one in drafted] == greedy
    assert [
        one.text for one in run.ensemble(dragoman.load(folder, device="cpu")).translate(texts, beam_size=1)
    ] == greedy
    judged = SearchOptions(rerank_with=[f"{folder}:0.5"]).search_config(run)
    assert isinstance(judged, Rerank)
    assert judged.channel_model == folder
    assert len(run.translate(texts, search=judged)) == 2


def test_an_imported_t5_fills_gaps_with_its_own_sentinels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source has the ids that the library gives a text with sentinels, and sentinels may be written."""
    t5(decoder_start_token_id=1, pad_token_id=1, eos_token_id=2).save_pretrained(tmp_path / "t5")
    sentinels = ["<extra_id_0>", "<extra_id_1>"]
    fast = add_tokenizer(tmp_path / "t5", "$A </s>", additional_special_tokens=sentinels)
    run = dragoman.load(tmp_path / "t5", device="cpu")
    numbers = fast.convert_tokens_to_ids(sentinels)
    asked = []

    def decode(self, run, request):  # type: ignore[no-untyped-def]
        asked.append((request.source[0].tolist(), set(run.special_tokens.suppressed)))
        return [[Hypothesis([numbers[0], *run.target_tokenizer.encode("b"), numbers[1]], -1.0, -1.0, True)]]

    monkeypatch.setattr(Beam, "decode", decode)
    assert run.fill(["a <mask> c"], top_k=1)[0].text == "a b c"
    assert asked[0][0] == fast("a <extra_id_0> c").input_ids
    assert not asked[0][1] & set(numbers)


def test_training_starts_from_a_checkpoint_folder(tmp_path: Path) -> None:
    """Tokenizer, framing and weights are those of the checkpoint; with LoRA, only the adapters change."""
    folder, files = tmp_path / "bart", {"source": tmp_path / "a.txt", "target": tmp_path / "b.txt"}
    bart(max_position_embeddings=20).save_pretrained(folder)
    add_tokenizer(folder)
    for path in files.values():
        path.write_text("".join(f"{a} {b} {c}\n" for a in "abcd" for b in "efg" for c in "hi"), encoding="utf-8")
    settings: dict[str, Any] = {"training.start_from": str(folder), "training.steps": 2, "lora.rank": 2}
    settings |= {"data.max_length": 8, "training.device": "cpu", "search.max_target_length": 5}
    messages: list[Any] = []
    run = dragoman.train(tmp_path / "run", **files, settings=settings, callback=messages.append)
    parent = dragoman.load(folder, device="cpu")
    assert run.framing == parent.framing
    assert run.source_tokenizer.encode("a b c") == parent.source_tokenizer.encode("a b c")
    expected = dict(parent.model.named_parameters())
    changed = {
        name.rpartition(".body.")[2]
        for name, weight in run.model.named_parameters()
        if not torch.equal(weight, expected[name])
    }
    assert changed == {"project.weight", "output.weight", "query.weight"}
    texts = [event.text for event in messages if isinstance(event, dragoman.MessageEvent)]
    assert any(text.endswith("parameters) are loaded") for text in texts)
    assert any("parameters are trained (" in text for text in texts)


@pytest.mark.parametrize(
    ("make", "template", "before", "after"),
    [
        (bart, "<s> $A </s>", (0,), (2,)),
        (marian, "$A </s>", (), (2,)),
        (t5, "$A </s>", (), (2,)),
        (mbart, "$A </s> en_XX", (), (2, 25)),
        (mbart, "en_XX $A </s>", (25,), (2,)),
        (llama, "<s> $A", (0,), ()),
        (gpt2, "$A", (), ()),
        (bert, "<s> $A </s>", (0,), (2,)),
    ],
)
def test_special_tokens_around_a_source(
    tmp_path: Path, make: Any, template: str, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    make().save_pretrained(tmp_path / "theirs")
    fast = add_tokenizer(tmp_path / "theirs", template)
    run = imported(tmp_path / "theirs", tmp_path / "run")
    assert (run.framing.source_prefix, run.framing.source_suffix) == (before, after)
    text = "c d e a"
    assert fast(text).input_ids == [*before, *run.source_tokenizer.encode(text), *after]


def test_encoder_with_a_word_list_as_vocabulary(tmp_path: Path) -> None:
    """vocab.txt alone, as BERT's first program wrote it."""
    model = bert()
    model.save_pretrained(tmp_path / "bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words))
    run = imported(tmp_path / "bert", tmp_path / "run")
    assert run.framing == Framing(0, 2, 3, source_prefix=(2,), source_suffix=(3,), suppressed=())
    ids = torch.tensor([[2, 7, 4, 9, 3], [0, 0, 2, 8, 3]])
    real = ids != 0
    places = (real.long().cumsum(1) - 1).clamp(min=0)
    expected = model(input_ids=ids, attention_mask=real.long(), position_ids=places).logits
    torch.testing.assert_close(run.logits(ids, None)[real], expected[real].detach(), atol=1e-5, rtol=1e-5)
    filled = run.fill(["a [MASK] c"])[0]
    alone = model(torch.tensor([[2, 5, 4, 7, 3]])).logits[0, 2, : len(words)]
    assert filled.choices[0][0][0] == words[int(alone.argmax())]


def test_labels_keep_their_names(tmp_path: Path) -> None:
    names = {0: "a noun", 1: "verb", 2: "other"}
    model = bert("ForTokenClassification", id2label=names)
    model.save_pretrained(tmp_path / "bert")
    add_tokenizer(tmp_path / "bert")
    run = imported(tmp_path / "bert", tmp_path / "run")
    tagged = run.tag(["a b c d"])[0]
    best = model(torch.tensor([[0, 5, 6, 7, 8, 2]])).logits[0, 1:-1].argmax(-1)
    assert tagged.tags == [names[int(n)] for n in best]


def test_imported_decoder_only_model(tmp_path: Path) -> None:
    model = llama(bos_token_id=0, eos_token_id=2, pad_token_id=1)
    model.save_pretrained(tmp_path / "llama")
    add_tokenizer(tmp_path / "llama", "<s> $A")
    run = imported(tmp_path / "llama", tmp_path / "run")
    ids = torch.tensor([[0, 6, 7, 8], [1, 1, 0, 9]])
    real = ids != 1
    places = (real.long().cumsum(1) - 1).clamp(min=0)
    expected = model(input_ids=ids, attention_mask=real.long(), position_ids=places).logits
    torch.testing.assert_close(run.logits(None, ids)[real], expected[real].detach(), atol=1e-5, rtol=1e-5)


def test_languages_of_mbart(tmp_path: Path) -> None:
    """Without a document of the whole tokenizer, its configuration says which languages it is about."""
    model = mbart(decoder_start_token_id=None)
    model.save_pretrained(tmp_path / "mbart")
    add_tokenizer(tmp_path / "mbart", None, extra_special_tokens=["en_XX", "ro_RO"])
    change(tmp_path / "mbart", "tokenizer.json", post_processor=None)
    change(tmp_path / "mbart", "tokenizer_config.json", src_lang="en_XX", tgt_lang="ro_RO")
    run = imported(tmp_path / "mbart", tmp_path / "run")
    assert (run.framing.source_prefix, run.framing.source_suffix, run.framing.bos) == ((), (2, 25), 26)
    change(tmp_path / "mbart", "tokenizer_config.json", tokenizer_class="MBart50Tokenizer")
    run = imported(tmp_path / "mbart", tmp_path / "run-50")
    assert (run.framing.source_prefix, run.framing.source_suffix, run.framing.forced_bos) == ((25,), (2,), (26,))


# ---- refusals


def test_tokenizer_with_more_tokens_than_embeddings(tmp_path: Path) -> None:
    bart(vocab_size=26).save_pretrained(tmp_path / "bart")
    add_tokenizer(tmp_path / "bart")
    with pytest.raises(UserError, match="has 27 tokens, but the model has only 26 embeddings"):
        imported(tmp_path / "bart", tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["bart"]


def test_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    bart().save_pretrained(tmp_path / "bart")
    with pytest.raises(UserError, match="has no supported tokenizer files"):
        imported(tmp_path / "bart", tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["bart"]


def test_unsupported_post_processor_is_refused(tmp_path: Path) -> None:
    bart().save_pretrained(tmp_path / "bart")
    add_tokenizer(tmp_path / "bart")
    document = json.loads((tmp_path / "bart" / "tokenizer.json").read_text())
    document["post_processor"]["single"] = [{"Symbol": "<s>"}]
    (tmp_path / "bart" / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="damaged"):
        imported(tmp_path / "bart", tmp_path / "run")


def test_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    bart().save_pretrained(tmp_path / "bart")
    add_tokenizer(tmp_path / "bart")
    imported(tmp_path / "bart", tmp_path / "run")
    with pytest.raises(UserError, match="already contains a run"):
        imported(tmp_path / "bart", tmp_path / "run")
    with pytest.raises(UserError, match="exists and is not a run"):
        imported(tmp_path / "bart", tmp_path / "bart")


def test_invalid_generation_settings_are_refused(tmp_path: Path) -> None:
    bart().save_pretrained(tmp_path / "bart")
    add_tokenizer(tmp_path / "bart")
    change(tmp_path / "bart", "generation_config.json", num_beams=0)
    with pytest.raises(UserError, match=r"search\.beam_size must be between 1 and"):
        imported(tmp_path / "bart", tmp_path / "run")


# ---- the command


def test_output_of_the_import_command(tmp_path: Path) -> None:
    model = marian()
    model.generation_config.bad_words_ids = [[1], [5, 6]]
    model.generation_config.no_repeat_ngram_size = 3
    model.generation_config.repetition_penalty = 1.5
    model.save_pretrained(tmp_path / "marian")
    add_tokenizer(tmp_path / "marian", "$A </s>")
    app = typer.Typer()
    app.command()(import_)
    result = CliRunner().invoke(app, [str(tmp_path / "marian"), str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    count = sum(w.numel() for n, w in model.named_parameters() if "embed_positions" not in n) + 29  # with the bias
    assert "MarianMTModel, closest to the system transformer" in result.stdout
    assert f"{count:,} parameters, vocabulary of 27 tokens" in result.stdout
    assert "ignored setting: repetition_penalty 1.5" in result.stdout
    assert "no_repeat" not in result.stdout
    assert "ignored setting: bad_words_ids [[5, 6]]" in result.stdout
    assert dragoman.load(tmp_path / "run", device="cpu").config.search == SearchDefaults(
        beam_size=1,
        early_stopping=False,
        rank_unfinished="by_score",
        no_repeat_ngram_size=3,
        length_ratio=2.0,
        length_offset=20,
    )
    result = CliRunner().invoke(app, [str(tmp_path / "marian"), str(tmp_path / "second"), "--json"])
    assert json.loads(result.stdout)["parameters"] == count


# ---- precision, and what can go wrong


@pytest.mark.parametrize(
    ("precision", "dtype"), [("stored", torch.float16), ("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_weights_of_half_precision(tmp_path: Path, precision: Any, dtype: torch.dtype) -> None:
    """They keep their precision in the run folder; the model computes in float32."""
    model = marian()
    for weight in model.parameters():  # numbers that all types can hold
        weight.data = weight.data.to(torch.bfloat16).half().float()
    model.half().save_pretrained(tmp_path / "theirs")
    add_tokenizer(tmp_path / "theirs", "$A </s>")
    import_checkpoint(tmp_path / "theirs", tmp_path / "run", lambda text: None, precision)
    stored = checkpoint.read_tensors(tmp_path / "run" / "checkpoints" / "best", "model")
    assert {weight.dtype for weight in stored.values()} == {dtype}
    run = dragoman.load(tmp_path / "run", device="cpu")
    assert {weight.dtype for weight in run.model.parameters()} == {torch.float32}
    source, target = torch.tensor([[6, 7, 8, 0]]), torch.tensor([[1, 7]])
    expected = model.float()(input_ids=source, decoder_input_ids=target).logits
    torch.testing.assert_close(run.logits(source, target), expected.detach(), atol=2e-2, rtol=1e-5)


def test_computed_weights_of_half_precision_are_exact(tmp_path: Path) -> None:
    """A conversion that computes new numbers keeps them in float32; GPT-2's attention may be scaled by layer."""
    model = gpt2(scale_attn_by_inverse_layer_idx=True).half()
    model.save_pretrained(tmp_path)
    weights = read_checkpoint(tmp_path).weights
    dtypes = [weights[f"decoder.layers.{layer}.0.body.project.weight"].dtype for layer in range(3)]
    assert dtypes == [torch.float16, torch.float16, torch.float32]  # queries are divided by 1, 2 and 3


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marian().save_pretrained(tmp_path / "theirs")
    add_tokenizer(tmp_path / "theirs", "$A </s>")

    def full(content: Any, path: Path) -> None:
        path.write_bytes(b"the beginning")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(UserError, match=r"the disk of .* is full: free some space, or choose another folder"):
        import_checkpoint(tmp_path / "theirs", tmp_path / "run", lambda text: None)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    messages: list[str] = []
    marian(vocab_size=60).save_pretrained(tmp_path / "fewer")
    add_tokenizer(tmp_path / "fewer", "$A </s>")
    import_checkpoint(tmp_path / "fewer", tmp_path / "run", messages.append)
    assert any("tokens for the 60 embeddings of the model: check that they belong together" in m for m in messages)
    marian(vocab_size=7).save_pretrained(tmp_path / "more")
    add_tokenizer(tmp_path / "more", "$A </s>")
    with pytest.raises(UserError, match="tokens, but the model has only 7 embeddings: get tokenizer and weights"):
        import_checkpoint(tmp_path / "more", tmp_path / "other", messages.append)
    assert not (tmp_path / "other").exists()


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="run exists and is not a run: choose another name, or remove it"):
        import_checkpoint(tmp_path / "theirs", tmp_path / "run", lambda text: None)
