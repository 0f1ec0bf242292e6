"""StrategyProfile: what was measured and decided for one device, software and workload, as one JSON file."""

from __future__ import annotations

import hashlib
import json
import reprlib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from swa_alloc import _json
from swa_alloc.errors import ProfileError
from swa_alloc.fingerprint import Fingerprint, Match
from swa_alloc.operations import IndexDtype, Objective, OperationName, TargetName
from swa_alloc.strategies import candidate_label

if TYPE_CHECKING:
    from collections.abc import Callable

    from swa_alloc.evidence import Evidence

SCHEMA: Final = "swa_alloc.profile/1"
_SCHEMA_FAMILY = "swa_alloc.profile/"


# Pools whose sizes lie within this factor of each other are one class: what depends on the table's size (a pass over
# the whole table, the cache that holds it) changes the ranking over decades, not within an octave.
_SAME_CLASS_FACTOR = 2


class ProfileWorkload(NamedTuple):
    """The workload that a profile was measured for.

    Attributes:
        name: Its name in ``conf/workload``.
        size: Slots in the full pool; the mapping has ``size + page_size + 1`` entries.
        page_size: Slots in a page.
        backlog_us: Device work queued ahead of a call, in microseconds.
        trace: Digest of the trace whose sizes were timed.
    """

    name: str
    size: int
    page_size: int
    backlog_us: float
    trace: str

    def check(self) -> None:
        """Raise ValueError for impossible sizes."""
        if self.size < 1 or self.page_size < 1 or self.backlog_us < 0:
            raise ValueError("size and page_size must be at least 1, and backlog_us at least 0")


class Decision(NamedTuple):
    """Which strategy serves calls of up to ``max_indices`` indices.

    Attributes:
        operation: Name of the operation.
        target: What is indexed.
        index_dtype: The indices' dtype.
        max_indices: Largest number of indices that it covers; None for the last decision of its kind.
        strategy: Name of the strategy.
        params: Its parameters.
        margin: The switch margin that applied, as a fraction; another strategy had to win by more.
        ties: Labels of the candidates that cannot be told from it within that margin.
    """

    operation: OperationName
    target: TargetName
    index_dtype: IndexDtype
    max_indices: int | None
    strategy: str
    params: dict[str, Any]
    margin: float
    ties: tuple[str, ...]

    def check(self) -> None:
        """Raise ValueError for impossible numbers."""
        if self.max_indices is not None and self.max_indices < 1:
            raise ValueError(f"max_indices must be at least 1 or null, not {self.max_indices}")
        if self.margin < 0:
            raise ValueError(f"margin must be at least 0, not {self.margin}")

    @property
    def label(self) -> str:
        """The strategy with its parameters."""
        return candidate_label(self.strategy, self.params)


class Provenance(NamedTuple):
    """Where a profile comes from.

    Attributes:
        method: ``measured``, or ``pinned`` by hand.
        created: ISO 8601 time, UTC.
        measuring_s: Seconds spent measuring; 0 for a pin.
        request: Digest of what was asked; a repeated request reuses the profile.
        effort: How much was measured; a request for no more than that reuses the profile.
        config: The resolved configuration, or what the allocator asked for at start-up.
        overrides: The command's overrides.
        environment: Variables that configured the run.
    """

    method: Literal["measured", "pinned"]
    created: str
    measuring_s: float
    request: str
    effort: dict[str, float]
    config: dict[str, Any]
    overrides: tuple[str, ...]
    environment: dict[str, str]


class Alternative(NamedTuple):
    """What the same measurements say under another objective.

    Attributes:
        objective: What would be minimized.
        decisions: As in a profile.
        evidence: As in a profile: what was measured, or a function that gives it.
    """

    objective: Objective
    decisions: tuple[Decision, ...]
    evidence: Evidence | Callable[[], Evidence]


