"""Reads the call stack of this thread: which GradScaler steps an optimizer, and whether a backward pass is nested."""

import sys
from collections.abc import Iterator
from types import FrameType

import torch
from torch.utils.checkpoint import CheckpointFunction


def stepping_scaler() -> torch.amp.GradScaler | None:
    """The enabled GradScaler whose ``step`` is calling an optimizer, if there is one."""
    for frame in _frames():
        if frame.f_code.co_name == "step":
            scaler = frame.f_locals.get("self")
            if isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled():
                return scaler
    return None


def refuse_inner_backward() -> None:
    """ValueError in one line within a backward pass that reentrant activation checkpointing runs inside another one.

    When the inner pass ends, the callbacks run that it has queued, and the outer pass still goes on.
    """
    if any(frame.f_code is CheckpointFunction.backward.__code__ for frame in _frames()):
        raise ValueError(
            "checkpoint: use_reentrant=True is not possible around the model's last layers; give use_reentrant=False"
        )


def refuse_compiled_autograd() -> None:
    """ValueError in one line in a backward pass that torch compiles, which has no end that a hook could wait for."""
    if torch._dynamo.compiled_autograd.in_compiled_autograd_region:
        raise ValueError(
            "torch._dynamo.config.compiled_autograd: a compiled backward pass is not possible with a hook; set it to "
            "False, and compile the forward pass only"
        )


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
