"""Campaigns on a local Ray cluster of two nodes, with a worker and a node killed in the middle; corpus and failures in a real Redis server."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from kvproof.fuzz.campaigns.conductor import Conductor, Plan
from kvproof.fuzz.campaigns.crew import LocalCrew
from kvproof.fuzz.campaigns.faults import BadCluster, BadStore
from kvproof.fuzz.campaigns.findings import identity
from kvproof.fuzz.campaigns.orders import Job, Result
from kvproof.fuzz.campaigns.ray_crew import RayCrew
from kvproof.fuzz.campaigns.store import Store, directory, redis
from kvproof.fuzz.runs import Search, Tally, run_program
from kvproof.impl.checker import read_capabilities
from kvproof.targets import find_target

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed; pip install 'kvproof[ray]'")
needs_redis = pytest.mark.skipif(
    importlib.util.find_spec("redis") is None or shutil.which("redis-server") is None,
    reason="The package redis or the program redis-server is missing; pip install 'kvproof[redis]' and apt-get install redis-server",
)

DYING = """
import os
from kvproof.impl.production.adapter import SynchronousAdapter

class Dying(SynchronousAdapter):
    def fork(self, parent, child):
        os._exit(7)
"""


@pytest.fixture
def cluster():
    """Two nodes of two cores each, on this machine."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.extra = made.add_node(num_cpus=2)
    yield made
    ray.shutdown()
    made.shutdown()


def search_of(name):
    target = find_target(name)
    return Search(target, name, read_capabilities(target), 0, 1, float("inf"), 10.0, None, frozenset())


def conduct(crew, store, disturb=lambda conductor: None, **plan):
    try:
        conductor = Conductor(Plan(**({"campaign": "c", "seed": 1, "mode": "batch", "seconds": 600.0, "batch": 10} | plan)), crew, store)
        conductor.run(lambda _: disturb(conductor))
    finally:
        crew.close()
    return conductor


# -- the examples of Hypothesis ---------------------------------------------------------------------------------------------------------------------


class Exchange:
    """Which examples of Hypothesis each worker made, and which it was given."""

    def __init__(self, crew):
        self.crew = crew
        self.made, self.given = {}, {}
        self._give, self._wait = crew.give, crew.wait
        crew.give, crew.wait = self.give, self.wait

    def give(self, worker, order):
        self.given.setdefault(worker, set()).update(order.examples)
        self._give(worker, order)

    def wait(self, seconds):
        answers = self._wait(seconds)
        for worker, answer in answers:
            if isinstance(answer, Result):
                self.made.setdefault(worker, set()).update(answer.examples)
        return answers

    @property
    def passed_on(self):
        """The examples that one worker made and another one was given."""
        return {
            example for one, made in self.made.items() for other, given in self.given.items() if one != other for example in made & given
        }


@pytest.fixture
def of_the_machine(monkeypatch):
    """Every order goes to the Hypothesis machine, and is short."""
    monkeypatch.setattr("kvproof.fuzz.campaigns.conductor.MACHINE_EVERY", 1)
    monkeypatch.setattr("kvproof.fuzz.runs.MACHINE_PROGRAMS", 8)


def stop_after(batches, conductor):
    """End a campaign after so many batches, as the end of its time would."""
    conductor._stopping = conductor._stopping or conductor.totals.batches >= batches


def assert_whole(conductor, store):
    """Every batch was done, and is counted, once, and nothing that was kept is missing from the store."""
    numbers = sorted(batch for _, batch in conductor.records)
    assert numbers == list(range(len(numbers)))
    assert conductor.totals.programs == sum(record.programs for record in conductor.records.values())
    assert all(record.programs and not record.lost for record in conductor.records.values())
    assert store.records() == conductor.records
    assert set(store.examples()) == conductor.corpus.examples
    assert store.open_orders() == []
    assert conductor.failures.found == {}


# -- Ray ----------------------------------------------------------------------------------------------------------------------------------------------


