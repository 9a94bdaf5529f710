"""What can be played: the actions by name, how often each, and what each round draws."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from random import Random
from typing import Any

from soak.actors import Action, Actor
from soak.building import build, partition
from soak.inputs import LOADED, PARTITIONS, write_inputs
from soak.inspection import Output
from soak.loading import load, reference_batches
from soak.spilling_actions import collate, grow, hand_over, preshare, spill
from soak.stage import Stage
from soak.tending import clean, verify
from soak.verdicts import Verdict, judge

_MOST_FINISHED = 3


def _write_inputs(stage: Stage, chance: Random) -> dict[str, int]:
    write_inputs(stage.inputs)
    return {}


def _list_batches(stage: Stage, chance: Random, *, recipes: Sequence[str]) -> dict[str, int]:
    found = {recipe: reference_batches(stage, recipe) for recipe in recipes}
    stage.references.write_text(json.dumps({"batches": found}))
    return {}


ACTIONS: dict[str, Action] = {
    "build": build,
    "partition": partition,
    "load": load,
    "spill": spill,
    "preshare": preshare,
    "hand over": hand_over,
    "grow": grow,
    "collate": collate,
    "clean": clean,
    "verify": verify,
    "write inputs": _write_inputs,
    "list batches": _list_batches,
}
PEACEFUL = ("write inputs", "list batches")
_OFTEN = {"build": 6, "load": 6, "partition": 2, "spill": 2, "collate": 2}


class Repertoire:
    """Draws actions, keeps the directories that they build into, and knows which are in use."""

    def __init__(self, recipes: Sequence[str], actions: Sequence[str]) -> None:
        self.recipes = list(recipes)
        self.loaded = [recipe for recipe in LOADED if recipe in recipes]
        self.partitions = [name for name, (of, *_) in PARTITIONS.items() if of in recipes]
        self.homes = {*self.loaded, *(PARTITIONS[name][0] for name in self.partitions)}
        self.outputs: dict[str, Output] = {}
        self._actions = list(actions)
        self._weights = [_OFTEN.get(name, 1) for name in actions]
        self._in_use: set[str] = set()
        self._made = 0

    def draw(self, chance: Random) -> tuple[str, dict[str, Any]]:
        """The next action and its options, which are in use until it is judged."""
        (name,) = chance.choices(self._actions, self._weights)
        options: dict[str, Any] = {"seed": chance.getrandbits(32)}
        match name:
            case "build" | "partition":
                options |= self._draw_output(name, chance)
                self._in_use.add(options["out"])
            case "load":
                recipe, wanted = chance.choice(self.loaded), chance.random() < 0.4
                packed = wanted and recipe not in self._in_use  # one writes a pack at a time
                options |= {"recipe": recipe, "packed": packed}
                self._in_use |= {recipe} if packed else set()
            case "verify":
                options["out"] = f"home-{chance.choice(self.loaded)}"
            case "clean":
                options["dry_runs"] = True
        return name, options

    def judge(self, actor: Actor) -> Verdict:
        """Judge an actor, and take down what it says of its directory."""
        verdict = judge(actor)
        self.end(actor, verdict.outcome)
        return verdict

    def end(self, actor: Actor, outcome: str) -> None:
        """An actor no longer uses anything."""
        if "out" in actor.options and actor.action in ("build", "partition"):
            self.outputs[actor.options["out"]].told = outcome
            self._in_use.discard(actor.options["out"])
        if actor.options.get("packed"):
            self._in_use.discard(actor.options["recipe"])

    def unfinished(self) -> list[tuple[str, Output]]:
        """The directories that hold an unfinished build or partition, and are not in use."""
        return [
            (name, output)
            for name, output in self.outputs.items()
            if output.state == "unfinished" and name not in self._in_use
        ]

    def make_room(self, stage: Stage) -> None:
        """Forget what is absent, and remove the oldest of what is finished."""
        for name in [name for name, one in self.outputs.items() if one.state == "absent"]:
            del self.outputs[name]
        made = [name for name in self.outputs if not name.startswith("home-")]
        finished = [name for name in made if self.outputs[name].state == "finished"]
        old = finished[: max(0, len(finished) - _MOST_FINISHED)]
        # Of those that nobody takes up, the oldest: they would fill the disk in the end.
        unfinished = [name for name, _ in self.unfinished()]
        for name in old + unfinished[: max(0, len(unfinished) - _MOST_FINISHED)]:
            shutil.rmtree(stage.data / name)
            del self.outputs[name]

    def _draw_output(self, kind: str, chance: Random) -> dict[str, Any]:
        recipe = chance.choice(self.recipes if kind == "build" else self.partitions)
        again, resume = chance.random() < 0.6, chance.random() < 0.7
        left = [(name, one) for name, one in self.unfinished() if one.kind == kind]
        if left and again:
            out, output = chance.choice(left)
            recipe = output.recipe
        else:
            self._made += 1
            out, resume = f"{kind}-{self._made}", False
            self.outputs[out] = Output(kind, recipe)
        self.outputs[out].state = "in use"
        return {"out": out, "recipe": recipe} | ({"resume": resume} if kind == "build" else {})
