"""The probe: records what a training job takes, in the job's own script, for ``python -m dlgs_bench.advise``."""

from dlgs_bench.probe.recorder import record

__all__ = ["record"]
