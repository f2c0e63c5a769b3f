"""The rendezvous server of Horovod's workers, a process on the first host; see dlgs_bench/engines.py. No torch.

It prints one JSON line, a list with the environment variables of each worker, and serves until it is killed. Its
arguments are the network interface and then the address of each rank's host.
"""

import json
import signal
import sys
from collections import Counter

from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer

interface, *hosts = sys.argv[1:]
slots = get_host_assignments([HostInfo(host, count) for host, count in Counter(hosts).items()], len(hosts))
server = RendezvousServer()
shared = create_run_env_vars(hosts[0], [interface], str(server.start()))
server.init(slots)
print(json.dumps([shared | create_slot_env_vars(slot) for slot in slots]), flush=True)
signal.pause()
