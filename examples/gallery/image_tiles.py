"""A map of heights is shaded tile by tile, as a low sun would light it.

The heights are sent once, as an object that all tasks read, because a tile needs the pixels of its neighbours at its
border. The tiles come back in order while others are still being shaded.
"""

from __future__ import annotations

import drawing
import numpy as np
import numpy.typing as npt
import session

from scaler import Client

Image = npt.NDArray[np.float32]
Corner = tuple[int, int]
TILE = 64


def terrain(size: int) -> Image:
    """Hills, made on the spot: noise of every scale."""
    draw, ground = np.random.default_rng(3), np.zeros((size, size), np.float32)
    for scale in (4, 8, 16, 32):
        coarse = draw.standard_normal((scale + 1, scale + 1))
        at = np.linspace(0, scale, size, endpoint=False)
        low, part = at.astype(int), (at % 1.0) ** 2 * (3 - 2 * (at % 1.0))
        rows = coarse[low] * (1 - part)[:, None] + coarse[low + 1] * part[:, None]
        ground += (rows[:, low] * (1 - part) + rows[:, low + 1] * part) / scale
    return ground


def shade(ground: Image, corner: Corner) -> npt.NDArray[np.uint8]:
    """The tile at a corner in the light of a low sun; the slope of its border needs pixels of its neighbours."""
    top, left = corner
    rows = np.arange(top - 1, top + TILE + 1).clip(0, len(ground) - 1)
    columns = np.arange(left - 1, left + TILE + 1).clip(0, len(ground) - 1)
    tile = ground[np.ix_(rows, columns)] * 40.0
    down, across = np.gradient(tile)[0][1:-1, 1:-1], np.gradient(tile)[1][1:-1, 1:-1]
    light = (1.0 - down - across) / np.sqrt(3.0 * (1.0 + down**2 + across**2))
    return (255 * light.clip(0.0, 1.0)).astype(np.uint8)


def work(client: Client, small: bool) -> bytes:
    """Send the ground once, shade all tiles, put them together."""
    size = 128 if small else 512
    ground = terrain(size)
    corners = [(top, left) for top in range(0, size, TILE) for left in range(0, size, TILE)]
    whole = client.send_object(ground, name="ground")
    picture = np.empty((size, size), np.uint8)
    for (top, left), tile in zip(corners, client.imap(shade, [whole] * len(corners), corners), strict=True):
        picture[top : top + TILE, left : left + TILE] = tile
    print(f"{len(corners)} tiles of {TILE} x {TILE} pixels; mean brightness {picture.mean():.0f}")
    return drawing.png([row.tobytes() for row in picture[: 256 if not small else size, :512]])


if __name__ == "__main__":
    session.run("An image in tiles.", work)
