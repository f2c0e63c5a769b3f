"""The flat optimizers against those of torch.optim, slow to import and the reference."""

import copy
import io
from itertools import pairwise

import pytest
import torch
from equal_worker import go_on, session_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dlgs_bench.comm.local import run_workers
from dlgs_bench.spec import Training
from dlgs_bench.training.build import hidden_matrices
from dlgs_bench.training.flat_model import FlatModel
from dlgs_bench.training.optimizer import SGD, AdamW, Optimizer, optimizer_of

pytestmark = pytest.mark.unit

OPTIMIZERS = ("sgd", "adamw", "muon")


def steps(optimizer: Optimizer, reference: torch.optim.Optimizer, theirs: Tensor, size: int = 1000):
    """Five steps of both on the same gradients, at a falling rate; yields after each."""
    for step in range(5):
        gradient = torch.randn(size)
        theirs.grad = gradient.clone()
        optimizer.lr = reference.param_groups[0]["lr"] = 0.1 / (1 + step)
        reference.step()
        optimizer.step(gradient)
        yield step


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_same_bits_as_torch(momentum):
    torch.manual_seed(0)
    start = torch.randn(1000)
    ours, theirs = start.clone(), start.clone().requires_grad_()
    reference = torch.optim.SGD([theirs], 0.1, momentum=momentum, weight_decay=1e-2, fused=True)
    for _ in steps(SGD(ours, 0.1, momentum=momentum, weight_decay=1e-2), reference, theirs):
        assert torch.equal(ours, theirs)


def test_adamw_has_the_bits_of_torchs():
    torch.manual_seed(0)
    start = torch.randn(1000)
    ours, theirs = start.clone(), start.clone().requires_grad_()
    reference = torch.optim.AdamW([theirs], 0.1, betas=(0.8, 0.95), weight_decay=0.3, fused=True)
    for _ in steps(AdamW(ours, 0.1, (0.8, 0.95), weight_decay=0.3), reference, theirs):
        assert torch.equal(ours, theirs)
    assert (ours - start).abs().min() > 0


def test_adamw_updates_its_ranges_alone():
    start = torch.randn(1000)
    some = start.clone()
    AdamW(some, 0.1, (0.9, 0.999), 0.1, ranges=[(3, 40), (500, 1000)]).step(torch.ones(1000))
    assert torch.equal((some == start).nonzero().view(-1), torch.cat([torch.arange(3), torch.arange(40, 500)]))


def small() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(11, 8), nn.Linear(8, 24), nn.LayerNorm(24), nn.Linear(24, 16, bias=False), nn.Linear(16, 5)
    )


def test_hidden_matrices_are_neither_embeddings_nor_the_last_layer():
    assert list(hidden_matrices(small())) == ["1.weight", "3.weight"]
    tied = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11))
    tied[2].weight = tied[0].weight
    assert list(hidden_matrices(tied)) == ["1.weight"]


def test_muon_updates_hidden_matrices_as_torchs_does_and_the_others_by_adamw():
    torch.manual_seed(0)
    theirs = small()
    flat = FlatModel(copy.deepcopy(theirs))
    training = Training(optimizer="muon", lr=0.02, momentum=0.95, betas=(0.9, 0.95), weight_decay=0.1)
    ours = optimizer_of(training, flat.parameters, flat.matrices())
    matrices, named = hidden_matrices(theirs), dict(theirs.named_parameters())
    others = [p for name, p in named.items() if name not in matrices]
    references = [
        torch.optim.Muon(matrices.values(), 0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, 0.02, betas=(0.9, 0.95), weight_decay=0.1),
    ]
    for step in range(4):
        flat.gradients.normal_()
        for name, (_, view) in zip(flat.names, flat.views, strict=True):
            named[name].grad = view.clone()
        ours.lr = 0.02 / (1 + step)
        for reference in references:
            reference.param_groups[0]["lr"] = ours.lr
            reference.step()
        ours.step(flat.gradients)
        for name, p in flat.model.named_parameters():
            torch.testing.assert_close(p, named[name], rtol=1e-5, atol=1e-6)


def test_muon_without_a_hidden_matrix_is_refused():
    with pytest.raises(ValueError, match=r"^optimizer: muon updates matrices of hidden layers, and .* give adamw$"):
        optimizer_of(Training(optimizer="muon"), torch.zeros(10))


@given(st.integers(1, 200), st.sets(st.integers(1, 199)), st.integers(0, 2**16))
def test_parts_are_updated_to_the_same_bits_as_all_at_once(size, cuts, seed):
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(size, generator=generator)
    parts = whole.clone()
    optimizers = [SGD(w, 0.1, momentum=0.9, weight_decay=1e-2) for w in (whole, parts)]
    for _ in range(3):
        gradient = torch.randn(size, generator=generator)
        optimizers[0].step(gradient)
        for start, stop in pairwise([0, *sorted(c for c in cuts if c < size), size]):
            optimizers[1].step(gradient, start, stop)
        assert torch.equal(whole, parts)
        assert torch.equal(optimizers[0].velocity, optimizers[1].velocity)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["topk", "diloco"])  # an exchange of DiLoCo follows the fourth step
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(method, optimizer):
    training = Training("perceptron", optimizer=optimizer, weight_decay=0.1, lr=0.01)

    def saved(comm) -> bytes:
        memory = io.BytesIO()
        torch.save(go_on(session_of(comm, method, training=training), 3).state_dict(), memory)
        return memory.getvalue()

    def parameters(comm, states: list[bytes]) -> Tensor:
        session = session_of(comm, method, training=training)
        if states:
            session.load_state_dict(torch.load(io.BytesIO(states[comm.rank]), weights_only=True))
        return go_on(session, 6).flat.parameters

    states = run_workers(2, saved)
    whole, resumed = (run_workers(2, lambda comm, given=given: parameters(comm, given)) for given in ([], states))
    assert all(map(torch.equal, whole, resumed))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_method_with_momentum_of_its_own_needs_sgd(optimizer):
    def work(comm):
        session = session_of(comm, "demo", training=Training("perceptron", optimizer=optimizer))
        with pytest.raises(ValueError, match=f"^optimizer: {optimizer} cannot leave its momentum to DeMo; give sgd$"):
            go_on(session, 1)

    run_workers(1, work)
