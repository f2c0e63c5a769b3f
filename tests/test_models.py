"""Models: the paper's sizes; and the flat layout of parameters and gradients."""

import pytest
import torch

from harness import plugins
from harness.training.flat import FlatModel

MODELS = plugins.names("models")


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_layers_are_counted_as_stated(name):
    module = plugins.load("models", name)
    layers = list(module.build().parameters())
    assert sum(p.numel() for p in layers) == module.PARAMETERS
    assert len(layers) == module.LAYERS


def test_the_papers_sizes():
    stated = {m: plugins.load("models", m).PARAMETERS for m in ("resnet20", "vgg16", "resnet50")}
    assert stated == {"resnet20": 269_722, "vgg16": 14_728_266, "resnet50": 23_712_932}


@pytest.mark.parametrize("name", MODELS)
def test_flattening_changes_no_output_and_layers_come_last_first(name):
    torch.manual_seed(0)
    model = plugins.load("models", name).build().to(memory_format=torch.channels_last).eval()
    images = torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last)
    before = model(images)
    flat = FlatModel(model)
    assert torch.equal(model(images), before)
    assert flat.names == [n for n, _ in model.named_parameters()][::-1]
    assert flat.parameters.numel() == sum(flat.sizes) == plugins.load("models", name).PARAMETERS


def test_gradients_land_in_their_slices():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    flat = FlatModel(model.to(memory_format=torch.channels_last))
    model(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)).sum().backward()
    for layer, (parameter, view) in enumerate(flat.views):
        view.copy_(parameter.grad)
        expected = parameter.grad.double().sum()
        torch.testing.assert_close(flat.slice(layer, layer + 1).double().sum(), expected)


def test_one_flat_update_moves_every_parameter():
    model = torch.nn.Linear(3, 2)
    flat = FlatModel(model)
    flat.parameters.zero_()
    assert not any(p.any() for p in model.parameters())
