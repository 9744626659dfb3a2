"""Export of a run to the format of another library.

An exporter writes the files of its library and then opens them with that library, to compare logits and beam outputs
with ours. A format is added by an exporter and an entry in `EXPORTERS`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from safetensors import SafetensorError

from dragoman.errors import UserError, unknown_name
from dragoman.interop.export_check import ExportCheck, ExportSamples, sample_pairs, with_sample_languages
from dragoman.run import Run
from dragoman.storage import as_os_error, exclusive_folder

#: module and class of the exporter of each format
EXPORTERS: dict[str, str] = {
    "huggingface": "dragoman.interop.huggingface.hf_export:HuggingFaceExporter",
    "ctranslate2": "dragoman.interop.ctranslate2.ctranslate2_exporter:CTranslate2Exporter",
    "onnx": "dragoman.interop.onnx.onnx_exporter:OnnxExporter",
}
TORCH_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        dtype: number format of the weights.
        license: licence of the model, for its model card: an SPDX identifier such as mit or cc-by-4.0.
    """

    dtype: str = "float32"
    license: str = ""


@dataclass(frozen=True)
class WrittenExport:
    """What an exporter has written.

    Attributes:
        model: the model in the terms of the other library, such as its class.
        notes: sentences for the user, such as on settings that the format does not have.
    """

    model: str
    notes: tuple[str, ...] = ()


class Exporter(Protocol):
    """Writes runs in the format of another library, and verifies what it has written.

    `library` is the package that opens the result. `extra` names the optional dependencies of Dragoman that install it,
    as in pip install 'dragoman[onnx]'. `dtypes` are the number formats in which weights can be stored.
    """

    library: ClassVar[str]
    extra: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]]
    writes_model_card: ClassVar[bool]  # with the licence

    def __init__(self, options: ExportOptions) -> None:
        """Keep the options of the export."""

    def write(self, run: Run, folder: Path) -> WrittenExport:
        """Write the files into an empty folder; raise a UserError if the format cannot represent the run."""

    def verify(self, run: Run, folder: Path, samples: ExportSamples) -> ExportCheck:
        """Open the folder with the other library, and compare its results with those of the run."""


@dataclass(frozen=True)
class ExportResult:
    """An export that was written.

    Attributes:
        folder: the new folder.
        format: the name of the format.
        model: the model in the terms of the other library, such as its class.
        notes: sentences for the user, such as on settings that the format does not have.
        check: the result of the verification; None if the other library is not installed.
        library: the package that verifies the format.
        extra: the optional dependencies of Dragoman that install it, as in pip install 'dragoman[onnx]'.
        files: paths of the written files, relative to the folder.
    """

    folder: Path
    format: str
    model: str
    notes: tuple[str, ...]
    check: ExportCheck | None
    library: str
    extra: str
    files: tuple[str, ...] = field(default=())

    @property
    def verification(self) -> str:
        """The verification in words."""
        if self.check is None:
            return (
                f"nothing was verified, because {self.library} is not installed: install it with pip install "
                f"'dragoman[{self.extra}]' and export again"
            )
        return f"verified with {self.check.library}: {self.check}"


def export_run(
    run: Run,
    out: Path,
    to: str,
    options: ExportOptions | None = None,
    sentences: Sequence[str] | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> ExportResult:
    """Write a run in the format of another library, and verify the result with that library.

    If the results differ, or anything fails, no folder is left behind. An ensemble and an existing folder are a
    UserError.

    Args:
        run: the run, in float32.
        out: the folder to create.
        to: the format: a key of `EXPORTERS`.
        options: number format and licence.
        sentences: sample sentences of the verification; by default those of the run's validation set.
        log: receives messages about progress.
    """
    options = options or ExportOptions()
    exporter = create_exporter(to, options)
    check_export_folder(out)
    if run.ensemble_members:
        raise UserError(
            f"{run.folder} is an ensemble, but only a single model can be exported: name one of its runs, "
            f"{', '.join(map(str, run.member_folders))}"
        )
    with exclusive_folder(out) as unfinished:  # a temporary folder, which becomes `out` if all succeeds
        log(f"writing {out}")
        run.full_precision_model.eval()  # on the device of the run, where exporters put their inputs
        try:
            written = exporter.write(run, unfinished)
        except SafetensorError as error:  # what safetensors raises in place of an OSError, as for a full disk
            raise as_os_error(error) from None
        check = None
        if is_installed(exporter.library):
            log(f"verifying it with {exporter.library}")
            sample_run = with_sample_languages(run)
            check = exporter.verify(sample_run, unfinished, sample_pairs(sample_run, sentences))
            if not check.passed:
                raise UserError(
                    f"the export was not kept, because {check.library} computes other values with the exported "
                    f"model than dragoman with the original run ({check}): please report this"
                )
        files = tuple(
            sorted(path.relative_to(unfinished).as_posix() for path in unfinished.rglob("*") if path.is_file())
        )
    return ExportResult(
        out,
        format=to,
        model=written.model,
        notes=written.notes,
        check=check,
        library=exporter.library,
        extra=exporter.extra,
        files=files,
    )


def create_exporter(to: str, options: ExportOptions) -> Exporter:
    """Return the exporter of the format `to`, a key of `EXPORTERS` such as "onnx".

    Raise a UserError if there is no such format, or if it cannot store weights in the number format of the options.
    """
    if to not in EXPORTERS:
        raise unknown_name("format of an export", to, EXPORTERS)
    module, _, name = EXPORTERS[to].partition(":")
    exporter_class: type[Exporter] = getattr(importlib.import_module(module), name)
    if options.dtype not in exporter_class.dtypes:
        raise UserError(
            f"an export to {to} can store weights as {', '.join(exporter_class.dtypes)}, not as {options.dtype!r}: "
            "choose one of these with --dtype"
        )
    if options.license and not exporter_class.writes_model_card:
        raise UserError(
            f"a licence stands in the model card, which an export to {to} does not have: leave out --license"
        )
    return exporter_class(options)


def check_export_folder(out: Path) -> None:
    """Raise a UserError if the folder exists: an export never overwrites anything."""
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} already exists: choose another name for the export, or remove it")


def is_installed(package: str) -> bool:
    """Whether a Python package can be imported."""
    return importlib.util.find_spec(package) is not None
