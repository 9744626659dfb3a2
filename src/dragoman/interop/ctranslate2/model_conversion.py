"""From a run to CTranslate2's specification of a whole model: weights, vocabularies and special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctranslate2 import specs

from dragoman.interop.ctranslate2.stack_conversion import (
    convert_decoder,
    convert_encoder,
    float32_copy,
    norm_epsilon,
    set_linear,
)
from dragoman.interop.ctranslate2.transformer_layers import EXPORT_TO_ONNX, obstacle
from dragoman.models import Model
from dragoman.parts.embedding import OutputLayer
from dragoman.run import Run
from dragoman.text import Tokenizer

MIN_POSITIONS = 2048  # number of stored positions, unless the run reads or writes longer texts


def convert_model(run: Run) -> specs.ModelSpec:
    """Return CTranslate2's specification of the run's model; raise an error if CTranslate2 cannot compute it."""
    model = run.model
    _check_model(model)
    if not model.can_generate:
        return _encoder_model(run)
    return _language_model(run) if model.is_decoder_only else _translation_model(run)


def _check_model(model: Model) -> None:
    """Raise an error if CTranslate2 cannot compute something outside the layers, such as the output layer."""
    spec: Any = model.spec
    if model.source_features is not None:
        raise obstacle("sources that are images or sound", EXPORT_TO_ONNX)
    if model.predicts_masks:
        raise obstacle("text that is generated mask by mask", f"{EXPORT_TO_ONNX}, or train the system unilm or gpt")
    if model.output.reads_log_probs:
        raise obstacle(
            "hard attention, a mixture over alignments", f"{EXPORT_TO_ONNX}, or train the system transformer"
        )
    if getattr(spec, "copying", None) is not None:
        raise obstacle("an output layer that copies from the source", "train with system.settings.copying=false")
    if getattr(spec, "source_extension", None) is not None:
        raise obstacle("an encoder that lengthens its input", f"{EXPORT_TO_ONNX}, or train the system transformer")
    if getattr(spec, "feature_marking", None) is not None:
        raise obstacle("word features (symbols before a source) with positions of their own", EXPORT_TO_ONNX)
    if model.can_generate and spec.transform is not None:  # the output layer of an encoder is not exported at all
        raise obstacle("a layer before the output layer (transform)", EXPORT_TO_ONNX)


def _translation_model(run: Run) -> specs.TransformerSpec:
    """Return the specification of an encoder–decoder."""
    model: Any = run.model
    spec, framing = model.spec, run.framing
    encoder = convert_encoder(spec.encoder, model.encoder, _max_positions(run))
    encoder.embeddings[0].weight = float32_copy(model.source_embedding.weight)
    encoder.scale_embeddings = model.source_embedding.scale
    decoder = convert_decoder(spec.decoder, model.decoder, _max_positions(run), with_encoder=True)
    _copy_embeddings_and_output(decoder, model)
    converted = specs.TransformerSpec(encoder, decoder)
    source, target = vocabulary(run.source_tokenizer, spec.source_vocab_size), target_vocabulary(run)
    converted.register_source_vocabulary(source)
    converted.register_target_vocabulary(target)
    config = converted.config
    config.bos_token = config.decoder_start_token = target[framing.bos]
    config.eos_token = target[framing.eos]
    config.unk_token = _unknown_token(run.target_tokenizer, target)
    config.layer_norm_epsilon = norm_epsilon(spec)
    return converted


def _language_model(run: Run) -> specs.TransformerDecoderModelSpec:
    """Return the specification of a decoder-only model."""
    model: Any = run.model
    decoder = convert_decoder(model.spec.decoder, model.decoder, _max_positions(run), with_encoder=False)
    _copy_embeddings_and_output(decoder, model)
    converted = specs.TransformerDecoderModelSpec(decoder)
    target = target_vocabulary(run)
    converted.register_vocabulary(target)
    config = converted.config
    # of the whole sequence; `framing.bos` may be the separator between source and target
    first_token = run.framing.source_prefix[0] if run.framing.source_prefix else run.framing.bos
    config.bos_token = target[first_token]
    config.eos_token = target[run.framing.eos]
    config.unk_token = _unknown_token(run.target_tokenizer, target)
    config.layer_norm_epsilon = norm_epsilon(model.spec)
    return converted


def _encoder_model(run: Run) -> specs.TransformerEncoderModelSpec:
    """Return the specification of an encoder-only model without its output layer, which CTranslate2 does not have."""
    model: Any = run.model.main_encoder  # of ELECTRA's two encoders, the discriminator
    spec, type_embedding = model.spec, model.types  # types of tokens, such as first and second sentence; None: no types
    options: dict[str, Any] = {}
    if type_embedding is not None:  # a second embedding, which is added to that of tokens
        options = {"num_source_embeddings": 2, "embeddings_merge": specs.EmbeddingsMerge.ADD}
    encoder = convert_encoder(spec.encoder, model.encoder, _max_positions(run), **options)
    encoder.embeddings[0].weight = float32_copy(model.source_embedding.weight)
    encoder.scale_embeddings = model.source_embedding.scale
    if type_embedding is not None:  # CTranslate2 scales these embeddings too, our model does not
        encoder.embeddings[1].weight = float32_copy(type_embedding.weight) / model.source_embedding.scale
    converted = specs.TransformerEncoderModelSpec(encoder, pooling_layer=model.pooler is not None)
    if model.pooler is not None:
        set_linear(converted.pooler_dense, model.pooler.dense)
    tokens = vocabulary(run.source_tokenizer, spec.vocab_size)
    converted.register_vocabulary(tokens)
    config = converted.config
    config.bos_token = config.eos_token = ""  # an encoder generates nothing
    config.unk_token = _unknown_token(run.source_tokenizer, tokens)
    config.layer_norm_epsilon = norm_epsilon(spec.encoder)
    return converted


def _copy_embeddings_and_output(decoder: specs.TransformerDecoderSpec, model: Any) -> None:
    """Copy the embedding table and the output layer of our `model` into CTranslate2's `decoder`."""
    output: OutputLayer = model.output
    decoder.embeddings.weight = float32_copy(model.target_embedding.weight)
    decoder.scale_embeddings = model.target_embedding.scale
    set_linear(decoder.projection, output)
    if output.scale != 1.0:  # of the vectors that the output layer reads, such as 1/√D in T5
        decoder.scale_outputs = output.scale


