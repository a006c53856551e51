"""Policy directories and training states: whole or not at all, and every damage named."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from scanpilot import checkpoint
from scanpilot.checkpoint import CheckpointError, load_policy, publish, read_state, write_policy, write_state
from scanpilot.manifest import NetworkConfig, PolicyManifest
from scanpilot.networks import PolicyNetwork, new_networks
from scanpilot.observation import ObservationSpec
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.types import Triplet

SPEC = ObservationSpec(beams=36, frames=2, speed_scale=(0.1, 1.0 / 3.0, 0.7))
MANIFEST = PolicyManifest(
    name="tëst",
    robot=RobotSpec(
        "test",
        "car",
        Footprint(polygon=((0.3, 0.2), (-0.3, 0.2), (-0.3, -0.2), (0.3, -0.2))),
        # Acceleration without bounds: JSON has no infinity.
        Limits(vx=0.7, wz=1.1),
        Lidar(beams=36),
        turning_radius=0.8,
    ),
    observation=SPEC,
    network=NetworkConfig(filters=4, feature=8, actor_hidden=(16,), critic_hidden=(16,)),
    control_period=0.2,
    training={"command": "scanpilot train", "seed": 1, "minutes": 0.1},
    evaluation={"success": 0.95, "success_interval": [0.93, 0.97]},
)
FILES = ("policy.json", "actor.safetensors", "decoder.safetensors")


def networks(seed: int = 0) -> tuple[PolicyNetwork, torch.nn.Module]:
    torch.manual_seed(seed)
    return new_networks(MANIFEST)


def written(directory: Path, seed: int = 0) -> Path:
    write_policy(directory, MANIFEST, *networks(seed))
    return directory


def action(path: Path) -> list[float]:
    """What tells one seed's policy from another's."""
    triplet = Triplet(
        np.full((2, 36), 3.0, np.float32), np.array([2, 0.5, 0], np.float32), np.zeros(3, np.float32)
    )
    return [float(v) for v in load_policy(path).act(triplet)]


def resign(directory: Path, change: Callable[[dict[str, Any]], None], hashes: bool = True) -> None:
    """Edit the manifest and make its checksums right again, as a forger or another release would."""
    path = directory / "policy.json"
    document = json.loads(path.read_text())
    change(document)
    if hashes and isinstance(document.get("files"), dict):
        for name in document["files"]:
            if (directory / name).is_file():
                document["files"][name] = hashlib.sha256((directory / name).read_bytes()).hexdigest()
    document.pop("manifest_sha256", None)
    document["manifest_sha256"] = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(document))


# A round trip.


def test_a_policy_comes_back_whole(tmp_path: Path) -> None:
    network, decoder = networks()
    identity = write_policy(tmp_path / "policy", MANIFEST, network, decoder)
    loaded = load_policy(tmp_path / "policy")
    assert loaded.manifest == MANIFEST
    assert loaded.identity == identity
    for module, copy in ((network, loaded.inference.network), (decoder, loaded.inference.decoder)):
        for (name, a), (other, b) in zip(module.state_dict().items(), copy.state_dict().items(), strict=True):
            assert name == other
            assert torch.equal(a, b)


def test_a_directory_holds_its_three_files_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    written(tmp_path / "policy")
    assert sorted(p.name for p in (tmp_path / "policy").iterdir()) == sorted(FILES)
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


def test_other_weights_have_another_identity_and_the_same_have_the_same(tmp_path: Path) -> None:
    identities = [
        write_policy(tmp_path / str(i), MANIFEST, *networks(seed)) for i, seed in enumerate((0, 0, 1))
    ]
    assert identities[0] == identities[1]
    assert identities[0] != identities[2]


def test_loading_moves_no_global_random_numbers(tmp_path: Path) -> None:
    # A hot-load or an evaluation in the middle of a training run must not change the run.
    written(tmp_path / "policy")
    torch.manual_seed(3)
    load_policy(tmp_path / "policy")
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), drawn)


def test_writing_again_replaces(tmp_path: Path) -> None:
    first = action(written(tmp_path / "policy", 0))
    assert action(written(tmp_path / "policy", 1)) != first
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


def test_a_whole_number_of_seconds_is_a_control_period(tmp_path: Path) -> None:
    write_policy(tmp_path / "policy", dataclasses.replace(MANIFEST, control_period=1), *networks())
    assert load_policy(tmp_path / "policy").control_period == 1.0


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    before = action(written(tmp_path / "policy"))
    network, decoder = networks(1)
    network.actor.out.bias.data[0] = torch.nan
    with pytest.raises(CheckpointError, match=r"actor\.safetensors: actor\.out\.bias"):
        write_policy(tmp_path / "policy", MANIFEST, network, decoder)
    assert action(tmp_path / "policy") == before


# Damage.


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    written(tmp_path / "policy")
    (tmp_path / "policy" / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_policy(tmp_path / "policy")


@pytest.mark.parametrize("name", FILES)
def test_a_directory_in_a_files_place_is_named(name: str, tmp_path: Path) -> None:
    written(tmp_path / "policy")
    (tmp_path / "policy" / name).unlink()
    (tmp_path / "policy" / name).mkdir()
    with pytest.raises(CheckpointError, match=name):
        load_policy(tmp_path / "policy")


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "policy") / name
    data = path.read_bytes()
    for length in {0, 1, 7, 8, 9, len(data) // 2, len(data) - 8, len(data) - 1}:
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=name):
            load_policy(tmp_path / "policy")


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_named_wherever_it_is(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "policy") / name
    data = path.read_bytes()
    # Both ends densely, the rest sampled; another bit each time.
    places = [*range(24), *range(24, len(data), max(1, len(data) // 90)), *range(len(data) - 8, len(data))]
    for i, place in enumerate(places):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (i % 8)
        path.write_bytes(damaged)
        try:
            loaded = load_policy(tmp_path / "policy")
        except CheckpointError as error:
            assert name in str(error)  # noqa: PT017
        else:
            # A flip that leaves the manifest's meaning (1e-05 to 1E-05) is no damage.
            assert name == "policy.json"
            assert loaded.manifest == MANIFEST


@pytest.mark.parametrize(
    "junk", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"{" * 100_000, b'{"schema_version": 1}']
)
def test_a_manifest_of_junk_is_named(junk: bytes, tmp_path: Path) -> None:
    (written(tmp_path / "policy") / "policy.json").write_bytes(junk)
    with pytest.raises(CheckpointError, match=r"policy\.json"):
        load_policy(tmp_path / "policy")


def test_swapped_weights_are_refused(tmp_path: Path) -> None:
    actor, decoder = (written(tmp_path / "policy") / name for name in FILES[1:])
    aside = actor.read_bytes()
    actor.write_bytes(decoder.read_bytes())
    decoder.write_bytes(aside)
    with pytest.raises(CheckpointError, match=r"actor\.safetensors: does not match the checksum"):
        load_policy(tmp_path / "policy")
    resign(tmp_path / "policy", lambda document: None)
    with pytest.raises(CheckpointError, match=r"actor\.safetensors: tensors missing or unknown"):
        load_policy(tmp_path / "policy")


def test_another_policys_weights_are_refused(tmp_path: Path) -> None:
    shutil.copy(written(tmp_path / "a", 1) / "actor.safetensors", written(tmp_path / "b", 2))
    with pytest.raises(CheckpointError, match=r"actor\.safetensors"):
        load_policy(tmp_path / "b")


def test_an_edited_manifest_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "policy") / "policy.json"
    text = path.read_text()
    assert text.count('"vx": 0.7') == 1
    path.write_text(text.replace('"vx": 0.7', '"vx": 7.0'))
    with pytest.raises(CheckpointError, match=r"policy\.json: .*edited"):
        load_policy(tmp_path / "policy")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_schema_is_refused(version: Any, tmp_path: Path) -> None:
    resign(written(tmp_path / "policy"), lambda d: d.update(schema_version=version))
    with pytest.raises(CheckpointError, match=r"policy\.json: schema version .* this release reads 1"):
        load_policy(tmp_path / "policy")


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another algorithm": lambda d: d.update(algorithm="TD3"),
    "no robot": lambda d: d.pop("robot"),
    "robot of another kind": lambda d: d.update(robot=[1]),
    "unknown robot key": lambda d: d["robot"].update(wheels=4),
    "negative limit": lambda d: d["robot"]["limits"].update(vx=-1.0),
    "another encoding": lambda d: d["observation"].update(encoding_version=2),
    "more beams": lambda d: d["observation"].update(beams=180),
    "beams beyond memory": lambda d: d["observation"].update(beams=10**15),
    "beams beyond integers": lambda d: d["observation"].update(beams=10**30),
    "wider network": lambda d: d["network"].update(feature=9),
    "network beyond memory": lambda d: d["network"].update(feature=10**12),
    "too few beams for the convolution": lambda d: (
        d["observation"].update(beams=12), d["network"].update(convolution="overlapping")
    ),
    "no period": lambda d: d.pop("control_period"),
    "period 0": lambda d: d.update(control_period=0.0),
    "period of text": lambda d: d.update(control_period="0.2"),
    "period of truth": lambda d: d.update(control_period=True),
    "no name": lambda d: d.update(name=None),
    "training of another kind": lambda d: d.update(training=[1]),
    "evaluation of another kind": lambda d: d.update(evaluation="good"),
    "file of another name": lambda d: d["files"].update({"../../etc/passwd": "0"}),
    "no files": lambda d: d.pop("files"),
    "files of another kind": lambda d: d.update(files=["actor.safetensors", "decoder.safetensors"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_manifest_that_makes_no_sense_is_refused_even_if_signed(name: str, tmp_path: Path) -> None:
    resign(written(tmp_path / "policy"), lambda d: FORGERIES[name](d) and None)
    with pytest.raises(CheckpointError, match=str(tmp_path / "policy")):
        load_policy(tmp_path / "policy")


def replace_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = directory / "actor.safetensors"
    tensors = load(path.read_bytes())
    change(tensors)
    path.write_bytes(save(tensors))
    resign(directory, lambda document: None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({"actor.out.bias": torch.zeros(7)}), "shape"),
        (lambda t: t.update({"actor.out.bias": torch.full((6,), torch.nan)}), "not finite"),
        (lambda t: t.update({"actor.out.bias": torch.full((6,), torch.inf)}), "not finite"),
        (lambda t: t.update({"actor.out.bias": torch.zeros(6, dtype=torch.float64)}), "float64"),
        (lambda t: t.pop("actor.out.bias"), "missing or unknown"),
        (lambda t: t.update(extra=torch.zeros(1)), "missing or unknown"),
        (lambda t: t.clear(), "missing or unknown"),
    ],
    ids=["shape", "nan", "inf", "precision", "missing", "unknown", "empty"],
)
def test_wrong_weights_are_refused_by_name_even_if_signed(
    change: Callable[[dict[str, torch.Tensor]], Any], message: str, tmp_path: Path
) -> None:
    replace_weights(written(tmp_path / "policy"), change)
    with pytest.raises(CheckpointError, match=rf"actor\.safetensors: .*{message}"):
        load_policy(tmp_path / "policy")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        b"\x80\x04\x95pickle",
        struct.pack("<Q", 72) + b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,99999999999]}}        ',
    ],
)
def test_weights_of_junk_are_refused_even_if_signed(data: bytes, tmp_path: Path) -> None:
    (written(tmp_path / "policy") / "actor.safetensors").write_bytes(data)
    resign(tmp_path / "policy", lambda document: None)
    with pytest.raises(CheckpointError, match=r"actor\.safetensors"):
        load_policy(tmp_path / "policy")


def test_weights_that_give_no_finite_action_are_refused_in_the_warm_up(tmp_path: Path) -> None:
    # Each is finite; their products are not.
    def blow_up(tensors: dict[str, torch.Tensor]) -> None:
        for tensor in tensors.values():
            tensor.fill_(3e38)

    replace_weights(written(tmp_path / "policy"), blow_up)
    with pytest.raises(CheckpointError, match="warm-up"):
        load_policy(tmp_path / "policy")


def test_a_path_that_is_no_policy_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    (tmp_path / "empty").mkdir()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (file, tmp_path / "empty", tmp_path / "nowhere", loop):
        with pytest.raises(CheckpointError, match=str(path)):
            load_policy(path)


# Publishing.


def test_publishing_moves_policy_and_latest_and_keeps_the_newest_five(tmp_path: Path) -> None:
    for step in range(8):
        final = publish(tmp_path, MANIFEST, *networks(step), step=step * 100)
        assert (tmp_path / "policy").resolve() == final.resolve()
        assert (tmp_path / "policies" / "latest").resolve() == final.resolve()
    kept = sorted(p.name for p in (tmp_path / "policies").iterdir() if not p.is_symlink())
    assert [int(name.split("-")[0]) for name in kept] == [300, 400, 500, 600, 700]
    # Through the link, the run's directory, and by name.
    assert action(tmp_path / "policy") == action(tmp_path) == action(final)


def test_publishing_the_same_again_changes_nothing(tmp_path: Path) -> None:
    first = publish(tmp_path, MANIFEST, *networks(0), step=5)
    assert publish(tmp_path, MANIFEST, *networks(0), step=5) == first
    assert sorted(p.name for p in (tmp_path / "policies").iterdir()) == sorted([first.name, "latest"])


def test_a_run_that_begins_again_publishes_below_the_steps_that_are_there(tmp_path: Path) -> None:
    for step in range(5):
        publish(tmp_path, MANIFEST, *networks(step), step=1000 + step)
    final = publish(tmp_path, MANIFEST, *networks(9), step=1)
    assert (tmp_path / "policy").resolve() == final.resolve()
    assert load_policy(tmp_path).identity in final.name


READER = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from scanpilot.checkpoint import load_policy
run, stop = Path(sys.argv[1]), Path(sys.argv[2])
seen, loads = set(), 0
print("ready", flush=True)
while not stop.exists():
    seen.add(load_policy(run / "policy").identity)
    loads += 1
print(loads, len(seen))
"""


