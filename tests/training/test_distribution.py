"""Many processes train as one does: with the same losses, from any checkpoint, and not in silence when one is lost."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest_training import small_config
from processes import KILL, STOP, Ended, Event, command, together
from safetensors.torch import load_file

import dragoman
from dragoman import checkpoint
from dragoman.config import Config, to_yaml
from dragoman.data import Batches, DataPosition, TokenStore
from dragoman.errors import UserError
from dragoman.run_files import read_metrics
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.training import parallel as distribution
from dragoman.training.parallel import ProcessGroup, accumulate_for_processes
from dragoman.training.prepare import prepare_run
from dragoman.training.train_step import iterate_steps

#: a step of three batches is two for one process and one for the other; of one batch the other has none
WAYS: dict[str, dict[str, Any]] = {
    "transformer": {"gradient_accumulation": 3, "ema_decay": 0.9},
    "bahdanau": {"gradient_accumulation": 1, "validation_interval": 50, "loss_normalization": "sentences"},
}
SPREADS = ["replicated", "sharded"]
#: which of these are resumed on another number of processes in the default run
RESUMED = [("transformer", "sharded", (2, 1)), ("bahdanau", "replicated", (1, 2))]


def resume(folder: Path, size: int, spread: str = "auto", event: Event | None = None) -> list[Ended]:
    """Train on with so many processes; all must end well, unless one is killed."""
    arguments = ["train", str(folder), "--resume", "--set", f"training.parallelism={spread}"]
    ended = together(size, command, folder.with_name(f"{folder.name}-said"), arguments, event)
    for number, one in enumerate(ended):
        assert one.code == 0 or (event and event.signal == KILL), f"process {number} said: {one.said}"
    return ended


def assert_alike(one: Path, other: Path) -> None:
    """The same losses, position and links, and nearly the same weights."""
    known, found = read_metrics(one), read_metrics(other)
    assert [(record["kind"], record["step"]) for record in known] == [(r["kind"], r["step"]) for r in found]
    for expected, record in zip(known, found):
        for name, near in {"loss": 2e-5, "perplexity": 2e-5, "padding": 1e-3, "gradient_norm": 1e-3}.items():
            if name in expected:
                assert record[name] == pytest.approx(expected[name], rel=near), (record["step"], name)
    last, ours = (folder / "checkpoints" / "last" for folder in (one, other))
    progress, mine = (checkpoint.read_values(folder)["progress"] for folder in (last, ours))
    assert all(
        progress[name] == mine[name]
        for name in ("step", "data_position", "target_tokens", "best_step", "validations_since_best")
    )
    weights, own = (checkpoint.read_tensors(folder, "model") for folder in (last, ours))
    assert weights.keys() == own.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(own[name], weight, rtol=1e-3, atol=1e-4, msg=name)


@pytest.fixture(scope="module")
def trained_alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """By its system: a run that is prepared, and what one process makes of it."""

    @cache
    def trained(system: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp(f"alone-{system}")
        prepare_run(folder / "prepared", config_of(corpus, system), lambda text: None)
        shutil.copytree(folder / "prepared", folder / "trained")
        resume(folder / "trained", 1)
        return folder / "prepared", folder / "trained"

    return trained


@pytest.fixture(scope="module", params=WAYS)
def alone(request: pytest.FixtureRequest, trained_alone: Callable[[str], tuple[Path, Path]]) -> tuple[Path, Path]:
    return trained_alone(request.param)


def config_of(corpus: Path, system: str) -> Config:
    return small_config(corpus, system, patience=None, average_checkpoints=False, steps=16, **WAYS[system])


@pytest.fixture(scope="module", params=SPREADS)
def pair(request: pytest.FixtureRequest, alone: tuple[Path, Path]) -> tuple[Path, str, list[Ended]]:
    """What two processes make of the same run, how they shared the weights, and what they said."""
    run = alone[0].with_name(request.param)
    shutil.copytree(alone[0], run)
    return run, request.param, resume(run, 2, request.param)


#: each system and each way to hold the weights once; all combinations in `make laws`
some_pairs = pytest.mark.parametrize(
    ("alone", "pair"),
    [
        ("transformer", "sharded"),
        ("bahdanau", "replicated"),
        pytest.param("transformer", "replicated", marks=pytest.mark.exhaustive),
        pytest.param("bahdanau", "sharded", marks=pytest.mark.exhaustive),
    ],
    indirect=True,
)


@some_pairs
def test_two_processes_train_like_one(alone: tuple[Path, Path], pair: tuple[Path, str, list[Ended]]) -> None:
    trained, (run, spread, (first, second)) = alone[1], pair
    assert_alike(trained, run)
    assert f"training on 2 processes with {spread} weights" in first.said
    assert second.said == ""  # one speaks for all
    assert len(list((run / "samples").iterdir())) == len(list((trained / "samples").iterdir()))
    last = run / "checkpoints" / "last"
    assert (last / "model.safetensors").is_file()
    assert (last / "trainer").is_dir() == (spread == "sharded")
    sentences = ["The old man reads the book."]  # to use what is left needs nothing special
    ours, theirs = (dragoman.load(folder, "last", device="cpu").translate(sentences) for folder in (run, trained))
    assert ours[0].text == theirs[0].text
    assert ours[0].score == pytest.approx(theirs[0].score, rel=1e-3)


@some_pairs
def test_killed_and_resumed_training_is_bit_equal(
    alone: tuple[Path, Path], pair: tuple[Path, str, list[Ended]], tmp_path: Path
) -> None:
    whole, spread, _ = pair
    run = tmp_path / "run"
    shutil.copytree(alone[0], run)
    resume(run, 2, spread, Event(0, 12, STOP))
    resume(run, 2, spread, Event(1, 14, KILL))
    resume(run, 2, spread)
    times = ("seconds", "validation_seconds", "tokens_per_second")
    one, other = ([{k: v for k, v in r.items() if k not in times} for r in read_metrics(f)] for f in (whole, run))
    assert one == other
    tensors = sorted((whole / "checkpoints" / "last").rglob("*.safetensors"))
    assert len(tensors) == (3 if spread == "sharded" else 2)
    for path in tensors:
        known, found = load_file(path), load_file(run / path.relative_to(whole))
        assert known.keys() == found.keys()
        assert all(torch.equal(known[name], found[name]) for name in known), path


@pytest.mark.parametrize(
    ("alone", "spread", "sizes"),
    [
        pytest.param(system, spread, sizes, marks=() if (system, spread, sizes) in RESUMED else pytest.mark.exhaustive)
        for system in WAYS
        for spread in SPREADS
        for sizes in ((2, 1), (1, 2))
    ],
    indirect=["alone"],
)
def test_resuming_on_another_number_of_processes_is_equivalent(
    alone: tuple[Path, Path], spread: str, sizes: tuple[int, int], tmp_path: Path
) -> None:
    prepared, trained = alone
    run = tmp_path / "run"
    shutil.copytree(prepared, run)
    before, after = sizes
    ended = resume(run, before, spread, Event(before - 1, 12, STOP))  # told to one of them, all stop
    assert "is saved; continue with" in ended[0].said
    assert checkpoint.read_values(run / "checkpoints" / "last")["progress"]["step"] == 12
    resume(run, after, spread)
    assert_alike(trained, run)


@pytest.mark.parametrize(
    ("spread", "lost"),
    [
        ("sharded", 1),
        pytest.param("replicated", 0, marks=pytest.mark.exhaustive),
        pytest.param("sharded", 0, marks=pytest.mark.exhaustive),
        pytest.param("replicated", 1, marks=pytest.mark.exhaustive),
    ],
)
def test_lost_process_ends_all_with_a_message(corpus: Path, spread: str, lost: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    prepare_run(run, small_config(corpus, gradient_accumulation=2, steps=10_000), lambda text: None)
    ended = resume(run, 2, spread, Event(lost, 12, KILL))
    assert ended[lost].code == -KILL
    other = ended[1 - lost]
    assert other.code == 2
    assert "dragoman: another process of this training has ended or does not answer at step 12: see its" in other.said
    assert f"torchrun --nproc-per-node 2 -m dragoman train {run} --resume" in other.said
    assert "Traceback" not in other.said
    assert checkpoint.read_values(run / "checkpoints" / "last")["progress"]["step"] == 9


def stumble(folder: str, spread: str) -> None:
    """At step 12 the loss of one process is no number."""
    from dragoman.objectives import Loss, TranslationObjective

    forward = TranslationObjective.forward

    def sometimes(self: TranslationObjective, batch: Any, step: int = 0) -> Loss:
        loss = forward(self, batch, step)
        factor = torch.nan if step == 12 and os.environ["RANK"] == "1" else 1.0
        return loss._replace(total=loss.total * factor)

    TranslationObjective.forward = sometimes  # type: ignore[method-assign]
    command(["train", folder, "--resume", "--set", f"training.parallelism={spread}"])


@pytest.mark.parametrize("spread", ["replicated", pytest.param("sharded", marks=pytest.mark.exhaustive)])
def test_all_processes_skip_a_step_with_a_non_finite_loss(corpus: Path, spread: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = small_config(corpus, gradient_accumulation=2, average_checkpoints=False, steps=20, validation_interval=50)
    prepare_run(run, config, lambda text: None)
    ended = together(2, stumble, tmp_path / "said", str(run), spread)
    assert [one.code for one in ended] == [0, 0], ended
    assert "1 step skipped: non-finite gradient" in ended[0].said
    (record,) = (one for one in read_metrics(run) if one["kind"] == "train" and one["step"] == 20)
    assert record["skipped"] == 1
    assert 0 < record["loss"] < 10


SCRIPT = """
import os, sys
sys.path.insert(0, {tests!r})
from processes import KILL, Event, command
dies = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
command(sys.argv[1:], Event(1, 12, KILL) if dies else None)
"""


@pytest.mark.slow
def test_torchrun_restarts_from_the_last_checkpoint(corpus: Path, tmp_path: Path) -> None:
    """With the arguments of a new run, since those are what torchrun knows."""
    (tmp_path / "script.py").write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    (tmp_path / "config.yaml").write_text(to_yaml(config_of(corpus, "transformer")))
    arguments = ["train", str(tmp_path / "run"), "--config", str(tmp_path / "config.yaml")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    answer = subprocess.run(
        [*torchrun, "--max-restarts", "1", str(tmp_path / "script.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert answer.returncode == 0, answer.stderr
    assert "resuming at step 9" in answer.stderr
    assert "step 16: stopped: reached 16 steps" in answer.stderr
    prepare_run(tmp_path / "whole", config_of(corpus, "transformer"), lambda text: None)
    resume(tmp_path / "whole", 1)
    assert_alike(tmp_path / "whole", tmp_path / "run")


LOST_MACHINE = """
import os, sys
sys.path.insert(0, {tests!r})
from processes import KILL, Event, command
kill = os.kill
def lose_machine(process, signal):
    kill(os.getppid(), signal)  # torchrun's agent
    kill(process, signal)
