#!/usr/bin/env python3
"""How right the communities of `scxprof run` are on real servers.

    benches/servers.py [--scxprof FILE] [--servers nginx,redis] [--options 'timer,timer --kernel'] [--runs 3] [--seconds 20]

Two instances of a server run side by side, each with its own clients and data. Threads of one instance work on the same data,
those of two do not, and their processes say of which instance they are. In the report, two threads are together if they are in
the same community of the same cell. The table has how many pairs of busy threads are together: those of one instance should be,
those of two should not. A busy thread takes at least 1 % of a CPU while scxprof samples the whole host.

It needs root, Python 3.9, and 700 MB in the temporary directory. A server that is not installed is left out and said. Other load
on the host takes CPU time from the servers, and with it samples.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUSY = 0.01  # of a CPU
WARM_UP = 1.5  # seconds from the start of the clients
FILES = 300  # that an nginx has to send
VERSION = {"nginx": "-v", "wrk": "-v", "haproxy": "-v", "postgres": "--version", "redis-server": "--version"}

# What was started and not ended.
running = []


def end(processes):
    for process in processes:
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        # Also children that outlived it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        running.remove(process)


def reason(text):
    """The error in what a program printed, or its last line."""
    lines = text.strip().splitlines()
    return next((line for line in lines if line.startswith("error")), lines[-1] if lines else "it printed nothing")


def check_running(process):
    if process.poll() is not None:
        sys.exit(f"{process.args[0]} ended too early: {reason(process.log.read_text(errors='replace'))}")


def call(*command, **options):
    command = list(map(str, command))
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode:
        sys.exit(f"`{' '.join(command)}` failed: {reason(result.stdout)}")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Instance:
    """One of the two: its servers run all the time, and its clients are started for each run."""

    needs = {}  # programs, and the package of Debian that has each

    @staticmethod
    def find(program):
        return shutil.which(program)

    def __init__(self, directory):
        self.directory = directory
        self.directory.mkdir()
        self.servers, self.clients = [], []
        self.port = free_port()
        self.start_servers()

    def start(self, *command, **options):
        """Starts a process in a session of its own, so that it can be ended with its children."""
        command = list(map(str, command))
        log = self.directory / f"{pathlib.Path(command[0]).name}.log"
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **options
            )
        process.log = log
        running.append(process)
        return process

    def serve(self, is_ready, *command, **options):
        self.servers.append(self.start(*command, **options))
        for _ in range(300):
            if is_ready():
                return
            check_running(self.servers[-1])
            time.sleep(0.1)
        sys.exit(f"{command[0]} did not answer within 30 s")


class Nginx(Instance):
    """Two workers that send files."""

    needs = {"nginx": "nginx", "wrk": "wrk"}

    def start_servers(self):
        self.start_nginx(self.port, workers=2)

    def start_nginx(self, port, workers):
        directory = self.directory / f"nginx-{port}"
        (directory / "files").mkdir(parents=True)
        for number in range(FILES):
            (directory / "files" / f"{number}.bin").write_bytes(os.urandom(random.randrange(16 << 10, 64 << 10)))
        paths = "".join(f" {kind}_temp_path {directory}/{kind};" for kind in "client_body proxy fastcgi uwsgi scgi".split())
        # As root, since other users cannot read the directory.
        (directory / "nginx.conf").write_text(
            f"daemon off; user root; worker_processes {workers}; pid {directory}/pid; error_log {directory}/error.log;\n"
            "events { worker_connections 256; }\n"
            "http { access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; keepalive_timeout 600;\n"
            f"{paths}\n server {{ listen 127.0.0.1:{port} reuseport; root {directory}/files; }} }}\n"
        )
        self.serve(lambda: answers(port), "nginx", "-c", directory / "nginx.conf", "-p", directory)

    def start_clients(self, seconds):
        script = self.directory / "request.lua"
        script.write_text(f'request = function() return wrk.format("GET", "/" .. math.random(0, {FILES - 1}) .. ".bin") end\n')
        return [self.start("wrk", "-t2", "-c16", f"-d{seconds}", "-s", script, f"http://127.0.0.1:{self.port}/")]


class Haproxy(Nginx):
    """A proxy of two threads before two nginx of one worker each."""

    needs = {"haproxy": "haproxy", **Nginx.needs}

    def start_servers(self):
        behind = [free_port(), free_port()]
        for port in behind:
            self.start_nginx(port, workers=1)
        configuration = self.directory / "haproxy.cfg"
        configuration.write_text(
            "global\n nbthread 2\n maxconn 400\n"
            "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n"
            f"frontend front\n bind 127.0.0.1:{self.port}\n default_backend back\n"
            "backend back\n balance roundrobin\n" + "".join(f" server nginx{port} 127.0.0.1:{port}\n" for port in behind)
        )
        self.serve(lambda: answers(self.port), "haproxy", "-db", "-f", configuration)


class Postgres(Instance):
    """The selects of pgbench, over a Unix socket."""

    needs = dict.fromkeys(("postgres", "initdb", "pg_isready", "pgbench"), "postgresql")

    @staticmethod
    def find(program):
        # Debian has most of them in no directory of PATH.
        directories = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
        directories = os.get_exec_path()[::-1] + directories
        if shutil.which("pg_config"):
            answer = subprocess.run(["pg_config", "--bindir"], stdout=subprocess.PIPE, text=True)
            directories.append(answer.stdout.strip())
        return shutil.which(program, path=os.pathsep.join(map(str, reversed(directories))))

    def start_servers(self):
        # The server refuses to run as root.
        shutil.chown(self.directory, "postgres", "postgres")
        self.user = {"user": "postgres", "group": "postgres", "extra_groups": [], "cwd": "/"}
        self.at = ["-h", self.directory, "-p", self.port, "-U", "postgres", "postgres"]
        data = self.directory / "data"
        call(self.find("initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", **self.user)
        options = ["-D", data, "-p", self.port, "-k", self.directory, "-h", "", "-B", "256MB", "-F"]
        ask = [self.find("pg_isready"), "-q", *map(str, self.at[:4])]
        self.serve(lambda: subprocess.run(ask).returncode == 0, self.find("postgres"), *options, **self.user)
        call(self.find("pgbench"), "-i", "-q", "-s", 10, *self.at, **self.user)

    def start_clients(self, seconds):
        return [self.start(self.find("pgbench"), "-n", "-S", "-c4", "-j2", f"-T{seconds}", *self.at, **self.user)]


class Redis(Instance):
    """SET and GET, from a client each."""

    needs = {"redis-server": "redis-server", "redis-benchmark": "redis-tools"}

    def start_servers(self):
        options = ["--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.directory]
        self.serve(lambda: answers(self.port), "redis-server", *options)

    def start_clients(self, seconds):
        # It cannot be told a time.
        options = ["-p", self.port, "-d", 512, "-r", 20000, "-c", 8, "-n", 2000000000, "-q"]
        return [self.start("redis-benchmark", "-t", test, *options) for test in ("set", "get")]


class Broker(Instance):
    """broker.c with two producers and two consumers."""

    needs = {"cc": "gcc"}

    def start_servers(self):
        for name in ("broker", "producer", "consumer"):
            call("cc", "-O2", "-pthread", "-o", self.directory / name, ROOT / "benches/broker.c")
        self.serve(lambda: answers(self.port), self.directory / "broker", self.port, self.directory / "log")

    def start_clients(self, seconds):
        return [self.start(self.directory / name, self.port) for name in ("producer", "consumer") * 2]


SERVERS = {server.__name__.lower(): server for server in (Nginx, Haproxy, Postgres, Redis, Broker)}


def read_threads():
    """The process, its parent and the CPU seconds of each thread. One that ends meanwhile is left out."""
    threads = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError):
                    status = pathlib.Path(f"/proc/{process}/task/{thread}/stat").read_text(errors="replace")
                    # The name, in parentheses, may have spaces and parentheses itself.
                    fields = status.rpartition(")")[2].split()
                    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                    threads[int(thread)] = (int(process), int(fields[1]), seconds)
    return threads


def busy_threads(instances, before, after, seconds):
    """The number of the instance of each thread that was busy."""
    roots = {process.pid: number for number, each in enumerate(instances) for process in each.servers + each.clients}
    parents = {process: parent for process, parent, _ in after.values()}
    busy = {}
    for thread, (process, _, used) in after.items():
        while process and process not in roots:
            process = parents.get(process, 0)
        used -= before[thread][2] if thread in before else 0
        if process and used >= BUSY * seconds:
            busy[thread] = roots[process]
    return busy


def sample(scxprof, options, seconds, directory):
    """The report of a run; None if there was no sample, which is a result too."""
    report = directory / "report.json"
    command = [scxprof, "run", "--source", *options.split(), "-t", str(seconds), "-o", os.devnull, "--report", str(report)]
    result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if result.returncode == 1 and "no usable samples" in result.stderr:
        return None
    # 4: too many samples were lost, and the result is of the others.
    if result.returncode not in (0, 4):
        sys.exit(f"`{' '.join(command)}` ended with {result.returncode}: {reason(result.stderr)}")
    return json.loads(report.read_text())


def count(report, busy):
    """Pairs of one instance that are together, and all of them; the same of two instances; the samples."""
    communities = {}
    for cell in report["cells"] if report else []:
        for thread in itertools.chain.from_iterable(subcell["threads"] for subcell in cell["subcells"]):
            if thread["verdict"].startswith("community "):
                communities[thread["tid"]] = (cell["name"], thread["verdict"])
    counts = [0, 0, 0, 0]
    for one, other in itertools.combinations(busy, 2):
        place = 0 if busy[one] == busy[other] else 2
        counts[place] += one in communities and communities[one] == communities.get(other)
        counts[place + 1] += 1
    return [*counts, report["run"]["records"] if report else 0]


def share(part, whole):
    return f"{part} of {whole} ({100 * part / max(whole, 1):.0f} %)"


def measure(name, arguments, directory):
    """Prints the rows of a server."""
    instances = [SERVERS[name](directory / f"{name}-{letter}") for letter in "ab"]
    counts = {options: [] for options in arguments.options}
    # The options alternate, so that a change of the machine hits all of them.
    for run, options in itertools.product(range(arguments.runs), arguments.options):
        print(f"{name}, {options}: run {run + 1} of {arguments.runs}", file=sys.stderr)
        for each in instances:
            each.clients = each.start_clients(arguments.seconds + 600)
        time.sleep(WARM_UP)
        before, begin = read_threads(), time.monotonic()
        report = sample(arguments.scxprof, options, arguments.seconds, directory)
        busy = busy_threads(instances, before, read_threads(), time.monotonic() - begin)
        for process in running:
            check_running(process)
        counts[options].append(count(report, busy))
        end(instances[0].clients + instances[1].clients)
    for options, runs in counts.items():
        of_one, all_of_one, of_two, all_of_two, _ = map(sum, zip(*runs))
        samples = statistics.median(run[-1] for run in runs)
        print(f"| {name} | {options} | {share(of_one, all_of_one)} | {share(of_two, all_of_two)} | {samples:.0f} |", flush=True)
    end(running[::-1])
    for each in instances:
        shutil.rmtree(each.directory)


def main():
    parser = argparse.ArgumentParser(description="How right the communities of `scxprof run` are on real servers.")
    parser.add_argument("--scxprof", default=str(ROOT / "target/release/scxprof"), metavar="FILE", help="default: %(default)s")
    parser.add_argument("--servers", default=",".join(SERVERS), help="default: %(default)s")
    parser.add_argument("--options", default="timer,timer --kernel,wakeups", help="sources with options; default: %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="runs with each of the options; default: %(default)s")
    parser.add_argument("--seconds", type=int, default=20, help="how long a run samples; default: %(default)s")
    arguments = parser.parse_args()
    arguments.options = arguments.options.split(",")
    if os.geteuid():
        sys.exit("servers.py needs root, since it samples the whole host")
    if not shutil.which(arguments.scxprof):
        sys.exit(f"there is no program {arguments.scxprof}: `make` builds it, and --scxprof says where it is")
    names, versions = [], []
    for name in arguments.servers.split(","):
        if name not in SERVERS:
            parser.error(f"{name} is none of {', '.join(SERVERS)}")
        find = SERVERS[name].find
        missing = [f"{program} (package {package})" for program, package in SERVERS[name].needs.items() if not find(program)]
        if missing:
            print(f"SKIP {name}: there is no {' and no '.join(missing)}\n")
            continue
        names.append(name)
        for program in filter(VERSION.get, SERVERS[name].needs):
            # wrk ends with 1, and nginx writes to stderr.
            command = [find(program), VERSION[program]]
            answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            versions.append(answer.stdout.splitlines()[0].strip())
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for each in signals:
        signal.signal(each, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="scxprof-servers-") as directory:
        # PostgreSQL's user must get to its directory.
        os.chmod(directory, 0o711)
        try:
            print("| server | options | pairs of one instance together | pairs of two instances together | samples |")
            print("|---|---|---|---|---|", flush=True)
            for name in names:
                measure(name, arguments, pathlib.Path(directory))
        finally:
            for each in signals:
                signal.signal(each, signal.SIG_IGN)
            end(running[::-1])
    print("", *(f"- {version}" for version in dict.fromkeys(versions)), sep="\n")


if __name__ == "__main__":
    main()