def test_a_reader_never_fails_while_another_publishes(tmp_path: Path) -> None:
    run, stop = tmp_path / "run", tmp_path / "stop"
    publish(run, MANIFEST, *networks(0), step=0)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(run), str(stop)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        made = [networks(seed) for seed in range(5)]
        for step in range(1, 51):
            publish(run, MANIFEST, *made[step % 5], step=step)
    finally:
        stop.touch()
    out, err = reader.communicate(timeout=60)
    assert reader.returncode == 0, err
    loads, seen = map(int, out.split())
    assert loads >= 2
    assert seen >= 2


def test_at_no_moment_of_publishing_is_there_no_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, MANIFEST, *networks(0), step=0)
    looks = []

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # The manifest is enough: a directory gets its name when it is whole.
            looks.append((tmp_path / "policy" / "policy.json").is_file())
            value = original(*args, **kwargs)
            looks.append((tmp_path / "policy" / "policy.json").is_file())
            return value

        return call

    for name in ("replace", "rename", "symlink", "fsync", "unlink"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    for step in range(1, 8):
        publish(tmp_path, MANIFEST, *networks(step), step=step)
    assert len(looks) > 50
    assert all(looks)


def test_a_reader_slower_than_five_publications_takes_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, MANIFEST, *networks(0), step=0)
    original, calls = checkpoint._read, []

    def slow_read(path: Path, limit: int | None) -> bytes:
        data = original(path, limit)
        calls.append(path)
        if len(calls) == 1:
            for step in range(1, 8):
                publish(tmp_path, MANIFEST, *networks(step), step=step)
        return data

    monkeypatch.setattr(checkpoint, "_read", slow_read)
    loaded = load_policy(tmp_path / "policy")
    assert loaded.identity in (tmp_path / "policy").resolve().name


