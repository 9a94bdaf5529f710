"""What to do about what several files of a build raise: one sentence for each kind of trouble."""

from __future__ import annotations

FREE_SPACE = "free space on this disk, or choose a directory on another one"
INPUTS_ALONE = "build again once nothing writes the inputs"
DIRECTORY_ALONE = "leave the build's directory alone until it has ended, and build again"
FILE_ALONE = "let nothing else write the file, check the disk's health (dmesg), and build again"
DAMAGED_DATASET = "check the dataset with overspill verify, and build it again"
STAGE_ANEW = "it was cut or changed: build again, which stages its edges anew"
SENT_AGAIN = "build again; see the error of the process that sent it"
# No input and no option brings these about.
REPORT = "report this with the build's options: it is a mistake of Overspill's"
