"""The heap after a start, when what stays has been loaded."""

import ctypes
import gc


def settle() -> None:
    """Keep what is loaded out of collections, and give back to the system what loading has freed.

    A full collection over the loaded heap would stop every stream. glibc keeps freed memory: after a start
    some 90 MiB in the server and 50 in the process of the device workers. Other C libraries have nothing to
    give back in this way.
    """
    gc.collect()
    gc.freeze()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
