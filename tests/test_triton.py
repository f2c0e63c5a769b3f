"""The GPU's kernels against the reference, run by Triton's interpreter; and whether they compile for a GPU."""

import subprocess
import sys

import pytest
from support import ROOT

pytestmark = [pytest.mark.unit, pytest.mark.slow]

pytest.importorskip("triton")

# The interpreter is chosen when Triton is imported, so each test is a process of its own.
COMPARE = """
import torch
from dlgs_bench.exchange.selection import MANY, Threshold, TopK, torch_backend, triton_backend

def bits(x):
    return x.view(torch.int32 if x.dtype == torch.float32 else torch.int16)

KINDS = {
    "normal": lambda acc: acc,
    "constant": lambda acc: acc * 0 + 2,
    "zero": lambda acc: acc * 0,
    "denormal": lambda acc: acc * 1e-7 if acc.dtype == torch.float16 else acc * 1e-42,
    "infinite": lambda acc: torch.where(acc > 2, acc * torch.inf, acc),
}
triton_backend.TURNS = 2  # so that several programs take part
for dtype in triton_backend.LAYOUTS:
    for size in (1, 2500):
        for kind, make in KINDS.items():
            acc = make(torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype))
            half = acc / 2
            whole = half + half
            for k in {1, max(1, size // 100), size}:
                h = torch_backend.kth_magnitude(whole, k)
                assert triton_backend.kth_magnitude(whole, k) == h
                for rule in (Threshold(h), TopK(k)):
                    for gradient in (half, None) if kind == "normal" else (half,):
                        start = whole if gradient is None else half
                        slow, quick = start.clone(), start.clone()
                        values, indices = torch_backend.take(slow, rule, gradient)
                        found, places = triton_backend.take(quick, rule, gradient)
                        where = dtype, size, kind, k, rule
                        assert (places[1:] > places[:-1]).all(), where
                        assert torch.equal(bits(found), bits(whole[places.long()])), where
                        left = whole.clone()
                        left[places.long()] = 0
                        assert torch.equal(bits(quick), bits(left)), where
                        if isinstance(rule, Threshold):
                            assert torch.equal(places.long(), indices), where
                        else:
                            assert torch.equal(found.abs().sort().values, values.abs().sort().values), where
                            if isinstance(rule, TopK):
                                capacities = {k}
                            else:
                                capacities = {1, max(1, len(indices) // 2), len(indices) + 3}
                            for most in capacities:
                                quick = start.clone()
                                found, places, chosen = triton_backend.take_at_most(quick, rule, most, gradient)
                                assert chosen.tolist() == [len(indices)] and len(found) == len(places) == most, where
                                n = min(most, len(indices))
                                first = places[:n].long()
                                assert (first[1:] > first[:-1]).all() and not found[n:].any(), where
                                assert torch.equal(bits(found[:n]), bits(whole[first])), where
                                left = whole.clone()
                                left[first] = 0
                                assert torch.equal(bits(quick), bits(left)), where
                                if isinstance(rule, Threshold):
                                    assert torch.equal(first, indices[:n]), where
    nan = torch.tensor([1.0, torch.nan, 3.0], dtype=dtype)
    for rule in (TopK(1), Threshold(9.0)):
        assert triton_backend.take_at_most(nan.clone(), rule, 1)[2].tolist() == [MANY]
    takes = (lambda rule=rule: triton_backend.take(nan.clone(), rule) for rule in (TopK(1), Threshold(9.0)))
    for call in (*takes, lambda: triton_backend.kth_magnitude(nan, 1)):
        try:
            call()
            raise AssertionError("NaN passed")
        except FloatingPointError:
            pass
"""


def python(code: str, environment: dict, **settings: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_kernels_choose_what_the_reference_chooses(environment):
    python(COMPARE, environment, TRITON_INTERPRET="1")


COMPILE = """
import inspect
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from dlgs_bench.exchange.selection import triton_backend

POINTERS = {"prefix": "*i32", "counts": "*i32", "least": "*i32", "ties": "*i64", "first_tie": "*i64", "first": "*i64",
            "indices": "*i32", "most": "i32"}
NAMES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
for dtype, (_, infinity, ((shift, width), *_)) in triton_backend.LAYOUTS.items():
    values = {"SHIFT": shift, "WIDTH": width, "BITS": 8 * dtype.itemsize, "INFINITY": infinity, "ADD": True,
              "TURNS": triton_backend.TURNS, "BLOCK": triton_backend.BLOCK}
    for kernel in (triton_backend._histogram, triton_backend._count, triton_backend._move):
        known = dict.fromkeys(values, "constexpr") | POINTERS | {"size": "i32"}
        types = {name: known.get(name, NAMES[dtype]) for name in kernel.arg_names}
        source = ASTSource(kernel, types, {name: values[name] for name in types if name in values})
        assert compile(source, target=GPUTarget("cuda", 80, 32)).asm["cubin"]
"""


def test_the_kernels_compile_for_a_gpu_that_need_not_be_there(environment, tmp_path):
    python(COMPILE, environment, TRITON_CACHE_DIR=str(tmp_path))
