"""A request: everything that decides what a calibration measures, and which saved profile answers it already."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from autotune.config import Calibration, Reuse
from swa_alloc import _json
from swa_alloc.errors import ProfileError
from swa_alloc.fingerprint import Fingerprint, fingerprint
from swa_alloc.operations import OPERATIONS, Objective, Target, empty_mapping
from swa_alloc.profile import IN_VAIN, ProfileWorkload, StrategyProfile, digest, file_name
from swa_alloc.stores import Store
from swa_alloc.strategies import create

if TYPE_CHECKING:
    from autotune.devices import Device
    from swa_alloc.trace import Trace

# What more of makes a profile better and never worse: a thorough profile answers a quick request.
_EFFORT = ("sizes", "tables", "rounds")


@dataclass(frozen=True)
class Request:
    """One calibration, asked for.

    Attributes:
        device: Where to measure.
        name: Of the workload.
        trace: The calls whose sizes are timed.
        backlog_us: Device work queued ahead of a call, in microseconds.
        objective: What is minimized.
        settings: How much is measured.
        strategies: Names of the strategies that race, by operation.
        defaults: Names of those that serve where nothing was measured, by operation.
        config: The configuration behind all this, for the record.
        overrides: The command's overrides, for the record.
        require_capturable: Whether strategies must work in a captured graph.
    """

    device: Device
    name: str
    trace: Trace
    backlog_us: float
    objective: Objective
    settings: Calibration
    strategies: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, str]
    config: Mapping[str, Any]
    overrides: tuple[str, ...] = ()
    require_capturable: bool = False

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """This machine's."""
        return fingerprint(self.device.torch_device)

    @cached_property
    def workload(self) -> ProfileWorkload:
        """The workload as the profile keeps it."""
        trace = self.trace
        return ProfileWorkload(self.name, trace.size, trace.page_size, self.backlog_us, trace.digest)

    @cached_property
    def unavailable(self) -> Mapping[tuple[str, str], str]:
        """Why strategies cannot run here, by operation and name. One that fails at the question is screened later."""
        page_size = self.trace.page_size
        mapping = empty_mapping(page_size, page_size, self.device.torch_device)
        reasons = {}
        for operation, who in self.strategies.items():
            called = OPERATIONS[operation]
            target = Target(called.name, called.targets(page_size)[0], torch.int64, mapping, page_size)
            for name in who:
                with suppress(Exception):
                    reasons[operation, name] = create(operation, name).unavailable(target)
        return {who: reason for who, reason in reasons.items() if isinstance(reason, str)}

    @property
    def file_name(self) -> str:
        """Of the profile that answers it."""
        return file_name(self.fingerprint, self.workload)

    @property
    def digest(self) -> str:
        """What must be equal for a saved profile to answer, besides fingerprint and workload."""
        settings = self.settings
        rules = [settings.switch_margin, settings.call_limit_s, settings.block_us]
        # What has become available since, as Triton does when it is installed, has not been measured.
        racing = [
            [operation, name]
            for operation, who in self.strategies.items()
            for name in who
            if (operation, name) not in self.unavailable
        ]
        # Not the objective: a profile decides for all of them.
        return digest([racing, rules, self.require_capturable])

    @property
    def budget_s(self) -> float:
        """Most seconds spent on measuring."""
        configured = self.settings.budget_s
        return self.device.budget_s if configured is None else configured

    @property
    def effort(self) -> dict[str, float]:
        """How much is measured; a profile made with at least as much will do."""
        return {name: float(getattr(self.settings, name)) for name in _EFFORT} | {"budget_s": self.budget_s}

    @property
    def subject(self) -> dict[str, Any]:
        """What must be equal for an interrupted calibration to be taken up again; the time for it may differ."""
        return {
            "journal": 2,
            "fingerprint": _json.plain(self.fingerprint),
            "workload": _json.plain(self.workload),
            "request": self.digest,
            "effort": {name: wanted for name, wanted in self.effort.items() if name in _EFFORT},
        }

    def answer(self, directory: Path, reuse: Reuse) -> tuple[StrategyProfile, Path] | None:
        """The saved profile in ``directory`` that makes measuring unnecessary, under the objective that is asked for.

        An unusable file is none. One that is incomplete makes it unnecessary where as many seconds have added nothing.
        """
        for path in self._candidates(directory, reuse):
            try:
                profile = StrategyProfile.load(path)
            except ProfileError:
                continue
            if self._answered_by(profile, reuse):
                return profile.under(self.objective), path
        return None

    def _candidates(self, directory: Path, reuse: Reuse) -> list[Path]:
        own = directory / self.file_name
        others = Store("", directory).files(self.fingerprint.device_type) if reuse is Reuse.compatible else ()
        return [] if reuse is Reuse.never else [own, *others]

    def _answered_by(self, profile: StrategyProfile, reuse: Reuse) -> bool:
        tier = self.fingerprint.match(profile.fingerprint).tier
        made = profile.provenance
        return (
            (tier == "exact" or (tier == "compatible" and reuse is Reuse.compatible))
            and profile.workload == self.workload
            and made.method == "measured"
            and made.request == self.digest
            and all(made.effort.get(name, 0) >= wanted for name, wanted in self.effort.items() if name in _EFFORT)
            # More time would change something only where it ran out.
            and (profile.complete or made.effort.get(IN_VAIN, 0) >= self.budget_s)
        )
