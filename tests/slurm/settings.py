"""The throwaway cluster's configuration files as text: pure functions of its settings."""

from __future__ import annotations

import os
import random
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

PORT_RANGE = (20000, 32000)
"""Below Linux's ephemeral ports, so that no outgoing connection takes a port between choosing and binding it."""

MEMORY_FOLDER_BYTES = 512 * 2**20
"""Free space that a memory file system must have to hold a cluster, which takes about 80 MB [bytes]."""


@dataclass(frozen=True)
class Settings:
    """One cluster: where it lives, what it is made of, which ports it uses; `extra` are lines of slurm.conf.

    gpus_per_node: GPUs that SLURM hands out, which are other devices in truth, four at most.
    """

    folder: Path
    host: str
    user: str
    controller_port: int
    accounting_port: int
    database_port: int
    node_ports: tuple[int, ...]
    password: str
    cpus_per_node: int = 2
    memory_mb_per_node: int = 4000
    extra: tuple[str, ...] = ()
    gpus_per_node: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Node names n1, n2, …"""
        return tuple(f"n{number}" for number in range(1, len(self.node_ports) + 1))

    @property
    def slurm_conf(self) -> Path:
        """The file that SLURM_CONF points at; the other configuration files lie beside it."""
        return self.folder / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        """Socket of the cluster's own munged."""
        return self.folder / "munge" / "socket"

    @property
    def database(self) -> Path:
        """MariaDB's data folder."""
        return self.folder / "database"

    @property
    def logs(self) -> Path:
        """Log files of all daemons."""
        return self.folder / "log"


def free_ports(count: int) -> list[int]:
    """Return distinct TCP ports that nobody on this host listens on right now."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            try:
                candidate.bind(("0.0.0.0", random.randrange(*PORT_RANGE)))
            except OSError:
                candidate.close()
                continue
            held.append(candidate)
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


def on_loopback(host: str) -> bool:
    """Return whether the host's own name is 127.0.0.1, so that SLURM's daemons can keep to it.

    Debian's installer writes 127.0.1.1: a step would look for an srun that keeps to that address at 127.0.0.1, where
    connections within loopback come from.
    """
    try:
        return socket.gethostbyname(host) == "127.0.0.1"
    except OSError:
        return False


def parent_folder() -> str | None:
    """Return where clusters are best kept: in memory if there is room, since daemons sync often; None: TMPDIR."""
    shared = Path("/dev/shm")
    if shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free >= MEMORY_FOLDER_BYTES:
        return str(shared)
    return None


def slurm_conf(settings: Settings) -> str:
    """Return slurm.conf: everything in one folder, all nodes on this host, scheduling without delays."""
    folder, names = settings.folder, settings.nodes
    ports = ",".join(str(port) for port in settings.node_ports)
    lines = [
        "ClusterName=throwaway",
        f"SlurmctldHost={settings.host}(127.0.0.1)",
        f"SlurmctldPort={settings.controller_port}",
        f"SlurmUser={settings.user}",
        f"SlurmdUser={settings.user}",
        "AuthType=auth/munge",
        # cred_expire is also how long a requeued job waits before it starts again.
        f"AuthInfo=socket={settings.munge_socket},cred_expire=5",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldLogFile={settings.logs}/slurmctld.log",
        f"SlurmdLogFile={settings.logs}/slurmd-%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        # The nodes have what is said here, whatever this host has.
        "SlurmdParameters=config_overrides",
        "JobAcctGatherType=jobacct_gather/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        f"DefMemPerCPU={settings.memory_mb_per_node // settings.cpus_per_node // 2}",
        "MpiDefault=none",
        "ReturnToService=2",
        "SlurmdTimeout=30",
        "KillWait=2",
        "OverTimeLimit=0",
        "JobRequeue=1",
        "MailProg=/bin/true",
        "SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0",
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={settings.accounting_port}",
        # The socket again: connections to slurmdbd do not read AuthInfo.
        f"AccountingStoragePass={settings.munge_socket}",
        f"NodeName=n[1-{len(names)}] NodeHostname={settings.host} NodeAddr=127.0.0.1 Port=[{ports}]"
        f" CPUs={settings.cpus_per_node} RealMemory={settings.memory_mb_per_node} State=UNKNOWN"
        + (f" Gres=gpu:{settings.gpus_per_node}" if settings.gpus_per_node else ""),
        *(["GresTypes=gpu", "AccountingStorageTRES=gres/gpu"] if settings.gpus_per_node else []),
        *(["CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"] if on_loopback(settings.host) else []),
        *settings.extra,
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 LLN=YES State=UP",
        "PartitionName=short Nodes=ALL MaxTime=1 State=UP",
    ]
    return "\n".join(lines) + "\n"


def slurmdbd_conf(settings: Settings) -> str:
    """Return slurmdbd.conf; SLURM insists that only its owner may read it."""
    lines = [
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={settings.accounting_port}",
        f"SlurmUser={settings.user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={settings.munge_socket}",
        f"LogFile={settings.logs}/slurmdbd.log",
        f"PidFile={settings.folder}/slurmdbd.pid",
        # Binding to the host's name is all that SLURM offers; where that is not loopback's, srun would not be found.
        *(["CommunicationParameters=NoInAddrAny"] if on_loopback(settings.host) else []),
        "StorageType=accounting_storage/mysql",
        "StorageHost=127.0.0.1",
        f"StoragePort={settings.database_port}",
        "StorageUser=slurm",
        f"StoragePass={settings.password}",
        "StorageLoc=slurm",
    ]
    return "\n".join(lines) + "\n"


def gres_conf(settings: Settings) -> str:
    """Return gres.conf: the devices that stand in for GPUs."""
    nodes, count = f"n[1-{len(settings.nodes)}]", settings.gpus_per_node
    return f"NodeName={nodes} Name=gpu File={','.join(DEVICES[:count])}\n" if count else ""


DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
"""SLURM wants devices, and containers have these, where they lack terminals."""


CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nIgnoreSystemd=yes\n"
"""Keeps slurmd away from cgroup v2, which containers without systemd do not delegate."""


def database_users(settings: Settings) -> str:
    """Return the SQL that MariaDB runs at its start: the accounting daemon's own user."""
    return (
        f"CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY '{settings.password}';\n"
        "GRANT ALL ON slurm.* TO 'slurm'@'127.0.0.1';\n"
    )


def database_options(settings: Settings) -> list[str]:
    """Return mariadbd's options: small, on loopback, and without a single fsync, since nobody needs it tomorrow."""
    return [
        f"--user={settings.user}",
        "--loose-debug-no-sync",
        "--loose-sync-sys=0",  # the same under its newer name
        "--innodb-flush-method=nosync",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=0",
        "--innodb-log-file-size=16M",
        "--innodb-buffer-pool-size=32M",
        "--innodb-lock-wait-timeout=900",
        "--performance-schema=0",
        "--skip-log-bin",
        "--skip-name-resolve",
        f"--tmpdir={settings.folder}",
    ]
