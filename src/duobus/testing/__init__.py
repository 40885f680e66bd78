"""Everything for testing duobus without time, network or disks: the simulator and its checkers."""
