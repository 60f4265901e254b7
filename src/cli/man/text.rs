//! The text of the manual pages beyond `--help`.

/// A tag and its description.
type Entry = (&'static str, &'static str);

/// The additional text of one page; `` `this` `` becomes bold.
pub(super) struct Page {
    /// Paragraphs.
    pub(super) description: &'static [&'static str],
    /// Whether the command samples, and so has sources.
    pub(super) samples: bool,
    pub(super) environment: &'static [Entry],
    pub(super) files: &'static [Entry],
    /// Pages of other programs.
    pub(super) see_also: &'static [&'static str],
}

pub(super) const SOURCES: &[Entry] = &[
    ("auto", "The first of the following that works here; `-v` prints why each earlier one was skipped."),
    (
        "pebs",
        "Intel's mem-loads of every core PMU (`--stores` adds stores): loads with address, latency and where the data \
         came from.",
    ),
    (
        "ibs",
        "AMD's ibs_op, without the ops that access no memory: loads and stores; no latency for stores and for hits in \
         the first cache.",
    ),
    (
        "spe",
        "Arm's arm_spe_N: loads and stores among sampled operations, with address and latency, and where loaded data came \
         from if the core says it.",
    ),
    (
        "timer",
        "The scheduler's tick, or a separate clock (`--freq`). The operands around the interrupted instruction are recovered \
         from the code: loads and stores of running user code, on x86-64 and arm64, on plain cloud VMs too. On x86-64, accesses \
         of kernel code too (`--kernel`; `auto` adds them); gathered operands are not seen, and thread-local ones only with BPF.",
    ),
    (
        "faults",
        "Minor page faults, the first touches of pages: sharing between processes, not between the threads of one process.",
    ),
];

const NO_COLOR: Entry = ("NO_COLOR", "If it is set and not empty, nothing is printed in colour");
const COLUMNS: Entry =
    ("COLUMNS", "The width of tables [default: that of the terminal], and of `--help` if stdout is not a terminal");
const HOME: Entry = ("HOME", "The directory that contains perf's cache of files (.debug)");
const PATH: Entry = ("PATH", "Where COMMAND is searched");
const TMPDIR: Entry = ("TMPDIR", "Where an archive is unpacked while it is read [default: /tmp]");

const PARANOID: Entry = (
    "/proc/sys/kernel/perf_event_paranoid",
    "What may be sampled without CAP_PERFMON; perf_event_open(2) has its values.",
);
const PMUS: Entry = ("/sys/bus/event_source/devices", "The PMUs and their events");
const TRACING: Entry = ("/sys/kernel/tracing", "The tracepoint of the scheduler's tick");
const BPFFS: Entry = ("/sys/fs/bpf", "Where the maps of `--hints-map` are usually pinned");
const PERF_MAP: Entry = ("/tmp/perf-PID.map", "The functions of a JIT compiler, as it writes them");
const CACHE: Entry = ("~/.debug", "perf's cache of files by build id, for the names of functions");
const DEBUG: Entry = ("/usr/lib/debug", "Stripped symbols, by build id or debug link");

const ALL: Page = Page {
    description: &[
        "Samples memory accesses on every CPU through perf_event_open(2), joins each with the thread's name, its cgroup \
         and the memory that was touched, and groups the threads that share more memory than chance explains. It prints \
         the configuration that a sched_ext scheduler loads: cells (cgroups) and subcells (thread names) that should \
         share a set of CPUs. It does not need perf(1), and writes only the files that you name.",
        "Sampling the whole host takes root, CAP_PERFMON or kernel.perf_event_paranoid 0; without CAP_SYS_PTRACE few \
         addresses of other users' processes are recovered. You can sample your own processes up to a level of 2. \
         `scxprof doctor` says what a host allows, and what would allow more.",
    ],
    samples: false,
    environment: &[NO_COLOR, COLUMNS],
    files: &[],
    see_also: &["perf(1)", "perf_event_open(2)", "capabilities(7)"],
};

const RUN: Page = Page {
    description: &[
        "Samples the host, a process, a cgroup or a command, and prints the configuration for scx_mitosis or, with \
         `--target layered`, for scx_layered. The configuration goes to stdout or to FILE, all else to stderr.",
        "Ctrl-C, SIGTERM or SIGHUP ends the capture, and the result is still printed. Features that the kernel rejects are \
         disabled with a note; every lost sample is counted and reported. A thread with too few samples, or with the name of \
         a thread of another group, stays in `rest` or goes to the subcell of that group, with a note.",
    ],
    samples: true,
    environment: &[HOME, PATH, NO_COLOR, COLUMNS],
    files: &[PARANOID, PMUS, TRACING, BPFFS, PERF_MAP, CACHE, DEBUG],
    see_also: &["perf-mem(1)", "perf_event_open(2)", "capabilities(7)"],
};

