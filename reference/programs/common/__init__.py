"""What the programs have in common: everything but the distribution layer.

The data and their order, the model, the loss, the schedule, the loop, what is measured and how it is written down. A program
brings its world (ranks, device, one all-reduce), its wrapped model and optimizer, and its loaders.
"""

from reference.programs.common.loop import finish, fit
from reference.programs.common.options import Options, start
from reference.programs.common.task import Task, share_of
from reference.programs.common.world import World

__all__ = ["Options", "Task", "World", "finish", "fit", "share_of", "start"]
