"""What holds for every test."""

import signal

# A shell without job control starts background jobs with SIGINT ignored, and children inherit it:
# the tests of ctrl-C would then wait for a signal that nobody receives.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
