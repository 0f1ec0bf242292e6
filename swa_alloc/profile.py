"""StrategyProfile: what was measured and decided for one device, software and workload, as one JSON file."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from swa_alloc import _json
from swa_alloc._json import AtLeast
from swa_alloc.errors import ProfileError
from swa_alloc.fingerprint import Fingerprint, Match
from swa_alloc.operations import CallKind, Objective
from swa_alloc.strategies import candidate_label

if TYPE_CHECKING:
    from swa_alloc.evidence import Evidence

SCHEMA: Final = "swa_alloc.profile/2"

# File names carry the schema: a file of another version is never in the way, and never looked at.
FILE_SUFFIX: Final = ".profile-2.json"
_EVIDENCE_SUFFIX: Final = ".evidence-2.json"

# Pools whose sizes lie within this factor of each other are one class: what depends on the table's size (a pass over
# the whole table, the cache that holds it) changes the ranking over decades, not within an octave.
SAME_CLASS_FACTOR = 2

# In ``Provenance.effort``: the seconds that have added nothing to an incomplete profile.
IN_VAIN: Final = "in_vain_s"


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
    size: Annotated[int, AtLeast(1)]
    page_size: Annotated[int, AtLeast(1)]
    backlog_us: Annotated[float, AtLeast(0)]
    trace: str


class Decision(NamedTuple):
    """Which strategy serves calls of up to ``max_indices`` indices.

    Attributes:
        kind: What is called.
        max_indices: Largest number of indices that it covers; None for the last decision of its kind.
        strategy: Name of the strategy.
        params: Its parameters.
        margin: The switch margin that applied, as a fraction; another strategy had to win by more.
        ties: Labels of the candidates that cannot be told from it within that margin.
    """

    kind: CallKind
    max_indices: Annotated[int, AtLeast(1)] | None
    strategy: str
    params: dict[str, Any]
    margin: Annotated[float, AtLeast(0)]
    ties: tuple[str, ...]

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
        effort: How much measuring was asked for; a request for no more than that reuses the profile.
        rounds: How much was achieved: the rounds of all races together; 0 for a pin.
        config: The resolved configuration, or what the allocator asked for at start-up.
        overrides: The command's overrides.
        environment: Variables that configured the run.
    """

    method: Literal["measured", "pinned"]
    created: str
    measuring_s: float
    request: str
    effort: dict[str, float]
    rounds: Annotated[int, AtLeast(0)]
    config: dict[str, Any]
    overrides: tuple[str, ...]
    environment: dict[str, str]


class ProfileDocument(NamedTuple):
    """The file.

    Besides this schema a reader requires that the objective is one of the answers; that in each answer, for each kind
    of call, decisions ascend in max_indices and end with null; and that an answer without decisions says what is
    missing.

    Attributes:
        schema: Version of this format.
        fingerprint: The machine and software.
        workload: The workload.
        objective: What was minimized: the answer that serves.
        answers: The decisions under each objective.
        missing: What is still to be measured, a phrase each; empty for a complete profile.
        provenance: Where it comes from.
    """

    schema: Literal["swa_alloc.profile/2"]
    fingerprint: Fingerprint
    workload: ProfileWorkload
    objective: Objective
    answers: dict[Objective, tuple[Decision, ...]]
    missing: tuple[str, ...]
    provenance: Provenance


