"""Figure 7: training accuracy of VGG16 against epochs at ratio 0.1, one line per method.

Each point is the mean over the augmented batches since the point before. Machine, network, n and
spread are printed below the axes."""

from curve import draw

draw(snakemake, "vgg16", "train_accuracy", "training accuracy (%)", scale=100)
