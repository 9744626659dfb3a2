"""Tiny random models of transformers, written to a folder and read back by us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.interop.huggingface import ConvertedCheckpoint, read_checkpoint
from dragoman.models import Model

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
VOCABULARY = 29
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}

SEQ2SEQ: dict[str, Any] = {
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 10,
    "decoder_ffn_dim": 18,
    "max_position_embeddings": 11,
}
T5: dict[str, Any] = {"d_model": 14, "d_kv": 5, "num_heads": 3, "d_ff": 11, "num_layers": 2, "num_decoder_layers": 3}
ENCODER: dict[str, Any] = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 14,
    "max_position_embeddings": 13,
}
GPT2: dict[str, Any] = {"n_embd": 12, "n_layer": 3, "n_head": 3, "n_positions": 13}
LLAMA: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 18,
    "max_position_embeddings": 32,
}


def marian(**settings: Any) -> Any:
    symbols = {"pad_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 0, "forced_eos_token_id": 0}
    return theirs("MarianMTModel", "MarianConfig", **(SEQ2SEQ | symbols | settings))


def bart(**settings: Any) -> Any:
    return theirs("BartForConditionalGeneration", "BartConfig", **(SEQ2SEQ | settings))


def mbart(**settings: Any) -> Any:
    return theirs("MBartForConditionalGeneration", "MBartConfig", **(SEQ2SEQ | settings))


def pegasus(**settings: Any) -> Any:
    return theirs("PegasusForConditionalGeneration", "PegasusConfig", **(SEQ2SEQ | settings))


def m2m100(**settings: Any) -> Any:
    return theirs("M2M100ForConditionalGeneration", "M2M100Config", **(SEQ2SEQ | settings))


def umt5(**settings: Any) -> Any:
    return theirs("UMT5ForConditionalGeneration", "UMT5Config", **(T5 | settings))


def t5(**settings: Any) -> Any:
    return theirs("T5ForConditionalGeneration", "T5Config", **(T5 | settings))


def bert(kind: str = "ForMaskedLM", **settings: Any) -> Any:
    return theirs(f"Bert{kind}", "BertConfig", **(ENCODER | settings))


def roberta(kind: str = "ForMaskedLM", **settings: Any) -> Any:
    return theirs(f"Roberta{kind}", "RobertaConfig", **(ENCODER | settings))


def electra(kind: str = "ForPreTraining", **settings: Any) -> Any:
    return theirs(f"Electra{kind}", "ElectraConfig", **(ENCODER | {"embedding_size": 8} | settings))


def roformer(kind: str = "ForMaskedLM", **settings: Any) -> Any:
    return theirs(f"RoFormer{kind}", "RoFormerConfig", **(ENCODER | settings))


def xlm_roberta(kind: str = "ForMaskedLM", **settings: Any) -> Any:
    return theirs(f"XLMRoberta{kind}", "XLMRobertaConfig", **(ENCODER | settings))


def distilbert(kind: str = "ForMaskedLM", **settings: Any) -> Any:
    sizes = {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 14, "max_position_embeddings": 13}
    return theirs(f"DistilBert{kind}", "DistilBertConfig", **(sizes | settings))


def gpt2(**settings: Any) -> Any:
    return theirs("GPT2LMHeadModel", "GPT2Config", **(GPT2 | {"bos_token_id": 2, "eos_token_id": 3} | settings))


def llama(**settings: Any) -> Any:
    return theirs("LlamaForCausalLM", "LlamaConfig", **(LLAMA | settings))


def mistral(**settings: Any) -> Any:
    return theirs("MistralForCausalLM", "MistralConfig", **(LLAMA | settings))


def qwen2(**settings: Any) -> Any:
    return theirs("Qwen2ForCausalLM", "Qwen2Config", **(LLAMA | {"bos_token_id": 1, "eos_token_id": 2} | settings))


def theirs(model: str, config: str, **settings: Any) -> Any:
    """A model of theirs, every weight drawn at random, norms and biases too, so that one in the wrong place shows."""
    values = {"vocab_size": VOCABULARY} | settings
    made = getattr(transformers, model)._from_config(
        getattr(transformers, config)(**values), attn_implementation="eager"
    )
    randomise(made)
    return made.eval()


def randomise(model: nn.Module) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" not in name or weight.requires_grad:  # sines and cosines stay
                nn.init.normal_(weight, std=0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("final_logits_bias"):
                nn.init.normal_(buffer)


def read(model: Any, folder: Path, **options: Any) -> tuple[ConvertedCheckpoint, Model]:
    """The same model as ours, by way of the disk."""
    model.save_pretrained(folder, **options)
    return built(folder)


def built(folder: Path) -> tuple[ConvertedCheckpoint, Any]:
    checkpoint = read_checkpoint(folder)
    model = checkpoint.spec.build().eval()
    weights = dict(model.named_parameters())
    assert weights.keys() == checkpoint.weights.keys()
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(checkpoint.weights[name])
    return checkpoint, model


def change(folder: Path, file: str = "config.json", **fields: Any) -> None:
    """Write other fields into a JSON file; None takes one away."""
    values = json.loads((folder / file).read_text()) | fields
    (folder / file).write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


def batch(lengths: tuple[int, ...], width: int, left: bool = False, pad: int = 1) -> tuple[Tensor, Tensor]:
    """Random tokens, padded on the right or on the left, and which of them are real."""
    ids = torch.randint(4, VOCABULARY, (len(lengths), width), generator=torch.Generator().manual_seed(width))
    places = torch.arange(width)
    rows = torch.tensor(lengths)[:, None]
    real = places >= width - rows if left else places < rows
    return ids.masked_fill(~real, pad), real


def to_the_left(ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Real tokens first, as our models want them; their number; and which of ours are real."""
    order = (~real).long().argsort(dim=1, stable=True)
    return ids.gather(1, order), real.sum(1), real.gather(1, order)


