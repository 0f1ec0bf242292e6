"""The command: ``python -m autotune`` and ``autotune``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command."""
    # With torch_npu installed and CANN missing, PyTorch's own loading of backends makes `import torch` fail. The device
    # that is asked for loads its backend itself, where a failure has a name.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        from autotune.cli import run
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in _EXTRA:
            raise
        sys.stderr.write(f"autotune: {error.name} is not installed; pip install 'swa-alloc[autotune]'\n")
        raise SystemExit(2) from None
    run()


_EXTRA = ("hydra", "omegaconf", "optuna", "filelock", "rich")

if __name__ == "__main__":
    main()