class StrategyProfile:
    """One profile. ``load`` and ``save`` are its only contact with files; nothing in it is ever executed.

    Args:
        fingerprint: The machine and software.
        workload: The workload.
        objective: What was minimized; one of the answers.
        answers: For each objective that was decided for, the decisions: for each kind of call ascending in
            ``max_indices``, the last one open.
        provenance: Where it comes from.
        evidence: What was measured, or a function that gives it when it is first asked for.
        missing: One phrase for each thing that is still to be measured, such as ``clear.token.int32 at 384``. A profile
            in which everything is missing holds no decision.

    Raises:
        ValueError: the decisions leave a number of indices without an answer, or give it two; or there are none, and
            nothing is missing.
    """

    def __init__(
        self,
        *,
        fingerprint: Fingerprint,
        workload: ProfileWorkload,
        objective: Objective,
        answers: Mapping[Objective, tuple[Decision, ...]],
        provenance: Provenance,
        evidence: "Evidence | Callable[[], Evidence]",
        missing: tuple[str, ...] = (),
    ) -> None:
        self.fingerprint = fingerprint
        self.workload = workload
        self.objective = objective
        self.answers = answers
        self.provenance = provenance
        self.missing = missing
        self._evidence = evidence
        if objective not in answers:
            raise ValueError(f"answers must hold one for {objective}, the objective; they are {', '.join(answers)}")
        for decisions in answers.values():
            if not decisions and not missing:
                raise ValueError("answers must hold at least one decision each where nothing is missing")
            _check_order(decisions)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The answer to its objective."""
        return self.answers[self.objective]

    @property
    def complete(self) -> bool:
        """Whether everything was measured that was asked for."""
        return not self.missing

    @property
    def unfinished(self) -> bool:
        """Whether it lacks something that measuring for as long again may add."""
        effort = self.provenance.effort
        return not self.complete and effort.get(IN_VAIN, 0.0) < effort.get("budget_s", 0.0)

    @property
    def evidence(self) -> "Evidence":
        """What was measured. Read at the first use: a starting server has no use for it.

        Raises:
            ProfileError: its file is not what it should be.
        """
        if callable(self._evidence):
            self._evidence = self._evidence()
        return self._evidence

    def decisions_for(self, kind: CallKind) -> tuple[Decision, ...]:
        """The decisions of one kind, ascending; empty where it was not measured."""
        return tuple(decision for decision in self.decisions if decision.kind == kind)

    def under(self, objective: Objective) -> "StrategyProfile":
        """This profile as another objective decides it, from the same measurements.

        Raises:
            ProfileError: it was not decided for that objective.
        """
        if objective not in self.answers:
            raise ProfileError(f"the profile decides nothing for objective {objective}; make a new one")
        return self._but(objective=objective)

    def in_vain(self) -> "StrategyProfile":
        """This incomplete profile, to which a whole budget has added nothing; as long a budget need not try again."""
        made = self.provenance
        effort = {**made.effort, IN_VAIN: made.effort["budget_s"]}
        return self._but(provenance=made._replace(effort=effort))

    def _but(self, **changes: Any) -> "StrategyProfile":
        arguments: dict[str, Any] = {
            "fingerprint": self.fingerprint,
            "workload": self.workload,
            "objective": self.objective,
            "answers": self.answers,
            "provenance": self.provenance,
            "evidence": self._evidence,
            "missing": self.missing,
        }
        return StrategyProfile(**{**arguments, **changes})

    def match(self, here: Fingerprint, size: int, page_size: int) -> Match:
        """How far this profile fits a machine and a mapping over a full pool of ``size`` slots."""
        head = ProfileHead(self.fingerprint, self.workload, self.missing, self.provenance)
        return head.match(here, size, page_size)

    @property
    def file_name(self) -> str:
        """The name that stores look for."""
        return file_name(self.fingerprint, self.workload)

    @classmethod
    def load(cls, path: str | Path) -> "StrategyProfile":
        """The profile in a file.

        Raises:
            ProfileError: it cannot be read, is not JSON, or is not a profile of this version.
        """
        path = Path(path)
        with _reading(path):
            document = _json.decode(ProfileDocument, _json.of_schema(SCHEMA, _json.read(path)))
            return cls(
                fingerprint=document.fingerprint,
                workload=document.workload,
                objective=document.objective,
                answers=document.answers,
                provenance=document.provenance,
                evidence=lambda: _read_evidence(path),
                missing=document.missing,
            )

    def document(self) -> dict[str, Any]:
        """The profile as JSON types, as it stands in a file; its evidence stands in another."""
        return dict(
            _json.plain(
                ProfileDocument(
                    schema=SCHEMA,
                    fingerprint=self.fingerprint,
                    workload=self.workload,
                    objective=self.objective,
                    answers=dict(self.answers),
                    missing=self.missing,
                    provenance=self.provenance,
                )
            )
        )

    def save(self, path: str | Path) -> Path:
        """Write to ``path``, and the evidence beside it, each all or nothing. Another machine's is never overwritten.

        Raises:
            ProfileError: the path cannot be written, or holds another machine's profile; or the evidence is unusable.
        """
        path = Path(path)
        self._check_ours(path)
        try:
            texts = {
                # First: a profile whose evidence is newer serves as well as it did.
                evidence_path(path): _json.encode(self.evidence.document()),
                path: _json.encode(self.document()),
            }
            for file, text in texts.items():
                _json.write_atomically(file, text)
        except OSError as error:
            raise ProfileError(
                f"profile {path} cannot be written: {error.strerror or error}; "
                "choose a writable folder with profile.dir=... or SWA_ALLOC_PROFILE_DIR"
            ) from error
        except ProfileError:
            raise
        except ValueError as error:
            raise ProfileError(f"profile {path} cannot be written: {error}") from error
        return path

    def _check_ours(self, path: Path) -> None:
        """See that no other machine's profile is in the way. A file that is damaged is no loss.

        Raises:
            ProfileError: there is one, or a file that this user may not read.
        """
        try:
            match = self.fingerprint.match(ProfileHead.load(path).fingerprint)
        except ProfileError as error:
            if isinstance(error.__cause__, PermissionError):
                raise
            return
        if match.tier == "mismatch":
            raise ProfileError(
                f"{path} holds another machine's profile ({match.differences[0]}) and is left as it is; "
                "choose another profile.dir"
            )


class ProfileHead(NamedTuple):
    """What decides whether a profile is taken: everything but its answers, which are most of the file.

    Attributes:
        fingerprint: As in ``ProfileDocument``, like all that follow.
        workload: The workload.
        missing: What is still to be measured.
        provenance: Where it comes from.
    """

    fingerprint: Fingerprint
    workload: ProfileWorkload
    missing: tuple[str, ...]
    provenance: Provenance

    @classmethod
    def load(cls, path: Path) -> "ProfileHead":
        """The head of the profile in a file.

        Raises:
            ProfileError: it cannot be read, or is not a profile of this version.
        """
        with _reading(path):
            content = _json.of_schema(SCHEMA, _json.read_from(path, "fingerprint"))
            return _json.decode(cls, {name: content[name] for name in cls._fields if name in content})

    @property
    def empty(self) -> bool:
        """Whether it remembers only that nothing could be measured."""
        return self.provenance.method == "measured" and not self.provenance.rounds

    def match(self, here: Fingerprint, size: int, page_size: int) -> Match:
        """How far the profile fits a machine and a mapping over a full pool of ``size`` slots."""
        software = here.match(self.fingerprint)
        workload = self.workload
        low, high = sorted((size, workload.size))
        page = [f"page_size is {page_size} here and {workload.page_size} in the profile"]
        pool = [f"size is {size} here and {workload.size} in the profile"]
        # What decides comes first: a person who is shown one difference is to be shown that.
        decisive = (page if page_size != workload.page_size else []) + (pool if high > low * SAME_CLASS_FACTOR else [])
        if decisive or software.tier == "mismatch":
            return Match("mismatch", (*decisive, *software.differences))
        return Match("compatible", (*software.differences, *pool)) if size != workload.size else software


def evidence_path(path: Path) -> Path:
    """The file beside a profile's that holds its evidence."""
    stem = path.name.removesuffix(FILE_SUFFIX).removesuffix(".json")
    return path.with_name(f"{stem}{_EVIDENCE_SUFFIX}")


