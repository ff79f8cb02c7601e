"""What the supervisor would have told of a cell, from the output of its Slurm job.

Each process runs under the supervisor's `rank.py`, so its lines are labelled and its events are among them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from experiments.supervise.attempt import Attempt
from experiments.supervise.lines import Transcript, parse
from experiments.supervise.rank import MARK

_END = re.compile(r"slurm(?:_torchrun)?\.sbatch: job \S+ ends with exit code (\d+)")
_TIMED_OUT = 124  # of timeout(1)


def result_of(output: Path, log_dir: Path, started: float | None, limit: float) -> dict[str, Any]:
    """Read a job's output, and write the files of its ranks.

    Args:
        output: what the job has printed.
        log_dir: gets a file for each rank, and launcher.log.
        started: when Slurm started the job, in seconds since 1970; None: when its first process started.
        limit: seconds that it was given, for the reason.

    Returns:
        The content that the supervisor's result.json has, and the hosts of the ranks.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    transcript, attempt = Transcript(log_dir), Attempt()
    moments: list[float] = []
    code: int | None = None
    text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
    for line in text.splitlines():
        speaker, said = parse(line)
        if speaker is not None and said.startswith(MARK):
            event = json.loads(said.removeprefix(MARK))
            moments.append(event["time"])
            attempt.event(speaker, event, at=event["time"])
            continue
        attempt.line(speaker, said)
        transcript.add(speaker, said)
        if found := _END.match(said):
            code = int(found[1])
    failure = attempt.first_failure({one.told_by: transcript.end(one.told_by) for one in attempt.exits})
    zero = started if started is not None else min(moments, default=None)

    def since(moment: float | None) -> float | None:
        return None if moment is None or zero is None else moment - zero

    if code is None:
        reason = "the job ended without a word: it was cancelled, or its node failed"
    elif code == _TIMED_OUT:
        reason = f"not ready after {limit:g} s"
    elif code == 0:
        reason = "finished"
    elif failure is not None:
        reason = f"{failure.speaker.name} {failure.how}"
    else:
        reason = f"the job exited with code {code}"
    return {
        "reason": reason,
        "exit_code": 1 if code is None else code,
        "failed": failure.record(failure.told_by.file) if failure is not None and code else None,
        "started": zero,
        "rendezvous_s": since(attempt.rendezvous),
        "first_step_s": since(attempt.first_step),
        "wall_s": since(max(moments, default=None)),
        "restarts": 0,
        "hosts": [host for _, host in sorted((one.rank or 0, one.host) for one in attempt.processes)],
        "logs": transcript.files,
    }
