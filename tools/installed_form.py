"""Says in which form the hot path was installed; run by `make setup`."""

import twinbus

if twinbus.is_compiled():
    print("twinbus: the hot path is compiled")
else:
    print(
        "twinbus: the hot path is interpreted. It works the same and takes about twice the CPU;"
        " install a C compiler and the Python headers and run `make setup` again to compile it."
    )
