"""What is known of one attempt at a job while it runs, and what to call its end."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from experiments.supervise.lines import TRACEBACK, Speaker

# How a rank ends because another one did: the other one's failure is the one to show.
_CONSEQUENCE = re.compile(
    r"CollectiveError|HorovodInternalError|ChildFailedError|[Cc]onnection (?:closed|reset|refused)|Broken pipe|"
    r"DistBackendError|\bgloo/"
)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A rank that failed."""

    speaker: Speaker
    told_by: Speaker
    """The process whose output says why: the rank's own, or its parent's."""
    when: float
    how: str
    code: int
    signal: str | None = None

    @classmethod
    def of(cls, speaker: Speaker, told_by: Speaker, when: float, returncode: int, cause: str = "") -> Failure:
        """From a return code as Python gives it: negative for a signal."""
        if returncode < 0:
            name = signal.Signals(-returncode).name
            code, how = 128 - returncode, f"was killed by {name}"
        else:
            name, code = None, returncode
            how = f"failed: {cause}" if cause else f"exited with code {code}"
        return cls(speaker=speaker, told_by=told_by, when=when, how=how, code=code, signal=name)

    def record(self, log: str) -> dict[str, Any]:
        """Plain values for result.json."""
        speaker, code = self.speaker, self.code
        return {
            "host": speaker.host,
            "rank": speaker.rank,
            "exit_code": code,
            "signal": self.signal,
            "log": log,
        }


@dataclass
class Attempt:
    """Filled in from the lines and events of the ranks.

    Times are `time.monotonic()` of when this process heard of it, as clocks of hosts differ, and are set while a job runs; only
    failures are put in order by the clocks of their hosts.
    """

    started: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    rendezvous: float | None = None
    first_step: float | None = None
    run_directory: str | None = None
    processes: dict[Speaker, int] = field(default_factory=dict)  # ids on their hosts
    _met: set[int] = field(default_factory=set)
    _troubled: dict[Speaker, float] = field(default_factory=dict)  # its first traceback, by `time.time()`
    _told: dict[Speaker, Failure] = field(default_factory=dict)
    exits: list[Failure] = field(default_factory=list)
    place: str = "nothing yet"

    def line(self, speaker: Speaker | None, text: str) -> None:
        """A line was printed."""
        self.heard = time.monotonic()
        if speaker is not None and text.endswith(TRACEBACK):
            self._troubled.setdefault(speaker, time.time())

    def event(self, speaker: Speaker, event: dict[str, Any], at: float | None = None) -> None:
        """A rank's program told something: now, or `at` a time on another clock, which `rendezvous` and `first_step` then have."""
        self.heard = time.monotonic() if at is None else at
        kind = event["event"]
        if kind == "started":
            self.processes[speaker] = event["pid"]
            self.exits.clear()  # torchrun starts its ranks again
        elif kind == "rendezvous":
            self._met.add(event["rank"])
            if len(self._met) >= event["world_size"]:
                self.rendezvous = self.heard
        elif kind == "first_step":
            self.first_step = min(self.heard, self.first_step or self.heard)
        elif kind == "run_directory":
            self.run_directory = event["path"]
        elif kind == "failed":  # ranks that a program spawned itself have no exit of their own here
            code = 1 if event["exitcode"] is None else event["exitcode"]
            who = Speaker(speaker.host, event["rank"])
            self._told[speaker] = Failure.of(who, speaker, event["time"], code, event["cause"])
        elif kind == "progress":
            self.place = f"iteration {event['iteration']:,} of {event['total']:,}"
        elif kind == "exit" and event["returncode"] != 0:
            when = self._troubled.get(speaker, event["time"])
            self.exits.append(
                self._told.get(speaker) or Failure.of(speaker, speaker, when, event["returncode"])
            )

    def first_failure(self, last_words: dict[Speaker, list[str]]) -> Failure | None:
        """The rank that failed by itself, not because of another one, and of those the first."""

        def order(failure: Failure) -> tuple[bool, float]:
            words = last_words.get(failure.told_by, [])
            # a launcher ends the others with SIGTERM
            broken = failure.signal == "SIGTERM" or any(_CONSEQUENCE.search(line) for line in words[-1:])
            return broken and failure.signal != "SIGKILL", failure.when

        return min(self.exits, key=order, default=None)

    def missing(self) -> str:
        """Who has not come to the rendezvous, as far as is known."""
        here = sorted(speaker.rank for speaker in self.processes if speaker.rank is not None)
        late = [rank for rank in here if rank not in self._met]
        met = (
            f"ranks {', '.join(map(str, sorted(self._met)))} have met"
            if self._met
            else "no rank has met another"
        )
        return f"{met}; started here: {', '.join(map(str, here)) or 'none'}; still waiting: {', '.join(map(str, late)) or 'none'}"