const RECORD: Page = Page {
    description: &[
        "Writes what `scxprof run` samples to a directory, and packs that into an archive. perf(1) reads its `perf.data` \
         too. While it is written, the profile has a name that begins with a dot. Without `-o` its name has the host and the \
         time in UTC: `scxprof-HOST-20261125-0913`.",
        "Ctrl-C, SIGTERM or SIGHUP ends the recording, and the profile is complete. A further signal while it is archived \
         leaves it as a directory.",
    ],
    samples: true,
    environment: &[HOME, PATH, NO_COLOR],
    files: &[PARANOID, PMUS, TRACING, BPFFS],
    see_also: &["perf-record(1)", "perf-script(1)", "perf_event_open(2)", "capabilities(7)"],
};

const PROCESS: Page = Page {
    description: &[
        "Reads a profile of `scxprof record`, a perf.data recorded by perf (compressed ones too) or the text of `perf \
         script`, and writes a line of JSON for each access. It needs neither perf nor the recorded host.",
    ],
    samples: false,
    environment: &[HOME, TMPDIR, NO_COLOR],
    files: &[PERF_MAP, CACHE, DEBUG],
    see_also: &["perf-script(1)"],
};

const EXTRACT: Page = Page {
    description: &[
        "Reads the files that `scxprof process` reads, or the lines that it wrote, and prints the configuration: for a \
         profile byte for byte the one that `scxprof run` would have printed. It needs neither perf nor the recorded host.",
    ],
    samples: false,
    environment: &[HOME, TMPDIR, NO_COLOR, COLUMNS],
    files: &[PERF_MAP, CACHE, DEBUG],
    see_also: &["perf-mem(1)"],
};

const REPORT: Page = Page {
    description: &[
        "Reads the files that `scxprof extract` reads, decides in the same way, and prints the summary of `scxprof run -v`, \
         without the configuration.",
    ],
    samples: false,
    environment: &[HOME, TMPDIR, NO_COLOR, COLUMNS],
    files: &[PERF_MAP, CACHE, DEBUG],
    see_also: &["perf-c2c(1)", "perf-mem(1)"],
};

const SCHED: Page = Page {
    description: &[
        "Reads the scheduler's tracepoints on every CPU, and prints how long each process ran, waited for a CPU \
         and slept, how long its wakeups took, and how often it moved to another CPU. `--by` prints that for each \
         thread, cgroup, CPU, last-level cache or node, or for each cell and subcell of a configuration \
         (`--config`). With `-f` the events come from a profile of `scxprof record --sched`, from what `perf sched \
         record` recorded, or from a trace.",
        "Use it before and after you load a configuration. `--by dsq` prints the dispatch queues of a sched_ext \
         scheduler, which a BPF program observes. `--windows` prints the CPUs in use in each window of time, by \
         categories of threads. `--wakers` prints which threads wake or preempt each other, the chains of wakeups, \
         and which part of the wakeups stays in a cache or in a subcell.",
        "All CPUs and threads are watched, because the wait of a thread depends on the others. This takes root, or \
         CAP_PERFMON and the right to read tracefs; dispatch queues also take CAP_BPF. Lost events are counted, \
         and lines that a loss affects are marked with `!`.",
    ],
    samples: false,
    environment: &[PATH, TMPDIR, NO_COLOR, COLUMNS],
    files: &[("/sys/kernel/tracing", "The scheduler's tracepoints and their fields")],
    see_also: &["perf-sched(1)", "sched(7)"],
};

const REPLAY: Page = Page {
    description: &[
        "Runs a recorded workload again. It makes a mock thread for each recorded thread, with the same name, in a \
         process and a cgroup like the recorded ones. A mock thread runs and sleeps as long as the recorded \
         thread, wakes the same threads, forks and exits at the same points, and touches memory as the samples \
         say. The recording is a profile of `scxprof record --sched`, or what `perf sched record` recorded; memory \
         is replayed if the recording has samples of it. The host of the replay may differ from the recorded one.",
        "Prints for each thread the recorded and the replayed time on CPUs, switches and wakeups, and for each \
         loop (`--loops`) the duration, the work and the latency of wakeups. `--compare A B` replays the same work \
         under two configurations in turn, and prints the change from A to B with its 95 % interval. It starts \
         scx_mitosis if that is installed and the kernel has sched_ext; otherwise it sets the affinity of threads.",
        "It takes no privilege; as root it also makes cgroups. A recording that needs more CPU time, threads or \
         memory than the host has is refused (`--overcommit` allows more CPU time). Ctrl-C ends the replay with \
         the result so far. Mock processes and cgroups are removed at the end, also if scxprof is killed.",
    ],
    samples: false,
    environment: &[TMPDIR, NO_COLOR, COLUMNS],
    files: &[("/sys/fs/cgroup", "Where the cgroups of mock processes are made (`--cgroup-root`)")],
    see_also: &["perf-sched(1)", "cgroups(7)"],
};

