"""Does it fit: the memory of one die, part by part, and the nearest change that fits."""

from glm5_ascend.deploy.memory.bill import Bill, bill
from glm5_ascend.deploy.memory.settings import Settings

__all__ = ["Bill", "Settings", "bill"]
