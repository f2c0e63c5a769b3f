"""Profiles of training jobs: their schema, and a loader that refuses a bad profile in one line. No torch, no pandas.

``dlgs_bench.probe`` writes a profile in the job's own script; ``job_advice`` predicts from it.
"""

import json
import math
import os
import re
from pathlib import Path
from typing import Any, get_args

from dlgs_bench.buckets import Scope
from dlgs_bench.errors import short_repr

FORMAT, VERSION = "dlgs-bench profile", 5
FEW_STEPS = 10  # medians over fewer recorded steps are uncertain
ONE_EXCHANGE = (  # what follows if several passes of a recorded step exchanged gradients
    "predictions assume one exchange per step; call no_sync in all passes except the last, or freeze the model in "
    "passes whose gradients are not used, and record again"
)
OPERATIONS = ("all-reduce", "all-gather", "message")
PARTS = ("forward", "loss", "backward", "waiting", "optimizer", "other", "iteration")
DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}  # bytes
# DistributedDataParallel as it is by default: the bytes that fill its first bucket and any other one.
DDP_DEFAULTS = {"first_bucket_bytes": 2**20, "bucket_bytes": 25 * 2**20, "buffer_bytes": 0}


def _object(**properties: dict) -> dict:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: dict, **more: Any) -> dict:
    return {"type": "array", "items": items} | more


_MOST = 10**15  # of any number in a profile
MOST_BYTES = 2 * 10**8  # of a profile
_COUNT = {"type": "integer", "minimum": 1, "maximum": _MOST}
_NATURAL = _COUNT | {"minimum": 0}
_SECONDS = {"type": "number", "minimum": 0, "maximum": _MOST}
_POSITIVE = {"type": "number", "exclusiveMinimum": 0, "maximum": _MOST}
_TEXT = {"type": "string"}
_LINE = {"type": "string", "pattern": r"^[ -~\u00a0-\ud7ff\ue000-\U0010ffff]*$"}  # without control characters
_ANY_SECONDS = {"anyOf": [_SECONDS, {"type": "null"}]}

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Profile of a training job, recorded by dlgs_bench.probe. All times are in seconds.",
} | _object(
    format={"const": FORMAT},
    version={"const": VERSION},
    job=_object(
        steps=_COUNT,  # iterations recorded
        passes=_COUNT,  # forward and backward passes before the median optimizer step
        # "hsdp": hybrid sharding. The parameters belong to one shard, and the workers are its replicas.
        kind={"enum": ["ddp", "hsdp", "horovod", "distributed", "single"]},
        backend=_TEXT,
        workers=_COUNT,
        device={"enum": ["cpu", "cuda"]},
        device_name=_LINE,
        threads=_COUNT,
        # Of packages; null for a package that the job does not use, and in older profiles.
        versions={"type": "object", "additionalProperties": {"anyOf": [_TEXT, {"type": "null"}]}},
        # Of DistributedDataParallel: the bytes that fill its buckets, and the bytes of the module's buffers, which rank
        # 0 broadcasts before each forward pass. null for other kinds of jobs.
        ddp={
            "anyOf": [
                _object(first_bucket_bytes=_COUNT, bucket_bytes=_COUNT, buffer_bytes=_NATURAL),
                {"type": "null"},
            ]
        },
        # The passes of the median step that exchanged gradients. 1 if the job has one process. null in older profiles.
        exchanges={"anyOf": [_COUNT, {"type": "null"}]},
        # The cores of the machine of rank 0, the number of workers on it, and the rates of its network interfaces in
        # Mb/s; null if the machine does not tell them, and in older profiles. A container with a quota of processor
        # time counts as a machine, and the quota limits its cores.
        machine={
            "anyOf": [
                _object(
                    cores=_COUNT,
                    workers=_COUNT,
                    interfaces={"anyOf": [_list(_object(name=_LINE, mbit=_COUNT), minItems=1), {"type": "null"}]},
                ),
                {"type": "null"},
            ]
        },
        # Of the cores that a worker may use, those that are idle in a backward pass. null in older profiles.
        idle_cores=_ANY_SECONDS,
    ),
    # Of each trainable parameter, in the order of model.parameters(): no name and no value. ``arrived_s``: when its
    # gradient was ready, from the beginning of backward; null if a pass never uses the parameter.
    parameters=_list(_object(shape=_list(_NATURAL), dtype={"enum": list(DTYPES)}, arrived_s=_ANY_SECONDS), minItems=1),
    # Medians over the recorded steps, and the 10th and 90th percentile. "waiting": from the last gradient to the
    # optimizer, which is communication that backward does not hide, and clipping.
    times=_object(**{part: _object(median_s=_SECONDS, low_s=_SECONDS, high_s=_SECONDS) for part in PARTS}),
    # On the job's own process group; ``bytes``: of one worker's tensor; ``processor_s``: processor time of one worker,
    # null in older profiles. Empty for one process.
    network=_list(
        _object(
            operation={"enum": list(OPERATIONS)}, workers=_COUNT, bytes=_COUNT, seconds=_POSITIVE,
            processor_s=_ANY_SECONDS,
        )
    ),
    # Selecting a hundredth of the entries and rounding to 16 bits, on the job's device, for the entries of the job's
    # median and largest bucket. Older profiles have them for one size of at most 2^22 entries.
    selection=_list(_object(operation=_TEXT, implementation=_TEXT, entries=_COUNT, seconds=_SECONDS)),
    # One worker's own part in an exchange of one bucket, with ``workers`` workers whose messages are like its own.
    methods=_list(
        _object(
            name=_LINE,
            title=_LINE,
            scope={"enum": list(get_args(Scope))},
            baseline={"type": "boolean"},
            options={"type": "object"},
            samples=_list(
                _object(
                    entries=_COUNT, workers=_COUNT, seconds=_SECONDS,
                    sums=_SECONDS, gathers=_SECONDS, messages=_SECONDS,  # requests of each kind
                    summed_bytes=_SECONDS, gathered_bytes=_SECONDS, message_bytes=_SECONDS,
                ),
                minItems=1,
            ),
        )
    ),
    left_out={"type": "object", "additionalProperties": _TEXT},  # method -> why it was not measured
)  # fmt: skip

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def load(path: Path | str) -> dict:
    """The profile in a file; ValueError in one line if it is not a valid profile."""
    try:
        profile = json.loads(_content(path), parse_constant=_refuse_constant)
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read: {error.strerror}; give the file that dlgs_bench.probe wrote"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: the file is not text; if it is compressed, unpack it") from None
    except RecursionError:
        raise ValueError(f"{path}: is not a profile: it is nested too deeply; record it again") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}: is not valid JSON ({error}); the file may be cut off: copy it again, or record again"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}; record it again") from None
    profile = _upgraded(profile)
    try:
        check(profile)
    except ValueError as error:
        raise ValueError(" ".join(f"{path}: {error}".split())) from None
    return profile


