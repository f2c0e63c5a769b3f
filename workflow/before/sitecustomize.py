"""Ctrl-C ends what the workflow's rules start without a traceback, from its first moment on.

Python reads a module of this name before anything else. ``workflow/rules/common.smk`` puts this folder on its path, and
holds SIGINT back until here: while Python itself starts, it would end in a traceback too.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise it is ignored, and stays so
    signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
