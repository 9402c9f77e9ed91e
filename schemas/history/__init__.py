"""The facts of workflows: commands, events, and the records that contain them.

The package exports everything that its modules define, but not their imports.
"""

from headwater.schemas.history.code import *
from headwater.schemas.history.commands import *
from headwater.schemas.history.graph import *
from headwater.schemas.history.records import *
from headwater.schemas.history.runs import *
from headwater.schemas.history.values import *
