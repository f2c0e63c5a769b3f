"""Checks of a configuration that its schema cannot express. No torch.

Each function ``check_...`` takes the values and returns what is wrong, in one line, or None. Its docstring is the
condition that must hold.
"""

import hashlib
import os
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from dlgs_bench import data, plugins
from dlgs_bench.config import grid, launching, studies
from dlgs_bench.config.variants import chosen
from dlgs_bench.data.fetch.imagenet100 import CLASSES
from dlgs_bench.engines import ENGINES
from dlgs_bench.errors import listed, meant
from dlgs_bench.fingerprint import ROOT
from dlgs_bench.launch import gpus, nodes
from dlgs_bench.spec import UNCOMPRESSED, RunSpec
from dlgs_bench.testbed import testbed

PAGE = b"<!doctype html"  # the beginning of a report
PER_CORE = 16  # processes per core: with more, they mostly wait for each other


def check_models(values: dict) -> str | None:
    """The models exist, can be described, and have different titles, by which tables and figures distinguish them."""
    known = plugins.names("models")
    owners: dict[str, str] = {}
    for name in values["models"]:
        if name not in known:
            return f"models: no file models/{name}.py{meant(name, known)}; {listed(known)}"
        try:
            title = plugins.describe("models", name)["title"]
        except ValueError as error:
            return f"models: {error}; fix the file or leave it out"
        if title in owners:
            return f"models.{name}: its TITLE {title!r} is also the title of {owners[title]}; give each its own"
        owners[title] = name
    return None


MODEL_KEYS = ("models", "natural", "sparsified")  # the keys of studies that name models


def check_study_names(values: dict) -> str | None:
    """Studies name existing models and variants, which the configuration itself may leave out."""
    known = {key: plugins.names("models") for key in MODEL_KEYS}
    known["lr"] = sorted({*plugins.names("methods"), *values["variants"], *values["studies"]["methods"]["variants"]})
    for study, schema in studies.schemas().items():
        part = values["studies"][study]
        for key in known.keys() & part.keys():
            usual = schema["properties"][key].get("default", ())
            for name in part[key]:
                if name not in known[key] and name not in usual:
                    what = f"{name!r} is not a variant" if key == "lr" else f"no file models/{name}.py"
                    return f"studies.{study}.{key}: {what}{meant(name, known[key])}; {listed(known[key])}"
    return None


def check_nodes_models(values: dict) -> str | None:
    """``testbed.nodes.computation_ms`` names existing models: a misspelt name would be ignored."""
    known = plugins.names("models")
    for name in values["testbed"]["nodes"]["computation_ms"]:
        if name not in known:
            return f"testbed.nodes.computation_ms: no file models/{name}.py{meant(name, known)}; {listed(known)}"
    return None


def check_data_sets(values: dict) -> str | None:
    """Every model accepts its data set, and the data set is available or has a stand-in."""
    for name, model in values["models"].items():
        if model.get("data", data.names()[0]) not in data.names():
            return f"models.{name}.data: {model['data']!r} is not valid; give one of: {', '.join(data.names())}"
        takes = plugins.describe("models", name)["takes"]
        if grid.data_of(values, name) not in takes:
            data_set = grid.data_of(values, name)
            return f"models.{name}.data: the model does not accept {data_set}; give one of: {', '.join(takes)}"
        if grid.data_of(values, name) == grid.IMAGENET and not values["data"]["imagenet"] and "stand_in" not in model:
            fix = f"give its folder, or models.{name}.stand_in: cifar10"
            return f"data.imagenet: empty, but {name} needs imagenet100; {fix}"
    return None


def check_recipes(values: dict) -> str | None:
    """The learning-rate schedule of every model lies within its epochs."""
    for name, model in values["models"].items():
        steps, epochs = model["lr_steps"], model["epochs"]
        if steps != sorted(set(steps)) or (steps and steps[-1] > epochs):
            return f"models.{name}.lr_steps: {steps} is not valid; give epochs that rise up to {epochs:g}"
        if model["warmup_epochs"] > epochs:
            return f"models.{name}.warmup_epochs: {model['warmup_epochs']:g} is not valid; give at most {epochs:g}"
    return None


