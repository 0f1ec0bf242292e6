"""What is particular to each PyTorch device type, one class a type, and the registry that knows them."""

from swa_alloc.backends._base import Backend, Facts
from swa_alloc.backends._registry import backend_of, register_backend

__all__ = ["Backend", "Facts", "backend_of", "register_backend"]
