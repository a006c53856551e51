"""What ``scanpilot bench sim`` runs and tells: rows of many sizes, and the figures that were promised."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from scanpilot.sim import peers, sources, throughput
from scanpilot.sim.free_space import NoRoom
from scanpilot.sim.simulator import Simulator
from scanpilot.sim.throughput import Driving, Throughput
from scanpilot.sim.world import World
from scanpilot.types import InvalidInput

logger = logging.getLogger(__name__)

# Up to so many robots share one world unless told otherwise; more have eight to a world, as in training.
_ONE_WORLD = 44
_PER_WORLD = 8
# With more robots in a world a step of a peer takes seconds.
_PEER_ROBOTS = 64


@dataclass(frozen=True)
class Sizes:
    """Every combination is run.

    Attributes:
        robots: of all worlds together.
        beams: of a robot's lidar.
        threads: that share the work.
        worlds: how many are simulated side by side, where the robots divide evenly; empty for what
            suits the number of robots.
        world: names as `sources.named_world` takes them, or generators, whose worlds then differ.
    """

    robots: Sequence[int] = (1, 8, 44, 512)
    beams: Sequence[int] = (180, 512)
    threads: Sequence[int] = (1,)
    worlds: Sequence[int] = ()
    world: Sequence[str] = ("clutter",)

    def __post_init__(self) -> None:
        for name in ("robots", "beams", "threads", "worlds"):
            if min(getattr(self, name), default=1) < 1:
                raise InvalidInput(f"{name} {min(getattr(self, name))}: expected at least 1")
        if all(self._counts(robots) == [] for robots in self.robots):
            raise InvalidInput(f"robots {self.robots} do not divide evenly among {self.worlds} worlds")

    def cases(self) -> Iterator[tuple[str, int, int]]:
        """Name of the world, robots and worlds of each group of rows."""
        for name in self.world:
            for robots in self.robots:
                for count in self._counts(robots):
                    yield name, robots, count

    def _counts(self, robots: int) -> list[int]:
        if self.worlds:
            return [count for count in self.worlds if robots % count == 0]
        shared = robots > _ONE_WORLD and robots % _PER_WORLD == 0
        return [robots // _PER_WORLD if shared else 1]


FULL = Sizes(robots=(1, 8, 44, 512, 4096), beams=(180, 360, 512, 1080))


def run(sizes: Sizes, seconds: float, device: str | None = None) -> Iterator[Throughput]:
    """Measure every case for about so many seconds; peers beside those with few robots in one world.

    Args:
        sizes: the cases.
        seconds: for each.
        device: of torch, on which the kernels for CUDA are measured beside the others.

    Raises:
        scanpilot.types.InvalidInput: the robots do not fit into the world.
    """
    for name, robots, count in sizes.cases():
        worlds = worlds_of(name, count)
        for beams in sizes.beams:
            ours = [_scene(worlds, robots // count, beams, threads) for threads in sizes.threads]
            cases = [Driving(s, s, t) for s, t in zip(ours, sizes.threads, strict=True)]
            if device is not None:
                cases.append(Driving(peers.OnDevice(ours[0], device), ours[0]))
            if count == 1 and robots <= _PEER_ROBOTS:
                cases += beside(ours[0])
            logger.info("%s: %d robots in %d worlds, %d beams", worlds[0].name, robots, count, beams)
            yield from throughput.in_turns(cases, seconds)


def worlds_of(name: str, count: int) -> list[World]:
    """So many worlds: a generator's first ones, or one several times."""
    if name in sources.GENERATORS:
        make = sources.worlds(name, "test", 0)
        return [make(number) for number in range(count)]
    return [sources.cut_for_its_robots(sources.named_world(name))] * count


def beside(scene: Simulator) -> list[Driving]:
    """The peers that are installed, with the robots of a scene of one world where they are now."""
    found = peers.installed(scene.worlds[0], scene.robot, scene.poses, throughput.PERIOD)
    return [Driving(peer, scene) for peer in found]


def _scene(worlds: Sequence[World], robots_per_world: int, beams: int, threads: int = 1) -> Simulator:
    try:
        return throughput.scene(worlds, robots_per_world, throughput.benchmark_robot(beams), threads)
    except NoRoom as error:
        raise InvalidInput(f"{robots_per_world} robots do not fit: {error}") from error


