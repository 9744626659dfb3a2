"""Steps in a few fixed shapes, computed again and again into the same tensors, find what plain steps find."""

from __future__ import annotations

import gc

import pytest
import torch

from dragoman.cuda_graphs import CudaGraphCache, no_garbage_collection
from dragoman.search import Beam, Hypothesis, LengthLimit, Sample, build_engine
from dragoman.search.engine import SearchEngine
from dragoman.search.graphed_function import MAX_CAPTURED_SHAPES, GraphedFunction, copy_tensors, unshare_tensors
from dragoman.search.search_state import round_up_size
from laws.small import SYMBOLS, pairs, small_model

LENGTH = LengthLimit(0, 20, 20)
SEARCHES = {
    "greedy": Beam(1, length_limit=LENGTH),
    "beam": Beam(3, n_best=2, length_limit=LENGTH),
    "groups": Beam(4, num_groups=2, no_repeat_ngram_size=2, length_limit=LENGTH),
    "samples": Sample(top_p=0.9, n_best=2, length_limit=LENGTH),
}
SYSTEMS = ["transformer", "luong", "bahdanau", "convs2s", "gpt"]


def decoded(engine: SearchEngine, variant: str, device: str = "cpu") -> list[list[Hypothesis]]:
    """Eight sources, of which four are searched at a time, so that some leave and others enter."""
    read = pairs(variant)
    source, lengths = torch.cat([read.source] * 3)[:8], read.source_lengths.repeat(3)[:8]
    limits, keys = torch.tensor([20, 7, 20, 3, 20, 20, 12, 20]), torch.arange(8)
    return engine.search(*(some.to(device) for some in (source, lengths, limits, keys)), max_sources=4)


def same(some: list[list[Hypothesis]], others: list[list[Hypothesis]]) -> None:
    assert [[one.tokens for one in group] for group in some] == [[one.tokens for one in group] for group in others]
    for group, other in zip(some, others):
        assert [one.score for one in group] == pytest.approx([one.score for one in other], abs=1e-3)


@pytest.mark.parametrize(
    ("variant", "search"),
    [
        pytest.param(
            variant, search, marks=() if variant == "transformer" or search == "beam" else pytest.mark.exhaustive
        )
        for variant in SYSTEMS
        for search in SEARCHES
    ],
)
def test_fixed_shapes_find_the_same(variant: str, search: str) -> None:
    model = small_model(variant).eval()
    plain = decoded(build_engine([model], SYMBOLS, SEARCHES[search]), variant)
    replayed = build_engine([model], SYMBOLS, SEARCHES[search])
    replayed.use_cuda_graphs = True
    for _ in range(2):  # the second time all shapes are known
        same(decoded(replayed, variant), plain)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("variant", SYSTEMS)
def test_recorded_steps_find_the_same(variant: str, search: str, compiled: bool) -> None:
    torch.backends.cudnn.allow_tf32 = False
    model = small_model(variant).eval()
    plain = decoded(build_engine([model], SYMBOLS, SEARCHES[search]), variant)
    replayed = build_engine([model.cuda()], SYMBOLS, SEARCHES[search], compile=compiled)
    for _ in range(3):
        same(decoded(replayed, variant, "cuda"), plain)
    assert replayed.graphed_step.cache is not None
    assert any(entry.graph is not None for entry in replayed.graphed_step.cache.entries.values())


def test_a_few_shapes_are_enough_for_all_sizes() -> None:
    assert [round_up_size(number, 1) for number in (1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 33)] == [
        1,
        2,
        3,
        4,
        6,
        6,
        8,
        12,
        12,
        16,
        48,
    ]
    assert [round_up_size(number) for number in (1, 16, 17, 24, 25, 33, 100)] == [16, 16, 24, 24, 32, 48, 128]


def test_what_shares_memory_is_kept_apart() -> None:
    one = torch.arange(4)
    tree = unshare_tensors({"one": one, "inside": {"view": one[1:], "other": torch.zeros(2)}})
    copy_tensors(
        tree, {"one": torch.full((4,), 7), "inside": {"view": torch.tensor([1, 2, 3]), "other": torch.ones(2)}}
    )
    assert tree["one"].tolist() == [7, 7, 7, 7]
    assert tree["inside"]["view"].tolist() == [1, 2, 3]


def test_only_the_most_recently_used_shapes_are_kept() -> None:
    graphed = GraphedFunction(lambda tree: {"tokens": tree["tokens"] + 1}, in_place=True)
    first = {"tokens": torch.zeros(1)}
    for size in range(1, 30):
        graphed({"tokens": torch.zeros(size)})
        graphed(first)
    assert graphed.cache is not None
    assert len(graphed.cache.entries) == MAX_CAPTURED_SHAPES
    assert graphed(first)["tokens"].tolist() == [1.0]


def test_garbage_collection_is_suspended() -> None:
    with no_garbage_collection():
        assert not gc.isenabled()
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.gpu
def test_garbage_with_graphs_does_not_disturb_a_capture() -> None:
    """An earlier run may leave graphs in reference cycles; to destroy one during a capture would make it fail."""
    cache: CudaGraphCache[torch.Tensor] = CudaGraphCache(torch.device("cuda"), 4)
    threshold = gc.get_threshold()
    for number in range(8):
        entry = cache.lookup(number, lambda: torch.zeros(4, device="cuda"))

        def add_and_allocate(static: torch.Tensor = entry.static) -> None:
            static.add_(1)
            assert len([[] for _ in range(1000)]) == 1000  # enough objects for a collection

        gc.set_threshold(10)
        try:
            for _ in range(4):
                cache.run(entry, add_and_allocate)
        finally:
            gc.set_threshold(*threshold)
        assert entry.graph is not None
        assert entry.static.tolist() == [4.0] * 4
        cycle: list[object] = [entry]
        cycle.append(cycle)
        cache.entries.clear()
