"""Specs: exact round trips, errors that name the nearest known thing, differences and variants."""

from __future__ import annotations

import importlib
import json
import pkgutil
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields, is_dataclass, replace
from typing import Any

import pytest

import dragoman.parts
from dragoman.errors import UserError
from dragoman.models import EncoderDecoder, model_from_dict, model_to_dict
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.catalog import PARTS
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.norm import LayerNorm, RMSNorm
from dragoman.parts.positions import Learned, NoPosition, Sinusoidal
from dragoman.parts.recurrence import Recurrent
from dragoman.parts.spec import Spec, differences, find_specs, from_dict, replace_everywhere, to_dict
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.triton_support import TRITON_AVAILABLE
from dragoman.parts.visibility import Causal, Full, Window
from dragoman.systems import SYSTEMS, VocabularySizes


def through_json(spec: Spec) -> Any:
    return from_dict(json.loads(json.dumps(to_dict(spec))), PARTS)


def has_defaults(part: type[Spec]) -> bool:
    return all(f.default is not MISSING or f.default_factory is not MISSING for f in fields(part))  # type: ignore[arg-type]


# ---- the catalogue


def test_every_part_is_in_the_catalogue() -> None:
    for module in pkgutil.iter_modules(dragoman.parts.__path__):
        if module.name == "kernels" and not TRITON_AVAILABLE:
            continue
        importlib.import_module(f"dragoman.parts.{module.name}")
    pending, every = [Spec], set()
    while pending:
        for part in pending.pop().__subclasses__():
            pending.append(part)
            if part.__module__.startswith("dragoman.parts.") and is_dataclass(part):
                every.add(part)
    assert every == set(PARTS.values())
    assert all(name == part.__name__ for name, part in PARTS.items())


@pytest.mark.parametrize("part", [part for part in PARTS.values() if has_defaults(part)])
def test_default_part_round_trips_through_json(part: type[Spec]) -> None:
    assert through_json(part()) == part()
    assert type(through_json(part())) is part


@pytest.mark.parametrize(
    "spec",
    [
        Stack((PreNorm(SelfAttention(2, 1, visibility=Window(7))), PostNorm(FeedForward(3, "silu", gated=True))), 4),
        Stack((), norm=RMSNorm(1e-6), position=Learned(9)),
        Recurrent("gru", 2, "both", 0.1),
        SelfAttention(head_dim=None, position=Sinusoidal(500.0)),
    ],
)
def test_nested_parts_round_trip_through_json(spec: Spec) -> None:
    assert through_json(spec) == spec


def test_specs_are_values() -> None:
    assert SelfAttention(4) == SelfAttention(4)
    assert len({SelfAttention(4), SelfAttention(4), SelfAttention(8)}) == 2
    with pytest.raises(FrozenInstanceError):
        SelfAttention(4).heads = 8  # type: ignore[misc]


# ---- what is wrong with a description


def wrong(data: Any) -> str:
    with pytest.raises(UserError) as error:
        from_dict(data, PARTS)
    return str(error.value)


def test_unknown_part_suggests_the_nearest() -> None:
    assert wrong({"kind": "SelfAttentoin"}) == "unknown part 'SelfAttentoin': did you mean 'SelfAttention'?"
    assert wrong({"kind": "os.system"}).startswith("unknown part 'os.system': supported: ALiBi, Additive, ")


def test_an_unknown_part_deep_inside_is_found() -> None:
    data = to_dict(Stack((PreNorm(FeedForward()),)))
    data["block"][0]["norm"]["kind"] = "LayrNorm"
    assert wrong(data) == "unknown part 'LayrNorm': did you mean 'LayerNorm'?"


def test_unknown_field_suggests_the_nearest() -> None:
    assert wrong({"kind": "FeedForward", "iner": 3}) == "unknown field of FeedForward 'iner': did you mean 'inner_dim'?"


def test_a_missing_field_is_named_and_those_with_defaults_are_not() -> None:
    assert wrong({"kind": "PreNorm", "dropout": 0.1}) == "the description of PreNorm lacks the fields body: add them"
    assert wrong({"kind": "Stack"}) == "the description of Stack lacks the fields block: add them"
    assert from_dict({"kind": "FeedForward"}, PARTS) == FeedForward()


def test_a_description_without_a_kind() -> None:
    assert wrong({"heads": 3, "bias": True}) == (
        "the description of a part must have a field 'kind' with the name of its class, but has only the fields "
        "['bias', 'heads']: add this field"
    )
    assert "must have a field 'kind'" in wrong({"kind": 3})