@dataclass(frozen=True)
class Figure:
    """One number that the project promises, with what it promised."""

    name: str
    value: float | None
    wanted: str


def acceptance(stage_world: str, seconds: float) -> tuple[list[Figure], list[Throughput]]:
    """The figures that the simulator was promised to reach on two cores, and the rows they come from.

    Args:
        stage_world: with room for 44 robots; a Stage file for what was promised.
        seconds: for each case.
    """
    rows: list[Throughput] = []
    figures: list[Figure] = []

    def measure(cases: Iterable[Driving]) -> list[Throughput]:
        rows.extend(measured := throughput.in_turns(list(cases), seconds))
        return measured

    def figure(name: str, value: float | None, wanted: str) -> None:
        figures.append(Figure(name, value, wanted))

    stage = worlds_of(stage_world, 1)
    logger.info("one thread, 44 robots in %s", stage[0].name)
    for beams, wanted in ((512, "20,000, aim 25,000"), (180, "45,000, aim 60,000")):
        scene = _scene(stage, 44, beams)
        (row,) = measure([Driving(scene, scene)])
        figure(f"robot-steps/s: 44 robots x {beams} beams, one thread", row.robot_steps_per_s, wanted)
        # What a core to itself would make, on a machine that others use.
        figure("the same a second of CPU time", 1e6 / row.cpu_us_per_robot_step, wanted)

    logger.info("64 robots and 4096")
    few, many = (_scene(worlds_of("clutter", count), 8, 180) for count in (8, 512))
    small, large = measure([Driving(few, few), Driving(many, many)])
    growth = large.cpu_us_per_robot_step / small.cpu_us_per_robot_step
    figure("CPU time a robot-step: 4,096 robots in 512 worlds / 64 in 8", growth, "below 1.3")

    logger.info("one thread and two, one process and two")
    figure("what two threads of plain arithmetic gain here now", throughput.machine_scaling(2), "-")
    for name, worlds, per_world, beams in (
        ("4,096 robots in 512 worlds", many.worlds, 8, 180),
        ("44 robots in one world", stage, 44, 512),
    ):
        pair = [_scene(worlds, per_world, beams, threads) for threads in (1, 2)]
        one, two = measure([Driving(pair[0], pair[0], 1), Driving(pair[1], pair[1], 2)])
        gain = two.robot_steps_per_s / one.robot_steps_per_s
        figure(f"two threads / one: {name} x {beams} beams", gain, "1.7 (threads or processes)")
    alone, both = throughput.in_processes(2, stage, 44, throughput.benchmark_robot(512), seconds)
    figure("two processes / one: 44 robots in one world each", both / alone, "1.7 (threads or processes)")

    logger.info("peers")
    scene = _scene(worlds_of("clutter", 1), 44, 180)
    ours, *others = measure([Driving(scene, scene), *beside(scene)])
    figures += _against(ours, others)
    return figures, rows


def _against(ours: Throughput, others: Sequence[Throughput]) -> Iterator[Figure]:
    for other in others:
        ratio = ours.robot_steps_per_s / other.robot_steps_per_s
        wanted = "100" if other.simulator.startswith("IR-SIM") else "-"
        yield Figure(f"robot-steps/s, times {other.simulator}: 44 robots x 180 beams", ratio, wanted)
        if ours.scans_per_s and other.scans_per_s:
            ratio = ours.scans_per_s / other.scans_per_s
            yield Figure(f"scans/s, times {other.simulator}: 44 robots x 180 beams", ratio, "10")


def print_rows(rows: Sequence[Throughput], console: Console | None = None) -> None:
    """A table for each world; of peers, also how many times faster ours is on the same scene."""
    console = console or Console()
    console.print("Whole steps a second (a robot's motion, contacts and scan), and CPU time of one")
    for world in dict.fromkeys(row.world for row in rows):
        console.print(_table([row for row in rows if row.world == world]))
    for name in peers.missing():
        console.print(f"not compared with {name}, which is not installed: pip install 'scanpilot\\[peers]'")


