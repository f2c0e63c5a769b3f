"""Configuration files as a person wrote them: what reading them as YAML would pass over. No torch."""

import json
from pathlib import Path

import yaml


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, of which YAML would take the last."""

    def compose_mapping_node(self, anchor):
        node, seen = super().compose_mapping_node(anchor), set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.composer.ComposerError(problem=f"{key.value} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def problem(path: Path) -> str | None:
    """What is wrong with a file, in one line, or None."""
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        json.dumps(found, skipkeys=True, default=str)
    except FileNotFoundError:
        return f"{path}: there is no such file"
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}"
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        return f"{path}{line}: {error.problem or 'no YAML'}"
    except yaml.YAMLError:
        return f"{path}: no YAML"
    except (ValueError, RecursionError) as error:  # a date that is none, a list that holds itself
        return f"{path}: {error}"
    if not isinstance(found, dict):
        return f"{path}: no mapping of keys to values"
    if "__use_yte__" in found:  # Snakemake would run what stands there
        return f"{path}: __use_yte__ makes a program of a file; a configuration holds values alone"
    return None
