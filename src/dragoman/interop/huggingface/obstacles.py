"""Why no class of transformers can hold a model, and which settings would change that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dragoman.errors import UserError
from dragoman.interop.huggingface.export_classes import ExportPlan, plan_export
from dragoman.models import ModelSpec
from dragoman.parts.positions import NoPosition
from dragoman.parts.spec import Configurable
from dragoman.run import Run
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.training.recipes import get_recipe

MAX_OBSTACLES = 4  # in a message
RECIPES = ("plain", "textbook")  # sets of defaults with which a model may become one that can be exported


def not_exportable(run: Run, plan: ExportPlan | None) -> UserError:
    """Return the error for a run that no class of transformers can hold.

    `plan` is an export as the class that is most like the model, and says what differs; None: no class is like it.
    """
    if plan is None:
        reason = f"transformers has no class for a model of kind {type(run.spec).__name__} with these layers"
    else:
        obstacles = list(dict.fromkeys(_obstacle_names(plan)))
        more = f" and {len(obstacles) - MAX_OBSTACLES} more" if len(obstacles) > MAX_OBSTACLES else ""
        reason = (
            f"no class of transformers has {', '.join(obstacles[:MAX_OBSTACLES])}{more} in such a model (the nearest "
            f"one is {plan.export_class.name})"
        )
    return UserError(f"{run.folder} cannot be exported to Hugging Face transformers: {reason}. {_advice(run)}")


def _obstacle_names(plan: ExportPlan) -> Iterator[str]:
    """Yield the fields in which model and class differ, such as "norm RMSNorm (instead of LayerNorm)"."""
    for path, ours, theirs in plan.obstacles:  # path such as encoder.block[0].norm, and both values of the field
        field = path.rpartition(".")[2].partition("[")[0] or "the model"  # "block" of the path encoder.block[0]
        if isinstance(ours, NoPosition):  # our positions are in another part, whose own difference names them
            continue
        if field in ("target_vocab_size", "shared_embeddings"):
            yield "separate source and target vocabularies"
        elif field == "block":
            yield "layers that differ from each other"
        else:
            yield f"{field} {_name(ours)} (instead of {_name(theirs)})"


def _name(value: Any) -> str:
    """Return the class name of a part of a model, such as "LayerNorm", or a plain value as text."""
    return type(value).__name__ if isinstance(value, Configurable) else str(value)


def _advice(run: Run) -> str:
    """Return what to train instead: recipes of the same system, or other systems; all of them can be exported.

    A recipe is a set of defaults for training.
    """
    system = run.config.system.name
    vocabulary = _trial_vocabulary(run.spec, joint=run.source_tokenizer is run.target_tokenizer)
    if system in SYSTEMS:
        if classes := dict(_exportable_recipes(system, vocabulary)):  # recipe → class of transformers
            options = " or ".join(f"--recipe {recipe} (as {name})" for recipe, name in classes.items())
            return f"Train the system {system} with {options}"
        joint_vocabulary = VocabularySizes(source=300, target=300, joint=True)
        if not vocabulary.joint and any(_exportable_recipes(system, joint_vocabulary)):
            return "Train it with --set text.shared_vocabulary=true"
    names = [name for name in SYSTEMS if any(_exportable_recipes(name, vocabulary, ("auto", *RECIPES)))]
    return f"Systems that can be exported: {', '.join(names)} (transformer with --recipe plain or textbook)"


def _trial_vocabulary(spec: Any, joint: bool) -> VocabularySizes:
    """Return small vocabulary sizes, with which specs of systems are built to try whether they can be exported.

    Source and target share a vocabulary if `joint`; otherwise their sizes differ if those of the model `spec` do. The
    sizes themselves do not matter.
    """
    if joint:
        return VocabularySizes(source=300, target=300, joint=True)
    sizes_differ = getattr(spec, "source_vocab_size", 0) != getattr(spec, "target_vocab_size", 0)
    return VocabularySizes(source=300, target=301 if sizes_differ else 300)


def _exportable_recipes(
    system: str, vocabulary: VocabularySizes, recipes: tuple[str, ...] = RECIPES
) -> Iterator[tuple[str, str]]:
    """Yield the recipes (sets of defaults) with which a system can be exported, and the class it is exported as.

    The recipe "auto" stands for the default recipe of the system.
    """
    definition = SYSTEMS[system]
    for recipe in recipes:
        recipe_settings = get_recipe(definition.default_recipe if recipe == "auto" else recipe, definition).system
        settings = {name: value for name, value in recipe_settings.items() if name in definition.settings()}
        spec: ModelSpec = definition.spec(vocabulary, "tiny", **settings)
        spec = getattr(spec, "discriminator", spec)  # of ELECTRA, only the discriminator is exported
        # special tokens and number of positions do not decide whether there are obstacles
        plan = plan_export(spec, weights={}, framing=spec.default_framing, max_positions=1024, preferred=system)
        if plan is not None and not plan.obstacles:
            yield recipe, plan.export_class.name
