"""What the system knows of this process, under the names that every Prometheus dashboard knows."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from blindpost.serving.prometheus import Text

_PAGE = os.sysconf("SC_PAGESIZE")
_TICK = os.sysconf("SC_CLK_TCK")


def processor_s(pid: int) -> float:
    """Processor time of a process, until somebody has waited for its end; nothing after that."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def measure(text: Text) -> None:
    """Processor time, memory, descriptors and the start; a system without /proc says less."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = usage.ru_utime + usage.ru_stime
    text.counter("process_cpu_seconds_total", "Processor time, of user and system", seconds)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    text.gauge("process_max_fds", "Files that may be open", -1 if soft == resource.RLIM_INFINITY else soft)
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        text.gauge("process_open_fds", "Files that are open", len(os.listdir("/proc/self/fd")))
    except OSError:
        return
    text.gauge("process_virtual_memory_bytes", "Address space", int(fields[20]))
    text.gauge("process_resident_memory_bytes", "Memory, mapped files included", int(fields[21]) * _PAGE)
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    started = time.time() - since_boot + int(fields[19]) / _TICK
    text.gauge("process_start_time_seconds", "When it was started, in Unix seconds", started)
