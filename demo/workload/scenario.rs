//! The scenarios: which threads there are, what memory they share, and that as JSON.

/// The cgroup that holds the others.
pub const SLICE: &str = "workload.slice";

/// A workload.
pub struct Scenario {
    pub name: &'static str,
    pub processes: &'static [Process],
    /// The threads of a process all count in one word, besides what they share otherwise.
    pub counter: bool,
}

/// A process or several.
pub struct Process {
    /// Name of the main thread, which does nothing.
    pub name: &'static str,
    /// Name of the cell that the configuration should have for the cgroup.
    pub cell: &'static str,
    pub cgroup: &'static str,
    pub kind: Kind,
    pub groups: &'static [Group],
}

/// What the threads of a process are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Threads of one process; each group has a buffer.
    Threads,
    /// Each is a process of its own; each group has a MAP_SHARED buffer.
    Mapped,
    /// The first group are threads of the parent, each other one those of a child that it forks. All use the addresses of
    /// one buffer that the parent filled: a half is written after the fork, so that each process gets its own copy, and
    /// of the other half all processes read the same copy-on-write pages.
    Forked,
}

/// Threads that share one buffer.
pub struct Group {
    /// Thread names, and of 16 accesses of each how many are stores.
    pub threads: &'static [(&'static str, u64)],
    /// Bytes of the buffer, a power of two.
    pub size: usize,
}

const fn group(threads: &'static [(&'static str, u64)], size: usize) -> Group {
    Group { threads, size }
}

/// The only process of a scenario, in an allotment's cgroup.
const fn only(name: &'static str, cgroup: &'static str, kind: Kind, groups: &'static [Group]) -> Process {
    Process { name, cell: "allotment", cgroup, kind, groups }
}

const PAIRS: &[Group] = &[
    group(&[("reader-a", 1), ("writer-a", 8)], 64 << 10),
    group(&[("reader-b", 1), ("writer-b", 8)], 128 << 10),
    group(&[("loner", 4)], 256 << 10),
];

/// All scenarios, the default first.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "demo",
        counter: false,
        processes: &[
            only(
                "shop",
                "workload.slice/workload-tw-demo.allotment.slice",
                Kind::Threads,
                &[
                    group(&[("reader-a", 1), ("writer-a", 8)], 64 << 10),
                    group(&[("reader-b", 1), ("writer-b", 8)], 128 << 10),
                    group(&[("pool-1", 4), ("pool-2", 4), ("pool-3", 4), ("pool-4", 4)], 256 << 10),
                    group(&[("webserver1", 4), ("webserver2", 4)], 128 << 10),
                    group(&[("web", 4)], 256 << 10),
                    group(&[("loner", 4)], 256 << 10),
                ],
            ),
            Process {
                name: "app",
                cell: SLICE,
                cgroup: "workload.slice/app.service",
                kind: Kind::Mapped,
                groups: &[group(&[("left", 4), ("right", 4)], 256 << 10)],
            },
        ],
    },
    Scenario {
        name: "pairs",
        counter: false,
        processes: &[only("pairs", "workload.slice/workload-tw-pairs.allotment.slice", Kind::Threads, PAIRS)],
    },
    Scenario {
        name: "counter",
        counter: true,
        processes: &[only("counter", "workload.slice/workload-tw-counter.allotment.slice", Kind::Threads, PAIRS)],
    },
    Scenario {
        name: "private",
        counter: false,
        processes: &[only(
            "private",
            "workload.slice/workload-tw-private.allotment.slice",
            Kind::Threads,
            &[
                group(&[("accept", 4)], 64 << 10),
                group(&[("compress", 4)], 128 << 10),
                group(&[("flush", 4)], 256 << 10),
                group(&[("index", 1)], 128 << 10),
                group(&[("parse", 8)], 64 << 10),
            ],
        )],
    },
    Scenario {
        name: "shared",
        counter: false,
        processes: &[only(
            "shared",
            "workload.slice/workload-tw-shared.allotment.slice",
            Kind::Mapped,
            &[
                group(&[("left", 4), ("right", 4)], 256 << 10),
                group(&[("north", 1), ("south", 8)], 64 << 10),
                group(&[("hermit", 4)], 128 << 10),
            ],
        )],
    },
    Scenario {
        name: "prefix",
        counter: false,
        processes: &[only(
            "prefix",
            "workload.slice/workload-tw-prefix.allotment.slice",
            Kind::Threads,
            &[
                group(&[("web", 4), ("cache", 4)], 128 << 10),
                group(&[("webserver", 4), ("store", 4)], 128 << 10),
                group(&[("webs", 4)], 64 << 10),
            ],
        )],
    },
    Scenario {
        name: "pools",
        counter: false,
        processes: &[only(
            "pools",
            "workload.slice/workload-tw-pools.allotment.slice",
            Kind::Threads,
            &[
                group(&[("io-1", 4), ("io-2", 4), ("io-3", 4), ("io-4", 4), ("io-5", 4), ("io-6", 4)], 256 << 10),
                group(&[("net-1", 4), ("net-2", 4), ("net-3", 4), ("net-4", 4)], 128 << 10),
                // One pool by name, two by what they share.
                group(&[("job-1", 4), ("job-2", 4), ("job-3", 4)], 128 << 10),
                group(&[("job-4", 4), ("job-5", 4), ("job-6", 4)], 128 << 10),
            ],
        )],
    },
    Scenario {
        name: "fork",
        counter: false,
        processes: &[only(
            "fork",
            "workload.slice/workload-tw-fork.allotment.slice",
            Kind::Forked,
            &[
                group(&[("origin", 4)], 128 << 10),
                group(&[("east-in", 4), ("east-out", 4)], 128 << 10),
                group(&[("west-in", 4), ("west-out", 4)], 128 << 10),
            ],
        )],
    },
];

impl Scenario {
    /// The scenario of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// The groups as JSON; every name is plain ASCII that needs no escape.
    pub fn truth(&self) -> String {
        let line = |process: &Process, group: &Group| {
            let threads: Vec<String> = group.threads.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            format!(
                "  {{\"cell\": \"{}\", \"cgroup\": \"/{}\", \"threads\": [{}]}}",
                process.cell,
                process.cgroup,
                threads.join(", ")
            )
        };
        let groups = self.processes.iter().flat_map(|process| process.groups.iter().map(move |group| (process, group)));
        let lines: Vec<String> = groups.map(|(process, group)| line(process, group)).collect();
        format!("[\n{}\n]", lines.join(",\n"))
    }

    /// The cgroups, parents first.
    pub fn cgroups(&self) -> Vec<&'static str> {
        let mut cgroups = vec![SLICE];
        for process in self.processes {
            if !cgroups.contains(&process.cgroup) {
                cgroups.push(process.cgroup);
            }
        }
        cgroups
    }
}
