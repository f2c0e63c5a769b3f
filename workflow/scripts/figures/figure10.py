"""Figure 10: training loss of ResNet-50 against epochs at ratio 0.1, one line per method.

Each point is the mean over the augmented batches since the point before. Machine, network, n and
spread are printed below the axes."""

from curve import draw

draw(snakemake, "resnet50", "train_loss", "training loss (cross-entropy)")
