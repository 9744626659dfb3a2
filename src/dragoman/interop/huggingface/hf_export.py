"""Export of a run as a checkpoint of Hugging Face's transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch

from dragoman import checkpoint as checkpoints
from dragoman.errors import UserError
from dragoman.interop.export_check import (
    LOGIT_TOLERANCE,
    ExportCheck,
    ExportSamples,
    count_equal_outputs,
    relative_error,
    teacher_forced_logits,
    verification_search,
    with_rounded_weights,
)
from dragoman.interop.exporting import TORCH_TYPES, ExportOptions, WrittenExport
from dragoman.interop.huggingface.export_classes import EXPORT_CLASSES, ExportPlan, plan_export
from dragoman.interop.huggingface.export_generation import generation_fields, suppressed_tokens
from dragoman.interop.huggingface.export_tokenizer import check_tokenizer, write_tokenizer
from dragoman.interop.huggingface.export_weights import write_weights
from dragoman.interop.huggingface.hf_config import CONFIG_JSON, GENERATION_CONFIG_JSON
from dragoman.interop.huggingface.importing import NoTokenizer
from dragoman.interop.huggingface.model_card import model_card
from dragoman.interop.huggingface.obstacles import not_exportable
from dragoman.run import Run

MIN_EXPORTED_POSITIONS = 1024  # rows of the position table that transformers stores where our model computes positions

#: largest relative error of logits by number format: a factor that moves into a weight is rounded with the weight
ROUNDING_TOLERANCES = {"float32": LOGIT_TOLERANCE, "float16": 1e-2, "bfloat16": 5e-2}


class HuggingFaceExporter:
    """Writes a folder that `AutoModel` and `AutoTokenizer` open; see `Exporter`."""

    library: ClassVar[str] = "transformers"
    extra: ClassVar[str] = "huggingface"
    dtypes: ClassVar[tuple[str, ...]] = tuple(TORCH_TYPES)
    writes_model_card: ClassVar[bool] = True

    def __init__(self, options: ExportOptions) -> None:
        """Keep the options of the export: number format of the weights, and licence for the model card."""
        self.options = options

    def write(self, run: Run, folder: Path) -> WrittenExport:
        """Write config.json, weights, tokenizer, generation_config.json and model card (README.md) into a folder."""
        plan = plan_run(run)
        _write_json(folder / CONFIG_JSON, {**plan.fields, "dtype": self.options.dtype})
        write_weights(plan, folder, TORCH_TYPES[self.options.dtype])
        notes = [] if has_no_tokenizer(run) else write_tokenizer(run, folder, exported_positions(run))
        if run.model.can_generate:
            generation, missing = generation_fields(run)
            if plan.fields.get("use_cache") is False:  # `generate` reads it from generation_config.json
                generation["use_cache"] = False
            _write_json(folder / GENERATION_CONFIG_JSON, generation)
            notes += missing
        if plan.export_class.name in ("BertModel", "RobertaModel"):
            notes.append("the run has no pooler: transformers initializes one at random, do not use its output")
        card = model_card(run, plan, self.options, notes)
        (folder / "README.md").write_text(card, encoding="utf-8")
        return WrittenExport(plan.export_class.name, tuple(notes))

    def verify(self, run: Run, folder: Path, samples: ExportSamples) -> ExportCheck:
        """Compare teacher-forced logits and beam outputs with those of transformers.

        Weights that were rounded are compared with the run's weights rounded in the same way, in float32.
        """
        with _quiet_transformers():
            return self._compare(with_rounded_weights(run, TORCH_TYPES[self.options.dtype]), folder, samples)

    def _compare(self, run: Run, folder: Path, samples: ExportSamples) -> ExportCheck:
        """Compare tokenizer, logits and beam outputs of the run with those of the export in the folder.

        Beam outputs are compared if the model translates: a language model has no sources.
        """
        import transformers

        model = _open_model(folder, run.device)
        if not has_no_tokenizer(run):
            check_tokenizer(run, folder, [text for text in samples.sources if isinstance(text, str)])
        ours = teacher_forced_logits(run, samples)
        if getattr(run.spec, "one_label_per_sequence", False):  # its logits are those of the first token
            ours = [logits[0, :, None] for logits in ours]  # T V → V 1, as transformers' below
        theirs = [_logits(run, model, source, target) for source, target in zip(samples.source_ids, samples.target_ids)]
        error = relative_error(ours, theirs)
        equal_outputs = None
        if run.model.can_generate and not run.is_language_model:
            equal_outputs = count_equal_outputs(run, samples, _generate(run, model, samples.source_ids))
        return ExportCheck(
            f"transformers {transformers.__version__}",
            len(samples),
            max_relative_error=error,
            tolerance=ROUNDING_TOLERANCES[self.options.dtype],
            equal_outputs=equal_outputs,
            outputs_must_agree=self.options.dtype == "float32",
        )


def _write_json(path: Path, fields: dict[str, Any]) -> None:
    """Write a JSON object to a file."""
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def plan_run(run: Run) -> ExportPlan:
    """Return how the model of a run is written; raise a UserError if no class of transformers can hold it.

    Of several classes that can, the one that the run was imported from, or that of its system, is preferred.
    """
    model: Any = getattr(run.model, "main_encoder", run.model)  # of ELECTRA's two encoders only the discriminator
    plan = plan_export(
        model.spec,
        checkpoints.named_weights(model),
        run.framing,
        max_positions=exported_positions(run),
        preferred=preferred_class(run),
        labels=label_names(run, model.spec),
    )
    if plan is None or plan.obstacles:
        raise not_exportable(run, plan)
    return plan


def exported_positions(run: Run) -> int:
    """Return how many positions the exported model has if positions are computed, not learned."""
    return max(MIN_EXPORTED_POSITIONS, run.max_source_length)


def label_names(run: Run, spec: Any) -> tuple[str, ...]:
    """Return the names of a classifier's labels; none for a model with another output layer, or a single output."""
    count = getattr(spec, "num_labels", None) or 0
    if count < 2:
        return ()
    try:
        return tuple(run.target_tokenizer.tokens(range(count)))
    except UserError:  # a checkpoint without tokenizer
        return tuple(f"LABEL_{number}" for number in range(count))