def _upgraded(profile: Any) -> Any:
    """A profile of an older package in today's form.

    Version 1 has no settings of DistributedDataParallel: we assume its defaults, and no buffers. The first packages
    that wrote version 2 did not record the machine, and none recorded the exchanges of a step. Version 3 has no network
    interfaces, and no version of NCCL and Horovod. Version 4 has no idle cores, and no processor times of messages.
    """
    version, job = (profile.get(key) if isinstance(profile, dict) else None for key in ("version", "job"))
    if version not in (1, 2, 3, 4) or isinstance(version, bool) or not isinstance(job, dict):
        return profile
    if version < 3:
        ddp = dict(DDP_DEFAULTS) if job.get("kind") == "ddp" else None
        job = {"machine": None} | job | ({"ddp": ddp} if version == 1 else {}) | {"exchanges": None}
    unknown = {"machine": {"interfaces": None}, "versions": {"horovod": None, "nccl": None}}
    for key, values in unknown.items():
        if isinstance(job.get(key), dict):
            job = job | {key: values | job[key]}
    rows = profile.get("network")
    if isinstance(rows, list):
        rows = [{"processor_s": None} | row if isinstance(row, dict) else row for row in rows]
        profile = profile | {"network": rows}
    return profile | {"version": VERSION, "job": {"idle_cores": None} | job}


