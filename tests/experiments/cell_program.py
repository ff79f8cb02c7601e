"""Stands for the program of a cell: `python cell_program.py FOLDER HOW`. Writes FOLDER/result.json from FOLDER/made.json."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

folder, how = Path(sys.argv[1]), sys.argv[2]
folder.mkdir(parents=True, exist_ok=True)
with Path(os.environ["STARTS"]).open("a") as starts:
    starts.write(f"{folder.name} {how}\n")
print("epoch 1, step 1 of 2: loss 1.0000, 100 images/s", flush=True)
if how == "fails":
    sys.exit(7)
if how == "hangs":
    time.sleep(600)
if how != "silent":
    shutil.copy(os.environ["RESULT"], folder / "result.json")