def check_optimizers(values: dict) -> str | None:
    """Every key of a recipe belongs to its optimizer, and the model has what the optimizer updates."""
    for name, model in values["models"].items():
        optimizer = model["optimizer"]
        for key in ("momentum", "betas"):
            if key in model and key not in grid.OF_OPTIMIZER[optimizer]:
                owners = " or ".join(other for other, keys in grid.OF_OPTIMIZER.items() if key in keys)
                return f"models.{name}.{key}: not a key of {optimizer}; leave it out, or give optimizer: {owners}"
        if optimizer == "muon" and not plugins.describe("models", name)["matrices"]:
            return f"models.{name}.optimizer: muon updates matrices of hidden layers, and {name} has none; give adamw"
    return None


def needs_sgd(runs: dict[str, RunSpec]) -> str | None:
    """What is wrong with the optimizers of the runs of a configuration or of a study, in one line."""
    for spec in runs.values():
        if spec.training.optimizer == "sgd":
            continue
        key = f"models.{spec.training.model}.optimizer: {spec.training.optimizer}"
        for one in spec.members.values():
            if one.topology.owner == "server":
                return f"{key} does not run on a server; leave topology {one.topology.name} out, or give sgd"
            if plugins.describe("methods", one.scheme.method)["needs_sgd"]:
                return f"{key} has momentum, and {one.variant} applies its own; leave {one.variant} out, or give sgd"
    return None


def check_trained(values: dict) -> str | None:
    """``accuracy.leave_out`` names existing variants, and at least one model and variant is trained."""
    known = sorted({*plugins.names("methods"), *values["variants"]})
    for name in values["accuracy"]["leave_out"]:
        if name not in known:
            return f"accuracy.leave_out: {name!r} is not a variant{meant(name, known)}; {listed(known)}"
    if not grid.accuracy(values):
        return "accuracy: nothing is trained; leave out fewer variants, or give a model train_epochs above 0"
    return None


def check_outputs(values: dict) -> str | None:
    """The report is not one of the other output folders."""
    output = values["output"]
    for folder in ("results", "figures"):
        if Path(output["report"]) == Path(output[folder]):
            return f"output.report: {output['report']} is also the folder of {folder}; give a file, such as report.html"
    return None


def check_ratios(values: dict) -> str | None:
    """The ratios of a list differ in their first six digits, which the names of runs contain."""
    for key in ("accuracy", "timing"):
        ratios = values[key]["ratios"]
        if len({f"{ratio:g}" for ratio in ratios}) < len(ratios):
            return f"{key}.ratios: {ratios} has ratios that are equal to six digits; give ratios that differ more"
    return None


def check_topologies(values: dict) -> str | None:
    """Every topology supports at least one method other than uncompressed, so that it has a timing run."""
    methods = {name: one for name, one in chosen(values).items() if name != UNCOMPRESSED}
    for topology in grid.all_topologies(values):
        if methods and not any(topology.supports(one.description["sum_kind"]) for one in methods.values()):
            why = f"{topology.name} does not support {', '.join(methods)}, which need more than one sum"
            return f"topologies: {why}; leave {topology.name} out, or add a method"
    return None


def untimed_variants(values: dict) -> str | None:
    """A warning that names variants which are not timed over a topology, or None.

    Only variants listed by name count. A second baseline, such as 16 bits, does not: it is timed over other topologies.
    """
    listed_by_name = {} if values["methods"] == "all" else chosen(values)
    named = {name: one for name, one in listed_by_name.items() if not one.description["baseline"]}
    for topology in grid.all_topologies(values):
        untimed = [name for name, one in named.items() if not topology.supports(one.description["sum_kind"])]
        if untimed:
            return f"topologies: {topology.name} does not support {', '.join(untimed)}, so not timed there"
    return None


def check_collective(values: dict) -> str | None:
    """The collective exists, and supports all numbers of workers, the device and the topologies."""
    name, known = values["collective"], ["engine", *plugins.names("collectives")]
    if name not in known:
        return f"collective: no file dlgs_bench/comm/collectives/{name}.py{meant(name, known)}; {listed(known)}"
    numbers = [("workers", values["workers"]), ("studies.advise.workers", values["studies"]["advise"]["workers"])]
    numbers += [(f"models.{m}.more_workers", n) for m, one in values["models"].items() for n in one["more_workers"]]
    for key, workers in numbers:
        if why := _refuses(name, workers):
            return f"collective: {why}; give engine, or other {key}"
    if grid.streams(values) and values["device"] == "cuda":
        return f"collective: {name} is for device: cpu, not cuda; give engine"
    served = [topology.name for topology in grid.all_topologies(values) if topology.servers]
    if name != "engine" and served:
        return f"collective: {name} cannot be combined with topology {served[0]}; give engine, or leave out {served[0]}"
    aggregators = values["streams"].get("aggregators", 1)
    key, workers = min(numbers, key=lambda number: number[1])
    if aggregators > workers:
        of_key = "" if key == "workers" else f" in {key}"
        fewest = f"{workers} workers{of_key}"
        return f"streams.aggregators: {aggregators} aggregators but only {fewest}; give at most {workers}"
    return None