def file_name(fingerprint: Fingerprint, workload: ProfileWorkload) -> str:
    """The device type and workload for people, a digest of both for machines, and the schema."""
    identity = digest({"fingerprint": _json.plain(fingerprint), "workload": _json.plain(workload)})
    return f"{fingerprint.device_type}-{workload.name}-{identity}{FILE_SUFFIX}"


def digest(value: Any) -> str:
    """12 hexadecimal digits that stand for a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _read_evidence(path: Path) -> "Evidence":
    # Needed by reports and explanations, and by no start.
    from swa_alloc.evidence import Evidence

    return Evidence.load(evidence_path(path))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Around reading a profile: whatever is wrong with the file is a ``ProfileError`` that names it."""
    try:
        yield
    except OSError as error:
        raise ProfileError(f"profile {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        reason = f"profile {path} is not usable: {error}; make a new one with `python -m autotune`"
        raise ProfileError(reason) from error


def _check_order(decisions: tuple[Decision, ...]) -> None:
    bounds: dict[CallKind, list[int | None]] = {}
    for decision in decisions:
        bounds.setdefault(decision.kind, []).append(decision.max_indices)
    for kind, (*closed, last) in bounds.items():
        finite = [bound for bound in closed if bound is not None]
        if last is not None or finite != closed or any(a >= b for a, b in pairwise(finite)):
            raise ValueError(
                f"decisions for {kind} must ascend in max_indices and end with null, not {[*closed, last]}"
            )