@pytest.mark.parametrize(
    ("part", "field", "value", "expected"),
    [
        ("SelfAttention", "heads", "8", "int"),
        ("SelfAttention", "heads", 8.0, "int"),
        ("SelfAttention", "heads", True, "int"),
        ("SelfAttention", "heads", None, "int"),
        ("SelfAttention", "kv_heads", 1.5, "int or None"),
        ("SelfAttention", "bias", 1, "bool"),
        ("SelfAttention", "dropout", "0.1", "float"),
        ("SelfAttention", "dropout", False, "float"),
        ("SelfAttention", "visibility", "Causal", "Spec"),
        (
            "FeedForward",
            "activation",
            "softmax",
            "'relu' or 'gelu' or 'gelu-tanh' or 'quick-gelu' or 'silu' or 'tanh' or 'sigmoid' or 'identity'",
        ),
        ("Stack", "block", {"kind": "FeedForward"}, "tuple[Spec, ...]"),
        ("Stack", "block", [3], "tuple[Spec, ...]"),
    ],
)
def test_a_value_of_another_type_is_refused(part: str, field: str, value: Any, expected: str) -> None:
    message = wrong({"kind": part, field: value})
    assert message.startswith(f"{part}.{field} must be {expected}, but is ")


def test_int_is_accepted_for_float() -> None:
    assert from_dict({"kind": "SelfAttention", "dropout": 0, "kv_heads": None}, PARTS) == SelfAttention()


def test_description_of_a_part_is_not_a_model() -> None:
    others: list[Any] = [{"kind": "Dot"}, [], 3]
    for data in others:
        with pytest.raises(UserError, match="name of a model class as its 'kind', one of EncoderDecoder"):
            model_from_dict(data)


@dataclass(frozen=True)
class Homemade(Spec):
    size: int = 3


def test_custom_part_must_be_passed() -> None:
    spec = SYSTEMS["transformer"].spec(VocabularySizes(9, 9), "tiny")
    spec = replace(spec, encoder=Stack((Homemade(4),)))
    data = json.loads(json.dumps(model_to_dict(spec)))
    with pytest.raises(UserError, match="unknown part 'Homemade'"):
        model_from_dict(data)
    assert model_from_dict(data, {"Homemade": Homemade}) == spec


# ---- variants and differences


def test_a_variant_is_a_change_everywhere() -> None:
    spec = SYSTEMS["transformer"].spec(VocabularySizes(9, 9), "tiny")
    variant = replace_everywhere(spec, SelfAttention, position=Sinusoidal(), kv_heads=1)
    assert isinstance(variant, EncoderDecoder)
    assert [part.position for part in find_specs(variant, SelfAttention)] == [Sinusoidal()] * 2
    assert [part.position for part in find_specs(spec, SelfAttention)] == [
        NoPosition()
    ] * 2  # the first is left as it was
    assert [part.visibility for part in find_specs(variant, SelfAttention)] == [Full(), Causal()]
    assert list(find_specs(variant, CrossAttention)) == list(find_specs(spec, CrossAttention))
    assert replace_everywhere(spec, Recurrent, layers=7) == spec


def test_a_change_reaches_parts_within_parts_of_the_same_kind() -> None:
    nested = Stack((Stack((FeedForward(),), depth=1),), depth=1)
    changed = replace_everywhere(nested, Stack, depth=2)
    assert [stack.depth for stack in find_specs(changed, Stack)] == [2, 2]


def test_differences_are_told_by_path() -> None:
    before = Stack((PreNorm(SelfAttention(8)), PreNorm(FeedForward())), 6)
    after = Stack((PreNorm(SelfAttention(8, kv_heads=2)), PreNorm(FeedForward(), norm=RMSNorm())), 12)
    assert list(differences(before, after)) == [
        ("block[0].body.kv_heads", None, 2),
        ("block[1].norm", LayerNorm(), RMSNorm()),
        ("depth", 6, 12),
    ]
    assert list(differences(before, before)) == []


def test_blocks_of_different_lengths_differ_as_a_whole() -> None:
    before, after = Stack((FeedForward(),)), Stack((FeedForward(), FeedForward()))
    assert list(differences(before, after)) == [("block", before.block, after.block)]


def test_parts_of_different_kinds_differ_as_a_whole() -> None:
    assert list(differences(FeedForward(), SelfAttention())) == [("", FeedForward(), SelfAttention())]
