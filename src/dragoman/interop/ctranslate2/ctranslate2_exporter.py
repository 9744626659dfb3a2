"""Writes runs as models of CTranslate2, and verifies them with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.interop.deployment_files import deployment_settings, max_target_tokens, write_deployment_files
from dragoman.interop.export_check import (
    LOGIT_TOLERANCE,
    ExportCheck,
    ExportSamples,
    count_equal_outputs,
    relative_error,
    teacher_forced_logits,
    verification_search,
)
from dragoman.interop.exporting import ExportOptions, WrittenExport, is_installed
from dragoman.parts.feedforward import ACTIVATIONS
from dragoman.parts.mixer import SequenceLayout
from dragoman.run import Run
from dragoman.search import Beam

#: largest error of scores or logits, relative to the largest logit, by number format; int8 rounds weights and
#: activations to 1/127 of the largest in a row
CT2_TOLERANCES = {
    "float32": LOGIT_TOLERANCE,
    "float16": 1e-2,
    "bfloat16": 5e-2,
    "int16": 2e-2,
    "int8": 0.3,
    "int8_float32": 0.3,
    "int8_float16": 0.3,
    "int8_bfloat16": 0.3,
}
#: weights of the output layers that the example program computes
OUTPUT_WEIGHTS = {"weight", "bias", "transform.dense.weight", "transform.dense.bias"}
LENGTH_OPTIONS = ("min_decoding_length", "max_decoding_length")  # of translate_batch
#: how many times its beam size a search finishes hypotheses before it stops, where ours stops by an exact rule
EXACT_PATIENCE = 2


class CTranslate2Exporter:
    """Translators, language models and encoders in the format of CTranslate2; see `model_conversion`."""

    library: ClassVar[str] = "ctranslate2"
    extra: ClassVar[str] = "ctranslate2"
    dtypes: ClassVar[tuple[str, ...]] = tuple(CT2_TOLERANCES)
    writes_model_card: ClassVar[bool] = False

    def __init__(self, options: ExportOptions) -> None:
        """Keep the number format of the weights; raise an error if CTranslate2, which converts them, is missing."""
        if not is_installed(self.library):
            raise UserError(
                "an export to CTranslate2 needs the package ctranslate2: install it with pip install "
                "'dragoman[ctranslate2]'"
            )
        self.dtype = options.dtype

    def write(self, run: Run, folder: Path) -> WrittenExport:
        """Convert the weights, and write the model with its vocabularies, tokenizers, settings and an example."""
        from dragoman.interop.ctranslate2.model_conversion import convert_model

        converted = convert_model(run)
        converted.validate()
        converted.optimize(self.dtype)
        converted.save(str(folder))
        if not run.model.can_generate:
            return self._write_encoder_files(run, folder)
        vocabularies = sorted(path.name for path in folder.glob("*vocabulary.json"))  # shared, or source and target
        # `options` are passed to translate_batch or generate_batch by the example program
        settings = deployment_settings(run, "CTranslate2") | {"options": generation_options(run)}
        files = {"model.bin, config.json": f"the model, with {self.dtype} weights"}
        files[", ".join(vocabularies)] = "the tokens"
        if run.model.is_decoder_only:
            if not run.is_language_model:  # the prompt is the source and the target's BOS, as one sequence
                settings["source_suffix"].append(run.framing.bos)
            write_deployment_files(run, folder, settings, "generate_with_ctranslate2.py", files)
            return WrittenExport("CTranslate2 Generator", _notes(run))
        settings["vocabularies"] = [vocabularies[0], vocabularies[-1]]  # of source and target, which may share one
        write_deployment_files(run, folder, settings, "translate_with_ctranslate2.py", files)
        return WrittenExport("CTranslate2 Translator", _notes(run))

    def _write_encoder_files(self, run: Run, folder: Path) -> WrittenExport:
        """Write vocabulary, tokenizer, settings and an example program that uses the encoder.

        CTranslate2 computes no output layer of an encoder. If it predicts labels and is simple enough for the example
        program (a linear layer, at most after a dense layer with tanh), its weights are written to a file of their own.
        """
        files = {"model.bin, config.json": f"the encoder, with {self.dtype} weights", "vocabulary.json": "the tokens"}
        note = "CTranslate2 computes hidden states, not the output layer"
        output = run.model.output
        weights = {name: value.detach().float().cpu() for name, value in output.named_parameters()}
        has_output_layer = run.model.num_labels > 0 and weights.keys() <= OUTPUT_WEIGHTS and is_tanh_or_linear(output)
        if has_output_layer:
            save_file(weights, folder / "output_layer.safetensors")
            files["output_layer.safetensors"] = "the output layer, which the program below computes"
            note = f"{note}, whose weights are in output_layer.safetensors"
        settings = deployment_settings(run, "CTranslate2")
        values = {"has_output_layer": has_output_layer, "output_weights": weights}
        write_deployment_files(run, folder, settings, "encode_with_ctranslate2.py", files, **values)
        return WrittenExport("CTranslate2 Encoder", (note,))

    def verify(self, run: Run, folder: Path, samples: ExportSamples) -> ExportCheck:
        """Compare scores, logits or hidden states of given sentences, and what a beam search finds.

        No tokens are suppressed in these searches, since the scores would differ: CTranslate2 removes such tokens
        before the softmax, we do after it. Nor is EOS forced at the length limit, which CTranslate2 cannot do.
        """
        import ctranslate2

        run = copy(run)
        run.special_tokens = replace(run.special_tokens, suppressed=(), force_eos_at_limit=False)
        ctranslate2.set_log_level(logging.ERROR)  # no warning that a CPU computes float16 weights in float32
        with torch.inference_mode():
            outputs: Sequence[list[int]] | None = None  # token ids that a beam search finds
            if not run.model.can_generate:
                quantity, error = "hidden states", _compare_encoder(run, ctranslate2.Encoder(str(folder)), samples)
            elif run.model.is_decoder_only:
                quantity = "logits"
                error, outputs = _compare_generator(run, ctranslate2.Generator(str(folder)), samples)
            else:
                quantity = "scores"
                error, outputs = _compare_translator(run, ctranslate2.Translator(str(folder)), samples)
        return ExportCheck(
            f"CTranslate2 {ctranslate2.__version__}",
            len(samples),
            max_relative_error=error,
            tolerance=CT2_TOLERANCES[self.dtype],
            equal_outputs=None if outputs is None else count_equal_outputs(run, samples, outputs, _search(run)),
            quantity=quantity,
            outputs_must_agree=self.dtype == "float32",
        )


def is_tanh_or_linear(output: nn.Module) -> bool:
    """Whether the module before the linear output layer (`transform`) has tanh as activation, or has none."""
    tanh = ACTIVATIONS["tanh"]
    return getattr(output.transform, "activation", tanh) is tanh  # nn.Identity and nn.Linear have no activation


def generation_options(run: Run) -> dict[str, Any]:
    """Return the options of CTranslate2's `translate_batch` or `generate_batch` that are closest to the run's search.

    A language model samples, as `dragoman generate` does. `suppress_sequences` are sequences of one token each.
    """
    target_names = _target_names(run)
    # a model may have fewer output tokens than there are special tokens
    suppressed = [[target_names[token]] for token in run.framing.suppressed if token < run.model.vocab_size]
    if run.is_language_model:
        return {"sampling_topk": 0, "sampling_topp": 0.95, "max_length": 50, "suppress_sequences": suppressed}
    beam = run.beam_config()
    # names of two options, which differ between `generate_batch` and `translate_batch`
    min_option, max_option = ("min_length", "max_length") if run.model.is_decoder_only else LENGTH_OPTIONS
    options: dict[str, Any] = {
        "beam_size": beam.size,
        # our rules other than `early_stopping=True` search on until no hypothesis can be improved; CTranslate2 comes
        # close to that if it waits for more finished hypotheses
        "patience": 1 if beam.early_stopping is True else EXACT_PATIENCE,
        "length_penalty": beam.length_penalty,
        "suppress_sequences": suppressed,
        min_option: run.length_limit.min or 0,
        max_option: max_target_tokens(run),
    }
    if beam.no_repeat_ngram_size:
        options["no_repeat_ngram_size"] = beam.no_repeat_ngram_size
    if beam.coverage_penalty and not run.model.is_decoder_only:  # `generate_batch` has no such option
        options["coverage_penalty"] = beam.coverage_penalty
    return options


def _notes(run: Run) -> tuple[str, ...]:
    """Return sentences for the user on what CTranslate2's search does differently from the run's."""
    if run.is_language_model:  # it samples, so that scores and sources play no role
        return ()
    beam, notes = run.beam_config(), []
    if beam.length_normalization != "power" and beam.length_penalty:
        notes.append("CTranslate2 divides scores by length^α, not by the GNMT length penalty")
    if run.source_tokenizer.features:  # symbols such as that of a domain, which stand before a source
        notes.append("the program does not encode features of sources: put their token ids before those of the text")
    return tuple(notes)


def _target_names(run: Run) -> list[str]:
    """Return the name of each target token in CTranslate2's vocabulary."""
    from dragoman.interop.ctranslate2.model_conversion import target_vocabulary

    return target_vocabulary(run)


