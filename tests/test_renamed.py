"""Old names in configurations work for one release, and a warning says the new one."""

import pytest
import yaml
from support import ROOT

from dlgs_bench.config import load as config
from dlgs_bench.config.renamed import renamed
from dlgs_bench.errors import ConfigError

pytestmark = pytest.mark.unit

SMOKE = yaml.safe_load((ROOT / "config" / "smoke.yaml").read_text())

OLD = {
    "hung_after_s is now called hang_timeout_s": ({"hung_after_s": 77}, {"hang_timeout_s": 77}),
    "studies.dilation is now called slowdown": ({"studies": {"dilation": {}}}, {"studies": {"slowdown": {}}}),
    "studies.sums.apart is now called dedicated": (
        {"studies": {"sums": {"apart": False}}},
        {"studies": {"sums": {"dedicated": False}}},
    ),
    "plan_cost: dearest is now called worst": ({"plan_cost": "dearest"}, {"plan_cost": "worst"}),
    "timing.selection: fast is now called compiled": (
        {"timing": {"selection": "fast"}},
        {"timing": {"selection": "compiled"}},
    ),
    "variants.dlgs.selection: fast is now called compiled": (
        {"variants": {"dlgs": {"selection": "fast"}}},
        {"variants": {"dlgs": {"selection": "compiled"}}},
    ),
}


@pytest.mark.parametrize("warning", OLD)
def test_an_old_name_means_the_new_one_and_is_named_in_a_warning(warning):
    old, new = OLD[warning]
    assert renamed(old) == (new, f"{warning}; rename it")
    assert renamed(new) == (new, "")


def test_a_configuration_with_an_old_key_is_the_same_as_with_the_new_one():
    old, new = (config.load(SMOKE | {key: 77}, "mine.yaml") for key in ("hung_after_s", "hang_timeout_s"))
    assert old.every == new.every and old.values == new.values
    assert old.warning.startswith("mine.yaml: hung_after_s is now called hang_timeout_s") and not new.warning


def test_both_names_at_once_are_refused():
    with pytest.raises(ConfigError, match="unknown key 'hung_after_s'"):
        config.load(SMOKE | {"hung_after_s": 1, "hang_timeout_s": 2}, "mine.yaml")
