"""Work that survives a kill: a folder knows what work it keeps, one writer at a time goes on with it.

``folder``  what a folder is for, whether it may be used, and the lock of whoever writes there
``log``     an append-only log of frames with checksums

Whoever keeps work follows four rules. Everything is checked before anything is touched, so that a call that is
refused changes nothing. What is replaced gives way only when its successor is whole. Finished parts appear under
their names complete or not at all (``support.atomic``). Damage is found, and named with a way out.
"""

from foretrain.support.durable.folder import Lock, WorkFolder
from foretrain.support.durable.log import Frame, Log, damage, frame, read_frames, scan

__all__ = ["Frame", "Lock", "Log", "WorkFolder", "damage", "frame", "read_frames", "scan"]