def _refuses(collective: str, workers: int) -> str | None:
    """Why a collective does not support this number of workers, or None."""
    try:
        why = grid.refusal(collective, workers)
    except ValueError as error:
        return f"{error}; fix the file"
    return why and f"{collective} does not support {workers} workers: {why}"


def check_plans(values: dict) -> str | None:
    """Every accuracy run that reads a plan has a timing run with this plan."""
    timed = grid.timing(values)
    for spec in grid.accuracy(values).values():
        if not grid.planned_by(spec) or grid.plan_names(spec, timed):
            continue
        model, variant = spec.training.model, spec.variant
        if spec.topology not in grid.topologies_of(values, model):
            return f"topologies: {variant} trains {model} with its plan for allgather; add it, or leave {variant} out"
        return f"accuracy.ratios: {variant} has no plan for {spec.ratio}; give only ratios of timing.ratios"
    return None


def check_wire(values: dict) -> str | None:
    """The device supports the wire format."""
    if values["wire"] != "indices" and values["device"] == "cuda":
        return f"wire: {values['wire']} is for device: cpu; give indices"
    return None


def check_hosts(values: dict) -> str | None:
    """The rates and latencies of the testbed match each other and the number of hosts."""
    if values["testbed"]["host_rates_mbit"] and values["testbed"]["rate_mbit"] == grid.PROPORTIONAL:
        return "testbed.host_rates_mbit: needs a fixed rate; give testbed.rate_mbit in Mb/s, or leave it out"
    if values["testbed"]["latency_ms"] == grid.PROPORTIONAL != values["testbed"]["rate_mbit"]:
        return "testbed.latency_ms: proportional needs testbed.rate_mbit: proportional; give milliseconds"
    known = range(grid.processes(values))
    for host in values["testbed"]["host_rates_mbit"]:
        if str(host) not in map(str, known):
            return f"testbed.host_rates_mbit: no host {host}; give hosts from 0 to {known[-1]}, one per process"
    if values["network"] == "testbed" and (why := why_no_testbed(values)):
        return f"network: {why}; give host"
    return None


