"""An accuracy run reports what it trained and tested: learning rates, epochs, and losses of the test samples."""

import pytest
import torch
from support import CPU
from test_server import Images
from torch.nn import functional as F

from dlgs_bench.comm.local import run_workers
from dlgs_bench.spec import Cluster, Measurement, RunSpec, Scheme, Training
from dlgs_bench.training import train
from dlgs_bench.training.build import evaluating

pytestmark = pytest.mark.unit

EPOCH = 3  # steps
TESTED = {2: 5, 4: 24}  # step with a point -> test samples of the point


def evaluated(session: train.Session, samples: int) -> dict[str, float]:
    """Loss and accuracy of the session's model on the first ``samples`` test samples, in one batch."""
    images, labels = session.data._images[:samples], session.data._labels[:samples]
    with evaluating(session.flat.model), torch.no_grad():
        outputs = session.flat.model(images)
    accuracy = (outputs.argmax(1) == labels).double().mean().item()
    return {"test_loss": F.cross_entropy(outputs, labels).item(), "test_accuracy": accuracy}


def test_a_step_has_the_learning_rate_of_its_beginning_and_a_point_the_loss_of_its_test_samples():
    """The rate falls after the first epoch. The last point tests more samples than the points before it."""
    measurement = Measurement(evaluations=2, test_samples=TESTED[2], final_test_samples=TESTED[4])
    training = Training("small", batch=4, epochs=2, train_epochs=2, train_steps=4, lr=0.1, lr_steps=(1,))
    spec = RunSpec("accuracy", training, Scheme("none"), Cluster(workers=2), measurement)

    def work(comm) -> tuple[list[float], list[dict], list[dict]]:
        session, exchange = train.begin(spec, comm, Images(), CPU)
        rates, expected, make_step = [], [], session.step
        session.step = lambda *how: rates.append(session.optimizer.lr) or make_step(*how)
        for step in range(1, 5):
            train.advance(session, exchange, total_steps=4)
            if step in TESTED:
                expected.append({"step": step, "epoch": step / EPOCH} | evaluated(session, TESTED[step]))
        return rates, session.rows["points"], expected

    for rates, points, expected in run_workers(2, work):
        assert rates == pytest.approx([0.1, 0.1, 0.1, 0.01])
        for point, own in zip(points, expected, strict=True):
            assert {key: point[key] for key in own} == pytest.approx(own, rel=1e-5)
