"""Mutates other people's real world files and reads them: `python tests/sim/fuzz_readers.py --minutes 10`.

Whatever is read must load, or be refused with a `WorldFileError` that names a file; and what loads must
bear being simulated. Not collected by pytest: `test_fuzz.py` runs it for a few seconds. Every case is
reproduced by its number: `--seed N --cases 1`. The files are read in place (`SCANPILOT_DATA` or
``../shared/data``); mutated copies live in a temporary folder among links to the others.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import logging
import os
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.sim import sources
from scanpilot.sim.simulator import Simulator
from scanpilot.sim.world import World, WorldFileError
from scanpilot.sim.world_file import load_world

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("stage_worlds", "ros_maps", "gazebo_worlds")
WORLDS = (".world", ".sdf", ".yaml")
IMAGES = (".png", ".pgm", ".bmp")
# What another file must be for worlds to depend on it.
PARTS = (".inc", ".model", *IMAGES)
ROBOT = RobotSpec(
    "fuzz", "differential", Footprint(radius=0.2), Limits(vx=1.0, wz=1.5), Lidar(beams=64, range_max=10.0)
)
# A case that needs more CPU seconds hangs: its traceback is printed and the run ends by a signal.
LONGEST = 60.0
NASTY = b"0 -0 -1 1e9 1e308 1e999 -1e-320 nan inf 99999999999999999999 0x10 1,5".split()
NASTY += b"[ ] ( ) \" ' # < > & % \\ ~ \xff \xef\xbb\xbf".split()


@dataclass(frozen=True)
class Subject:
    """A file to mutate and the world to read then."""

    file: Path
    world: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if everything was clean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--cases", type=int, help="stop after so many")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--data", type=Path, default=_data(), help="folder with " + ", ".join(FOLDERS))
    args = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    if not args.data.is_dir():
        print(f"no folder {args.data}; SCANPILOT_DATA or --data names another", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="fuzz_") as folder:
        return Fuzzer(args.data, Path(folder)).run(args.seed, args.minutes, args.cases)


def _data() -> Path:
    return Path(os.environ.get("SCANPILOT_DATA", ROOT.parent / "shared" / "data"))


class Fuzzer:
    """Links to all files in a folder of its own, one of which at a time is replaced by a mutated copy."""

    def __init__(self, data: Path, folder: Path) -> None:
        self._folder = folder
        for path in sorted(p for top in FOLDERS for p in (data / top).rglob("*") if p.is_file()):
            link = folder / path.relative_to(data)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        models = [str(p) for p in folder.rglob("models") if p.is_dir()]
        os.environ["GZ_SIM_RESOURCE_PATH"] = os.pathsep.join(models)
        self._subjects = _subjects(folder)
        # Kinds of files take turns, so that the many do not crowd out the few.
        self._sound: dict[Path, bool] = {}
        self._kinds = sorted({(s.file.suffix, s.world.relative_to(folder).parts[0]) for s in self._subjects})

    def run(self, seed: int, minutes: float, cases: int | None) -> int:
        """Cases ``seed``, ``seed + 1``, ... until the time is over."""
        outcomes: collections.Counter[str] = collections.Counter()
        reasons: collections.Counter[str] = collections.Counter()
        dirty = 0
        end = time.monotonic() + 60.0 * minutes
        number = seed
        while time.monotonic() < end and (cases is None or number < seed + cases):
            # What a case is that ends all this, the last line says.
            (self._folder / "case").write_text(str(number))
            outcome, told = self.case(number)
            outcomes[outcome] += 1
            if outcome == "refused":
                reasons[re.sub(r"'[^']*'|\"[^\"]*\"|[-+0-9.e]+", "_", told)[-60:]] += 1
            elif outcome == "dirty":
                dirty += 1
                print(f"case {number}: {told}", flush=True)
            number += 1
        print(f"{number - seed} cases from {seed} on: {dict(outcomes)}; {len(reasons)} kinds of refusals")
        return 1 if dirty else 0

    def case(self, number: int) -> tuple[str, str]:
        """Outcome and what there is to tell of one case."""
        rng = np.random.default_rng(number)
        suffix, top = self._kinds[number % len(self._kinds)]
        kind = [
            s
            for s in self._subjects
            if s.file.suffix == suffix and s.world.relative_to(self._folder).parts[0] == top
        ]
        drawn = [kind[i] for i in rng.permutation(len(kind))]
        subject = next((s for s in drawn if self._is_sound(s.world)), drawn[0])
        original = subject.file.resolve()
        mutated = mutate(original.read_bytes(), rng, binary=suffix in IMAGES)
        signal.setitimer(signal.ITIMER_PROF, LONGEST)
        subject.file.unlink()
        try:
            subject.file.write_bytes(mutated)
            return self._read(subject)
        finally:
            subject.file.unlink()
            subject.file.symlink_to(original)
            signal.setitimer(signal.ITIMER_PROF, 0.0)

    def _is_sound(self, world: Path) -> bool:
        """Whether a world loads as it is; a change to one that does not would find nothing new."""
        if world not in self._sound:
            try:
                load_world(world)
                self._sound[world] = True
            except WorldFileError:
                self._sound[world] = False
        return self._sound[world]

    def _read(self, subject: Subject) -> tuple[str, str]:
        place = subject.file.relative_to(self._folder)
        try:
            with warnings.catch_warnings():
                # What numpy or Pillow warn of is not handled: it may not happen.
                warnings.simplefilter("error")
                world = load_world(subject.world)
        except WorldFileError as error:
            if str(self._folder) not in str(error):
                return "dirty", f"{place}: the refusal names no file: {error}"
            return "refused", str(error)
        except Exception as error:
            return "dirty", f"{place} in {subject.world.name}: {type(error).__name__}: {error}"
        try:
            simulate(world)
        except Exception as error:
            return "dirty", f"{place}: loads, but is not fit to drive in: {type(error).__name__}: {error}"
        return "loaded", ""


def simulate(world: World) -> None:
    """A step and a scan of one robot in the middle.

    Raises:
        AssertionError: the world holds numbers that are none, or a scan does.
    """
    for numbers in (world.segments, world.circles, np.array(world.bounds), np.array(world.area)):
        assert np.isfinite(numbers).all(), "geometry is not finite"
    world = sources.cut_for_its_robots(world)
    simulator = Simulator([world], ROBOT, 1)
    x0, y0, x1, y1 = world.area
    simulator.place([0], np.array([[0.5 * (x0 + x1), 0.5 * (y0 + y1), 0.3]]))
    simulator.step(np.array([[1.0, 0.0, 0.5]]), 0.2)
    ranges = simulator.scan()
    assert np.isfinite(ranges).all(), "ranges are not finite"
    assert 0.0 <= ranges.min() <= ranges.max() <= 10.0, "ranges are out of bounds"


def _subjects(folder: Path) -> list[Subject]:
    """Every world, and every part that a world names, with one such world."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    worlds = [p for p in files if p.suffix in WORLDS]
    texts = {p: p.read_text(encoding="utf-8", errors="replace") for p in files if p.suffix not in IMAGES}
    found = [Subject(world, world) for world in worlds]
    for part in (p for p in files if p.suffix in PARTS or p.name in ("model.sdf", "model.config")):
        names = {part.name, part.parent.name} if part.name.startswith("model.") else {part.name}
        own = part.relative_to(folder).parts[0]
        users = [p for p, t in texts.items() if p != part and any(n in t for n in names)]
        # An include may itself be included: one step up is enough for the files at hand.
        users += [p for user in users if user.suffix == ".inc" for p, t in texts.items() if user.name in t]
        found += [
            Subject(part, p) for p in users if p.suffix in WORLDS and p.relative_to(folder).parts[0] == own
        ]
    return found