def check_launch(values: dict) -> str | None:
    """The hosts and the processes per GPU match the kind of launch."""
    by, hosts, per_gpu = (values["launch"][key] for key in ("by", "hosts", "per_gpu"))
    if by == "ssh" and not hosts:
        return "launch.hosts: empty, but launch.by: ssh needs hosts; give hosts such as [node1:2, node2:2]"
    if by != "ssh" and hosts:
        return f"launch.hosts: hosts are for launch.by: ssh, not {by}; leave them out"
    names = [host.rpartition(":")[0] for host in hosts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        return f"launch.hosts: {twice} is listed twice; give it once, with all its processes"
    if per_gpu > 1:
        dedicated = [engine for engine in grid.engines(values) if not ENGINES[engine].shares_gpus]
        if values["device"] == "cuda" and dedicated:
            return f"launch.per_gpu: processes of {dedicated[0]} cannot share a GPU; give 1, or another engine"
    return None


def why_no_testbed(values: dict) -> str | None:
    """Why this configuration cannot run on a testbed on any machine, or None."""
    if values["launch"]["by"] != "local":
        return f"testbed is for launch.by: local, not {values['launch']['by']}, which uses the network of its nodes"
    if values["device"] == "cuda":
        return "testbed is for device: cpu, since GPUs of one machine need no network"
    return "testbed needs at least 2 workers, since one worker has no links" if values["workers"] < 2 else None


def check_imagenet(values: dict) -> str | None:
    """The folder of ImageNet-100 has all classes, if a model needs it."""
    imagenet = values["data"]["imagenet"]
    if not imagenet or all(grid.data_of(values, model) != grid.IMAGENET for model in values["models"]):
        return None
    for part in ("train", "val"):
        missing = [c for c in CLASSES if not (Path(imagenet) / part / c).is_dir()]
        if missing:
            return (
                f"data.imagenet: no folder {imagenet}/{part}/{missing[0]} ({len(missing)} of 100 classes missing); "
                "give a folder with train/<class id>/ and val/<class id>/"
            )
    return None


def check_gpus(values: dict) -> str | None:
    """This machine has enough GPUs for the largest run."""
    if values["device"] != "cuda":
        return None
    visible, per_gpu = len(gpus.visible()), values["launch"]["per_gpu"]
    needed = -(-grid.processes(values) // per_gpu)
    if visible >= needed:
        return None
    return (
        f"device: cuda: the largest run needs {needed} GPUs, this machine shows {visible}; "
        "use fewer workers or device: cpu, or run where the GPUs are"
    )


# Of a testbed. The kernel passes at most 253 descriptors in a message: 2 per host and 1, with latency up to 3 and 2.
MOST_HOSTS, MOST_HOSTS_WITH_LATENCY = 126, 83


def check_shaped(values: dict) -> str | None:
    """This machine can shape the links of the testbed."""
    if values["network"] != "testbed":
        return None
    links, rates = values["testbed"], {}
    most = MOST_HOSTS_WITH_LATENCY if links["latency_ms"] else MOST_HOSTS
    if (needed := grid.processes(values)) > most:
        return f"workers: {needed} processes, but a testbed has at most {most} hosts; give fewer, or network: host"
    if links["rate_mbit"] != grid.PROPORTIONAL:
        rates = {"rate_mbit": max(links["rate_mbit"], *links["host_rates_mbit"].values(), 0)}
    if why := testbed.why_unavailable():
        return f"network: no testbed here: {why}; give host"
    if links["latency_ms"] and (why := testbed.why_unavailable(least_latency_ms(values), **rates)):
        return f"testbed.latency_ms: {why}; give 0, or slower links"
    return None


def least_latency_ms(values: dict) -> float:
    """The latency of the links. If it is in proportion, the nodes' latency, which is a lower bound."""
    links = values["testbed"]
    return links["nodes"]["latency_ms"] if links["latency_ms"] == grid.PROPORTIONAL else links["latency_ms"]


def check_cores(values: dict) -> str | None:
    """This machine has enough cores for the largest run."""
    cores, needed, threads = len(os.sched_getaffinity(0)), grid.processes(values), values["threads"]
    most = PER_CORE * cores
    if needed > most:
        return f"workers: {needed} processes on {cores} cores; give at most {most}, or use a machine with more cores"
    if needed * threads > most:
        return f"threads: {threads} for each of {needed} processes on {cores} cores; give at most {most // needed}"
    return None


def check_precisions(values: dict) -> str | None:
    """The processor or the GPUs support the precisions of the models."""
    device = values["device"]
    if computes_bfloat16(device):
        return None
    what = "a GPU of this machine" if device == "cuda" else "this processor"
    for name, model in values["models"].items():
        if model["precision"] == "bfloat16":
            return f"models.{name}.precision: {what} does not support bfloat16; give float32, or auto"
    return None


def computes_bfloat16(device: str) -> bool:
    """Whether this processor, or each GPU, multiplies in bfloat16. Otherwise it is slow, in software."""
    if device == "cuda":
        return not gpus.lack_bfloat16()
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & _processor())


def gains_from_bfloat16(device: str) -> bool:
    """Whether bfloat16 is faster than float32 on this processor, or on the GPUs.

    Intel's AVX-512 multiplies bfloat16 no faster than float32, and needs conversions. In a virtual machine that hides
    AMX, a step of ResNet-20 took 1.4 times as long as in float32. On AMD's AVX-512 it took about half as long.
    """
    if device == "cuda":
        return computes_bfloat16(device)
    processor = _processor()
    return bool({"amx_bf16", "bf16"} & processor) or {"avx512_bf16", "AuthenticAMD"} <= processor


def _processor() -> set[str]:
    """The words of /proc/cpuinfo; empty on other systems than Linux."""
    path = Path("/proc/cpuinfo")
    return set(path.read_text(encoding="utf-8").split()) if path.exists() else set()


def check_writable(values: dict) -> str | None:
    """The folders of the output and of CIFAR-10 are writable, and the report overwrites nothing but a report."""
    paths = {f"output.{key}": Path(values["output"][key]) for key in ("results", "figures", "report")}
    root, report = Path(values["data"]["root"]), paths["output.report"]
    data_sets = {one.get("stand_in", grid.data_of(values, name)) for name, one in values["models"].items()}
    if "cifar10" in data_sets and not (root / "cifar10.npz").exists():
        paths["data.root"] = root
    for key, path in paths.items():
        folder = path.parent if path == report else path
        existing = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
        if not existing.is_dir():
            what = "a file" if existing.exists() else "a broken symbolic link"
            return f"{key}: {existing} is {what}; give a folder{'' if folder == path else ' for the report'}"
        if not os.access(existing, os.W_OK):
            return f"{key}: {existing} is not writable; give another folder, or make it writable"
    if report.is_dir():
        return f"output.report: {report} is a folder; give a file, such as report.html"
    if report.suffix != ".html":
        return f"output.report: {report} does not end in .html; give a file that does, such as report.html"
    if report.exists() and (not report.is_file() or PAGE not in report.read_bytes()[:100].lower()):
        return f"output.report: {report} exists and is not a report; give another file, such as report.html"
    return None


def check_reach(values: dict) -> str | None:
    """The nodes can be reached, and have room for the largest run."""
    settings, processes = launching.settings(values), grid.processes(values)
    try:
        per_node = nodes.of(processes, settings, values["device"])
        if settings.by == "ssh":
            nodes.reach(per_node, values["device"], settings.per_gpu, Path.cwd())
    except nodes.Refused as why:
        return str(why)
    return None


def check_built(values: dict) -> str | None:
    """The engines are installed, and support the device."""
    engines, shared = grid.engines(values), values["launch"]["per_gpu"] > 1
    for engine in engines:
        if not ENGINES[engine].installed:
            others = [name for name, other in ENGINES.items() if other.installed]
            return (
                f"engine: {engine} is not installed here; run 'make env' (compiles it, about 2 minutes) "
                f"or use engine: {' or '.join(others)}"
            )
    with ThreadPoolExecutor() as pool:  # each engine takes some seconds
        missing = list(pool.map(lambda engine: _lacks(engine, values["device"], shared), engines))
    for engine, lacks in zip(engines, missing, strict=True):
        if lacks:
            return f"engine: {engine} cannot be used: {lacks}; install it as in environment.yml, or give another"
    return None


def _lacks(engine: str, device: str, shared: bool) -> str | None:
    """The result of ``Engine.lacks``. If nothing is missing, the result is cached until a package is installed."""
    packages = Path(sysconfig.get_path("purelib"))
    key = ENGINES[engine].built, device, shared, packages, packages.stat().st_mtime_ns
    cached = ROOT / ".cache" / "engines" / hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    if cached.exists():
        return None
    lacks = ENGINES[engine].lacks(device, shared)
    with suppress(OSError):  # the folder may be read-only
        if not lacks:
            cached.parent.mkdir(parents=True, exist_ok=True)
            cached.touch()
    return lacks


def check_submitted(values: dict) -> str | None:
    """Runs that Snakemake submits as jobs are not started by ssh."""
    if values["launch"]["by"] == "ssh":
        return "launch.by: ssh cannot be combined with jobs that Snakemake submits; give slurm, or local"
    return None


def check_more_workers(values: dict) -> str | None:
    """``more_workers`` are not below ``workers``: tables judge the runs with the fewest workers of a model."""
    workers = values["workers"]
    for model, one in values["models"].items():
        if fewer := [n for n in one["more_workers"] if n < workers]:
            return f"models.{model}.more_workers: {fewer[0]} is below workers, {workers}; give larger numbers"
    return None


OF_CONFIGURATIONS = (
    check_models,
    check_study_names,
    check_nodes_models,
    check_data_sets,
    check_recipes,
    check_outputs,
    check_ratios,
    check_topologies,
    check_collective,
    check_more_workers,
    check_trained,
    check_optimizers,
    check_plans,
    check_wire,
    check_hosts,
    check_launch,
)
# The checks of machines before anything runs: launch.by -> checks; "jobs": Snakemake submits the runs to a cluster.
OF_MACHINES = {
    "local": (check_imagenet, check_cores, check_gpus, check_precisions, check_shaped, check_built),
    "ssh": (check_imagenet, check_built, check_reach),
    "slurm": (check_imagenet, check_built, check_reach),
    "jobs": (check_submitted, check_imagenet, check_built),
}
