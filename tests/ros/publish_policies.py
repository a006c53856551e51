"""A trainer gone wild: writes policies as fast as the disk allows and announces each.

Run as a process: ``publish_policies.py FOLDER COUNT TOPIC``. Every tenth is spoilt on purpose, in turn
truncated, bit-flipped or half-written. At the end one line a policy on standard output: path, good or
bad, identity.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import rclpy
import torch
from std_msgs.msg import String

from scanpilot.checkpoint import ACTOR, DECODER, write_policy
from scanpilot.manifest import NetworkConfig, PolicyManifest
from scanpilot.networks import new_networks
from scanpilot.observation import observation_for
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot_ros import qos


def spoil(directory: Path, kind: int) -> None:
    if kind == 0:
        path = directory / ACTOR
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif kind == 1:
        path = directory / DECODER
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)
    else:
        (directory / ACTOR).unlink()
        shutil.rmtree(directory / DECODER, ignore_errors=True)


def main(folder: Path, count: int, topic: str) -> None:
    limits = Limits(vx=1.0, wz=1.5, ax=2.0, awz=4.0)
    robot = RobotSpec("tester", "differential", Footprint(radius=0.2), limits, Lidar(beams=360))
    manifest = PolicyManifest("wild", robot, observation_for(robot), NetworkConfig(), 0.2)
    torch.set_num_threads(1)
    torch.manual_seed(7)
    network, decoder = new_networks(manifest)
    rclpy.init()
    node = rclpy.create_node("wild_trainer")
    publisher = node.create_publisher(String, topic, qos.ANNOUNCEMENTS)
    while publisher.get_subscription_count() == 0:
        time.sleep(0.01)
    lines = []
    begun = time.monotonic()
    for number in range(count):
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(1e-3 * torch.randn_like(weight))
        directory = folder / f"{number:04d}"
        identity = write_policy(directory, manifest, network, decoder)
        bad = number % 10 == 9
        if bad:
            spoil(directory, (number // 10) % 3)
        publisher.publish(String(data=str(directory)))
        lines.append(f"{directory} {'bad' if bad else 'good'} {identity}")
    print("\n".join(lines))
    print(f"seconds {time.monotonic() - begun:.2f}", flush=True)
    # The announcements must reach their reader before they die with this process.
    sys.stdin.close()
    time.sleep(5.0)
    rclpy.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
