"""The process `anyformer`: it can be interrupted while it still imports, and its three streams are open, if only to nowhere."""

import gc
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
INTERRUPTED = 130


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but end the process where it still imports, or was told so before.

    Modules in C++ that import others abort at an exception, and nothing has begun that would have to be tidied.
    """
    signal.signal(signal.SIGINT, _end)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _end(number, frame)
        frame = frame.f_back
    raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> NoReturn:
    try:
        os.write(2, b"\nerror: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def _open_streams() -> None:
    """Open those that were closed: the next file to be opened would take their place, and be printed into."""
    for number, (name, mode) in enumerate(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - as long as the process


def main() -> NoReturn:
    """Run the command line of this process and exit with its status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where whoever started it ignores it
        signal.signal(signal.SIGINT, interrupt)
    _open_streams()
    # Imports make a third of a million objects that all stay; looking through them at each 700 new ones takes half a second.
    gc.set_threshold(10_000)
    try:
        from anyformer.cli.main import main as run

        run(program="anyformer")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said and done


if __name__ == "__main__":
    main()
