"""The probe: records a profile of a training job, in the job's script, for ``dlgs-bench advise``."""

from dlgs_bench.probe.recorder import record

__all__ = ["record"]