def has_no_tokenizer(run: Run) -> bool:
    """Whether the run is a checkpoint that was opened without tokenizer files."""
    return isinstance(run.source_tokenizer, NoTokenizer)


def preferred_class(run: Run) -> str:
    """Return the name of the class of transformers that a run was imported from, or else the name of its system.

    It is "" if the run has neither. If a checkpoint of transformers was opened without an import, `run.checkpoint` is
    the name of the class. An import stores it as "architecture" in the checkpoint of the run.
    """
    candidates = [run.checkpoint]
    if checkpoints.is_complete(run.checkpoint_folders[0]):
        candidates.append(str(checkpoints.read_values(run.checkpoint_folders[0]).get("architecture")))
    class_names = {export_class.name for export_class in EXPORT_CLASSES}
    return next((name for name in candidates if name in class_names), run.config.system.name or "")


def _open_model(folder: Path, device: torch.device) -> Any:
    """Open an export with transformers, as the class that its config.json names, in float32.

    Raise a UserError if weights are missing, except those of a pooler, or are not used.
    """
    import transformers

    architecture = json.loads((folder / CONFIG_JSON).read_text(encoding="utf-8"))["architectures"][0]
    model, report = getattr(transformers, architecture).from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    # a pooler, which reads the first token for other tasks, is no part of our model
    missing = [name for name in sorted(report["missing_keys"]) if not name.startswith("pooler.")]
    problems = {"missing": missing} if missing else {}
    problems |= {"not used": sorted(report["unexpected_keys"])} if report["unexpected_keys"] else {}
    if problems:
        raise UserError(
            "the export was not kept, because its weights are not those that the model class of transformers "
            f"expects ({problems}): please report this"
        )
    return model.eval().to(device)


@torch.inference_mode()
def _logits(run: Run, model: Any, source: list[int], target: list[int]) -> torch.Tensor:
    """Return the logits of transformers for one pair, T V: T target positions, vocabulary of size V.

    Without target (an encoder), T are the source positions and V the labels. One label per text gives V 1.
    """

    def row(ids: list[int]) -> torch.Tensor:
        """Return token ids as a batch of one."""
        return torch.tensor([ids], device=run.device)

    if not target:
        output = model(input_ids=row(source))[0][0]
    elif run.model.is_decoder_only:
        output = model(input_ids=row([*source, *target])).logits[0, len(source) :]
    else:
        output = model(input_ids=row(source), decoder_input_ids=row(target)).logits[0]
    # a single axis: one label per text (V), or one logit per token (T)
    return output if output.dim() == 2 else output[..., None]


def _generate(run: Run, model: Any, sources: Sequence[list[int]]) -> list[list[int]]:
    """Return the best hypothesis that transformers' beam search finds for each source, with EOS if it was generated."""
    search, framing, is_decoder_only = verification_search(run), run.framing, run.model.is_decoder_only
    # a decoder-only model continues the source and the target's BOS
    prompts = [[*source, framing.bos] if is_decoder_only else source for source in sources]
    width = max(map(len, prompts))
    rows, masks = [], []  # padded token ids, and 1 for tokens that are no padding
    for prompt in prompts:
        padding = [framing.pad] * (width - len(prompt))
        if is_decoder_only:  # left, so that the generated tokens follow the prompt
            rows.append([*padding, *prompt])
            masks.append([0] * len(padding) + [1] * len(prompt))
        else:
            rows.append([*prompt, *padding])
            masks.append([1] * len(prompt) + [0] * len(padding))
    output = model.generate(
        input_ids=torch.tensor(rows, device=run.device),
        attention_mask=torch.tensor(masks, device=run.device),
        num_beams=search.size,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping if search.size > 1 else False,  # not a setting of greedy search
        max_new_tokens=search.length_limit.max,
        min_new_tokens=0,
        do_sample=False,
        pad_token_id=framing.pad,
        bad_words_ids=suppressed_tokens(run) or None,
        forced_bos_token_id=framing.forced_bos[0] if framing.forced_bos else None,
        forced_eos_token_id=framing.eos if framing.force_eos_at_limit else None,
        no_repeat_ngram_size=0,
        **({} if is_decoder_only else {"decoder_start_token_id": framing.bos}),
    ).tolist()
    # without the prompt of a decoder, or the BOS of an encoder–decoder's target
    generated = [tokens[width if is_decoder_only else 1 :] for tokens in output]
    limit = search.length_limit.max  # finished hypotheses are padded after EOS, others end at the limit
    return [ids[: ids.index(framing.eos) + 1] if framing.eos in ids else ids[:limit] for ids in generated]


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Hide warnings and progress bars of transformers, whose problems are reported as errors."""
    import transformers

    logging = transformers.utils.logging
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