@needs_ray
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker_and_a_killed_node_lose_nothing_and_nothing_is_counted_twice(cluster, tmp_path):
    crew = RayCrew(Job("production-sync", 10.0), find_target, "c", address=cluster.address)
    assert len(crew._places) == 4
    pids = crew.ray.get([place.actor.pid.remote() for place in crew._places])
    done = []

    def disturb(conductor):
        if not done and conductor.totals.batches >= 3 and conductor.out:
            worker = next(iter(conductor.out))
            os.kill(pids[worker], signal.SIGKILL)
            done.append("worker")
        elif len(done) == 1 and conductor.totals.batches >= 8:
            cluster.remove_node(cluster.extra, allow_graceful=False)
            done.append("node")

    store = Store(directory(tmp_path), target="production-sync", campaign="c")
    conductor = conduct(crew, store, disturb, programs=400)
    assert done == ["worker", "node"]
    assert conductor.incidents
    assert sorted(batch for _, batch in conductor.records) == list(range(40))
    assert conductor.totals.programs == conductor.programs_here == 400
    assert store.records() == conductor.records
    assert store.open_orders() == []
    assert conductor.failures.found == {}


@needs_ray
@needs_redis
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_cluster_share_the_examples_of_hypothesis_through_redis(cluster, server, of_the_machine):
    """A worker and a node are killed in the middle; a second campaign goes on from the examples."""
    address, _ = server
    crew = RayCrew(Job("production-sync", 10.0), find_target, "c", address=cluster.address)
    pids = crew.ray.get([place.actor.pid.remote() for place in crew._places])
    exchange, done = Exchange(crew), []

    def disturb(conductor):
        if not done and conductor.totals.batches >= 3 and conductor.out:
            os.kill(pids[next(iter(conductor.out))], signal.SIGKILL)
            done.append("worker")
        elif len(done) == 1 and conductor.totals.batches >= 8:
            cluster.remove_node(cluster.extra, allow_graceful=False)
            done.append("node")
        stop_after(14, conductor)

    store = Store(redis(address), target="production-sync", campaign="c")
    conductor = conduct(crew, store, disturb, batch=None)
    assert done == ["worker", "node"]
    assert conductor.incidents
    assert_whole(conductor, store)
    assert exchange.passed_on


@needs_ray
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_a_target_that_kills_its_process_on_a_cluster_is_found(cluster, tmp_path):
    place = tmp_path / "dying_adapter.py"
    place.write_text(DYING)
    target = f"{place}:Dying"
    crew = RayCrew(Job(target, 10.0), find_target, "c", address=cluster.address, workers=2)
    conductor = conduct(crew, Store(directory(tmp_path / "store"), target=target, campaign="c"), programs=20)
    [finding] = conductor.failures.found.values()
    assert "died with exit code 7 in fork(" in finding.reason
    assert finding.steps <= 4
    assert sorted(batch for _, batch in conductor.records) == [0, 1]


@needs_ray
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_the_cores_of_a_cluster_are_used_from_the_command_line(cluster, tmp_path):
    code = "import sys; from kvproof.cli import main; sys.exit(main(sys.argv[1:]))"
    request = ["fuzz", "production-sync", "--ray", cluster.address, "--programs", "40", "--batch", "10"]
    done = subprocess.run([sys.executable, "-c", code, *request], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "The campaign has run 40 programs in 4 orders" in done.stdout


@needs_ray
def test_a_cluster_that_is_not_there_is_refused():
    with pytest.raises(BadCluster, match=r"There is no Ray cluster at 127\.0\.0\.1:1 "):
        RayCrew(Job("production-sync", 10.0), find_target, "c", address="127.0.0.1:1")


def test_without_ray_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadCluster, match=r"pip install 'kvproof\[ray\]'"):
        RayCrew(Job("production-sync", 10.0), find_target, "c", address="auto")


# -- Redis --------------------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """The address of a Redis server of our own, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path), "--bind", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield f"redis://127.0.0.1:{port}/0", process
    process.kill()
    process.wait()


