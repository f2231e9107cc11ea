"""PriFi: anonymity on a local network. Research software; nobody should trust their safety to it."""

from __future__ import annotations

from prifi.client import Client
from prifi.errors import PrifiError
from prifi.parameters import Parameters
from prifi.relay import Relay
from prifi.simulate import Simulation
from prifi.trustee import Trustee

__all__ = ["Client", "Parameters", "PrifiError", "Relay", "Simulation", "Trustee"]
