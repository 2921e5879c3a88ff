"""The command `edgedraft-verifier`, which is also `python -m edgedraft_cloud`."""

import signal


def main() -> None:
    """Import the command and run it."""
    # Amid the imports, Ctrl-C would be a long traceback, or be lost. There is nothing to leave in good order yet, so it
    # may just end the process.
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from edgedraft_cloud.cli import main as run

    signal.signal(signal.SIGINT, on_interrupt)
    run()


if __name__ == "__main__":
    main()
