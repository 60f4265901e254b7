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
    ("auto", "The first of the following that works here, with a line why an earlier one did not."),
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
        "timer",
        "The scheduler's tick, else a clock of its own (`--freq`). The operands around the interrupted instruction are \
         recovered from the code: loads and stores of running user code, on x86-64 and arm64, on plain cloud VMs too; not those \
         of the kernel, nor thread-local or gathered ones.",
    ),
    (
        "faults",
        "Minor page faults, the first touches of pages: sharing between processes, not between the threads of one.",
    ),
];

const NO_COLOR: Entry = ("NO_COLOR", "Where it is set and not empty nothing is printed in colour");
const COLUMNS: Entry =
    ("COLUMNS", "The width of tables [default: that of the terminal], and of `--help` if stdout is not a terminal");
const HOME: Entry = ("HOME", "The directory that contains perf's cache of files (.debug)");
const PATH: Entry = ("PATH", "Where COMMAND is looked for");
const TMPDIR: Entry = ("TMPDIR", "Where an archive is unpacked while it is read [default: /tmp]");

const PARANOID: Entry = (
    "/proc/sys/kernel/perf_event_paranoid",
    "What may be sampled without CAP_PERFMON; perf_event_open(2) has its values.",
);
const PMUS: Entry = ("/sys/bus/event_source/devices", "The PMUs and their events");
const TRACING: Entry = ("/sys/kernel/tracing", "The tracepoint of the scheduler's tick");
const BPFFS: Entry = ("/sys/fs/bpf", "Where the maps of `--hints-map` are pinned as a rule");
const PERF_MAP: Entry = ("/tmp/perf-PID.map", "The functions that a JIT compiler wrote down");
const CACHE: Entry = ("~/.debug", "perf's cache of files by build id, for the names of functions");
const DEBUG: Entry = ("/usr/lib/debug", "Symbols that were stripped off, by build id or debug link");

const ALL: Page = Page {
    description: &[
        "Samples memory accesses on every CPU through perf_event_open(2), joins each with the thread's name, its cgroup \
         and the memory that was touched, and groups the threads that share more memory than chance explains. What it \
         prints is what a sched_ext scheduler loads: cells (cgroups) and subcells (thread names) that should share a \
         set of CPUs. It needs no perf(1), and writes nothing to disk unless asked.",
        "Sampling the whole host takes root, CAP_PERFMON or kernel.perf_event_paranoid 0; without CAP_SYS_PTRACE little \
         is seen of other users' processes. Your own can be sampled up to a level of 2. `scxprof doctor` says what a host allows, and why not more.",
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
        "Ctrl-C, SIGTERM or SIGHUP ends the capture, and what was found is printed still. What the kernel refuses is left out \
         and said; every sample that is lost is counted and said. A thread with too few samples, or one whose name \
         cannot be told from that of a thread of another group, stays in `rest` or goes along with that group, and that is \
         said.",
    ],
    samples: true,
    environment: &[HOME, PATH, NO_COLOR, COLUMNS],
    files: &[PARANOID, PMUS, TRACING, BPFFS, PERF_MAP, CACHE, DEBUG],
    see_also: &["perf-mem(1)", "perf_event_open(2)", "capabilities(7)"],
};

const RECORD: Page = Page {
    description: &[
        "Writes what `scxprof run` samples to a directory, and packs that into an archive. Its `perf.data` opens with \
         perf(1) too. While it is written the profile has a name that begins with a dot. Without `-o` it is called by the \
         host and the time in UTC: `scxprof-HOST-20261125-0913`.",
        "Ctrl-C, SIGTERM or SIGHUP ends the recording, and the profile is whole. Another one while it is archived leaves it as \
         a directory.",
    ],
    samples: true,
    environment: &[HOME, PATH, NO_COLOR],
    files: &[PARANOID, PMUS, TRACING, BPFFS],
    see_also: &["perf-record(1)", "perf-script(1)", "perf_event_open(2)", "capabilities(7)"],
};

const PROCESS: Page = Page {
    description: &[
        "Reads a profile of `scxprof record`, a perf.data of perf's own (compressed ones too) or the text of `perf \
         script`, and writes a line of JSON for each access. It needs neither perf nor the host that was recorded.",
    ],
    samples: false,
    environment: &[HOME, TMPDIR, NO_COLOR],
    files: &[PERF_MAP, CACHE, DEBUG],
    see_also: &["perf-script(1)"],
};

const EXTRACT: Page = Page {
    description: &[
        "Reads what `scxprof process` reads, or the lines that it wrote, and prints the configuration: from a profile \
         the same that `scxprof run` would have printed, byte for byte. It needs neither perf nor the host that was \
         recorded.",
    ],
    samples: false,
    environment: &[HOME, TMPDIR, NO_COLOR, COLUMNS],
    files: &[PERF_MAP, CACHE, DEBUG],
    see_also: &["perf-mem(1)"],
};

