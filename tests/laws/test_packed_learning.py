"""What is learned from a packed batch is what is learned from the same pairs padded, for every system and objective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import REPRESENTATIVES, TOLERANCE, VARIANTS
from torch import Tensor

from dragoman.data import Batch, Batches, EncodedPair, SentencePair, TokenStore, write_store
from dragoman.models import EncoderDecoderModel, Model
from dragoman.objectives import OBJECTIVES, Loss, Objective, TaskContext, build_objective
from dragoman.objectives import masked_language_modeling as replaced_tokens
from dragoman.parts.mixer import SequenceLayout
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import Tokenizer, learn_tokenizer
from dragoman.training.train_step import batch_from_tensors

TEXT = [f"the old man {verb} a {thing} ." for verb in ("reads", "sees", "has") for thing in ("book", "dog", "tree")]
QUIET = {"dropout": 0.0, "attention_dropout": 0.0}


@cache
def tokenizer() -> Tokenizer:
    return learn_tokenizer(TEXT, "word", 100)


def model_of(variant: str, objective: str = "", **more: object) -> Model:
    """As the laws' small ones, but with nothing left to chance in training."""
    name, settings = VARIANTS[variant]
    known = SYSTEMS[name].settings()
    small = {key: value for key, value in ({"model_dim": 16, "layers": 2, "heads": 4} | QUIET).items() if key in known}
    if objective == "span-corruption" and "sentinels" in known:
        more |= {"sentinels": 9}
    size = tokenizer().vocab_size
    torch.manual_seed(0)
    model = SYSTEMS[name].spec(VocabularySizes(size, size, joint=True), "tiny", **(small | settings | more)).build()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5).add_(torch.randn_like(weight) * 0.05)
    return model.train()


def objective_of(name: str, model: Model) -> Objective:
    return build_objective(name, TaskContext(model, tokenizer(), tokenizer(), model.spec.default_framing, 0.1), {})


def cases() -> list[tuple[str, str]]:
    """Every variant with every objective that trains it on packed rows."""
    found = []
    for variant in VARIANTS:
        model = model_of(variant)
        for name, kind in OBJECTIVES.items():
            if not model.supports_packing or not isinstance(model, kind.model_kind):
                continue
            if name == "span-corruption" and "sentinels" not in SYSTEMS[VARIANTS[variant][0]].settings():
                continue
            if model.source_features is not None and kind.data_format == "text":
                continue
            if objective_of(name, model_of(variant, name) if name == "span-corruption" else model).supports_packing:
                found.append((variant, name))
    return found


CASES = cases()
#: one of every model, objective and way to look
REPRESENTATIVE_CASES = [
    ("transformer", "translation"),
    ("transformer rotary", "translation"),
    ("transformer alibi", "translation"),
    ("t5", "span-corruption"),
    ("bart", "denoising"),
    ("vision", "translation"),
    ("gpt", "causal-lm"),
    ("gpt3 narrow", "concatenation"),
    ("llama one key head", "dialogue"),
    ("palm", "causal-lm"),
    ("roberta", "masked-lm"),
    ("electra", "replaced-token-detection"),
    ("tagger", "tagging"),
]


def marked(some: Iterable[tuple[Any, ...]], always: Sequence[tuple[str, str]]) -> list[Any]:
    """Cases that are not in `always` run in `make laws` alone."""
    return [pytest.param(*one, marks=() if one[:2] in always else pytest.mark.exhaustive) for one in some]


def store(folder: Path, objective: Objective) -> TokenStore:
    """Rows of different lengths, as the objective reads them."""
    random = np.random.default_rng(0)
    words = min(tokenizer().vocab_size, objective.task.model.vocab_size)

    def rows(lengths: Sequence[int], most: int) -> list[list[int]]:
        return [random.integers(min(7, most - 1), most, length).tolist() for length in lengths]

    lengths = random.integers(2, 14, 40).tolist()
    sources, targets = rows(lengths, tokenizer().vocab_size), rows(lengths, words)
    if objective.data_format == "pairs":
        targets = rows(random.integers(1, 16, 40).tolist(), words)
    if objective.data_format == "labels":
        targets = rows([1] * 40, words)
    if objective.data_format in ("tags", "turns"):
        targets = [[0 if place % 3 == 1 else word for place, word in enumerate(row)] for row in targets]
    if objective.data_format == "text":
        examples = [EncodedPair(SentencePair("x", None, "corpus", 1), source, None) for source in sources]
    else:
        read: list[Any] = sources
        if (features := objective.task.model.source_features) is not None:
            read = [random.standard_normal((length, features), np.float32) for length in lengths]
        examples = [EncodedPair(SentencePair("x", "y", "corpus", 1), one, other) for one, other in zip(read, targets)]
    return write_store(folder / "store", [examples], 260)


def batches(data: TokenStore, objective: Objective, **settings: Any) -> Batches:
    return Batches(
        data,
        500,
        seed=0,
        rows=objective.row_format.for_validation(),
        **settings,
    )


def exact(batch: Batch) -> Batch:
    """With a source of vectors in float64."""
    return replace(batch, source=batch.source.double()) if batch.source.is_floating_point() else batch


def learned(model: Model, objective: Objective, batch: Batch) -> tuple[Loss, dict[str, Tensor | None]]:
    torch.manual_seed(1)
    model.zero_grad(set_to_none=True)
    loss = objective(exact(batch), 1)
    (loss.total / loss.num_labels).backward()
    return loss, {
        name: None if weight.grad is None else weight.grad.clone() for name, weight in model.named_parameters()
    }


