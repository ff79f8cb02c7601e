"""One owner for every run: starts a launcher, shows and files what each rank says, and ends it whatever happens."""

from experiments.supervise.job import Job
from experiments.supervise.supervisor import Supervisor, supervise

__all__ = ["Job", "Supervisor", "supervise"]
