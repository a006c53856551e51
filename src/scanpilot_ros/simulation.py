"""The simulator node and a policy node for each of its robots, as processes that end together.

What ``simulation.launch.py`` does, for machines without the ``ros2`` command; run as
``scanpilot sim``. Arguments may be written as launch writes them: ``robots:=8`` is ``--robots 8``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from scanpilot import resources
from scanpilot.types import InvalidInput
from scanpilot_ros.placement import Scene, make_scene
from scanpilot_ros.running import STOP_WITH_PARENT

_PATIENCE = 5.0


@dataclass(frozen=True)
class Options:
    """What to simulate.

    Attributes:
        world: a world file, a shipped world's name, or a generated world such as ``clutter:7``.
        policy: a policy directory or a released policy's name; empty starts no policy nodes.
        robots: how many; 0: those that the world places.
        robot: a robot's YAML file or name; empty: as the world describes it.
        real_time_factor: simulated seconds per second; 0: as fast as possible.
        scan_rate: scans per simulated second; 0: the lidar's.
        seed: of sampled starts and noise.
        stamped: commands are TwistStamped.
        log_dir: where each process's output goes, one file each; ``None`` leaves it on the terminal.
    """

    world: str
    policy: str = ""
    robots: int = 0
    robot: str = ""
    real_time_factor: float = 1.0
    scan_rate: float = 0.0
    seed: int = 0
    stamped: bool = False
    log_dir: Path | None = None


class Simulation:
    """The processes of one simulation; a context manager that starts them and ends them.

    Raises:
        scanpilot.types.InvalidInput: the world, the robot or the policy cannot be had.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.scene: Scene = make_scene(options.world, options.robot, options.robots, options.seed)
        try:
            self._policy = str(resources.find("policy", options.policy)) if options.policy else ""
            self._robot = str(resources.find("robot", options.robot)) if options.robot else ""
        except FileNotFoundError as error:
            raise InvalidInput(str(error)) from error
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Simulation:
        try:
            self._start("simulator", "simulator_node", self._simulator_arguments())
            if self._policy:
                for start, prefix in zip(self.scene.starts, self.scene.prefixes, strict=True):
                    name = f"policy_node_{start.name}"
                    self._start(name, "policy_node", self._policy_arguments(prefix))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def ended(self) -> str | None:
        """Which process ended on its own and how, or ``None`` while all run."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                return f"{name} ended with code {process.returncode}{self._last_words(name)}"
        return None

    def stop(self) -> None:
        """End all processes: policy nodes first, so that robots stand still before their world ends."""
        names = sorted(self._processes, key=lambda name: name == "simulator")
        deadline = time.monotonic() + _PATIENCE
        for group in (names[:-1], names[-1:]):
            for name in group:
                _signal(self._processes[name], signal.SIGTERM)
            for name in group:
                _await(self._processes[name], max(0.1, deadline - time.monotonic()))
        self._processes = {}

    def _start(self, name: str, module: str, arguments: list[str]) -> None:
        command = [sys.executable, "-m", f"scanpilot_ros.{module}", "--ros-args", *arguments]
        with self._log(name).open("wb") if self.options.log_dir else nullcontext() as output:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                # A group of its own: Ctrl-C in the terminal reaches us alone, and we end them in order.
                start_new_session=True,
                env={**os.environ, STOP_WITH_PARENT: str(os.getpid())},
            )

    def _log(self, name: str) -> Path:
        assert self.options.log_dir is not None
        self.options.log_dir.mkdir(parents=True, exist_ok=True)
        return self.options.log_dir / f"{name}.log"

    def _last_words(self, name: str) -> str:
        if self.options.log_dir is None:
            return ""
        lines = self._log(name).read_text(errors="replace").strip().splitlines()
        return ":\n" + "\n".join(lines[-5:]) if lines else f" (see {self._log(name)})"

    def _simulator_arguments(self) -> list[str]:
        o = self.options
        values = {
            "world": o.world,
            "robots": o.robots,
            "robot": self._robot,
            "real_time_factor": float(o.real_time_factor),
            "scan_rate": float(o.scan_rate),
            "seed": o.seed,
            "use_stamped_velocity": o.stamped,
        }
        return _parameters(values)

    def _policy_arguments(self, prefix: str) -> list[str]:
        lidar = self.scene.robot.lidar
        values = {
            "policy": self._policy,
            "use_sim_time": True,
            "stamped": self.options.stamped,
            # The simulator knows the mount; TF, where it is there, says the same.
            "lidar.x": lidar.x,
            "lidar.y": lidar.y,
            "lidar.yaw": lidar.yaw,
        }
        namespace = ["-r", f"__ns:=/{prefix.rstrip('/')}"] if prefix else []
        return [*namespace, "-r", "scan:=base_scan", *_parameters(values)]


def _parameters(values: dict[str, object]) -> list[str]:
    arguments: list[str] = []
    for key, value in values.items():
        # Quoted for the YAML that ROS reads: a path or clutter:7 is text, whatever it looks like.
        text = f"'{value}'" if isinstance(value, str) else str(value).lower()
        arguments += ["-p", f"{key}:={text}"]
    return arguments


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


def _await(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)
        process.wait()


def isolate() -> None:
    """Keep to this machine, and apart from other simulations on it, unless the user said otherwise."""
    os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a simulation until Ctrl-C; returns the exit code."""
    args = _parser().parse_args([as_option(a) for a in (sys.argv[1:] if arguments is None else arguments)])
    stop: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.append(1))
    try:
        simulation = Simulation(
            Options(
                world=args.world,
                policy=args.policy,
                robots=args.robots,
                robot=args.robot,
                real_time_factor=args.real_time_factor,
                scan_rate=args.scan_rate,
                seed=args.seed,
                stamped=args.stamped,
                log_dir=args.log_dir,
            )
        )
    except InvalidInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with simulation:
        names = ", ".join(start.name for start in simulation.scene.starts)
        print(f"robots: {names}; Ctrl-C ends the simulation", flush=True)
        while not stop:
            ended = simulation.ended()
            if ended is not None:
                print(f"error: {ended}", file=sys.stderr)
                return 1
            time.sleep(0.1)
    return 0


def as_option(argument: str) -> str:
    """``robots:=8``, as launch has it, as ``--robots=8``; anything else as it is."""
    name, assigns, value = argument.partition(":=")
    return f"--{name.replace('_', '-')}={value}" if assigns and name.isidentifier() else argument


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scanpilot sim", description=__doc__)
    parser.add_argument("--sim", choices=["embedded"], default="embedded", help="which simulator")
    parser.add_argument("--world", default="demo", help="world file, shipped world, or clutter:SEED")
    parser.add_argument("--robots", type=int, default=0, help="how many; 0: those that the world places")
    parser.add_argument("--robot", default="", help="YAML file or shipped robot; default: the world's own")
    parser.add_argument(
        "--policy", default="generic_diff", help="released policy or policy directory; empty: nobody drives"
    )
    parser.add_argument("--real-time-factor", type=float, default=1.0, help="0: as fast as possible")
    parser.add_argument("--scan-rate", type=float, default=0.0, help="Hz; 0: the lidar's")
    parser.add_argument("--seed", type=int, default=0, help="of sampled starts and noise")
    parser.add_argument("--stamped", type=_boolean, nargs="?", const=True, default=False, help="TwistStamped")
    parser.add_argument("--log-dir", type=Path, help="one file for each process, instead of the terminal")
    return parser


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


if __name__ == "__main__":
    sys.exit(main())
