"""Whisper: an encoder–decoder that reads log-mel frames and writes a transcript (Radford et al. 2023)."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.interop.huggingface.conversion import Conversion, ReversibleTransform, prefixed
from dragoman.interop.huggingface.hf_config import HFConfig, read_json_object
from dragoman.interop.huggingface.safetensors_weights import StoredWeights
from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Frames
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.text.framing import Framing
from dragoman.text.language_codes import LanguageCodes

OUTPUT_WEIGHT = "proj_out.weight"
#: samples per second, between the beginnings of two frames, and in a frame, in all published models
SAMPLE_RATE, HOP_SAMPLES, WINDOW_SAMPLES = 16_000, 160, 400
#: fields of training and of other tasks, and the scale of embeddings, which transformers never applies
UNREAD_FIELDS = (
    *("use_weighted_layer_sum", "classifier_proj_size", "apply_spec_augment", "median_filter_width"),
    *("mask_time_prob", "mask_time_length", "mask_time_min_masks", "scale_embedding"),
    *("mask_feature_prob", "mask_feature_length", "mask_feature_min_masks"),
)

#: modules of a stack after `encoder.` or `decoder.`; keys have no bias
WHISPER_STACK_MODULES = {
    "position.table": "embed_positions",
    "norm": "layer_norm",
    "layers.*.0.body.project": "layers.*.self_attn.{q_proj,k_proj,v_proj}",
    "layers.*.0.body.project.bias": "layers.*.self_attn.{q_proj,v_proj}.bias",
    "layers.*.0.body.output": "layers.*.self_attn.out_proj",
    "layers.*.0.norm": "layers.*.self_attn_layer_norm",
}
WHISPER_MODULES = {
    "source_embedding.full_rate": "encoder.conv1",
    "source_embedding.halve.0": "encoder.conv2",
    **prefixed("encoder.", WHISPER_STACK_MODULES),
    "encoder.layers.*.1.body.widen": "encoder.layers.*.fc1",
    "encoder.layers.*.1.body.narrow": "encoder.layers.*.fc2",
    "encoder.layers.*.1.norm": "encoder.layers.*.final_layer_norm",
    **prefixed("decoder.", WHISPER_STACK_MODULES),
    "decoder.layers.*.1.body.query": "decoder.layers.*.encoder_attn.q_proj",
    "decoder.layers.*.1.body.project": "decoder.layers.*.encoder_attn.{k_proj,v_proj}",
    "decoder.layers.*.1.body.project.bias": "decoder.layers.*.encoder_attn.v_proj.bias",
    "decoder.layers.*.1.body.output": "decoder.layers.*.encoder_attn.out_proj",
    "decoder.layers.*.1.norm": "decoder.layers.*.encoder_attn_layer_norm",
    "decoder.layers.*.2.body.widen": "decoder.layers.*.fc1",
    "decoder.layers.*.2.body.narrow": "decoder.layers.*.fc2",
    "decoder.layers.*.2.norm": "decoder.layers.*.final_layer_norm",
    "target_embedding.weight": "decoder.embed_tokens.weight",
    "output.weight": OUTPUT_WEIGHT,
}


def _with_zero_key_bias(before: int) -> ReversibleTransform:
    """Return a transform that inserts zeros as the biases of keys, which Whisper's keys do not have.

    Our bias is one vector for queries, keys and values in self-attention, or for keys and values in cross-attention.
    `before` is the number of these parts, all of the same size, before the keys: 1 (queries) or 0. The values follow.
    """

    def insert(bias: Tensor, layer: int) -> Tensor:
        """Insert zero biases of the keys before those of the values; the number of the layer does not matter."""
        size = bias.shape[0] // (before + 1)
        return torch.cat((bias[: before * size], bias.new_zeros(size), bias[before * size :]))

    def remove(bias: Tensor, layer: int) -> Tensor:
        """Remove the biases of the keys, which follow `before` parts; the number of the layer does not matter."""
        size = bias.shape[0] // (before + 2)
        return torch.cat((bias[: before * size], bias[(before + 1) * size :]))

    return ReversibleTransform(insert, remove)


def _convolution_to_linear(weight: Tensor, layer: int) -> Tensor:
    """Write a convolution over three frames, D F 3, as a matrix for three concatenated frames, D 3F.

    F is the number of values of a frame, D that of the outputs. It is the same in every `layer`.
    """
    return weight.permute(0, 2, 1).flatten(1)


def _linear_to_convolution(weight: Tensor, layer: int) -> Tensor:
    """Write a matrix for three concatenated frames, D 3F, as a convolution over three frames, D F 3.

    F is the number of values of a frame, D that of the outputs. It is the same in every `layer`.
    """
    return weight.unflatten(1, (3, -1)).permute(0, 2, 1)


CONVOLUTION = ReversibleTransform(_convolution_to_linear, _linear_to_convolution)


def convert_whisper(config: HFConfig, weights: StoredWeights) -> Conversion:
    """Convert a checkpoint of Whisper: our spec (description) of the model, and where its weights are stored.

    Fields of config.json are read with transformers' defaults; unsupported values (`config.expect`) raise an error.
    """
    config.expect("is_decoder", False)
    config.ignore(*UNREAD_FIELDS)
    dim, vocab_size = config.integer("d_model", 384, alias="hidden_size"), config.integer("vocab_size", 51865)
    tied = config.boolean("tie_word_embeddings", True) and weights.equal("decoder.embed_tokens.weight", OUTPUT_WEIGHT)
    mel_bins, positions = config.integer("num_mel_bins", 80), config.integer("max_source_positions", 1500)
    spec = EncoderDecoder(
        dim,
        0,  # no source vocabulary: the source consists of frames
        vocab_size,
        encoder=_stack(config, "encoder", positions),
        decoder=_stack(config, "decoder", config.integer("max_target_positions", 448)),
        tied_embeddings=tied,
        output_bias=False,
        initialization=Normal(config.number("init_std", 0.02)),
        input=Frames(mel_bins, stride=2, activation="gelu", full_rate_layer=True, projection=False),
    )
    transforms = {
        "source_embedding.full_rate.weight": CONVOLUTION,
        "source_embedding.halve.0.weight": CONVOLUTION,
        "encoder.layers.*.0.body.project.bias": _with_zero_key_bias(before=1),
        "decoder.layers.*.0.body.project.bias": _with_zero_key_bias(before=1),
        "decoder.layers.*.1.body.project.bias": _with_zero_key_bias(before=0),
    }
    unused = (re.escape(OUTPUT_WEIGHT),)
    settings = _feature_settings(config, mel_bins, positions)
    return Conversion(
        "speech", spec, WHISPER_MODULES, _framing(config), transforms, unused=unused, feature_settings=settings
    )


def _stack(config: HFConfig, side: str, max_positions: int) -> Stack:
    """Return the spec of the encoder's or the decoder's layers; `side` is "encoder" or "decoder".

    The positions of both are stored tables; those of the encoder are sinusoids.
    """
    encoder = side == "encoder"
    dropout, attention_dropout = config.number("dropout", 0.0), config.number("attention_dropout", 0.0)
    heads = config.integer(f"{side}_attention_heads", 6, alias="num_attention_heads" if encoder else None)
    depth = config.integer(f"{side}_layers", 4, alias="num_hidden_layers" if encoder else None)
    parts: list[Spec] = [SelfAttention(heads, visibility=Full() if encoder else Causal(), dropout=attention_dropout)]
    if not encoder:
        parts.append(CrossAttention(heads, dropout=attention_dropout))
    activation = config.activation("activation_function", "gelu")
    parts.append(
        FeedForward(
            config.integer(f"{side}_ffn_dim", 1536),
            activation=activation,
            dropout=config.number("activation_dropout", 0.0),
        )
    )
    block = tuple(PreNorm(part, norm=LayerNorm(), dropout=dropout) for part in parts)
    return Stack(block, depth=depth, position=Learned(max_positions), dropout=dropout, norm=LayerNorm())


# ---- the prompt: language, task, no timestamps


def _framing(config: HFConfig) -> Framing:
    """Return the framing of transcripts: BOS, then language, task and "no timestamps" as a prompt.

    They come from `language`, `task` and `no_timestamps_token_id` of generation_config.json, or from its older
    `forced_decoder_ids`. Without a language, a multilingual model recognizes it.
    """
    generation = config.generation
    forced_ids = _forced_tokens(config)
    task_ids, language_ids = generation.get("task_to_id") or {}, _language_ids(config)  # name → token id
    language_codes = None
    if language_ids:
        language_of = {token: language for language, token in language_ids.items()}
        forced_language = next((language_of[token] for token in forced_ids if token in language_of), None)
        default = generation.get("language") or forced_language
        language_codes = LanguageCodes(
            language_ids, source_position="none", target_position="forced_bos", detected=True
        )
        if default is not None:
            language_codes = language_codes.with_default(target=str(default))
    task = generation.get("task") or next((name for name in task_ids if task_ids[name] in forced_ids), "transcribe")
    if task_ids and task not in task_ids:
        raise config.unsupported("task", task, f"the model knows {', '.join(task_ids)}")
    # without names of tasks: the forced tokens as they are, of which None stands for any token
    prompt = [task_ids[task]] if task_ids else [token for token in forced_ids if token is not None]
    prompt = [token for token in prompt if token not in language_ids.values()]  # `language_codes` adds the language
    no_timestamps = generation.get("no_timestamps_token_id")
    if no_timestamps is not None and no_timestamps not in prompt:
        prompt.append(no_timestamps)
    eos = config.token_id("eos_token_id", 50256)
    return Framing(
        pad=config.token_id("pad_token_id", eos),
        bos=config.token_id("decoder_start_token_id", 50257),
        eos=eos,
        source_prefix=(),
        source_suffix=(),
        forced_bos=tuple(prompt),
        suppressed=config.suppressed_tokens(),
        languages=language_codes,
        suppressed_first=tuple(generation.get("begin_suppress_tokens") or ()),  # not right after the prompt
        forced_is_prompt=True,  # language, task … do not count in the length of a transcript
    )


def _forced_tokens(config: HFConfig) -> list[int | None]:
    """Return the tokens of `forced_decoder_ids`, pairs of position and token id, from position 1 on; None: not forced.

    Position 0 is that of BOS.
    """
    pairs = config.generation.get("forced_decoder_ids") or []
    try:
        numbered = [(int(position), None if token is None else int(token)) for position, token in pairs]
    except (TypeError, ValueError):
        raise UserError(
            f"forced_decoder_ids in generation_config.json must be a list of pairs of position and token id, but is "
            f"{pairs!r}: get the file again"
        ) from None
    if [position for position, _ in numbered] != list(range(1, len(numbered) + 1)):
        raise UserError(
            "forced_decoder_ids in generation_config.json must be pairs with the positions 1, 2, … and a token id "
            f"each, but is {pairs!r}: get the file again"
        )
    return [token for _, token in numbered]


def _language_ids(config: HFConfig) -> dict[str, int]:
    """Return the ids of language tokens by code such as en: `lang_to_id` has names such as <|en|>."""
    ids = config.generation.get("lang_to_id") or {}
    if not isinstance(ids, dict) or not all(isinstance(token, int) for token in ids.values()):
        raise UserError(
            f"lang_to_id in generation_config.json must map languages to token ids, but is {ids!r}: get the file again"
        )
    return {name.removeprefix("<|").removesuffix("|>"): token for name, token in ids.items()}


# ---- features


def _feature_settings(config: HFConfig, mel_bins: int, positions: int) -> dict[str, Any]:
    """Return the settings of our section `features`, which say how a recording becomes log-mel frames.

    They come from preprocessor_config.json, or from the field `feature_extractor` of processor_config.json, where newer
    versions of transformers store them; what is missing is that of the published models. The encoder has half as many
    `positions` as a recording has frames, since it halves their number.
    """
    values: dict[str, Any] = {}
    for name, key in (("preprocessor_config.json", None), ("processor_config.json", "feature_extractor")):
        path = config.path.parent / name
        if path.is_file():
            document = read_json_object(path)
            values = document if key is None else document.get(key) or {}
            break
    extractor = HFConfig(values, generation={}, path=config.path.parent / "preprocessor_config.json")
    rate = extractor.integer("sampling_rate", SAMPLE_RATE)  # samples per second
    # in samples: distance between frames, length of a frame
    hop, window = extractor.integer("hop_length", HOP_SAMPLES), extractor.integer("n_fft", WINDOW_SAMPLES)
    extractor.expect("feature_size", mel_bins)
    for name in ("dither", "padding_value"):
        extractor.expect(name, 0.0)
    extractor.expect("do_normalize", False)
    seconds = extractor.number("chunk_length", 2 * positions * hop / rate)
    if round(seconds * rate) // hop != 2 * positions:
        raise UserError(
            f"{config.path} has max_source_positions {positions}, for {2 * positions} frames of sound, but recordings "
            f"of {seconds:g} s (chunk_length) have {round(seconds * rate) // hop} frames: correct chunk_length in "
            f"{extractor.path.name}"
        )
    milliseconds = 1000 / rate  # per sample
    return {
        "spectrum": "whisper",
        "sample_rate": rate,
        "frame_length": window * milliseconds,
        "frame_shift": hop * milliseconds,
        "mel_bins": mel_bins,
        "seconds": seconds,
    }
