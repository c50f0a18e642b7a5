"""A frame is the picture as it was shown, whatever becomes of the array; and frames take a bounded amount of memory."""

import hashlib
import io

import numpy as np
from PIL import Image

from tandem.model.frames import FrameCache


def decoded(png: bytes):
    return np.asarray(Image.open(io.BytesIO(png)))


def test_an_environment_that_redraws_one_canvas_changes_no_frame():
    canvas = np.zeros((4, 6, 3), np.uint8)
    cache = FrameCache()
    dark = cache.frame(canvas)
    canvas[:] = 200
    bright = cache.frame(canvas)
    assert (dark.pixels == 0).all() and (bright.pixels == 200).all() and dark.sha256 != bright.sha256
    canvas[:] = 0
    assert cache.frame(canvas) is dark, "seen before"
    for frame in (dark, bright):
        assert np.array_equal(decoded(frame.png), frame.pixels)
        assert hashlib.sha256(frame.png).hexdigest() == frame.sha256


def test_a_view_is_the_picture_that_it_shows():
    whole = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    turned = FrameCache().frame(whole[::-1])
    assert np.array_equal(turned.pixels, whole[::-1]) and np.array_equal(decoded(turned.png), whole[::-1])


def test_what_is_kept_is_bounded_in_bytes():
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (32, 32, 3), np.uint8) for _ in range(3)]  # 3,072 bytes, and a png of no fewer
    cache = FrameCache(size=2 * 6400)
    first, second, _ = map(cache.frame, pictures)
    assert cache.frame(pictures[1]) is second
    again = cache.frame(pictures[0])
    assert again is not first and again.sha256 == first.sha256, "made anew: it had been forgotten"
