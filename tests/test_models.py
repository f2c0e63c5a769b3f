"""Models: the published sizes, the contract of a model file, and the flat layout of parameters and gradients."""

import json
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from dlgs_bench import data, describe, plugins
from dlgs_bench.comm.blocks import nonzero_blocks
from dlgs_bench.training.flat_model import FlatModel

pytestmark = pytest.mark.unit

MODELS = plugins.names("models")
described = cache(describe.model)
LARGE = ("vgg16_imagenet", "resnet50", "vgg16_100", "vgg16_84", "transformer")  # each has a sibling that is smaller

every_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in MODELS]
)
# Parameters and layers as the DLGS paper counts them; millions of multiply-adds as published for the architectures.
PUBLISHED = {
    "resnet20": (269_722, 59, 40.8),
    "vgg16": (14_728_266, 54, 313),
    "resnet50": (23_712_932, 161, 4089),
    "vgg16_imagenet": (138_357_544, 32, 313 + 124),  # convolutions on 32 x 32; the head
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_sizes(name):
    found = described(name)
    parameters, layers, millions = PUBLISHED[name]
    assert (found["parameters"], len(found["layers"])) == (parameters, layers)
    assert found["multiply_adds"] == pytest.approx(millions * 1e6, rel=0.01)


def test_the_transformer_has_about_ten_million_parameters_in_other_shapes():
    found = described("transformer")
    assert 9e6 < found["parameters"] < 12e6
    module = plugins.load("models", "transformer")
    weights = 12 * module.WIDTH**2 * module.BLOCKS + module.WIDTH * module.TOKENS  # of the blocks and the head
    attention = 2 * module.LENGTH * module.WIDTH * module.BLOCKS  # of each token to all: scores and sums
    assert found["multiply_adds"] == module.LENGTH * (weights + attention)


def test_the_small_transformer_is_the_same_with_fewer_parameters():
    assert described("transformer_small")["parameters"] == 867_072


def test_the_transformer_does_not_look_ahead():
    torch.manual_seed(0)
    model = plugins.load("models", "transformer").build().eval()
    tokens = torch.randint(0, 256, (2, 64))
    changed = tokens.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :, :40], before[:, :, :40])
    assert all((after[:, :, place] != before[:, :, place]).any() for place in range(40, 64))


@pytest.mark.parametrize(
    "name, last, of_samples",
    [("embedding", 43, torch.all), ("lstm", 63, torch.any)],
    ids=["the embedding bag looks four bytes back", "the lstm looks back to the first byte"],
)
def test_a_byte_changes_its_own_scores_and_later_ones_and_never_earlier_ones(name, last, of_samples):
    torch.manual_seed(0)
    model = plugins.load("models", name).build()
    tokens = torch.randint(0, 256, (2, 64))
    changed = tokens.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    differs = of_samples((model(tokens) != model(changed)).any(1), 0)
    assert differs.nonzero().view(-1).tolist() == list(range(40, last + 1))


@pytest.mark.parametrize("name", ["embedding", "lstm"])
def test_most_blocks_of_an_embeddings_gradient_are_zero_on_text_and_no_others_are(name):
    """More than 94 % of its blocks are zero, as in the models for which OmniReduce was made."""
    torch.manual_seed(0)
    module = plugins.load("models", name)
    flat = FlatModel(module.build())
    inputs, targets = data.load(module.DATA)(None, torch.device("cpu")).batch(0, data.Shard(8, 2, 0, 0))
    module.loss(flat.model(inputs), targets).backward()
    for parameter, view in flat.views:
        view.copy_(parameter.grad)
    layers = {name: flat.slice(number, number + 1) for number, name in enumerate(flat.names)}
    density = {name: nonzero_blocks(layer, 256).float().mean().item() for name, layer in layers.items()}
    assert density.keys() == set(flat.names)
    touched = module.rows(inputs).unique() * module.WIDTH // 256
    assert density["table.weight"] == pytest.approx(len(touched.unique()) / (2**module.ROW_BITS * module.WIDTH / 256))
    assert density.pop("table.weight") < 0.06
    assert set(density.values()) == {1.0}
    assert flat.sizes[-1] / sum(flat.sizes) > 0.98  # the table is nearly all of the model


