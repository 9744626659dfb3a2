"""Writes runs as ONNX graphs, and verifies them with ONNX Runtime."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.errors import UserError
from dragoman.interop.deployment_files import deployment_settings, write_deployment_files
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
from dragoman.run import Run
from dragoman.search import Beam

Arrays = dict[str, NDArray[Any]]
#: largest relative error of logits that are logarithms of sums of probabilities, which may be as small as 10⁻³⁸
MIXTURE_TOLERANCE = 1e-3


class OnnxExporter:
    """Encoder and cached decoder of any generating system, or the single graph of one that labels its source."""

    library: ClassVar[str] = "onnxruntime"
    extra: ClassVar[str] = "onnx"
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    writes_model_card: ClassVar[bool] = False

    def __init__(self, options: ExportOptions) -> None:
        """Raise an error if the packages that torch's exporter uses are not installed.

        `options` are not needed: weights are always float32, and there is no model card with a licence.
        """
        if missing := [package for package in ("onnx", "onnxscript") if not is_installed(package)]:
            raise UserError(
                f"an export to ONNX needs the package {missing[0]}: install it with pip install 'dragoman[onnx]'"
            )

    def write(self, run: Run, folder: Path) -> WrittenExport:
        """Trace the graphs, and write them with tokenizers, settings and an example."""
        from dragoman.interop.onnx.step_graphs import build_graphs

        graphs = build_graphs(run.model, run.framing.bos)  # raises an error for models that cannot be exported
        from dragoman.interop.onnx.graph_writing import write_graph  # late, because the import takes seconds

        for graph in graphs:
            write_graph(graph, folder)
        settings = deployment_settings(run, "ONNX")
        settings["pad"] = run.framing.pad
        settings["graphs"] = {graph.name: graph.describe() for graph in graphs}
        encoder_input = "the prompt" if run.model.is_decoder_only else "the sources"
        files = {
            "encoder.onnx": f"reads {encoder_input}: computes what all decoding steps read, and the first state",
            "decoder.onnx": "a decoding step: a token, memory and state → logits of the next token, and the new state",
        }
        if not run.model.can_generate:
            files = {"model.onnx": "token ids and their number → logits at every position"}
            write_deployment_files(run, folder, settings, "label_with_onnxruntime.py", files)
            return WrittenExport("ONNX graph model.onnx")
        write_deployment_files(run, folder, settings, "translate_with_onnxruntime.py", files)
        return WrittenExport("ONNX graphs encoder.onnx and decoder.onnx")

    def verify(self, run: Run, folder: Path, samples: ExportSamples) -> ExportCheck:
        """Compare what ONNX Runtime computes with the graphs in `folder` with what the run computes.

        Compared are teacher-forced logits, step by step with caches, and the outputs of greedy search.
        """
        try:
            return self._compare(run, folder, samples)
        except Exception as error:  # those of the package onnxruntime have no common base class
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            message = str(error).splitlines()[0]
            raise UserError(
                f"{run.folder} cannot be exported to ONNX, because ONNX Runtime cannot compute its graphs ({message}): "
                "choose another format, such as --to ctranslate2"
            ) from error

    def _compare(self, run: Run, folder: Path, samples: ExportSamples) -> ExportCheck:
        """Open the graphs with ONNX Runtime, and compare logits and, if the model translates, greedy outputs.

        A language model has no sources, and a model that labels its source generates nothing. EOS is not forced at the
        length limit, as our search does for some imported models.
        """
        import onnxruntime

        run = copy(run)
        run.special_tokens = replace(run.special_tokens, force_eos_at_limit=False)
        equal_outputs = None
        if run.model.can_generate:
            graphs = GraphSessions(folder)
            theirs = graphs.forced_logits(run, samples)
            if not run.is_language_model:
                search = greedy_search(run)
                outputs = graphs.greedy(run, list(samples.source_ids), search.length_limit.max or 0)
                equal_outputs = count_equal_outputs(run, samples, outputs, search)
        else:
            session = open_session(folder / "model.onnx")
            theirs = []
            for ids in samples.source_ids:
                source, lengths = run.pad_batch([ids])
                feeds = {"source": source.cpu().numpy(), "source_lengths": lengths.cpu().numpy()}
                theirs.append(session.run(None, feeds)[0][0])  # the only output (None: all), the only row
        error = relative_error(teacher_forced_logits(run, samples), theirs)
        library = f"ONNX Runtime {onnxruntime.__version__}"
        tolerance = MIXTURE_TOLERANCE if run.model.output.is_mixture else LOGIT_TOLERANCE
        return ExportCheck(
            library,
            len(samples),
            max_relative_error=error,
            tolerance=tolerance,
            equal_outputs=equal_outputs,
            search="greedy",
        )


def greedy_search(run: Run) -> Beam:
    """Return the greedy search whose outputs are compared, with the same length limit for all sources."""
    limit = verification_search(run).length_limit
    # a hypothesis that ends at the length limit without EOS is a result like others (`rank_unfinished`)
    return Beam(size=1, length_penalty=0.0, length_limit=limit, rank_unfinished="by_score")


def open_session(path: Path, threads: int = 0) -> Any:
    """Open a graph with ONNX Runtime on the CPU; `threads` 0 is its default number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class GraphSessions:
    """Encoder and decoder graphs, opened with ONNX Runtime."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        """Open the graphs of an export; `threads` 0 is the default number of threads of ONNX Runtime."""
        self.encoder = open_session(folder / "encoder.onnx", threads)
        self.decoder = open_session(folder / "decoder.onnx", threads)
        # names of inputs that get the outputs of the previous step, in the order of the outputs after the logits
        self.state_names = [output.name.replace("present/", "past/") for output in self.decoder.get_outputs()[1:]]

    def start(self, run: Run, source_ids: list[Any]) -> Arrays:
        """Encode sources, and return the inputs of the first decoding step by name, all but its tokens.

        `source_ids` are the token ids (or vectors) of each source; they are padded to a batch.
        """
        # an empty source becomes one padding token, so that the batch has a column
        source, _ = run.pad_batch([ids if len(ids) else [run.framing.pad] for ids in source_ids])
        lengths = torch.tensor([len(ids) for ids in source_ids])
        feeds = {"source": source.cpu().numpy(), "source_lengths": lengths.numpy()}
        names = [output.name for output in self.encoder.get_outputs()]
        return dict(zip(names, self.encoder.run(None, feeds), strict=True))

    def step(self, feeds: Arrays, tokens: NDArray[Any]) -> tuple[NDArray[Any], Arrays]:
        """Make a decoding step: read one token per row (`tokens`, B) and the other inputs by name (`feeds`).

        Return the logits of the next tokens, B V, and the inputs of the next step, all but its tokens.
        """
        logits, *states = self.decoder.run(None, feeds | {"tokens": tokens})
        return logits, feeds | dict(zip(self.state_names, states)) | {"positions": feeds["positions"] + 1}

    def forced_logits(self, run: Run, samples: ExportSamples) -> list[NDArray[Any]]:
        """Return teacher-forced logits of each sample, T V, from one decoding step for each token of its target.

        All samples are one batch. `feeds` are the inputs of a decoding step by name, all but its tokens.
        """
        targets, lengths = run.pad_batch(samples.target_ids)  # B T, B
        feeds, logits_by_step = self.start(run, list(samples.source_ids)), []
        for tokens in targets.cpu().numpy().T:  # of each step, B
            logits, feeds = self.step(feeds, tokens)
            logits_by_step.append(logits)
        by_sample = np.stack(logits_by_step, 1)  # B T V
        return [logits[:length] for logits, length in zip(by_sample, lengths.tolist(), strict=True)]

    def greedy(self, run: Run, source_ids: list[Any], max_length: int) -> list[list[int]]:
        """Return the token ids that greedy search finds for each source, with EOS if it was generated.

        The first tokens are those that are forced, such as a language code.
        """
        framing, forced_tokens = run.framing, run.framing.forced_bos
        feeds, rows = self.start(run, source_ids), len(source_ids)
        tokens, finished = np.full(rows, framing.bos), np.zeros(rows, bool)  # B: last token, whether EOS was generated
        generated = []  # tokens of each step, B
        # a model may have fewer output tokens than there are special tokens
        suppressed = [token for token in framing.suppressed if token < run.model.vocab_size]
        for step in range(max_length):
            logits, feeds = self.step(feeds, tokens)
            logits[:, suppressed] = -np.inf
            tokens = np.full(rows, forced_tokens[step]) if step < len(forced_tokens) else logits.argmax(-1)
            generated.append(tokens)
            finished |= tokens == framing.eos
            if finished.all():
                break
        sequences = np.stack(generated, 1).tolist()  # rows that finish early go on after EOS
        return [ids[: ids.index(framing.eos) + 1] if framing.eos in ids else ids for ids in sequences]
