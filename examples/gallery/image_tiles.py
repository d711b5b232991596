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
    """Hills, made on the spot: noise in which long waves are high."""
    noise = np.fft.fft2(np.random.default_rng(3).standard_normal((size, size)))
    steps = np.fft.fftfreq(size, 1 / size)
    hills = np.fft.ifft2(noise / np.maximum(np.hypot(steps[:, None], steps), 1.0) ** 2.5).real
    return (size / 20 * hills / hills.std()).astype(np.float32)


def shade(ground: Image, corner: Corner) -> npt.NDArray[np.uint8]:
    """The tile at a corner in the light of a low sun; the slope of its border needs pixels of its neighbours."""
    top, left = corner
    rows = np.arange(top - 1, top + TILE + 1).clip(0, len(ground) - 1)
    columns = np.arange(left - 1, left + TILE + 1).clip(0, len(ground) - 1)
    down, across = (slope[1:-1, 1:-1] for slope in np.gradient(ground[np.ix_(rows, columns)]))
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
