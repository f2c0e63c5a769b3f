"""Checks configuration files for errors that a YAML reader does not report. No torch."""

import json
from pathlib import Path

import yaml


class _Loader(yaml.SafeLoader):
    """Refuses a duplicate key in a mapping. Other loaders silently use the last value."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node, seen = super().compose_mapping_node(anchor), set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.composer.ComposerError(problem=f"duplicate key {key.value}", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def problem(path: Path) -> str | None:
    """What is wrong with a file, in one line, or None."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # such as <(command): Snakemake reads it again
            return f"{path}: a pipe or a device cannot be read twice; write the configuration to a file"
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        json.dumps(values, skipkeys=True, default=str)
    except FileNotFoundError:
        return f"{path}: the file does not exist"
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'it is not a text file'}"
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        return f"{path}{line}: {error.problem or 'invalid YAML'}"
    except yaml.YAMLError:
        return f"{path}: invalid YAML"
    except (ValueError, RecursionError) as error:  # an invalid date, a list that contains itself
        return f"{path}: {error}"
    if not isinstance(values, dict):
        return f"{path}: not a mapping of keys to values; write keys as in config/quick.yaml"
    if "__use_yte__" in values:  # Snakemake would execute code in the file
        return f"{path}: __use_yte__ runs code in a file; a configuration holds only values, so remove it"
    return None
