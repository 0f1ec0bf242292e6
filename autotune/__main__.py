"""The command: ``python -m autotune`` and ``autotune``."""

from __future__ import annotations

import os

# With torch_npu installed and CANN missing, PyTorch's own loading of backends makes `import torch` fail, and swa_alloc
# imports torch. The device that is asked for loads its backend itself, where a failure has a name.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from swa_alloc._stdio import complain, prepare

# What the extra installs; without it the command can do nothing but say so.
_EXTRA = ("hydra", "omegaconf", "optuna", "filelock", "rich")
# As shells report SIGINT.
_INTERRUPTED = 130


def main() -> None:
    """Run the command."""
    prepare()
    try:
        from autotune.cli import run

        run()
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in _EXTRA:
            raise
        complain(f"autotune: {error.name} is not installed; pip install 'swa-alloc[autotune]'")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        complain("autotune: interrupted; a profile is saved whole or not at all")
        raise SystemExit(_INTERRUPTED) from None


if __name__ == "__main__":
    main()