# A disk that fails.


def full_disk(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_the_old_policy_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, MANIFEST, *networks(0), step=0)
    before, names = action(tmp_path), sorted(p.name for p in (tmp_path / "policies").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            publish(tmp_path, MANIFEST, *networks(1), step=1)
    assert action(tmp_path) == before
    assert sorted(p.name for p in (tmp_path / "policies").iterdir()) == names
    publish(tmp_path, MANIFEST, *networks(1), step=1)
    assert action(tmp_path) != before


@pytest.mark.parametrize("failing", range(1, 5))
def test_a_disk_that_fails_at_any_file_leaves_the_old_directory_in_place(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = action(written(tmp_path / "policy", 0))
    calls = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == failing:
            full_disk(descriptor)

    # Three files and their directory are synced before anything is moved.
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path / "policy", 1)
    monkeypatch.undo()
    assert action(tmp_path / "policy") == before
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


def test_a_rename_that_fails_puts_the_old_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = action(written(tmp_path / "policy", 0))
    original, calls = os.rename, []

    def rename(a: Any, b: Any) -> None:
        calls.append(a)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        original(a, b)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="Input/output"):
        written(tmp_path / "policy", 1)
    monkeypatch.undo()
    assert action(tmp_path / "policy") == before


def test_recovery_restores_what_a_kill_between_two_renames_left(tmp_path: Path) -> None:
    before = action(written(tmp_path / "training", 0))
    # As `_replace_directory` leaves them: the old one aside, the new one not yet in place.
    written(tmp_path / ".training.0123", 1)
    os.rename(tmp_path / "training", tmp_path / ".training.0123.old")
    checkpoint.recover_directory(tmp_path / "training")
    assert action(tmp_path / "training") == before
    assert [p.name for p in tmp_path.iterdir()] == ["training"]