def _table(rows: Sequence[Throughput]) -> Table:
    width, height = rows[0].size
    title = f"{rows[0].world}: {width:.0f} m x {height:.0f} m, {rows[0].segments:,} segments"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0))
    table.add_column("simulator", no_wrap=True)
    # Within 80 columns, also of a file.
    for column in ("robots", "worlds", "beams", "threads", "steps/s", "beams/us", "CPU us", "ours is"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        ratio = _ratio(row, rows)
        table.add_row(
            row.simulator,
            *(f"{number:,}" for number in (row.robots, row.worlds, row.beams, row.threads)),
            f"{row.robot_steps_per_s:,.0f}",
            f"{1e-6 * row.beams_per_s:,.2f}",
            f"{row.cpu_us_per_robot_step:,.1f}",
            "" if ratio is None else f"x {ratio:,.0f}",
        )
    return table


def print_figures(figures: Sequence[Figure], console: Console | None = None) -> None:
    """A table of what was promised."""
    table = Table(title="What was promised", box=None, padding=(0, 1, 0, 0))
    for column in ("", "measured", "promised"):
        table.add_column(column)
    for figure in figures:
        value = figure.value
        text = "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
        table.add_row(figure.name, text, figure.wanted)
    (console or Console()).print(table)


def as_json(rows: Sequence[Throughput], figures: Sequence[Figure] = ()) -> dict[str, Any]:
    """Rows, the ratio to ours in those of peers, peers that were not there, and figures if any."""
    found = [
        {**asdict(row), **({} if (ratio := _ratio(row, rows)) is None else {"scanpilot_is_times": ratio})}
        for row in rows
    ]
    document: dict[str, Any] = {"rows": found, "peers_not_installed": peers.missing()}
    if figures:
        document["figures"] = [asdict(figure) for figure in figures]
    return document


def _ratio(row: Throughput, rows: Sequence[Throughput]) -> float | None:
    if row.simulator == "scanpilot":
        return None
    same = ("world", "robots", "worlds", "beams", "threads")
    for other in rows:
        if other.simulator == "scanpilot" and all(getattr(other, k) == getattr(row, k) for k in same):
            return other.robot_steps_per_s / row.robot_steps_per_s
    return None


def plot(rows: Sequence[Throughput], path: Path) -> None:
    """Robot-steps a second over robots, and beams a second over beams, a line for each kind of row."""
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(13, 8), layout="constrained")
    left, right = picture.subplots(1, 2)
    _lines(left, rows, "robots", "robot_steps_per_s", ("simulator", "world", "beams", "threads"))
    _lines(right, rows, "beams", "beams_per_s", ("simulator", "world", "robots", "threads"))
    left.set_ylabel("robot-steps a second")
    right.set_ylabel("beams a second")
    picture.savefig(path, dpi=100)


def _lines(axes: Any, rows: Sequence[Throughput], x: str, y: str, kind: tuple[str, ...]) -> None:
    """One line for each combination of ``kind``: a hue for each simulator, shades and marks for the rest."""
    from matplotlib import colormaps

    groups: dict[tuple[Any, ...], list[Throughput]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in kind), []).append(row)
    # What is the same in all lines need not be said of each.
    telling = [i for i in range(len(kind)) if i == 0 or len({key[i] for key in groups}) > 1]
    for simulator, hue in zip(dict.fromkeys(key[0] for key in groups), _HUES, strict=False):
        own = [key for key in groups if key[0] == simulator]
        for number, key in enumerate(own):
            points = np.array(sorted((getattr(row, x), getattr(row, y)) for row in groups[key]))
            words = [f"{key[i]:,} {kind[i]}" if isinstance(key[i], int) else str(key[i]) for i in telling]
            shade = colormaps[hue](0.45 + 0.5 * (number + 1) / len(own))
            mark = _MARKS[number % len(_MARKS)]
            axes.plot(*points.T, color=shade, marker=mark, ms=5, lw=1, label=", ".join(words))
    ticks = sorted({getattr(row, x) for row in rows})
    axes.set(xscale="log", yscale="log", xlabel=x)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.1))


_HUES = ("Blues", "Oranges", "Greens", "Purples", "Reds")
_MARKS = "os^vDP*X"