def _max_positions(run: Run) -> int:
    """Return the number of positions to store if the model has no limit: enough for what the run reads or writes."""
    return max(MIN_POSITIONS, run.max_source_length, run.length_limit.max or 0)


def target_vocabulary(run: Run) -> list[str]:
    """Return the names of the target tokens, one for each row of the output layer; they differ from each other."""
    return vocabulary(run.target_tokenizer, run.model.vocab_size)


def vocabulary(tokenizer: Tokenizer, size: int) -> list[str]:
    """Return the names of the tokens 0 to `size` - 1, which must differ from each other in CTranslate2.

    The id of a token is appended to its name if a token with a lower id has the same name. A model may have more tokens
    than its tokenizer, such as the sentinels of span corruption.
    """
    names = tokenizer.vocabulary()[:size]
    names += [f"<unused:{token_id}>" for token_id in range(len(names), size)]
    first_ids: dict[str, int] = {}  # lowest id of each name
    for token_id, name in enumerate(names):
        if first_ids.setdefault(name, token_id) != token_id:
            names[token_id] = f"{name}<{token_id}>"
    return names


def _unknown_token(tokenizer: Tokenizer, names: Sequence[str]) -> str:
    """Return the name of the unknown token; "" if there is none."""
    return names[tokenizer.unk] if 0 <= tokenizer.unk < len(names) else ""