def test_recovery_tidies_up_and_keeps_a_whole_directory(tmp_path: Path) -> None:
    before = action(written(tmp_path / "training", 0))
    (tmp_path / ".training.0123").mkdir()
    (tmp_path / "training-2").mkdir()
    checkpoint.recover_directory(tmp_path / "training")
    assert action(tmp_path / "training") == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["training", "training-2"]
    checkpoint.recover_directory(tmp_path / "never")
    assert not (tmp_path / "never").exists()


# Training states.

TREE: dict[str, Any] = {
    "numbers": {"a": 1, "b": -0.1, "c": 1e300, "d": True, "e": None, "f": "text"},
    "list": [1, [2, {"x": 3}]],
    "empty": {"dict": {}, "list": []},
    "tensors": [
        torch.tensor(3.5),
        torch.arange(6).reshape(2, 3),
        torch.zeros(0, 4),
        torch.tensor([True, False]),
    ],
    "half": torch.tensor([0.1, 20.0]).half(),
    "bytes": torch.arange(9, dtype=torch.uint8),
}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def test_a_state_comes_back_exactly(tmp_path: Path) -> None:
    write_state(tmp_path / "state", TREE)
    assert equal(read_state(tmp_path / "state"), TREE)


def test_arrays_numpy_scalars_and_number_keys_come_back_as_tensors_numbers_and_text(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float64).reshape(3, 4)[:, ::2]
    write_state(tmp_path / "state", {"a": array, "b": np.float32(0.5), "c": np.int64(7), "d": {3: 1}})
    state = read_state(tmp_path / "state")
    assert state["a"].tolist() == [[0, 2], [4, 6], [8, 10]]
    assert (state["b"], state["c"], state["d"]) == (0.5, 7, {"3": 1})