@needs_redis
def test_two_campaigns_share_failures_through_redis(server):
    address, _ = server
    one = Store(redis(address), target="bug:canary", campaign="one")
    first = conduct(LocalCrew(Job("bug:canary", 10.0), find_target, "one", workers=1), one, campaign="one", programs=20)
    assert first.failures.found
    two = Store(redis(address), target="bug:canary", campaign="two")
    second = conduct(LocalCrew(Job("bug:canary", 10.0), find_target, "two", workers=1), two, campaign="two", seed=2, programs=20)
    assert {identity(finding) for finding in two.findings()} == set(second.failures.found) >= set(first.failures.found)
    assert {campaign for campaign, _ in two.records()} == {"two"}
    assert {campaign for campaign, _ in one.records()} == {"one"}
    assert one.open_orders() == two.open_orders() == []


@needs_redis
def test_a_campaign_takes_in_what_another_one_puts_into_redis_meanwhile(server, monkeypatch):
    monkeypatch.setattr("kvproof.fuzz.campaigns.conductor.SYNC_SECONDS", 0.0)
    address, _ = server
    one, two = (Store(redis(address), target="production-sync", campaign=name) for name in ("one", "two"))
    other = run_program(search_of("production-sync"), "other:1", Tally()).program

    def disturb(conductor):
        if conductor.totals.batches == 1 and not two.corpus():
            raise AssertionError("the first batch reached nothing new")
        two.keep(other)

    conductor = conduct(LocalCrew(Job("production-sync", 10.0), find_target, "one", workers=1), one, disturb, programs=30)
    assert other in conductor.corpus.programs
    assert len(conductor.corpus.programs) == len(set(conductor.corpus.programs))
    assert set(two.corpus()) == set(conductor.corpus.programs)


@needs_redis
def test_a_campaign_in_redis_that_is_cut_off_goes_on_where_it_stopped(server):
    address, _ = server

    class Enough(BaseException):
        pass

    def stop(conductor):
        if conductor.totals.batches >= 2:
            raise Enough

    store = Store(redis(address), target="production-sync", campaign="c")
    with pytest.raises(Enough):
        conduct(LocalCrew(Job("production-sync", 10.0), find_target, "c", workers=2), store, stop, programs=60)
    before = len(store.records())
    assert 2 <= before < 6
    conductor = conduct(LocalCrew(Job("production-sync", 10.0), find_target, "c", workers=2), store, programs=60)
    assert sorted(batch for _, batch in conductor.records) == list(range(6))
    assert conductor.totals.programs == 60


@needs_redis
def test_workers_share_the_examples_of_hypothesis_through_redis_and_a_killed_one_loses_nothing(server, of_the_machine):
    address, _ = server
    crew, killed = LocalCrew(Job("production-sync", 10.0), find_target, "c", workers=2), []
    exchange = Exchange(crew)

    def disturb(conductor):
        if not killed and conductor.totals.batches >= 2 and conductor.out:
            killed.append(next(iter(conductor.out)))
            os.kill(crew._places[killed[0]].process.pid, signal.SIGKILL)
        stop_after(6, conductor)

    store = Store(redis(address), target="production-sync", campaign="c")
    conductor = conduct(crew, store, disturb, batch=None)
    assert killed
    assert len(conductor.incidents) == 1
    assert_whole(conductor, store)
    assert exchange.passed_on

    other = Store(redis(address), target="production-sync", campaign="other")
    crew = LocalCrew(Job("production-sync", 10.0), find_target, "other", workers=1)
    exchange, kept = Exchange(crew), set(store.examples())
    conductor = conduct(crew, other, lambda conductor: stop_after(1, conductor), campaign="other", seed=2, batch=None)
    assert exchange.given[0]
    assert exchange.given[0] <= kept
    assert_whole(conductor, other)


@needs_redis
def test_a_server_that_goes_away_is_told_in_one_sentence(server):
    address, process = server
    store = Store(redis(address), target="production-sync", campaign="c")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(BadStore, match="make it available and start the same command again"):
        store.corpus()


@needs_redis
def test_a_server_that_is_not_there_is_refused():
    with pytest.raises(BadStore, match=r"There is no Redis server at redis://127\.0\.0\.1:1/0"):
        redis("redis://127.0.0.1:1/0")


def test_without_redis_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(BadStore, match=r"pip install 'kvproof\[redis\]'"):
        redis("redis://127.0.0.1:6379/0")
