"""Accuracy runs hold aggregates against the true mean of the gradients, and may take a point where bytes are spent."""

import pytest
import torch
from equal_worker import small_model
from support import CPU
from test_server import Images

from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange.fidelity import vnmse
from dlgs_bench.spec import Cluster, Measurement, RunSpec, Scheme, Training
from dlgs_bench.training import train
from dlgs_bench.training.error_probe import COLUMNS

pytestmark = pytest.mark.unit

DENSE = 4 * sum(p.numel() for p in small_model().parameters())  # bytes of its gradient


def trained(workers: int, method: str, budget: float = 0, then=lambda session: session, **options):
    """Rank 0's session, or what is found in it, after six steps, with points of the curve after the third and sixth."""
    training = Training("small", batch=12 // workers, epochs=3, train_epochs=3, lr_steps=())
    measurement = Measurement(evaluations=2, test_samples=5, final_test_samples=24, byte_budget=budget)
    spec = RunSpec("accuracy", training, Scheme(method, options=options), Cluster(workers=workers), measurement)

    def work(comm):
        session, exchange = train.begin(spec, comm, Images(), CPU)
        for _ in range(session.spec.steps(session.data.train_size)):
            train.advance(session, exchange, session.spec.steps(session.data.train_size))
        return then(session)

    return run_workers(workers, work)[0]


def witnessed(session: train.Session) -> dict[int, list[float]]:
    rows = session.rows["iterations"]
    return {row["step"]: [row[c] for c in COLUMNS] for row in rows if row["squared_mean"] is not None}


def test_dense_sums_lose_nothing_in_the_steps_of_the_curve():
    found = witnessed(trained(2, "none"))
    assert list(found) == [3, 6]
    assert all(error == 0 and mean > 0 for error, mean in found.values())


def test_what_a_sparsifier_loses_is_what_it_did_not_send():
    """One worker without residual loses the sum, over layers, of all squares except the k largest."""

    def one_more(session):
        (exchange,) = session.exchanges.values()
        session.local_gradient()
        gradient, kept = session.flat.gradients.clone(), torch.zeros_like(session.flat.gradients)
        for layer, out in zip(gradient.split(session.flat.sizes), kept.split(session.flat.sizes), strict=True):
            places = layer.abs().topk(max(1, int(0.1 * len(layer)))).indices
            out[places] = layer[places]
        session.drawn -= 1
        error_probe = train.ErrorProbe(exchange, session.flat)
        session.step(exchange, 7, error_probe)
        return error_probe.errors(session.comm), vnmse([kept], [gradient])

    found, expected = trained(1, "lags", then=one_more, ratio=0.1, error_feedback=False)
    assert found["squared_error"] / found["squared_mean"] == pytest.approx(expected, rel=1e-4)
    assert 0.05 < expected < 0.95


def test_updates_of_methods_that_own_momentum_are_compared_with_nothing():
    assert not witnessed(trained(1, "dgc", ratio=0.1))


@pytest.mark.parametrize("budget, steps", [(0, [3, 6]), (2.5 * DENSE, [3, 6]), (4 * DENSE, [3, 4, 6]), (1e12, [3, 6])])
def test_a_point_more_is_taken_where_the_bytes_are_spent(budget, steps):
    points = trained(2, "none", budget=budget).rows["points"]
    assert [point["step"] for point in points] == steps
    assert [point["sent_bytes"] for point in points] == [step * DENSE for step in steps]