def test_tensors_that_share_memory_or_are_views_are_written_apart(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    write_state(tmp_path / "state", {"a": base, "b": base[2:4], "c": base.reshape(2, 3).T})
    state = read_state(tmp_path / "state")
    assert state["b"].tolist() == [2, 3]
    assert state["c"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_keys_that_look_like_paths_are_kept_apart(tmp_path: Path) -> None:
    tree = {"a/b": torch.tensor(1.0), "a": {"b": torch.tensor(2.0)}}
    write_state(tmp_path / "state", tree)
    assert equal(read_state(tmp_path / "state"), tree)


STATE_FILES = ("state.json", "tensors.safetensors")


@pytest.mark.parametrize("name", STATE_FILES)
def test_a_damaged_state_is_named(name: str, tmp_path: Path) -> None:
    write_state(tmp_path / "state", TREE)
    path = tmp_path / "state" / name
    data = path.read_bytes()
    for length in (0, 7, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=name):
            read_state(tmp_path / "state")
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        try:
            state = read_state(tmp_path / "state")
        except CheckpointError as error:
            assert name in str(error)  # noqa: PT017
        else:
            assert equal(state, TREE), f"byte {place}: read as something else"
    path.unlink()
    with pytest.raises(CheckpointError, match=name):
        read_state(tmp_path / "state")


@pytest.mark.parametrize("junk", [b"{}", b"[]", b"5", b"null", b"[" * 100_000])
def test_a_state_of_junk_is_named(junk: bytes, tmp_path: Path) -> None:
    write_state(tmp_path / "state", TREE)
    (tmp_path / "state" / "state.json").write_bytes(junk)
    with pytest.raises(CheckpointError, match=r"state\.json"):
        read_state(tmp_path / "state")


def test_a_state_of_another_schema_is_refused(tmp_path: Path) -> None:
    write_state(tmp_path / "state", TREE)
    path = tmp_path / "state" / "state.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(CheckpointError, match=r"state\.json: schema version 2, this release reads 1"):
        read_state(tmp_path / "state")


def test_a_full_disk_leaves_the_old_state_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(tmp_path / "state", {"step": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            write_state(tmp_path / "state", {"step": 2})
    assert read_state(tmp_path / "state") == {"step": 1}
    write_state(tmp_path / "state", {"step": 3})
    assert read_state(tmp_path / "state") == {"step": 3}
