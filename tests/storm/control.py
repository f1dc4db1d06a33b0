"""What the shim in the programs (shim.c) does to them at this moment: a file that they all have mapped."""

import mmap
import struct

LAYOUT = struct.Struct("<qq")  # of `control` in shim.c


class Control:
    def __init__(self, path, shim):
        path.write_bytes(bytes(LAYOUT.size))
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), LAYOUT.size)
        self.environment = {"LD_PRELOAD": str(shim), "STORM_CONTROL": str(path)}
        self.disk_full, self.clock_offset = False, 0

    def write(self):
        self.map[:] = LAYOUT.pack(self.disk_full, self.clock_offset)

    def fill_disk(self, full):
        self.disk_full = full
        self.write()

    def set_clock(self, offset):
        self.clock_offset = offset
        self.write()