const REPORT: Page = Page {
    description: &[
        "Reads what `scxprof extract` reads, decides in the same way, and prints what `scxprof run -v` says, without the \
         configuration.",
    ],
    samples: false,
    environment: &[HOME, TMPDIR, NO_COLOR, COLUMNS],
    files: &[PERF_MAP, CACHE, DEBUG],
    see_also: &["perf-c2c(1)", "perf-mem(1)"],
};

const TRACE: Page = Page {
    description: &[
        "Reads traces in Perfetto's format: of wprof, of perfetto (ftrace), scxtop and systing, compressed with gzip or \
         in compressed packets, whole or cut; the JSON lines of wprof; and profiles and perf.data as traces.",
        "`scxprof sched -f` makes statistics of the scheduling events of such a trace.",
    ],
    samples: false,
    environment: &[TMPDIR, NO_COLOR, COLUMNS],
    files: &[],
    see_also: &["perf-sched(1)"],
};

const DIFF: Page = Page {
    description: &[
        "Compares two decisions. Each of A and B is a profile, which is read and decided as by `scxprof extract` with \
         the options given here, or a report (`--report` of run and extract, `--json` of report).",
        "Decisions differ where cells or subcells do, by name or by what they match, or where threads of one name in \
         one cell are in other subcells. Figures differ in any two runs: they are printed, and do not count.",
    ],
    samples: false,
    environment: &[TMPDIR, NO_COLOR, COLUMNS],
    files: &[],
    see_also: &["diff(1)"],
};

const SCORE: Page = Page {
    description: &[
        "Reads a profile, puts each sampled thread where the scheduler would put it with the given configuration, and prints \
         which part of the avoidable misses that avoids: as a whole with its 95 % interval, by cell and by subcell, beside the \
         configuration that scxprof would write for the same samples. It names the pairs of subcells that share most, the \
         threads that another subcell would suit better, and those that no condition takes.",
        "A score is what a configuration avoids beyond what threads avoid that run anywhere. It is 100 % if all threads that share memory share a cache, 0 % if the configuration is no better than none, \
         and less if it is worse.",
    ],
    samples: false,
    environment: &[TMPDIR, NO_COLOR, COLUMNS],
    files: &[],
    see_also: &[],
};

const MERGE: Page = Page {
    description: &[
        "Adds evidence of runs and hosts (`--evidence` of run, extract and watch, or what an engine for tables added), finds \
         the classes of threads that share memory, and prints the configuration for all these hosts. The result does not \
         depend on the order in which the files are added, or on who added them.",
        "Hosts that share otherwise than most are named, and so are pairs of classes that share on some hosts only; \
         `--split-by` makes a configuration for each label, kernel or model of CPU.",
    ],
    samples: false,
    environment: &[NO_COLOR],
    files: &[],
    see_also: &[],
};

const WATCH: Page = Page {
    description: &[
        "Samples the host in short slices, decides again after each interval from evidence of which what is old fades, and \
         replaces the configuration if another one is better than the loaded one by more than is uncertain, in two intervals \
         one after the other. What the file of `-o` contains at the start is the loaded configuration.",
        "With `--state` it goes on after a restart. It tells systemd when it is ready and what the last interval showed.",
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
         last-level caches, and what was lost. `?` shows the keys. It writes files only when `w` or `W` asks for it.",
        "The scheduling events are on only while their view is shown. Memory bandwidth and occupancy of the L3 cache are there where \
         resctrl is mounted; while the cells are shown, each has a monitoring group `scxprof-PID-N`. The figures of a sched_ext \
         scheduler come over its own socket.",
        "Ctrl-Z suspends it, and the terminal is as it was; so it is after q, Ctrl-C, SIGTERM and SIGHUP.",
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
        "Serves an agent by the Model Context Protocol: tools that open recordings or capture this host, and say who shares memory, \
         how good a configuration is and what the scheduler does. Most clients start it themselves and speak with it on its stdin and stdout; with \
         `--listen` it serves several clients of this host over HTTP.",
        "Paths are read only below `--root`. No file is written without `--allow-write`, and nothing loads a scheduler. It ends with \
         its client, or at SIGINT or SIGTERM.",
    ],
    samples: true,
    environment: &[("SCXPROF_MCP_TOKEN", "What clients must send, with --listen and without --token-file."), TMPDIR],
    files: &[PARANOID, PMUS, TRACING],
    see_also: &["openat2(2)"],
};

const DOCTOR: Page = Page {
    description: &[
        "Tries each source as a run would and says what works here, what does not, why, and what would help. With \
         `--self-test` it samples a load of its own, compares, and prints a block for a bug report.",
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
        "trace" | "trace-info" | "trace-analyze" | "trace-events" | "trace-timeline" | "trace-diff" => &TRACE,
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