def positions(real: Tensor) -> Tensor:
    """Positions that count real tokens alone."""
    return (real.long().cumsum(1) - 1).clamp(min=0)


SIDES = (False, True)  # padding on the right, padding on the left


@torch.no_grad()
def close_seq2seq(model: Any, mine: Any, sides: tuple[bool, ...] = SIDES[:1]) -> None:
    """The same logits for pairs of different lengths; theirs must be told nothing of padding on the left."""
    for left in sides:
        source, source_real = batch((7, 4, 2), 7, left)
        target, target_real = batch((5, 6, 1), 6)
        expected = model(
            input_ids=source,
            attention_mask=source_real.long(),
            decoder_input_ids=target,
            decoder_attention_mask=target_real.long(),
            use_cache=False,
        ).logits
        tokens, lengths, _ = to_the_left(source, source_real)
        logits = mine(tokens, lengths, target, target_real.sum(1))
        torch.testing.assert_close(logits[target_real], expected[target_real], **TOLERANCE)


@torch.no_grad()
def close_decoder(model: Any, mine: Any) -> None:
    for left in SIDES:
        ids, real = batch((9, 4, 1), 9, left)
        expected = model(
            input_ids=ids, attention_mask=real.long(), position_ids=positions(real), use_cache=False
        ).logits
        tokens, lengths, there = to_the_left(ids, real)
        logits = mine(tokens[:, :0], torch.zeros_like(lengths), tokens, lengths)
        torch.testing.assert_close(logits[there], expected[real], **TOLERANCE)


@torch.no_grad()
def close_encoder(
    model: Any, mine: Any, kinds: int = 1, placed: bool = True, pad: int = 1, sides: tuple[bool, ...] = SIDES
) -> None:
    """The same for encoders, with segments of some kinds or none (0); `placed`: theirs are told where tokens stand."""
    for left in sides:
        ids, real = batch((9, 5, 1), 9, left, pad)
        types = torch.randint(max(kinds, 1), ids.shape, generator=torch.Generator().manual_seed(3))
        settings = {"position_ids": positions(real)} if placed else {}
        settings |= {"token_type_ids": types} if kinds else {}
        expected = model(input_ids=ids, attention_mask=real.long(), **settings)[0]
        tokens, lengths, there = to_the_left(ids, real)
        logits = mine(tokens, lengths, token_types=to_the_left(types, real)[0])
        expected = expected if expected.dim() == 3 else expected[..., None]
        torch.testing.assert_close(logits[there], expected[real], **TOLERANCE)
