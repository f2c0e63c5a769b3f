"""Hosts that ssh reaches, for tests: those of a testbed, with Debian's sshd in each, and keys that last as long."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlgs_bench.testbed import testbed
from dlgs_bench.testbed.testbed import Testbed

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin")
CLIENT = """\
Host *
  IdentityFile {folder}/user
  IdentitiesOnly yes
  StrictHostKeyChecking yes
  UserKnownHostsFile {folder}/known_hosts
  LogLevel ERROR
"""


def missing() -> str | None:
    """Why hosts cannot start here, or None."""
    if not SSHD or not shutil.which("ssh-keygen"):
        return "no sshd and ssh here (apt-get install openssh-server openssh-client)"
    return "only root may start an sshd for root" if os.geteuid() else testbed.why_unavailable()


class Hosts:
    """The hosts' ``names``. All hosts see this machine's files; this process is on none of them."""

    def __init__(self, bed: Testbed, count: int, path: str):
        self.names, self._bed, self._path = [bed.address(host) for host in range(count)], bed, path

    def start(self, command: list[str], host: int = 0, **settings) -> subprocess.Popen:
        """Start a command on a host, as a user who has logged in there; what it starts finds all by ssh."""
        environment = os.environ | settings.pop("env", {})
        return self._bed.popen(
            host, command, env=environment | {"PATH": f"{self._path}:{environment['PATH']}"}, **settings
        )


@contextmanager
def hosts(count: int, folder: Path) -> Iterator[Hosts]:
    """``folder``: a new one for keys and settings."""
    for key in ("user", "host"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    (folder / "config").write_text(CLIENT.format(folder=folder))
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    names = [Testbed.address(host) for host in range(count)]
    (folder / "known_hosts").write_text("".join(f"{name} {key}\n" for name in names))
    (folder / "bin").mkdir()
    ssh = folder / "bin" / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    ssh.chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd asks for it
    settings = [f"HostKey={folder}/host", f"AuthorizedKeysFile={folder}/user.pub", "StrictModes=no", "PidFile=none"]
    settings += ["PermitRootLogin=prohibit-password", "UsePAM=no", "PrintMotd=no", "PrintLastLog=no"]
    with Testbed([1000.0] * count) as bed:
        for host in range(count):
            options = [part for setting in settings for part in ("-o", setting)]
            bed.popen(host, [SSHD, "-D", "-e", "-f", "/dev/null", *options], stderr=(folder / f"log{host}").open("w"))
        found = Hosts(bed, count, str(folder / "bin"))
        for name in names:
            until_reached(found, name, folder)
        yield found


def until_reached(found: Hosts, name: str, folder: Path) -> None:
    end = time.monotonic() + 120
    while found.start(["ssh", name, "true"], stderr=subprocess.DEVNULL).wait():
        if time.monotonic() > end:
            raise RuntimeError("\n".join(log.read_text() for log in sorted(folder.glob("log?"))))
        time.sleep(0.2)
