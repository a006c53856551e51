"""Kill a training run at random moments, resume it each time, and compare it with one that was left alone.

A measurement, not a test: minutes of training. After each kill the state on disk is read back whole.

    python tests/kill_and_resume.py --out /tmp/kills --kills 20 --steps 60000
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scanpilot import checkpoint
from scanpilot.replay_buffer import ReplayBuffer

SAVE_SECONDS = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the two runs")
    parser.add_argument("--robot", default="generic_diff")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--longest", type=float, default=8.0, help="seconds from a sign of life to a kill")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as train takes it")
    args = parser.parse_args()
    arguments = ["--robot", args.robot, "--steps", str(args.steps), "--seed", str(args.seed)]
    arguments += [part for override in args.set for part in ("--set", override)]
    whole, killed = args.out / "whole", args.out / "killed"
    subprocess.run([*_train(arguments, whole)], check=True, stdout=subprocess.DEVNULL)
    moments = random.Random(args.seed)
    kills, lost = 0, []
    while True:
        resume = (killed / "training").exists()
        process = subprocess.Popen(_train(arguments, killed, resume), stdout=subprocess.DEVNULL)
        if kills < args.kills and _alive(process, killed):
            _wait(process, moments.uniform(0.0, args.longest))
        if kills == args.kills or process.poll() is not None:
            # The last life; it may also have ended before its moment came.
            if process.wait() != 0:
                sys.exit(f"the run ended with {process.returncode} after {kills} kills")
            break
        process.kill()
        process.wait()
        kills += 1
        found = _read_back(killed)
        lost.append(found["seconds lost"])
        print(f"kill {kills}: {json.dumps(found)}", flush=True)
    results = {name: _evaluate(args.out / name, args.episodes) for name in ("whole", "killed")}
    for name, result in results.items():
        low, high = result["success_interval"]
        print(f"{name}: success {100 * result['success']:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)")
    print(f"{kills} kills; lost to each: at most {max(lost, default=0.0)} s; saved every {SAVE_SECONDS} s")


def _train(arguments: list[str], out: Path, resume: bool = False) -> list[str]:
    command = [sys.executable, "-m", "scanpilot.cli", "train", *arguments, "--out", str(out)]
    command += ["--set", f"save_seconds={SAVE_SECONDS}", "--set", "validations=2"]
    return command + (["--resume"] if resume else [])


def _alive(process: subprocess.Popen[bytes], run: Path) -> bool:
    """Wait until the process has written a line of its log."""
    before = _log_size(run)
    while process.poll() is None:
        if _log_size(run) > before:
            return True
        time.sleep(0.05)
    return False


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _log_size(run: Path) -> int:
    log = run / "log.jsonl"
    return log.stat().st_size if log.exists() else 0


def _read_back(run: Path) -> dict[str, Any]:
    """All that the run left behind; raises where something of it is damaged."""
    checkpoint.recover_directory(run / "training")
    state = checkpoint.read_state(run / "training")
    arrays, added = state["replay"]["arrays"], int(state["replay"]["added"])
    capacity = max(added, 1)
    replay = ReplayBuffer(capacity, (arrays["_scan"].shape[1] - 1, arrays["_scan"].shape[2]), 0, n_step=3)
    replay.load_state_dict(state["replay"])
    if len(replay):
        batch = replay.gather(torch.arange(len(replay)))
        assert torch.isfinite(batch.returns).all()
        assert torch.isfinite(batch.states.scan).all()
        # Links lead from older to newer transitions of the ring.
        links = arrays["_next"]
        at = torch.arange(len(links))[links >= 0]
        assert (links[links >= 0] > at).all() or added > len(links)
    # All but the last line of the log is whole.
    lines = (run / "log.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines[:-1]]
    newest = max((line["seconds"] for line in logged), default=0.0)
    policy = checkpoint.load_policy(run).identity if (run / "policy").exists() else None
    return {
        "steps": int(state["steps"]),
        "updates": int(state["agent"]["updates"]),
        "replay": len(replay),
        "policy": policy,
        "seconds lost": round(max(0.0, newest - float(state["seconds"])), 1),
    }


def _evaluate(run: Path, episodes: int) -> dict[str, Any]:
    result = run / "evaluation.json"
    command = [sys.executable, "-m", "scanpilot.cli", "eval", str(run), "--suite", "crowd"]
    subprocess.run(
        [*command, "--episodes", str(episodes), "--json", str(result)], check=True, stdout=subprocess.DEVNULL
    )
    found = json.loads(result.read_text())
    assert isinstance(found, dict)
    assert np.isfinite(found["success"])
    return found


if __name__ == "__main__":
    main()
