"""A race as it goes on record: what each candidate cost, and the verdict under every objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.contest.decide import judge
from autotune.contest.race import OBJECTIVES, Race
from swa_alloc.evidence import CandidateMeasurement, Figures, Measurement, Standing, cost_us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.contest.candidates import Entrant
    from autotune.devices import Sample
    from autotune.traffic.plan import Point
    from swa_alloc.operations import Objective


def record(
    point: Point,
    race: Race,
    pruned: Sequence[Entrant],
    singles: Mapping[Entrant, Sample],
    default: Entrant,
    *,
    settled: bool,
) -> Measurement | None:
    """What a race has shown by now; None where nothing had rounds enough.

    Args:
        point: What was timed.
        race: The race.
        pruned: What left it for being beaten.
        singles: The single calls of what they ruled out.
        default: The default, which may be among those.
        settled: Whether more rounds would change nothing.
    """
    judged = {objective: judge(race, objective) for objective in OBJECTIVES}
    verdicts = {objective: verdict.record for objective, verdict in judged.items() if verdict is not None}
    if not verdicts:
        return None
    alone = singles.get(default)
    raced = [entrant for entrant in (*race.running, *pruned) if race.series[entrant].medians()]
    candidates = [_raced(entrant, point.count, race, alone) for entrant in raced]
    candidates += [
        _ruled_out(entrant, point.count, sample, is_default=entrant is default) for entrant, sample in singles.items()
    ]
    return Measurement(
        point.kind,
        indices=point.count,
        layout=point.layout,
        weight=_rounded(point.weight),
        settled=settled,
        noise_floor=_rounded(race.noise_floor),
        verdicts=verdicts,
        candidates=tuple(sorted(candidates, key=_order)),
    )


def _raced(entrant: Entrant, count: int, race: Race, alone: Sample | None) -> CandidateMeasurement:
    series = race.series[entrant]
    medians = series.medians() or Figures(0.0, 0.0, 0.0, 0.0)
    return _candidate(
        entrant,
        count,
        medians,
        cold_us=_rounded(medians.cold_us),
        stall_us=series.stall_us,
        standings={objective: _standing(entrant, race, objective, alone) for objective in OBJECTIVES},
        rounds=len(series.figures),
        dropped=series.dropped,
        state="complete" if entrant in race.running else "pruned",
    )


def _standing(entrant: Entrant, race: Race, objective: Objective, alone: Sample | None) -> Standing:
    """How it did. ``alone`` is a single call of a default that was ruled out: no pairs exist, but it is far away."""
    series = race.series[entrant]
    cost, p90 = series.median_cost(objective), series.percentile_90(objective)
    if alone is not None:
        return Standing(_rounded(cost), _rounded(p90), _rounded(cost / alone.wall_us), None, None)
    ratio = race.ratio(entrant, race.default, objective)
    if ratio is None:
        return Standing(_rounded(cost), _rounded(p90), None, None, None)
    return Standing(_rounded(cost), _rounded(p90), _rounded(ratio.median), _rounded(ratio.low), _rounded(ratio.high))


def _ruled_out(entrant: Entrant, count: int, sample: Sample, *, is_default: bool) -> CandidateMeasurement:
    figures = Figures(sample.host_us, sample.host_us, sample.device_us, sample.wall_us)
    costs = {objective: _rounded(cost_us(objective, figures, 0.0)) for objective in OBJECTIVES}
    ratio = 1.0 if is_default else None
    return _candidate(
        entrant,
        count,
        figures,
        cold_us=None,
        stall_us=0.0,
        standings={objective: Standing(cost, cost, ratio, None, None) for objective, cost in costs.items()},
        rounds=0,
        dropped=0,
        state="probed",
    )


def _candidate(
    entrant: Entrant, count: int, figures: Figures, *, stall_us: float, **others: object
) -> CandidateMeasurement:
    stall = entrant.stalls.get(count)
    return CandidateMeasurement(
        strategy=entrant.candidate.name,
        params=dict(entrant.candidate.params),
        host_us=_rounded(figures.host_us),
        device_us=_rounded(figures.device_us),
        wall_us=_rounded(figures.wall_us),
        stall=stall.kind if stall else None,
        stall_share=_rounded(stall.share) if stall else None,
        stall_us=_rounded(stall_us),
        capturable=entrant.capturable,
        **others,  # type: ignore[arg-type]  # the callers' own keywords
    )


def _rounded(value: float) -> float:
    """Five significant digits: more than any of these times has, and half the bytes."""
    return float(f"{value:.5g}")


def _order(candidate: CandidateMeasurement) -> tuple[bool, float]:
    return candidate.state == "probed", candidate.standings["serving"].cost_us
