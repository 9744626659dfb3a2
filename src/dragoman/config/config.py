"""All settings of a run as one object, read from YAML, the command line or Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dragoman import legacy
from dragoman.config.data_settings import CleaningConfig, DataConfig
from dragoman.config.lora_settings import LoRAConfig
from dragoman.config.search_settings import SearchDefaults
from dragoman.config.setting_declarations import Section, convert, parse_text, settings_of
from dragoman.config.text_settings import FeatureConfig, TextConfig
from dragoman.config.training_settings import ObjectiveConfig, SystemConfig, TrainingConfig
from dragoman.errors import UserError, unknown_name

#: our settings by their names in fairseq, OpenNMT, Hugging Face and others
SETTINGS_ELSEWHERE = {
    "arch": "system.name",
    "beam": "search.beam_size",
    "d_model": "system.settings.model_dim",
    "dropout": "system.settings.dropout",
    "encoder_layers": "system.settings.layers",
    "hidden_size": "system.settings.model_dim",
    "lenpen": "search.length_penalty",
    "lr": "training.learning_rate",
    "max_epoch": "training.epochs",
    "max_tokens": "training.batch_tokens",
    "max_update": "training.steps",
    "num_beams": "search.beam_size",
    "num_heads": "system.settings.heads",
    "num_layers": "system.settings.layers",
    "train_steps": "training.steps",
}


@dataclass(frozen=True)
class Config:
    """All settings of a run.

    `chosen` holds the settings that were chosen automatically, by their dotted names. Another run that starts from this
    configuration chooses them anew (`without_automatic_settings`), unless their values have been changed since.

    Examples:
        >>> config = Config(training=TrainingConfig(steps=1000), system=SystemConfig(name="luong"))
        >>> config.training.steps
        1000
    """

    data: DataConfig = field(default_factory=DataConfig)
    text: TextConfig = field(default_factory=TextConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    system: SystemConfig = field(default_factory=SystemConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    search: SearchDefaults = field(default_factory=SearchDefaults)
    cleaning: CleaningConfig = field(default_factory=CleaningConfig)
    chosen: dict[str, Any] = field(default_factory=dict)


SECTIONS: dict[str, type[Section]] = {
    cls.section: cls
    for cls in (
        DataConfig,
        CleaningConfig,
        TextConfig,
        FeatureConfig,
        SystemConfig,
        ObjectiveConfig,
        TrainingConfig,
        LoRAConfig,
        SearchDefaults,
    )
}


def from_dict(values: Any, where: str = "the configuration") -> Config:
    """Build a configuration from nested plain values; invalid values and unknown names are a UserError.

    The error for an unknown name suggests the nearest one.

    Args:
        values: `{"training": {"steps": 1000}, …}`; names of earlier versions are accepted.
        where: the origin of the values, for error messages.
    """
    if not isinstance(values, dict):
        raise UserError(
            f"{where} must map section names (data, text, system, training …) to settings, as in 'training: {{steps: "
            f"1000}}', but is {values!r}: correct it"
        )
    values = legacy.translate_settings(values, where)
    sections: dict[str, Any] = {}
    for section, settings in values.items():
        if section == "chosen":  # automatically chosen settings by their dotted names
            sections[section] = dict(settings)
            continue
        section_class = SECTIONS.get(section)
        if section_class is None:
            raise _unknown_setting(f"section in {where}:", section, SECTIONS)
        if not isinstance(settings, dict):
            raise UserError(
                f"the section {section} of {where} must map settings to values, but is {settings!r}: write one "
                "'NAME: VALUE' per line"
            )
        declared = settings_of(section_class)
        for name in settings:
            if name not in declared:
                known_names = [f"{section}.{key}" for key in declared]
                raise _unknown_setting(f"setting in {where}:", f"{section}.{name}", known_names)
        sections[section] = section_class(**settings)
    return Config(**sections)


#: reads plain values only; written in C where PyYAML was built with libyaml
YAML_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def from_yaml(path: Path) -> Config:
    """Read a configuration file: sections of settings, such as `training: {steps: 1000}`; a UserError if it is invalid.

    An empty file is the default configuration.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=YAML_LOADER)
    except FileNotFoundError:
        raise UserError(f"the configuration file {path} does not exist: correct the path given as --config") from None
    except OSError as error:
        raise UserError(
            f"the configuration file {path} cannot be read ({error.strerror}): check its permissions and --config"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(
            f"the configuration file {path} is not valid YAML ({str(error).splitlines()[0]}): write sections of "
            "settings, such as 'training: {steps: 1000}'"
        ) from None
    return from_dict({} if values is None else values, where=str(path))  # None: an empty file


def to_yaml(config: Config) -> str:
    """Write all settings of a configuration as YAML."""
    return yaml.safe_dump(_tuples_to_lists(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)


def replace_settings(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a configuration with other settings: `replace_settings(config, {"training.steps": 1000})`.

    `values` has the new values by dotted names. An unknown name or one of an earlier version, the name of a section, or
    an invalid value is a UserError.
    """
    tree = dataclasses.asdict(config)
    system = values.get("system.name", config.system.name)
    for name, value in values.items():
        # a name of an earlier version; the settings of custom systems were never renamed
        if (present_name := legacy.renamed_setting(name, system)) != name:
            raise UserError(f"the setting {name} is now called {present_name}: use {present_name}")
        section, *keys = name.split(".")
        if section not in SECTIONS:
            raise _unknown_setting("section", section, SECTIONS)
        if not keys:
            raise UserError(
                f"{name} is a section of settings, not a setting: set its settings one by one, such as "
                "training.steps=1000"
            )
        settings = tree[section]
        for depth, key in enumerate(keys[:-1], 1):  # such as "settings" of "system.settings.dropout"
            if not isinstance(settings.get(key), dict):
                raise unknown_name("section", ".".join([section, *keys[:depth]]), SECTIONS)
            settings = settings[key]
        settings[keys[-1]] = value
    return from_dict(tree, where="--set")


def override_settings(config: Config, settings: Sequence[str]) -> Config:
    """Return a configuration with other settings, given as text, such as `["training.steps=1000"]`."""
    return replace_settings(config, parse_settings(settings))


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE` texts, such as "training.steps=1000", by the declared types; return the values by name.

    Of several values for a setting, the last one counts. A text without "=" or with an invalid value is a UserError.
    """
    values = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(
                f"--set expects NAME=VALUE, such as training.steps=1000, got {text!r}: write the name, an equals "
                "sign and the value"
            )
        hint = setting_type(name)
        values[name] = convert(parse_text(value, hint, name), hint, name)
    return values


def _unknown_setting(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for an unknown setting or section: it suggests the setting that the name has elsewhere.

    That is a setting of any section whose name ends like `name`, or what other toolkits call `name`; otherwise the
    nearest of the `known` names. `kind` says what is unknown.
    """
    key = name.rpartition(".")[2]
    settings = [f"{section}.{other}" for section, kinds in SECTIONS.items() for other in settings_of(kinds)]
    same = [setting for setting in settings if setting.endswith(f".{key}")]
    suggestion = SETTINGS_ELSEWHERE.get(key) or (same[0] if same else None)
    if suggestion is None:
        return unknown_name(kind, name, known)
    return UserError(f"unknown {kind} {name!r}: did you mean {suggestion!r}?")


def setting_type(name: str) -> Any:
    """Return the declared type of a setting, such as `int | None` for "training.steps".

    It is Any for a key of a mapping, such as "system.settings.dropout", and for an unknown setting.
    """
    section, _, key = name.partition(".")
    settings = settings_of(SECTIONS[section]) if section in SECTIONS else {}
    return settings[key].hint if key in settings else Any


def record_automatic_settings(given: Config, resolved: Config) -> Config:
    """Record in `resolved.chosen` which of its settings were chosen automatically, and return it.

    These are the settings whose values differ from those that the user gave (`given`).
    """
    given_values = settings_by_name(given)
    chosen = {
        name: value
        for name, value in settings_by_name(resolved).items()
        if name not in given_values or given_values[name] != value
    }
    return dataclasses.replace(resolved, chosen=_tuples_to_lists(chosen))


def is_automatic(config: Config, name: str) -> bool:
    """Whether the user has not set a setting such as "training.steps": it is None or was chosen automatically."""
    section, _, key = name.partition(".")
    value = getattr(getattr(config, section), key)
    return value is None or (name in config.chosen and config.chosen[name] == value)


def without_automatic_settings(config: Config) -> Config:
    """Return the settings that the user gave, for another run: automatic choices are set back to their defaults.

    `config.chosen` holds the automatic choices by dotted name. A setting whose value now differs from its automatic
    choice has been changed by the user, and is kept.
    """
    tree, defaults = dataclasses.asdict(config), settings_by_name(Config())
    tree["chosen"], tree["training"]["extended_at"] = {}, 0  # another run has not been extended by --resume
    values = _tuples_to_lists(settings_by_name(config))
    for name, chosen_value in config.chosen.items():
        if name not in values or values[name] != chosen_value:  # changed by the user
            continue
        *sections, key = name.split(".")
        settings = tree
        for section in sections:
            settings = settings[section]
        if name not in defaults:  # a setting of the system or objective: `Config()` has no default for it
            del settings[key]
        elif chosen_value is False and defaults[name] is False:
            # `chosen` holds only values that differ from the user's: as the choice is the default false, the user gave
            # true
            settings[key] = True
        else:
            settings[key] = defaults[name]
    return from_dict(tree)


def settings_by_name(config: Config) -> dict[str, Any]:
    """Return all settings by their dotted names, but not the mappings `chosen` and `search.strategy`.

    `chosen` is no setting, and the keys of `search.strategy` are no names of settings.
    """
    tree = dataclasses.asdict(config)
    del tree["chosen"], tree["search"]["strategy"]
    return flatten_settings(tree)


def flatten_settings(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names: `{"training": {"steps": 9}}` becomes `{"training.steps": 9}`.

    `path` is put before all names, such as "system." for the settings of this section.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= flatten_settings(value, f"{path}{name}.")
        else:
            flat[f"{path}{name}"] = value
    return flat


def _tuples_to_lists(value: Any) -> Any:
    """Return a value (nested in dictionaries and tuples) with lists instead of tuples, which YAML does not have."""
    if isinstance(value, dict):
        return {name: _tuples_to_lists(item) for name, item in value.items()}
    return [_tuples_to_lists(item) for item in value] if isinstance(value, tuple) else value
