"""Jobs over many files: their blocks are processed by a run in parallel, on this machine or on a Ray cluster."""

from dragoman.bulk.block_worker import BlockResult, BlockWorker
from dragoman.bulk.bulk_job import BulkJob, JobProgress
from dragoman.bulk.executors import Executor, LocalExecutor, executor_from_text
from dragoman.bulk.ray_executor import RayExecutor
from dragoman.bulk.run_rows import RowTask, RunRows

__all__ = [
    "BlockResult",
    "BlockWorker",
    "BulkJob",
    "Executor",
    "JobProgress",
    "LocalExecutor",
    "RayExecutor",
    "RowTask",
    "RunRows",
    "executor_from_text",
]