const STACKS: Page = Page {
    description: &[
        "Samples an event with the call stack of the thread, and prints the functions that take most samples: in \
         themselves, and with the functions that they call. The event is CPU time by default; `-e` takes the names \
         that perf(1) uses. `--by` prints the samples of each thread, process, cgroup or subcell (`--config`). The \
         whole host is sampled, or what `-p`, `--cgroup`, `-C` or a COMMAND select.",
        "`--flame-graph`, `--folded`, `--pprof` and `--firefox` write the stacks for browsers and other programs. \
         `-f` reads the stacks of a profile (`scxprof record --stacks`), of a perf.data, of a trace or of folded \
         text; `--diff A B` compares two of these.",
        "By default the kernel unwinds stacks by frame pointers. `--unwind dwarf` works without frame pointers: \
         each sample has a copy of the top of the user stack, which scxprof unwinds by the call frame information \
         of the files. Names of functions and source lines come from files only if they are known to be the ones \
         that ran. A note says how many stacks are incomplete; lost samples are counted.",
    ],
    samples: false,
    environment: &[HOME, PATH, TMPDIR, NO_COLOR, COLUMNS],
    files: &[PARANOID, PMUS, PERF_MAP, CACHE, DEBUG],
    see_also: &["perf-record(1)", "perf-report(1)", "perf_event_open(2)"],
};

const TRACE: Page = Page {
    description: &[
        "Reads traces in Perfetto's format: of wprof, of perfetto (ftrace), scxtop and systing, compressed with gzip or \
         in compressed packets, complete or truncated; the JSON lines of wprof; and profiles and perf.data as traces.",
        "`scxprof sched -f` prints statistics of the scheduling events of such a trace.",
    ],
    samples: false,
    environment: &[TMPDIR, NO_COLOR, COLUMNS],
    files: &[],
    see_also: &["perf-sched(1)"],
};

const EXPORT: Page = Page {
    description: &[
        "Writes a profile in the format of another program. The profile may also be a perf.data recorded by perf, \
         or JSON Lines of `scxprof process`; without `-f` the newest profile in the current directory is read.",
        "`--perfetto FILE` writes a trace that https://ui.perfetto.dev opens. It has the scheduling events, a \
         track for each cell, subcell and thread with the accesses of the thread, the task hints, the dispatch \
         queues of a sched_ext scheduler, and counters of samples, migrations and waiting threads. The cells and \
         subcells are those of `--config`, or those that `scxprof extract` would print for a host with enough \
         CPUs. Times are those of CLOCK_MONOTONIC.",
        "`--parquet DIR` writes a Parquet file for each kind of data, for DuckDB, Polars and Spark, and also reads \
         traces of wprof, perfetto, scxtop and systing. DIR must be empty or not exist; it gets its name when all \
         files are written. `scxprof trace query` prints the command line for a query with DuckDB.",
    ],
    samples: false,
    environment: &[TMPDIR, NO_COLOR],
    files: &[],
    see_also: &["perf-script(1)"],
};

const DIFF: Page = Page {
    description: &[
        "Compares two decisions. Each of A and B is a profile, which is read and decided as by `scxprof extract` with \
         the options given here, or a report (`--report` of run and extract, `--json` of report).",
        "Decisions differ if cells or subcells differ, by name or by what they match, or if threads of one name in \
         one cell are in different subcells. Figures differ between any two runs: they are printed, but not compared.",
    ],
    samples: false,
    environment: &[TMPDIR, NO_COLOR, COLUMNS],
    files: &[],
    see_also: &["diff(1)"],
};

const SCORE: Page = Page {
    description: &[
        "Reads a profile, assigns each sampled thread as the scheduler would with the given configuration, and prints \
         which part of the avoidable misses the configuration avoids: as a whole with its 95 % interval, by cell and by subcell, \
         beside the configuration that scxprof would write for the same samples. It names the pairs of subcells that share most, \
         the threads that another subcell would suit better, and those that no condition takes.",
        "A score is what a configuration avoids beyond what unplaced threads avoid by chance. It is 100 % if all threads that \
         share memory share a cache, 0 % if the configuration is no better than none, and less if it is worse.",
    ],
    samples: false,
    environment: &[TMPDIR, NO_COLOR, COLUMNS],
    files: &[],
    see_also: &[],
};

