"""Pythia: a gateway in front of LLM engines that learns how agent workflows run, and serves them sooner.

from pythia import Profiles, read_log
profiles = Profiles()
profiles.learn_log(read_log(Path("requests.jsonl")))
    print(profiles.known["*", "coding"].text)  # planner -> explorer{3,5} -> (engineer -> reviewer){1,3}

from pythia import POLICIES, Engine, read_workflow, simulate, loaded
mixture = [(read_workflow("coding"), 1.0)]
plans = loaded(mixture, Engine(), replicas=8, load=0.97, seconds=60, seed=0)
print(simulate(plans, POLICIES["pythia"], Engine()).mean_s)
"""

from pythia.errors import PythiaError
from pythia.profile import Profile, Profiles, read_log
from pythia.records import Identifiers, Prediction, Step
from pythia.settings import Policy, Settings, read_settings
from pythia.simulation import POLICIES, Engine, Result, loaded, simulate
from pythia.workflow import Plan, Workflow, read_workflow

__all__ = [
    "POLICIES", "Engine", "Identifiers", "Plan", "Policy", "Prediction", "Profile", "Profiles", "PythiaError", "Result",
    "Settings", "Step", "Workflow", "loaded", "read_log", "read_settings", "read_workflow", "simulate",
]  # fmt: skip
