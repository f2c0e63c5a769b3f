"""The probe: training keeps its bits, nothing stays behind, and a bad profile ends in one line."""

import copy
import json
import math
import os
import subprocess
import sys

import jsonschema
import pytest
import torch
from conftest import PATIENCE_S, ROOT, examples, horovod_is_slow
from hypothesis import given
from hypothesis import strategies as st
from probe_parts import compiled_outside, ddp_settings, plain, trained, with_and_without

from dlgs_bench.probe import record
from dlgs_bench.timemodel.job_profile import DDP_DEFAULTS, SCHEMA, load


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    without, _ = trained(plain, None)
    weights, left = trained(plain, path)
    assert all(torch.equal(a, b) for a, b in zip(weights, without, strict=True)) and left == 0
    return path


def same(a: list, b: list) -> bool:
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


@pytest.mark.unit
def test_a_profile_is_valid_and_adds_up(profile):
    found = load(profile)
    jsonschema.validate(found, SCHEMA)
    assert found["job"]["steps"] == 3 and found["job"]["kind"] == "single" and not found["network"]
    assert [row["shape"] for row in found["parameters"]] == [[40, 6], [40], [3, 40], [3]]
    arrived = [row["arrived_s"] for row in found["parameters"]]
    assert max(arrived[2:]) <= min(arrived[:2])  # the last layer's gradients come first
    assert {"cast", "topk"} == {row["name"] for row in found["methods"]}
    assert [path.name for path in profile.parent.iterdir()] == ["profile.json"]


@pytest.mark.unit
def test_an_interrupted_training_leaves_no_hook_and_no_file(tmp_path):
    _, left = trained(plain, tmp_path / "profile.json", stop=4)
    assert left == 0 and not list(tmp_path.iterdir())


class Wrapped(torch.optim.Optimizer):
    """An optimizer as Accelerate wraps it: a subclass whose own hooks do not exist."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()


@pytest.mark.unit
def test_a_wrapped_optimizer_is_recorded(tmp_path):
    model, optimizer = plain(torch.nn.Linear(2, 2))
    with record(model, Wrapped(optimizer), tmp_path / "profile.json", steps=2, methods=["topk"]):
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()
            Wrapped(optimizer).step()
    assert load(tmp_path / "profile.json")["job"]["steps"] == 2 and not optimizer._optimizer_step_post_hooks


@pytest.mark.unit
def test_what_cannot_be_recorded_ends_in_one_line(tmp_path):
    model, optimizer = plain(torch.nn.Linear(2, 2))
    for arguments in ({"steps": 0}, {"methods": ["topkk"]}):
        with (
            pytest.raises(ValueError, match=r"^record: [^\n]+$"),
            record(model, optimizer, tmp_path / "p", **arguments),
        ):
            pass
    with pytest.raises(ValueError, match="no step was recorded"), record(model, optimizer, tmp_path / "p"):
        pass


@pytest.mark.engine
@horovod_is_slow
def test_ranks_keep_their_bits(engine, worlds, tmp_path):
    ranks = worlds(engine).run(with_and_without, engine, str(tmp_path / "profile"))
    for (without, _), (weights, left) in ranks:
        assert same(weights, without) and left == 0
    assert [path.name for path in tmp_path.iterdir()] == ["profile.0"]  # rank 0 alone writes
    found = load(tmp_path / "profile.0")
    assert found["job"]["workers"] == 2
    assert {row["operation"] for row in found["network"]} == {"all-reduce", "all-gather", "message"}
    assert found["job"]["ddp"] == (DDP_DEFAULTS if engine == "torch_dist" else None)
    assert found["job"]["machine"] == {"cores": os.cpu_count(), "workers": 2}


@pytest.mark.engine
def test_the_buckets_and_the_buffers_of_ddp_are_recorded(worlds):
    for one, other in worlds("torch_dist").run(ddp_settings):
        assert one == {"first_bucket_bytes": 2**21, "bucket_bytes": 2**21, "buffer_bytes": 2 * 3 * 4 + 8}
        assert other == DDP_DEFAULTS


@pytest.mark.slow
@pytest.mark.engine
def test_ddp_inside_a_compiled_module_is_recorded_as_ddp(worlds, tmp_path):
    path = tmp_path / "profile.json"
    assert worlds("torch_dist").run(compiled_outside, str(path)) == [0, 0]
    job = load(path)["job"]
    assert (job["kind"], job["workers"], job["steps"], job["ddp"]) == ("ddp", 2, 3, DDP_DEFAULTS)


@pytest.mark.slow
@pytest.mark.engine
def test_the_example_records_a_profile(tmp_path):
    path = tmp_path / "profile.json"
    script = [ROOT / "examples" / "probe_ddp.py", path]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    settings = {"env": os.environ | {"PYTHONPATH": str(ROOT)}, "timeout": PATIENCE_S}
    done = subprocess.run([*launcher, *script], capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr
    job = load(path)["job"]
    assert (job["kind"], job["workers"], job["steps"]) == ("ddp", 2, 10)


def refused(path) -> None:
    with pytest.raises(ValueError) as caught:
        load(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


@pytest.mark.unit
@examples(3)
@given(st.floats(0, 0.999))
def test_a_profile_that_is_cut_off_is_refused(profile, tmp_path, part):
    text = profile.read_text().rstrip()
    cut = tmp_path / "cut.json"
    cut.write_text(text[: int(part * len(text))])
    refused(cut)


def places(value, at=()):
    """Every place in nested lists and dicts, except in free text."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        if key not in ("versions", "options", "left_out"):
            yield from places(item, (*at, key))


@pytest.mark.unit
@examples(5)
@given(st.data())
def test_a_profile_with_a_wrong_value_is_refused(profile, tmp_path, data):
    found = copy.deepcopy(load(profile))
    wrong = tmp_path / "wrong.json"
    *way, key = data.draw(st.sampled_from([at for at in places(found) if "options" not in at and "versions" not in at]))
    holder = found
    for step in way:
        holder = holder[step]
    if isinstance(holder, dict) and data.draw(st.booleans()):
        if way == ["left_out"] or (*way, key) == ("job", "machine"):  # older packages did not record the machine
            return
        del holder[key]
    else:
        holder[key] = data.draw(st.sampled_from([math.nan, math.inf, -1, -0.5, 10**400, [[]]]))
    wrong.write_text(json.dumps(found))
    refused(wrong)


@pytest.mark.unit
@pytest.mark.parametrize("text", ["", "[]", "null", "1", "{}", "[" * 10**5])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    refused(path)  # there is none
    path.write_text(text)
    refused(path)
    path.write_text(json.dumps({"format": "dlgs-bench profile", "version": 2}))
    refused(path)