class StrategyProfile:
    """One profile. ``load`` and ``save`` are its only contact with files; nothing in it is ever executed.

    Args:
        fingerprint: The machine and software.
        workload: The workload.
        objective: What was minimized.
        decisions: For each operation, target and index dtype, ascending in ``max_indices``, the last one open.
        provenance: Where it comes from.
        evidence: What was measured, or a function that gives it when it is first asked for.
        alternatives: What the other objectives say; none where all say the same, as on a CPU or where a person decided.

    Raises:
        ValueError: the decisions leave a number of indices without an answer, or give it two.
    """

    def __init__(
        self,
        *,
        fingerprint: Fingerprint,
        workload: ProfileWorkload,
        objective: Objective,
        decisions: tuple[Decision, ...],
        provenance: Provenance,
        evidence: Evidence | Callable[[], Evidence],
        alternatives: tuple[Alternative, ...] = (),
    ) -> None:
        self.fingerprint = fingerprint
        self.workload = workload
        self.objective = objective
        self.decisions = decisions
        self.provenance = provenance
        self.alternatives = alternatives
        self._evidence = evidence
        for each in (decisions, *(alternative.decisions for alternative in alternatives)):
            _check_order(each)

    @property
    def evidence(self) -> Evidence:
        """What was measured. Read from the file's text at the first use: a starting server has no use for it.

        Raises:
            ProfileError: this part of the file is not what it should be.
        """
        self._evidence = _given(self._evidence)
        return self._evidence

    def decisions_for(self, operation: str, target: str, index_dtype: str) -> tuple[Decision, ...]:
        """The decisions of one kind, ascending; empty where it was not measured."""
        return _of_kind(self.decisions, (operation, target, index_dtype))

    def under(self, objective: Objective) -> StrategyProfile:
        """This profile as another objective decides it, from the same measurements.

        Raises:
            ProfileError: it was not decided for that objective.
        """
        if objective == self.objective:
            return self
        found = [alternative for alternative in self.alternatives if alternative.objective == objective]
        if self.alternatives and not found:
            raise ProfileError(f"the profile decides nothing for objective {objective}; make a new one")
        mine = Alternative(self.objective, self.decisions, self._evidence)
        # Without alternatives every objective gets the same answer.
        chosen = found[0] if found else mine
        others = tuple(alternative for alternative in self.alternatives if alternative is not chosen)
        return StrategyProfile(
            fingerprint=self.fingerprint,
            workload=self.workload,
            objective=objective,
            decisions=chosen.decisions,
            provenance=self.provenance,
            evidence=chosen.evidence,
            alternatives=(mine, *others) if found else (),
        )

    def match(self, here: Fingerprint, size: int, page_size: int) -> Match:
        """How far this profile fits a machine and a mapping over a full pool of ``size`` slots."""
        software = here.match(self.fingerprint)
        workload = self.workload
        low, high = sorted((size, workload.size))
        page = [f"page_size is {page_size} here and {workload.page_size} in the profile"]
        pool = [f"size is {size} here and {workload.size} in the profile"]
        # What decides comes first: a miss is explained by its first difference.
        decisive = (page if page_size != workload.page_size else []) + (pool if high > low * _SAME_CLASS_FACTOR else [])
        if decisive or software.tier == "mismatch":
            return Match("mismatch", (*decisive, *software.differences))
        return Match("compatible", (*software.differences, *pool)) if size != workload.size else software

    @property
    def key(self) -> str:
        """File name without its suffix: the device type and workload for people, a digest for machines."""
        return profile_key(self.fingerprint, self.workload)

    @classmethod
    def load(cls, path: str | Path) -> StrategyProfile:
        """The profile in a file.

        Raises:
            ProfileError: it cannot be read, is not JSON, or is not a profile of this version.
        """
        try:
            document = _json.decode(_Document, _of_this_schema(_json.read(Path(path))))
            return cls(
                fingerprint=document.fingerprint,
                workload=document.workload,
                objective=document.objective,
                decisions=document.decisions,
                provenance=document.provenance,
                evidence=lambda: _decode_evidence(document.measurements, document.ineligible, path),
                alternatives=tuple(_decode_alternative(entry, document, path) for entry in document.alternatives),
            )
        except OSError as error:
            raise ProfileError(f"profile {path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise _not_usable(path, error) from error

    def document(self) -> dict[str, Any]:
        """The profile as JSON types, as it stands in a file."""
        evidence = self.evidence
        return dict(
            _json.plain(
                _Document(
                    schema=SCHEMA,
                    fingerprint=self.fingerprint,
                    workload=self.workload,
                    objective=self.objective,
                    decisions=self.decisions,
                    measurements=evidence.measurements,
                    ineligible=evidence.ineligible,
                    alternatives=tuple(
                        _AlternativeDocument(other.objective, other.decisions, _given(other.evidence).measurements)
                        for other in self.alternatives
                    ),
                    provenance=self.provenance,
                )
            )
        )

    def save(self, path: str | Path) -> Path:
        """Write to ``path``, all or nothing. A profile of another machine is never overwritten.

        Raises:
            ProfileError: the path cannot be written, or holds another machine's profile.
        """
        path = Path(path)
        reason = self._not_ours(path)
        if reason is not None:
            raise ProfileError(f"{path} holds {reason} and is left as it is; choose another profile.dir")
        try:
            _json.write_atomically(path, _json.encode(self.document()))
        except OSError as error:
            raise ProfileError(
                f"profile {path} cannot be written: {error.strerror or error}; "
                "choose a writable folder with profile.dir=... or SWA_ALLOC_PROFILE_DIR"
            ) from error
        except ValueError as error:
            raise ProfileError(f"profile {path} cannot be written: {error}") from error
        return path

    def _not_ours(self, path: Path) -> str | None:
        """Whose the file in ``path`` is, if it must not be overwritten. One that is damaged is no loss."""
        try:
            document = _json.read(path)
            schema = document.get("schema") if isinstance(document, dict) else None
            if isinstance(schema, str) and schema != SCHEMA and schema.startswith(_SCHEMA_FAMILY):
                return f"a profile of another version ({schema})"
            match = self.fingerprint.match(StrategyProfile.load(path).fingerprint)
        except PermissionError as error:
            return f"a file that cannot be read ({error.strerror})"
        except (OSError, ValueError):
            return None
        return f"another machine's profile ({match.differences[0]})" if match.tier == "mismatch" else None


class _AlternativeDocument(NamedTuple):
    """An alternative in the file."""

    objective: Objective
    decisions: tuple[Decision, ...]
    measurements: Any


class _Document(NamedTuple):
    """The file. Its evidence is checked when it is asked for."""

    schema: Literal["swa_alloc.profile/1"]
    fingerprint: Fingerprint
    workload: ProfileWorkload
    objective: Objective
    decisions: tuple[Decision, ...]
    measurements: Any
    ineligible: Any
    alternatives: tuple[_AlternativeDocument, ...]
    provenance: Provenance


def _given(evidence: Evidence | Callable[[], Evidence]) -> Evidence:
    return evidence() if callable(evidence) else evidence


def _decode_alternative(entry: _AlternativeDocument, document: _Document, path: str | Path) -> Alternative:
    return Alternative(
        entry.objective,
        entry.decisions,
        lambda: _decode_evidence(entry.measurements, document.ineligible, path),
    )


def _decode_evidence(measurements: Any, ineligible: Any, path: str | Path) -> Evidence:
    from swa_alloc.evidence import Evidence

    try:
        return _json.decode(Evidence, {"measurements": measurements, "ineligible": ineligible})
    except ValueError as error:
        raise _not_usable(path, error) from error


def _not_usable(path: str | Path, error: ValueError) -> ProfileError:
    return ProfileError(f"profile {path} is not usable: {error}; make a new one with `python -m autotune`")


def _of_kind(decisions: tuple[Decision, ...], kind: tuple[str, str, str]) -> tuple[Decision, ...]:
    return tuple(d for d in decisions if (d.operation, d.target, d.index_dtype) == kind)


def _check_order(decisions: tuple[Decision, ...]) -> None:
    if not decisions:
        raise ValueError("decisions must hold at least one")
    for kind in dict.fromkeys((d.operation, d.target, d.index_dtype) for d in decisions):
        bounds = [decision.max_indices for decision in _of_kind(decisions, kind)]
        *closed, last = bounds
        finite = [bound for bound in closed if bound is not None]
        if last is not None or finite != closed or any(a >= b for a, b in pairwise(finite)):
            raise ValueError(
                f"decisions for {'.'.join(kind)} must ascend in max_indices and end with null, not {bounds}"
            )


def _of_this_schema(document: object) -> object:
    """``document``, unless it says that it is something else: one clear reason before many puzzling ones."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"its schema is {reprlib.repr(schema)} and this version reads {SCHEMA!r}")
    return document


def profile_key(fingerprint: Fingerprint, workload: ProfileWorkload) -> str:
    """``<device type>-<workload>-<digest of both>``."""
    identity = digest({"fingerprint": _json.plain(fingerprint), "workload": _json.plain(workload)})
    return f"{fingerprint.device_type}-{workload.name}-{identity}"


def digest(value: Any) -> str:
    """12 hexadecimal digits that stand for a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
