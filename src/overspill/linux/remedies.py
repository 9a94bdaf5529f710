"""What to do when a system call meets a limit on descriptors, in the words of every error."""

from __future__ import annotations

import errno

OPEN_FILES = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit on open files (fs.file-max)",
}