def mutate(content: bytes, rng: np.random.Generator, binary: bool) -> bytes:
    """One to eight changes, at places that are drawn; the head of an image is changed more often."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 9))):
        if not data:
            break
        reach = min(len(data), 64) if binary and rng.random() < 0.6 else len(data)
        at = int(rng.integers(reach))
        if binary or rng.random() < 0.4:
            _mutate_bytes(data, at, rng)
        else:
            _mutate_words(data, at, rng)
    return bytes(data)


def _mutate_bytes(data: bytearray, at: int, rng: np.random.Generator) -> None:
    action = int(rng.integers(6))
    length = int(rng.integers(1, 40))
    if action == 0:
        data[at] ^= 1 << int(rng.integers(8))
    elif action == 1:
        data[at] = int(rng.integers(256))
    elif action == 2:
        del data[at : at + length]
    elif action == 3:
        other = int(rng.integers(len(data)))
        data[at:at] = data[other : other + length]
    elif action == 4 and rng.random() < 0.3:
        del data[at:]
    else:
        data[at:at] = NASTY[int(rng.integers(len(NASTY)))]


def _mutate_words(data: bytearray, at: int, rng: np.random.Generator) -> None:
    """Exchange, double or drop a word or a number, or a whole line."""
    action = int(rng.integers(5))
    if action < 3:
        words = [m.span() for m in re.finditer(rb"[-+.\w]+", bytes(data[at : at + 400]))]
        if not words:
            return
        a, b = words[int(rng.integers(len(words)))]
        others = (NASTY, [data[at + c : at + d] for c, d in words], [b""])[action]
        data[at + a : at + b] = others[int(rng.integers(len(others)))]
        return
    begin = data.rfind(b"\n", 0, at) + 1
    end = data.find(b"\n", at) + 1 or len(data)
    if action == 3:
        del data[begin:end]
    else:
        other = data.rfind(b"\n", 0, int(rng.integers(len(data)))) + 1
        data[other:other] = data[begin:end]


if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)
    sys.exit(main())