def _content(path: Path | str) -> bytes:
    """The bytes of a file. A named pipe without a writer counts as empty, so the call does not wait forever."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(number, True)
    with os.fdopen(number, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    return content


def check(profile: Any) -> None:
    """ValueError in one line unless ``profile`` is valid."""
    given = profile.get("format") if isinstance(profile, dict) else profile
    if not isinstance(profile, dict) or given != FORMAT:
        raise ValueError(
            f"format: {short_repr(given, 60)} is not {FORMAT!r}, so this is not a profile; give the file that "
            "dlgs_bench.probe wrote"
        )
    if profile.get("version") != VERSION:
        given = short_repr(profile.get("version"), 60)
        raise ValueError(f"version: {given} is not {VERSION}; record the profile with this version of the package")
    if wrong := _wrong(SCHEMA, profile, ""):
        raise ValueError(wrong)
    kind, ddp = profile["job"]["kind"], profile["job"]["ddp"]
    if (kind == "ddp") != (ddp is not None):
        raise ValueError(
            f"job.ddp: {short_repr(ddp, 60)} is not valid for a job of kind {kind}; record the profile again"
        )
    own = profile["job"]["workers"]
    for number, row in enumerate(profile["network"]):
        if row["workers"] != own:
            where = f"network[{number}].workers"
            raise ValueError(f"{where}: {row['workers']} is not job.workers, which is {own}; record the profile again")
    measured = {row["operation"] for row in profile["network"]}
    if own == 1 and measured:
        raise ValueError("network: one worker has no network, so the list is not empty; record the profile again")
    if own > 1 and measured != set(OPERATIONS):
        missing = ", ".join(sorted(set(OPERATIONS) - measured))
        raise ValueError(f"network: {missing} is missing for {own} workers; record the profile again")
    if all(parameter["arrived_s"] is None for parameter in profile["parameters"]):
        raise ValueError("parameters: no gradient arrived; record a job that trains its model")


def _refuse_constant(text: str) -> None:
    raise ValueError(f"it contains {text}, which no probe writes")


def _wrong(schema: dict, value: Any, where: str) -> str | None:
    """What is wrong with a value, in one line, by the part of JSON Schema that ``SCHEMA`` uses."""
    here = where or "profile"
    if "anyOf" in schema:
        wrong = [_wrong(option, value, where) for option in schema["anyOf"]]
        return None if None in wrong else wrong[0]
    for key, options in (("const", [schema.get("const")]), ("enum", schema.get("enum"))):
        if key in schema:
            expected = " or ".join(map(str, options))
            fits = any(value == option and type(value) is type(option) for option in options)
            return None if fits else _refused(here, value, f"not {expected}")
    kind = schema["type"]
    if kind == "null":
        return None if value is None else _refused(here, value, "not null")
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return _refused(here, value, f"not of type {kind}")
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        return _refused(here, value, "not one line of text")
    if kind in ("integer", "number"):
        return _out_of_bounds(schema, value, here)
    if kind == "array":
        if len(value) < schema.get("minItems", 0):
            return f"{here}: the list is empty; record the profile again"
        wrong_items = (_wrong(schema["items"], item, f"{here}[{number}]") for number, item in enumerate(value))
        return next((wrong for wrong in wrong_items if wrong), None)
    return _wrong_object(schema, value, where) if kind == "object" else None


def _refused(here: str, value: Any, what: str) -> str:
    """A message that the value at ``here`` is ``what``, such as "not null"."""
    return f"{here}: {short_repr(value, 60)} is {what}; record the profile again"


def _out_of_bounds(schema: dict, value: float, here: str) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{here}: {value} is not a finite number; record the profile again"
    if value > schema["maximum"]:
        return _refused(here, value, f"greater than {schema['maximum']:g}")
    if "minimum" in schema and value < schema["minimum"]:
        return _refused(here, value, f"less than {schema['minimum']}")
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        return _refused(here, value, f"not greater than {schema['exclusiveMinimum']}")
    return None


def _wrong_object(schema: dict, value: dict, where: str) -> str | None:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key in schema.get("required", ()):
        if key not in value:
            return f"{where or 'profile'}: the key {key} is missing; record the profile again"
    for key, item in value.items():
        inner = f"{where}.{key}".lstrip(".")
        if key in properties:
            wrong = _wrong(properties[key], item, inner)
        elif others is False:
            wrong = f"{inner!r}: the key is not known; record the profile with this version of the package"
        else:
            wrong = None if others is True else _wrong(others, item, inner)
        if wrong:
            return wrong
    return None
