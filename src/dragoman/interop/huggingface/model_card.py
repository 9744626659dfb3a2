"""README.md of an export: the model card with data, results, settings, licence and a program that uses the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dragoman import __version__, config
from dragoman.errors import UserError
from dragoman.interop.deployment_files import render_template
from dragoman.interop.export_check import GENERIC_SENTENCES, sample_texts
from dragoman.interop.exporting import ExportOptions
from dragoman.interop.huggingface.export_classes import ExportPlan
from dragoman.models import count_parameters
from dragoman.run import Run
from dragoman.text.hf_tokenizer_files import TARGET_TOKENIZER_FOLDER

#: names in metrics.jsonl that describe a validation itself
NOT_METRICS = ("kind", "epoch", "step", "tokens", "sentences")
#: sections of the configuration that say how a model was trained
CARD_SECTIONS = ("system", "objective", "text", "training", "search")


def model_card(run: Run, plan: ExportPlan, options: ExportOptions, notes: list[str]) -> str:
    """Return the text of README.md: a model card with metadata, an example program, data, results and settings.

    `plan` says how the model is written, `notes` are sentences on what the user of the export should know.
    """
    class_name, system = plan.export_class.name, run.config.system.name or "imported model"
    metadata = {"library_name": "transformers", "pipeline_tag": _pipeline_tag(run), "tags": ["dragoman", system]}
    if options.license:
        metadata["license"] = options.license
    if languages := _languages(run):
        metadata["language"] = languages
    return render_template(
        "model_card.md.jinja",
        metadata=metadata,
        title=run.folder.name,
        summary=f"A model of the system {system}, trained or fine-tuned with Dragoman {__version__} and exported to "
        f"transformers.",
        program=example_program(run, plan),
        notes=notes,
        class_name=class_name,
        architecture=run.spec.architecture,
        system=system,
        parameters=count_parameters(plan.model.spec),
        vocabulary=f"{plan.fields['vocab_size']:,} tokens",
        dtype=options.dtype,
        data=_training_data(run),
        results=_results(run),
        checkpoint=run.checkpoint,
        settings=_settings(run),
        license=options.license,
    )


def _pipeline_tag(run: Run) -> str:
    """Return the model's task, such as "translation", as the Hugging Face hub calls it."""
    if run.model.can_generate:
        return "text-generation" if run.model.is_decoder_only else "translation"
    return "token-classification" if run.model.num_labels else "fill-mask"


def _languages(run: Run) -> list[str]:
    """Return the codes of the languages of the run's training data, without repetitions; none if they are not known."""
    data = run.config.data
    return [name for name in dict.fromkeys((data.source_language, data.target_language)) if name]


def _training_data(run: Run) -> list[str]:
    """Return lines about the training data: the names of its files, without their folders."""
    data = run.config.data
    lines = [
        f"{name}: {', '.join(f'`{Path(file).name}`' for file in files)}"
        for name, files in (
            ("training sources", data.source),
            ("training targets", data.target),
            ("validation sources", data.valid_source),
            ("validation targets", data.valid_target),
        )
        if files
    ]
    start = run.config.training.start_from
    lines += [f"fine-tuned from `{Path(start).name}`"] if start else []
    return lines or ["imported: the training data is not known to Dragoman"]


def _results(run: Run) -> dict[str, str]:
    """Return the formatted results of the last validation up to the exported checkpoint, by metric; {} for none."""
    last_step = int(run.checkpoint) if run.checkpoint.isdecimal() else None  # a checkpoint is named by its step
    validation: dict[str, Any] = {}
    for record in run.metrics():
        if record.get("kind") == "valid" and (last_step is None or int(record.get("step", 0)) <= last_step):
            validation = record
    return {
        name.replace("_", " "): f"{value:.4g}"
        for name, value in validation.items()
        # without durations
        if isinstance(value, int | float) and name not in NOT_METRICS and not name.endswith("seconds")
    }


def _settings(run: Run) -> str:
    """Return the settings that describe the model and its training (`CARD_SECTIONS`) as YAML.

    Settings that are empty or contain a slash, as paths of files do, are left out.
    """
    values = yaml.safe_load(config.to_yaml(run.config))
    shown = {
        section: {
            name: value
            for name, value in values[section].items()
            if value not in (None, "", [], {}) and not (isinstance(value, str) and "/" in value)
        }
        for section in CARD_SECTIONS
    }
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)


def example_program(run: Run, plan: ExportPlan) -> str:
    """Return a short program that uses the export with transformers."""
    class_name, text = plan.export_class.name, _example_text(run)
    lines = [f"from transformers import AutoTokenizer, {class_name}", ""]
    lines += ['folder = "."  # this folder', "tokenizer = AutoTokenizer.from_pretrained(folder)"]
    decoder = "tokenizer"  # name of the variable whose tokenizer decodes the output
    # only learned tokenizers (not imported ones) of different vocabularies are written to two folders
    if (
        run.model.can_generate
        and run.target_tokenizer is not run.source_tokenizer
        and run.source_tokenizer.is_library_tokenizer
    ):
        decoder = "target_tokenizer"
        lines.append(f'{decoder} = AutoTokenizer.from_pretrained(f"{{folder}}/{TARGET_TOKENIZER_FOLDER}")')
    lines.append(f"model = {class_name}.from_pretrained(folder).eval()")
    lines.append(f'inputs = tokenizer([{text!r}], padding=True, return_tensors="pt")')
    if not run.model.can_generate:
        lines += ["outputs = model(**inputs)[0]", "print(outputs.shape)"]
        return "\n".join(lines) + "\n"
    lines.append("outputs = model.generate(**inputs)")
    if run.model.is_decoder_only and not run.is_language_model:
        lines.append("outputs = outputs[:, inputs.input_ids.shape[1] :]")  # without the prompt
    lines.append(f"print({decoder}.batch_decode(outputs, skip_special_tokens=True))")
    return "\n".join(lines) + "\n"


def _example_text(run: Run) -> str:
    """Return a source text of the validation set, or a generic sentence; the latter also if sources are no texts."""
    try:
        sources, _tags, _references = sample_texts(run, sentences=None)
    except UserError:  # a checkpoint without tokenizer
        return GENERIC_SENTENCES[0]
    return sources[0] if isinstance(sources[0], str) else GENERIC_SENTENCES[0]
