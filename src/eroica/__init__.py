"""Eroica: why is this training job slow?"""

from eroica.errors import EroicaError

__version__ = "0.1.0"
__all__ = ["EroicaError", "__version__"]
