"""Renamed keys and values of configurations. The old names work for one more release, with a warning."""

KEYS = {
    ("hung_after_s",): "hang_timeout_s",
    ("studies", "dilation"): "slowdown",
    ("studies", "sums", "apart"): "dedicated",
}
VALUES = {("selection", "fast"): "compiled", ("plan_cost", "dearest"): "worst"}


def renamed(values: dict) -> tuple[dict, str]:
    """``values`` with the new names, and a warning in one line; "" if there was no old name.

    An old key next to its new name is not renamed, so the schema refuses it as unknown.
    """
    warnings: list[str] = []
    return _renamed(values, (), warnings), "; ".join(warnings)


def _renamed(values: dict, path: tuple[str, ...], warnings: list[str]) -> dict:
    result = {}
    for key, value in values.items():
        here = (*path, key)
        new = KEYS.get(here, key)
        if new != key and new not in values:
            warnings.append(f"{'.'.join(here)} is now called {new}; rename it")
            key = new
        if isinstance(value, dict):
            value = _renamed(value, here, warnings)
        elif isinstance(value, str) and (key, value) in VALUES:
            warnings.append(f"{'.'.join(map(str, here))}: {value} is now called {VALUES[key, value]}; rename it")
            value = VALUES[key, value]
        result[key] = value
    return result
