"""pixels.py IMAGE < FIGURES: whether each plot of a page's screenshot is drawn; one complaint a line.

FIGURES is a JSON list of {title, box: [x, y, width, height], colours: ["rgb(r, g, b)"]}.
"""

import json
import sys

import numpy as np
from PIL import Image

# A visible line or bar covers more pixels than this; one hidden behind another may cover fewer.
PIXELS_MIN = 20
NEAR = 40


def covered(plot, colour):
    """Number of pixels with about this colour."""
    rgb = np.array([int(v) for v in colour[4:-1].split(",")])
    return int((np.abs(plot - rgb).sum(axis=2) <= NEAR).sum())


page = np.array(Image.open(sys.argv[1]).convert("RGB"))
for figure in json.load(sys.stdin):
    x, y, w, h = (round(v) for v in figure["box"])
    if y + h > page.shape[0] or x + w > page.shape[1]:
        print(f"{figure['title']} lies outside of the screenshot")
        continue
    plot = page[y:y + h, x:x + w].astype(np.int16)
    if len({tuple(pixel) for row in plot[::3] for pixel in row[::3].tolist()}) <= 3:
        print(f"{figure['title']} is blank")
    for colour in figure["colours"]:
        seen = covered(plot, colour)
        if seen < PIXELS_MIN:
            print(f"{figure['title']}: {colour} covers {seen} pixels")