const MERGE: Page = Page {
    description: &[
        "Adds evidence of runs and hosts (`--evidence` of run, extract and watch, or sums that DuckDB or Spark made), finds \
         the classes of threads that share memory, and prints the configuration for all these hosts. The result does not \
         depend on the order in which the files are added, or on the program that adds them.",
        "It names hosts on which threads share differently than on most, and pairs of classes that share on some hosts only; \
         `--split-by` writes a configuration for each label, kernel or CPU model.",
    ],
    samples: false,
    environment: &[NO_COLOR],
    files: &[],
    see_also: &[],
};

const WATCH: Page = Page {
    description: &[
        "Samples the host in short slices, decides again after each interval from evidence in which older samples weigh less, \
         and replaces the configuration if in two consecutive intervals another one is better than the loaded one by more \
         than the uncertainty. The content of the `-o` file at the start is the loaded configuration.",
        "With `--state` it continues after a restart. It tells systemd that it is ready and what the last interval showed.",
    ],
    samples: true,
    environment: &[NO_COLOR, ("NOTIFY_SOCKET", "Where systemd listens (sd_notify(3)).")],
    files: &[PARANOID, PMUS, TRACING],
    see_also: &["systemd.service(5)"],
};

const TOP: Page = Page {
    description: &[
        "Samples the host, a process, a cgroup or a command, and shows on the terminal, while it runs: the groups of threads that share \
         memory, accesses of threads, processes, cgroups and cells, cache lines that threads share, what the scheduler does, CPUs and \
         last-level caches, and losses. `?` shows the keys. It writes files only after the keys `w` and `W`.",
        "The scheduling events are on only while their view is shown. Memory bandwidth and occupancy of the L3 cache are shown if \
         resctrl is mounted; while the cells are shown, each has a monitoring group `scxprof-PID-N`. The figures of a sched_ext \
         scheduler come from its own socket.",
        "Ctrl-Z suspends it and restores the terminal; so do q, Ctrl-C, SIGTERM and SIGHUP when they end it.",
    ],
    samples: true,
    environment: &[HOME, PATH, NO_COLOR, COLUMNS],
    files: &[
        PARANOID,
        PMUS,
        TRACING,
        ("/sys/fs/resctrl", "Memory bandwidth and occupancy of the L3 cache"),
        ("/var/run/scx/root/stats", "The socket over which a sched_ext scheduler gives its figures"),
    ],
    see_also: &["top(1)", "perf-top(1)"],
};

const MCP: Page = Page {
    description: &[
        "Serves an agent by the Model Context Protocol: tools that open recordings or capture this host, and say which threads share \
         memory, how good a configuration is and what the scheduler does. Most clients start it themselves and communicate over its \
         stdin and stdout; with `--listen` it serves several clients of this host over HTTP.",
        "Paths are read only below `--root`. No file is written without `--allow-write`, and no tool loads a scheduler. It ends with \
         its client, or on SIGINT or SIGTERM.",
    ],
    samples: true,
    environment: &[("SCXPROF_MCP_TOKEN", "What clients must send, with --listen and without --token-file."), TMPDIR],
    files: &[PARANOID, PMUS, TRACING],
    see_also: &["openat2(2)"],
};

const DOCTOR: Page = Page {
    description: &[
        "Tries each source as a run would and says what works here, what does not, why, and what would help. With \
         `--self-test` it samples a known load, compares, and prints a block for a bug report.",
    ],
    samples: false,
    environment: &[NO_COLOR, COLUMNS],
    files: &[PARANOID, PMUS, TRACING],
    see_also: &["perf_event_open(2)", "capabilities(7)"],
};

const COMPLETIONS: Page = Page {
    description: &["Prints a script that makes a shell complete the command line of scxprof."],
    samples: false,
    environment: &[],
    files: &[],
    see_also: &[],
};

/// The page of a subcommand, `trace-diff` of `trace diff`, or of the command itself.
pub(super) fn of(subcommand: &str) -> &'static Page {
    match subcommand {
        "run" => &RUN,
        "record" => &RECORD,
        "process" => &PROCESS,
        "extract" => &EXTRACT,
        "report" => &REPORT,
        "sched" => &SCHED,
        "replay" => &REPLAY,
        "stacks" => &STACKS,
        "trace" | "trace-info" | "trace-analyze" | "trace-events" | "trace-timeline" | "trace-diff" => &TRACE,
        "export" => &EXPORT,
        "diff" => &DIFF,
        "score" => &SCORE,
        "merge" => &MERGE,
        "watch" => &WATCH,
        "top" => &TOP,
        "mcp" => &MCP,
        "doctor" => &DOCTOR,
        "completions" => &COMPLETIONS,
        _ => &ALL,
    }
}
