"""Figure 13: one iteration of ResNet-50 split into its parts, per method and ratio.

Computation is forward and backward; communication is what remains to be waited for after backward
has ended. DLGS is amortised over its refresh interval. Machine, network, n and spread are printed
below the axes."""

from breakdown import draw

draw(snakemake, "resnet50")
