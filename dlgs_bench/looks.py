"""The look of methods and of an iteration's parts in all figures: colours, dashes, markers, hatches. No matplotlib.

Black is uncompressed. The other colours are the palette of Okabe and Ito, which colour-blind readers can distinguish,
and a dark red. Every variant also has a dash and a marker, and every part of an iteration a hatch, so figures can be
printed in black and white.
"""

from collections.abc import Iterable
from itertools import chain, count, islice

BLACK = "#000000"
# The lengths of the lists are coprime, so the first 280 variants differ in colour, dash or marker.
COLOURS = ["#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#882255"]
DASHES = ["-", "--", "-.", ":", (0, (5, 1))]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<"]
COMMON = ["none", "topk", "lags", "dlgs", "cast", "powersgd"]  # methods with the same look in every figure
FILLS = ["full", "none", "left", "bottom"]  # of the markers of a variant's first, second, ... ratio

# The parts of an iteration: part -> columns of a summary, colour, hatch.
PARTS = {
    "computation": (["forward_s", "backward_s"], "#56B4E9", ""),
    "sparsification": (["sparsify_s"], "#E69F00", "///"),
    "waiting for slower workers": (["waiting_s"], "#F0E442", "\\\\\\"),
    "non-overlapped communication": (["communication_s"], "#D55E00", "xxx"),
    "optimizer and other": (["optimizer_s", "other_s"], "#999999", "..."),
}


def colour(number: int) -> str:
    """The colour of variant ``number``; black only for the first, which is uncompressed."""
    return COLOURS[(number - 1) % len(COLOURS)] if number else BLACK


def line(number: int, label: str, ratio: int = 0) -> dict:
    """Matplotlib's keywords for line ``number``; ``ratio``: the index of the ratio among the variant's ratios."""
    return {
        "color": colour(number),
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "fillstyle": FILLS[ratio % len(FILLS)],
        "markersize": 4,
        "linewidth": 1.5 if ratio == 0 else 0.9,
        "label": label,
    }


def number(variant: str, variants: Iterable[str]) -> int:
    """The number of a variant's look.

    Common methods have fixed numbers. The others of ``variants`` get in their order the colours that are left, then the
    colours of common methods that are not among ``variants``, then the colours once more.
    """
    if variant in COMMON:
        return COMMON.index(variant)
    names = list(variants)
    others = [name for name in names if name not in COMMON]
    missing = [place + len(COLOURS) for place, name in enumerate(COMMON) if place and name not in names]
    first = [*range(len(COMMON), len(COLOURS) + 1), *missing]
    numbers = chain(first, (number for number in count(len(COLOURS) + 1) if number not in first))
    return next(islice(numbers, others.index(variant) if variant in others else len(others), None))
