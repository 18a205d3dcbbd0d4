"""Running, resuming and checking, on an experiment that costs nothing."""

from dataclasses import dataclass, replace

import pytest

from joma._core.errors import JomaError
from joma.experiments import _runner
from joma.experiments.base import Claim, Experiment, Finding, PaperRef, Verdict, records

ARMS = ("first", "second", "third")


@dataclass(frozen=True)
class Config:
    points: int = 3
    stop_after: int = len(ARMS)


def run(config, seed):
    for i, arm in enumerate(ARMS):
        if i == config.stop_after:
            raise KeyboardInterrupt
        steps = list(range(config.points))
        yield records(arm, seed, metric="loss", step=steps, value=[float(seed)] * config.points)


def decide(evidence):
    last = [c.values[-1] for c in evidence.curves("loss", arm="first")]
    return Finding.over_seeds(Verdict.of(effect=False, control=False), {"last": last})


def toy(**changes):
    made = Experiment(
        title="A toy.",
        paper=PaperRef(item="none"),
        version=1,
        presets={"ci": Config(), "paper": Config(points=9)},
        run=run,
        seeds=2,
        cost="nothing",
        claims=(Claim(name="c", says="s.", control="k", rule="r", decide=decide),),
    )
    return replace(made, **changes)


def test_records_lie_under_name_preset_and_version(tmp_path):
    store = _runner.run("toy", toy(version=3), out=tmp_path, preset="paper")
    assert store.path == tmp_path / "toy" / "paper" / "v3"
    assert store.runs() == sorted(f"toy/{arm}/seed{s}" for arm in ARMS for s in range(2))
    assert store.read().num_rows == 2 * 9 * 3


def test_what_was_run_is_not_run_again(tmp_path):
    def refuse(config, seed):
        raise AssertionError("ran again")

    _runner.run("toy", toy(), out=tmp_path)
    seeds = []
    _runner.run("toy", toy(run=refuse), out=tmp_path, finished=seeds.append)
    assert seeds == [0, 1]


def test_more_seeds_add_to_those_that_are_there(tmp_path):
    few = _runner.run("toy", toy(), seeds=1, out=tmp_path).read()
    more = _runner.run("toy", toy(), seeds=3, out=tmp_path).read()
    assert more.num_rows == 3 * few.num_rows


@pytest.mark.parametrize("stop_after", [0, 1, 2])
def test_an_interrupted_run_resumes_and_doubles_nothing(tmp_path, stop_after):
    def interrupted(config, seed):
        return run(replace(config, stop_after=stop_after), seed)

    with pytest.raises(KeyboardInterrupt):
        _runner.run("toy", toy(run=interrupted), out=tmp_path / "a")
    assert _runner.check("toy", toy(), out=tmp_path / "a") is None
    resumed = _runner.run("toy", toy(), out=tmp_path / "a").read()
    assert resumed.equals(_runner.run("toy", toy(), out=tmp_path / "b").read())


def test_a_seed_that_is_not_complete_decides_nothing(tmp_path):
    def stops_at_seed_1(config, seed):
        return run(replace(config, stop_after=len(ARMS) - seed), seed)

    with pytest.raises(KeyboardInterrupt):
        _runner.run("toy", toy(run=stops_at_seed_1), out=tmp_path)
    ((_, finding),) = _runner.check("toy", toy(), out=tmp_path)
    assert finding.seeds == 1


def test_a_claim_that_fails_leaves_the_run_a_success(tmp_path):
    _runner.run("toy", toy(), out=tmp_path)
    ((claim, finding),) = _runner.check("toy", toy(), out=tmp_path)
    assert claim.name == "c"
    assert finding.verdict is Verdict.FAILS
    assert finding.spread == {"last": (0.0, 1.0)}


def test_another_version_starts_anew(tmp_path):
    _runner.run("toy", toy(), out=tmp_path)
    assert _runner.check("toy", toy(version=2), out=tmp_path) is None
    assert _runner.presets_run("toy", toy(), tmp_path) == ["ci"]


def test_another_config_of_one_version_is_refused(tmp_path):
    _runner.run("toy", toy(), out=tmp_path)
    changed = toy(presets={"ci": Config(points=4)})
    with pytest.raises(JomaError, match="Raise the version"):
        _runner.run("toy", changed, out=tmp_path)


def test_config_and_seed_are_noted(tmp_path):
    store = _runner.run("toy", toy(), out=tmp_path)
    noted = [(p["config"]["points"], p["seed"]) for p in store.provenance().values()]
    assert sorted(noted) == [(3, 0), (3, 1)]


def test_a_run_of_another_seed_is_refused(tmp_path):
    wrong = toy(run=lambda config, seed: run(config, seed + 1))
    with pytest.raises(JomaError, match="asked for seed 0 and gave a run 'toy/first/seed1'"):
        _runner.run("toy", wrong, out=tmp_path)


def test_no_seeds_and_unknown_presets_are_refused(tmp_path):
    with pytest.raises(JomaError, match="at least one seed; got 0"):
        _runner.run("toy", toy(), seeds=0, out=tmp_path)
    with pytest.raises(JomaError, match=r"toy has no preset 'papr'\. Did you mean 'paper'"):
        _runner.run("toy", toy(), preset="papr", out=tmp_path)