@pytest.mark.parametrize(
    ("lacks", "said"),
    [("TITLE", "TITLE is missing: the name to show"), ("DATA", "DATA is missing"), ("loss", "loss is missing")],
)
def test_a_model_file_that_lacks_something_is_described_by_one_line(lacks, said, monkeypatch):
    file = vars(plugins.load("models", "resnet20")) | {}
    del file[lacks]
    monkeypatch.setattr(describe.plugins, "load", lambda kind, name: SimpleNamespace(**file))
    error = json.loads(describe.described("models", "unfinished"))["error"]
    assert said in error and "\n" not in error


def test_a_model_that_cannot_train_on_one_sample_is_described(monkeypatch):
    """BatchNorm cannot train where images are down to one pixel, as in many models for small images."""

    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10), torch.nn.BatchNorm1d(10))

    file = vars(plugins.load("models", "resnet20")) | {"build": build}
    monkeypatch.setattr(describe.plugins, "load", lambda kind, name: SimpleNamespace(**file))
    found = describe.model("small")
    assert (found["layers"], found["multiply_adds"]) == ([10, 10, 10, 3072 * 10], 3072 * 10)


def samples(name: str, n: int = 2) -> torch.Tensor:
    """Random inputs in the shape of the model's data, but images of 32 x 32, which ResNet-50 takes as well."""
    example = data.load(plugins.load("models", name).DATA).example()
    if not example.is_floating_point():
        return torch.randint(0, 256, (n, *example.shape[1:]))
    return torch.randn(n, example.shape[1], 32, 32).to(memory_format=torch.channels_last)


def built(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return plugins.load("models", name).build().to(memory_format=torch.channels_last)


@every_model
def test_flattening_changes_no_output_and_layers_come_last_first(name):
    model, inputs = built(name).eval(), samples(name)
    before = model(inputs)
    flat = FlatModel(model)
    assert torch.equal(model(inputs), before)
    assert flat.names == [n for n, _ in model.named_parameters()][::-1]
    assert flat.parameters.numel() == sum(flat.sizes)
    assert flat.sizes == described(name)["layers"]


@every_model
def test_each_gradient_comes_once_and_lands_in_its_slice(name):
    module, model, inputs = plugins.load("models", name), built(name), samples(name)
    flat, arrivals = FlatModel(model), []
    for layer, (parameter, view) in enumerate(flat.views):

        def hook(parameter, layer=layer, view=view):
            view.copy_(parameter.grad)
            arrivals.append(layer)

        parameter.register_post_accumulate_grad_hook(hook)
    outputs = model(inputs)
    classes = outputs.argmax(1)  # in dimension 1, whatever the model
    loss = module.loss(outputs, classes)
    loss.backward()
    assert loss.dim() == 0 and len(classes) == len(inputs)
    torch.testing.assert_close(loss, -outputs.log_softmax(1).amax(1).mean())  # the mean over all predictions
    assert sorted(arrivals) == list(range(len(flat.sizes)))
    for layer, (parameter, _) in enumerate(flat.views):
        found = flat.slice(layer, layer + 1).double()
        torch.testing.assert_close(found.sum(), parameter.grad.double().sum())
        torch.testing.assert_close(found.norm(), parameter.grad.double().norm())


@every_model
def test_the_memory_format_of_images_changes_no_output(name):
    model, inputs = built(name).eval(), samples(name)
    torch.manual_seed(0)
    plain = plugins.load("models", name).build().eval()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(inputs), plain(inputs.contiguous()), rtol=1e-3, atol=1e-4)


def test_one_flat_update_moves_every_parameter():
    model = torch.nn.Linear(3, 2)
    flat = FlatModel(model)
    flat.parameters.zero_()
    assert not any(p.any() for p in model.parameters())