def assert_same(one: tuple[Loss, dict[str, Tensor | None]], other: tuple[Loss, dict[str, Tensor | None]]) -> None:
    assert int(one[0].num_labels) == int(other[0].num_labels) > 0
    torch.testing.assert_close(one[0].total, other[0].total, **TOLERANCE)
    assert one[0].metrics.keys() == other[0].metrics.keys()
    for name, part in one[0].metrics.items():
        torch.testing.assert_close(part, other[0].metrics[name], **TOLERANCE)
    for name, gradient in one[1].items():
        assert (gradient is None) == (other[1][name] is None), name
        if gradient is not None:
            torch.testing.assert_close(gradient, other[1][name], **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(autouse=True)
def _nothing_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The likeliest words are put in, not drawn ones: how many numbers are drawn depends on the layout."""
    monkeypatch.setattr(replaced_tokens, "sample_tokens", lambda logits: logits.argmax(-1))


@pytest.mark.parametrize(("variant", "name"), marked(CASES, REPRESENTATIVE_CASES))
def test_packed_and_padded_rows_teach_the_same(variant: str, name: str, tmp_path: Path) -> None:
    model = model_of(variant, name)
    objective = objective_of(name, model)
    data = store(tmp_path, objective)
    pairs = np.arange(3, 21)
    packed = batches(data, objective, packed=True).build_batch(pairs, 0)
    padded = batches(data, objective).build_batch(pairs, 0)
    assert packed.max_lengths is not None
    assert len(packed.source) == len(packed.target) == 1
    assert_same(learned(model, objective, packed), learned(model, objective, padded))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("recorded", [False, True])
@torch.no_grad()
def test_a_packed_target_longer_than_its_source_row_stays_finite_without_gradients(
    dtype: torch.dtype, recorded: bool
) -> None:
    """The rest of the target row belongs to no sequence of the source, so its queries see no key at all."""
    model = model_of("t5", "span-corruption").eval().to(dtype)
    assert isinstance(model, EncoderDecoderModel)
    source, target = torch.arange(7, 13)[None], torch.arange(7, 17)[None]
    lengths = torch.tensor([4, 2]), torch.tensor([3, 5])
    layouts = (
        SequenceLayout.packed_row(6, lengths[0], 4),
        SequenceLayout.packed_row(10, lengths[1], 5),
    )  # 2 places of the target are left
    recorder: dict[str, list[Tensor]] | None = {} if recorded else None
    packed = model.forward_features(source, layouts[0], target, layouts[1], recorder)[0][0]
    assert packed.isfinite().all()
    for s, t in ((slice(0, 4), slice(0, 3)), (slice(4, 6), slice(3, 8))):
        one, other = source[:, s], target[:, t]
        alone = [SequenceLayout.padded(side.shape[1], torch.tensor([side.shape[1]])) for side in (one, other)]
        torch.testing.assert_close(packed[t], model.forward_features(one, alone[0], other, alone[1])[0][0])


COMPILED = [("transformer", "translation"), ("roberta", "masked-lm")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.parametrize(("variant", "name"), marked(REPRESENTATIVE_CASES, COMPILED))
def test_a_learner_compiles_once(variant: str, name: str, tmp_path: Path) -> None:
    """Into one graph that serves every batch and every step."""
    model = model_of(variant, name)
    objective = objective_of(name, model)
    graphs = 0

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(objective, fullgraph=True, dynamic=False, backend=count)
    data = batches(store(tmp_path, objective), objective, packed=True)
    for step, number in enumerate((0, 7, 15), 1):
        batch = exact(data.build_batch(np.arange(number, number + 8 + step), 0))
        torch.manual_seed(step)
        batch = batch_from_tensors(batch.tensors(), batch.max_lengths)
        found = compiled(batch, step)
        torch.manual_seed(step)
        expected = objective(batch, step)
        torch.testing.assert_close(tuple(found), tuple(expected))
        found.total.backward()
    assert graphs == 1


# ---- padded batches of few shapes


FILLED = [
    *((variant, name, {}) for variant, name in CASES),
    ("bert", "masked-lm", {"next_sentence": True}),
    ("unilm", "unified-lm", {}),
    ("unilm-masked", "unified-masked-lm", {}),
    ("luong", "translation", {}),
    ("bahdanau", "translation", {}),
    ("gpt", "translation", {}),
    ("speech", "translation", {}),
]


@pytest.mark.parametrize(
    ("variant", "name", "settings"),
    marked(FILLED, [*REPRESENTATIVE_CASES, *(case[:2] for case in FILLED if case[0] in REPRESENTATIVES)]),
)
def test_filler_rows_do_not_change_the_gradients(
    variant: str, name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = model_of(variant, name)
    given = TaskContext(model, tokenizer(), tokenizer(), model.spec.default_framing, 0.1)
    objective = build_objective(name, given, settings)
    data = store(tmp_path, objective)
    pairs = np.arange(3, 21)
    plain = batches(data, objective).build_batch(pairs, 0)
    filled = batches(data, objective, pad_to_multiples=(16, 8)).build_batch(pairs, 0)
    assert len(filled.source) == 32
    assert_same(learned(model, objective, filled), learned(model, objective, plain))


def test_unused_columns_are_not_counted() -> None:
    """Statistics over a batch and balances over experts are of real tokens: such systems are not packed."""
    for variant in ("transformer batch norm", "moe", "moe one of three"):
        assert not model_of(variant).supports_packing
