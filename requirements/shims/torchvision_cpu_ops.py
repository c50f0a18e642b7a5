"""Lets PyPI's torchvision be imported beside a CPU build of torch.

PyPI's torchvision is a CUDA build. Beside CPU torch its native library does not load, so the two operators
that its Python code refers to at import time do not exist, and `import torchvision` fails. The `.pth` file
installed with this module imports it at interpreter start, in every process of the environment (Ray actors
and engine processes too). It then waits for the first import of torchvision and declares the missing
operators just before; torch is not imported any earlier than it would have been.

Declared, not implemented: calling one still raises. Nothing in Tandem does: image processors need the
resizing.
"""

import importlib.machinery
import os
import sys

_DECLARATIONS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_kept = []  # a torch.library.Library withdraws its operators when it is collected


def _declare(folder):
    """Declare those operators that torchvision's own native library, if it loads at all, does not bring."""
    import contextlib

    import torch

    native = os.path.join(folder, "_C.so")
    if os.path.exists(native):
        with contextlib.suppress(OSError):  # fails for the CUDA build beside CPU torch, and only then
            torch.ops.load_library(native)
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _DECLARATIONS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _kept.append(library)


class _Finder:
    """A meta path finder for the one name `torchvision`."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torchvision":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or spec.origin is None:
            return spec
        execute, folder = spec.loader.exec_module, os.path.dirname(spec.origin)

        def exec_module(module):
            if not _kept:
                _declare(folder)
            execute(module)

        spec.loader.exec_module = exec_module
        return spec


if not any(finder is _Finder for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder)