def _compare_translator(run: Run, translator: Any, samples: ExportSamples) -> tuple[float, Sequence[list[int]]]:
    """Compare log p of the target tokens of each pair, given the source and the earlier target tokens.

    Returns the largest relative error, and the token ids that a beam search of CTranslate2 finds for each source.
    """
    from dragoman.interop.ctranslate2.model_conversion import vocabulary

    framing, target_names = run.framing, _target_names(run)
    source_embeddings = run.model.embedding_tables[0]
    assert source_embeddings is not None  # CTranslate2 has no models of images or sound
    source_names = vocabulary(run.source_tokenizer, len(source_embeddings.weight))
    sources = [[source_names[token] for token in ids] for ids in samples.source_ids]
    targets = [[*ids[1:], framing.eos] for ids in samples.target_ids]  # `target_ids` have BOS, but no EOS
    named_targets = [[target_names[token] for token in ids[:-1]] for ids in targets]  # CTranslate2 adds EOS
    scores = [result.log_probs for result in translator.score_batch(sources, named_targets)]
    errors = []
    for logits, target, log_probs in zip(teacher_forced_logits(run, samples), targets, scores, strict=True):
        ours = logits.log_softmax(-1).gather(1, torch.tensor(target, device=logits.device)[:, None])[:, 0]
        # relative to the logits: log p of a target that is almost certain may be arbitrarily small
        errors.append((ours.cpu() - torch.tensor(log_probs)).abs().max() / logits.abs().max().cpu())
    forced_tokens = [target_names[token] for token in framing.forced_bos]  # that follow BOS in every target
    limit = _beam_limit(run)
    results = translator.translate_batch(
        sources,
        target_prefix=[forced_tokens] * len(sources),
        return_end_token=True,
        min_decoding_length=0,
        max_decoding_length=limit,
        **_beam_options(run, limit),
    )
    token_ids = {token: token_id for token_id, token in enumerate(target_names)}
    outputs = [[token_ids[token] for token in result.hypotheses[0]] for result in results]
    return max(float(error.nan_to_num(nan=torch.inf)) for error in errors), outputs


