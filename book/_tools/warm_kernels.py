"""Kernels that start warm: forks of one process that has imported what most chapters import.

A kernel takes two to eight seconds to import torch, matplotlib and the BERT of transformers. While
``warm()`` is open, each kernel that this process starts has them already. Its outputs are those of a
kernel that starts cold: ``make nbval`` compares them.

Only Linux can fork a process that has imported all this. Elsewhere kernels start as usual.
"""

import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import EntryPoint
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn, Self

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

NAME = "warm"
# As ipykernel sets it, and matplotlib reads it when it is imported.
BACKEND = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}


class Template:
    """The process that is forked.

    Args:
        own: Packages of this book that it imports as well. They are what they were when it started.
    """

    def __init__(self, *own: str) -> None:
        self.connection, its_end = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(its_end.fileno()), *own],
            env=os.environ | BACKEND,
            pass_fds=[its_end.fileno()],
            start_new_session=True,  # Ctrl-C is for its parent, and it ends with that
        )
        its_end.close()
        self.lock = threading.Lock()

    def fork(self, command: list[str], environment: dict[str, str], folder: str | None) -> int:
        """Start a kernel; returns the number of its process.

        Args:
            command: As a kernel is started: the interpreter, its options, and those of the kernel from
                ``-f`` on.
            environment: All its variables.
            folder: Where it works, if not where this process does.
        """
        options = command[command.index("-f") :]
        options.append(f"--IPKernelApp.parent_handle={self.process.pid}")  # it ends with its parent
        with self.lock:
            self.connection.send((options, environment, folder))
            return self.connection.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self.connection.close()


class Fork:
    """The process of a kernel, with the methods of a ``subprocess.Popen`` that Jupyter calls."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self) -> int:
        return 0  # called when poll() has said that it has ended

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class WarmProvisioner(LocalProvisioner):
    """How Jupyter starts a kernel while ``warm()`` is open."""

    template: Template

    async def launch_kernel(self, cmd: list[str], **options: Any) -> dict[str, Any]:
        self.pid = self.template.fork(cmd, options["env"], options.get("cwd"))
        self.process = Fork(self.pid)
        self.pgid = self.pid
        return self.connection_info


@contextmanager
def warm(kept: Template | None = None) -> Iterator[None]:
    """Kernels that are started in the block, by any thread of this process, start warm.

    Args:
        kept: A template that is there already. Else one is started, and ended with the block.
    """
    if sys.platform != "linux":
        yield
        return
    factory = KernelProvisionerFactory.instance()
    usual = factory.default_provisioner_name
    factory.provisioners[NAME] = EntryPoint(
        NAME, f"{__name__}:{WarmProvisioner.__name__}", factory.GROUP_NAME
    )
    with nullcontext(kept) if kept else Template("mpt_lml") as WarmProvisioner.template:
        factory.default_provisioner_name = NAME
        try:
            yield
        finally:
            factory.default_provisioner_name = usual


# -- the process that is forked


def serve(connection: Connection, *own: str) -> None:
    """Import, then fork a kernel for each request, until the other side is closed."""
    sys.path.remove(os.path.dirname(__file__))  # a kernel does not have the folder of this script
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as a page shows none
        import matplotlib.pyplot  # noqa: F401
        import scipy.stats  # noqa: F401
        import sklearn.datasets  # noqa: F401
        import torch._dynamo  # noqa: F401  # which the first optimizer imports
        from ipykernel import kernelapp  # noqa: F401
        from transformers import BertForMaskedLM  # noqa: F401

        for name in own:
            importlib.import_module(name)
    gc.freeze()  # no collection touches, and so copies, what all share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a kernel that has ended is forgotten
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        if os.fork() == 0:
            run_kernel(connection, *request)


def run_kernel(
    connection: Connection, options: list[str], environment: dict[str, str], folder: str | None
) -> NoReturn:
    from ipykernel import kernelapp

    os.setsid()  # Jupyter sends its signals to the group
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.send(os.getpid())
    connection.close()
    os.environ.clear()
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
    sys.argv[1:] = options
    try:
        kernelapp.launch_new_instance()
    finally:
        os._exit(0)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), *sys.argv[2:])
