"""The configuration of a run: typed sections of settings, read from YAML, the command line or Python.

Every setting is declared once, with its default, range and help text. Validation, the options of the command line and
`docs/settings.md` come from these declarations.
"""

from dragoman.config.config import (
    SECTIONS,
    Config,
    flatten_settings,
    from_dict,
    from_yaml,
    is_automatic,
    override_settings,
    parse_settings,
    record_automatic_settings,
    replace_settings,
    setting_type,
    settings_by_name,
    to_yaml,
    without_automatic_settings,
)
from dragoman.config.data_settings import CleaningConfig, DataConfig
from dragoman.config.lora_settings import LoRAConfig
from dragoman.config.search_settings import SearchDefaults
from dragoman.config.setting_declarations import Section, Setting, convert, settings_of
from dragoman.config.text_settings import FeatureConfig, TextConfig
from dragoman.config.training_settings import (
    TRAINING_DEFAULTS,
    ObjectiveConfig,
    SelectionMetric,
    SystemConfig,
    TrainingConfig,
)

__all__ = ["SECTIONS", "TRAINING_DEFAULTS", "CleaningConfig", "Config", "DataConfig", "FeatureConfig", "LoRAConfig"]
__all__ += ["ObjectiveConfig", "SearchDefaults", "Section", "SelectionMetric", "Setting", "SystemConfig", "TextConfig"]
__all__ += ["TrainingConfig", "convert", "flatten_settings", "from_dict", "from_yaml", "is_automatic"]
__all__ += ["override_settings", "parse_settings", "record_automatic_settings", "replace_settings", "setting_type"]
__all__ += ["settings_by_name", "settings_of", "to_yaml", "without_automatic_settings"]