os.kill = lose_machine
command(sys.argv[1:], Event(int(os.environ["RANK"]), 12, KILL) if os.environ["MACHINE"] == "second" else None)
"""


@pytest.mark.slow
def test_torchrun_continues_on_the_machine_that_is_left(corpus: Path, tmp_path: Path) -> None:
    """Two agents of torchrun train together until one of them is lost with its process."""
    (tmp_path / "script.py").write_text(LOST_MACHINE.format(tests=str(Path(__file__).parent)))
    (tmp_path / "config.yaml").write_text(to_yaml(config_of(corpus, "transformer")))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"]
    torchrun += ["--max-restarts", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    torchrun += ["--local-addr", "127.0.0.1", "--rdzv-conf", "last_call_timeout=20,keep_alive_interval=2"]
    arguments = ["train", str(tmp_path / "run"), "--config", str(tmp_path / "config.yaml"), "--resume-if-exists"]
    agents = []
    for machine in ("first", "second"):
        with (tmp_path / machine).open("w") as said:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "MACHINE": machine}
            command_line = [*torchrun, str(tmp_path / "script.py"), *arguments]
            agents.append(subprocess.Popen(command_line, stdout=said, stderr=said, env=environment))
        if machine == "first":  # it has the rendezvous
            wait_until_listening(endpoint)
    try:
        codes = [agent.wait(500) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    said = (tmp_path / "first").read_text()
    assert codes == [0, -KILL], said
    assert "training on 2 processes with replicated weights" in said + (tmp_path / "second").read_text()
    assert "resuming at step 9" in said
    assert "step 16: stopped: reached 16 steps" in said
    prepare_run(tmp_path / "whole", config_of(corpus, "transformer"), lambda text: None)
    resume(tmp_path / "whole", 1)
    assert_alike(tmp_path / "whole", tmp_path / "run")


def wait_until_listening(endpoint: str) -> None:
    """Wait until somebody listens at an address of this machine."""
    host, _, port = endpoint.rpartition(":")
    for _ in range(1200):
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.1)
    raise AssertionError(f"nobody listens at {endpoint}")


def wait_for_the_first(signs: int) -> None:
    """The first process works until it has sent some signs of life, which the other one has received."""
    distribution.HEARTBEAT_SECONDS = 0.05
    tell, told, enough = distribution._broadcast, [0], threading.Event()

    def counted(answer: list[Any]) -> None:
        tell(answer)
        told[0] += 1
        if told[0] >= signs:
            enough.set()

    distribution._broadcast = counted
    world = ProcessGroup.join()
    assert world.on_first_rank(lambda: (enough.wait(), "done")[1]) == "done"
    assert told[0] > signs
    assert world.all_reduce_sum([world.rank, 1.0]) == [1.0, 2.0]


def test_waiting_process_receives_heartbeats(tmp_path: Path) -> None:
    assert [one.code for one in together(2, wait_for_the_first, tmp_path, 5)] == [0, 0]


def wait_longer_than_patience(seconds: float) -> None:
    import datetime

    distribution.TIMEOUT, distribution.HEARTBEAT_SECONDS = datetime.timedelta(seconds=seconds / 3), seconds / 12
    assert ProcessGroup.join().on_first_rank(lambda: (time.sleep(seconds), "done")[1]) == "done"


@pytest.mark.slow
def test_first_process_may_work_longer_than_the_timeout(tmp_path: Path) -> None:
    assert [one.code for one in together(2, wait_longer_than_patience, tmp_path, 60.0)] == [0, 0]


def test_user_error_is_printed_once(corpus: Path, tmp_path: Path) -> None:
    ended = together(2, command, tmp_path / "said", ["train", str(tmp_path / "run"), "--source", "nowhere.en"])
    assert [one.code for one in ended] == [2, 2]
    assert "nowhere.en" in ended[0].said
    assert ended[1].said == ""


def test_sgd_rejects_sharded_weights(corpus: Path, tmp_path: Path) -> None:
    prepare_run(tmp_path / "run", small_config(corpus, "luong", optimizer="sgd"), lambda text: None)
    arguments = ["train", str(tmp_path / "run"), "--resume", "--set", "training.parallelism=sharded"]
    for one in together(2, command, tmp_path / "said", arguments):
        assert one.code == 2
        assert (
            one.said == "dragoman: training.optimizer=sgd does not work with training.parallelism=sharded: choose "
            "training.optimizer=adamw, or training.parallelism=replicated\n"
        )


def compare_gradients(names: list[str]) -> None:
    """Sharded weights and whole ones have the same gradients, which are those of both processes together."""
    import torch.distributed as dist
    from torch import Tensor, nn

    from dragoman.models import Model
    from dragoman.training.sharded import ShardedStrategy

    class Sum(nn.Module):
        def __init__(self, model: Model) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: Tensor) -> Tensor:
            return self.model(*tensors).square().sum()

    world = ProcessGroup.join()
    for name in names:
        known = SYSTEMS[name].settings()
        settings = {key: value for key, value in {"model_dim": 16, "layers": 2, "heads": 2}.items() if key in known}
        spec = SYSTEMS[name].spec(VocabularySizes(101, 101, True), "tiny", **settings)
        torch.manual_seed(1)
        whole = spec.build().eval()
        parts = spec.build().eval()
        parts.load_state_dict(whole.state_dict())
        learner = Sum(parts)
        ShardedStrategy(world, torch.device("cpu")).distribute(learner)
        torch.manual_seed(2 + world.rank)
        source = torch.randint(5, 100, (2, 7))
        if whole.source_features is not None:
            source = torch.randn(2, 7, whole.source_features)
        tensors = [source, torch.tensor([7, 5]), torch.randint(5, 100, (2, 6)), torch.tensor([6, 4])]
        tensors = tensors if whole.can_generate else tensors[:2]
        Sum(whole)(*tensors).backward()
        learner(*tensors).backward()
        for (path, weight), part in zip(whole.named_parameters(), parts.parameters()):
            if weight.grad is None:
                assert part.grad is None, f"{name} {path}"
                continue
            dist.all_reduce(weight.grad)
            torch.testing.assert_close(part.grad.full_tensor(), weight.grad, msg=f"{name} {path}")


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["gnmt", "electra"], id="some"),
        pytest.param(list(SYSTEMS), id="all", marks=pytest.mark.slow),
    ],
)
def test_every_system_can_be_sharded(names: list[str], tmp_path: Path) -> None:
    """Whatever a layer hands on beside its output, and whoever is asked before its turn."""
    for one in together(2, compare_gradients, tmp_path, names):
        assert one.code == 0, one.said


# ---- without other processes


def test_every_batch_of_a_step_is_computed_once(
    trained_alone: Callable[[str], tuple[Path, Path]],
) -> None:
    batches = Batches(TokenStore(trained_alone("transformer")[0] / "data" / "train"), 300, seed=1)
    for size in (1, 2, 3, 4):
        ranks = [ProcessGroup(rank, size) for rank in range(size)]
        ways = [iterate_steps(batches, DataPosition(), 3, rank, lockstep=True) for rank in ranks]
        for _ in range(4):
            dealt = [next(way) for way in ways]
            assert sorted(number for group in dealt for number, _ in group.batches) == [0, 1, 2]
            assert len({group.next_position for group in dealt}) == 1
            # all do as many
            assert len({len(group.batches) + (group.dummy_batch is not None) for group in dealt}) == 1
            assert all(group.target_tokens == sum(batch.target_tokens for _, batch in group.batches) for group in dealt)
            assert all(group.num_sentences == sum(len(batch.indices) for _, batch in group.batches) for group in dealt)


def test_new_run_accumulates_one_batch_per_process() -> None:
    config, said = accumulate_for_processes(Config(), 4)
    assert config.training.gradient_accumulation == 4
    assert said == ["training.gradient_accumulation=4  (batches per step: one for each process)"]
    assert accumulate_for_processes(config, 2) == (config, [])


def test_process_without_a_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=r"at least 3 processes.*2 GPUs.*--nproc-per-node"):
        ProcessGroup(2, 3, 2).assign_device(torch.device("cuda"))
    assert ProcessGroup(2, 3, 2).assign_device(torch.device("cpu")) == torch.device("cpu")
