"""Synthetic images of miniImageNet's size for timing runs, whose time does not depend on the pixels."""

from dlgs_bench.data.images224 import Images224


class Images84(Images224):
    """Noise, 84x84, with miniImageNet's numbers of classes and images: 100 classes of 600 images."""

    side = 84
    title = "synthetic images, 84x84"
    train_size, test_size = 50_000, 10_000