def _compare_generator(run: Run, generator: Any, samples: ExportSamples) -> tuple[float, Sequence[list[int]] | None]:
    """Compare the logits of each sequence of a decoder-only model.

    Returns the largest relative error, and the token ids that a beam search of CTranslate2 finds after each source
    (None for a language model, which has no sources).
    """
    sequences = [[*source, *target] for source, target in zip(samples.source_ids, samples.target_ids, strict=True)]
    theirs = []
    for sequence, target in zip(sequences, samples.target_ids, strict=True):
        logits = np.array(generator.forward_batch([sequence]))[0]
        theirs.append(logits[len(sequence) - len(target) :])  # at the positions of the target
    error = relative_error(teacher_forced_logits(run, samples), theirs)
    if run.is_language_model:
        return error, None
    names, limit = _target_names(run), _beam_limit(run)
    prompts = [[names[token] for token in (*ids, run.framing.bos)] for ids in samples.source_ids]
    results = generator.generate_batch(
        prompts,
        include_prompt_in_result=False,
        return_end_token=True,
        max_length=limit,
        **_beam_options(run, limit),
    )
    return error, [list(result.sequences_ids[0]) for result in results]


def _search(run: Run) -> Beam:
    """Return the beam search whose outputs are compared: it goes on to the length limit, as `_beam_options` demand."""
    return replace(verification_search(run), early_stopping="never")


def _beam_limit(run: Run) -> int:
    """Return the maximum target length, in tokens, of the searches whose outputs are compared."""
    limit = _search(run).length_limit.max
    assert limit is not None
    return limit


def _beam_options(run: Run, limit: int) -> dict[str, Any]:
    """Return the options of a beam search that continues to the length limit, `limit` tokens.

    It finds what our exact stopping rule finds. CTranslate2 stops earlier after `patience` × beam size finished
    hypotheses, which is never if `patience` is `limit`: at most as many hypotheses as the beam size finish in a step.
    """
    search = _search(run)
    return {"beam_size": search.size, "length_penalty": search.length_penalty, "patience": limit}


def _compare_encoder(run: Run, encoder: Any, samples: ExportSamples) -> float:
    """Compare the hidden states of each sample; return the largest relative error."""
    ours: list[Tensor] = []
    for ids in samples.source_ids:
        source, lengths = run.pad_batch([ids])
        layout = SequenceLayout.padded(len(ids), lengths)
        # all models have the same interface, with a target, which is empty for an encoder
        no_target, no_target_layout = source[:, :0], SequenceLayout.padded(0, torch.zeros_like(lengths))
        features = run.model.forward_features(source, layout, no_target, no_target_layout)
        ours.append(features.output[0])
    theirs = [np.array(encoder.forward_batch([ids]).last_hidden_state)[0] for ids in samples.source_ids]
    return relative_error(ours, theirs)
