//! Hosts that are directories, and a kernel with prescribed answers.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use scxprof::doctor::{Attempt, BpfTrial, BpfTrialError, Hierarchy, Kernel, Watched};
use scxprof::host::Roots;
use scxprof::sample::Source;
use scxprof::testing::host;
use scxprof::testing::host::hierarchy::HierarchyKind;
use scxprof::testing::host::limits::Limit;
use scxprof::testing::host::namespace::PidNamespace;
use scxprof::testing::host::tracefs::TracefsError;
use scxprof::testing::sampler::attr::{Feature, Features, RefusedFeature};
use scxprof::testing::sampler::open::{self, EventError, Privilege};
use scxprof::testing::sampler::pmu::{NoIbs, NoPebs, Pmus};
use scxprof::testing::sampler::SamplerError;

const ALL_CAPABILITIES: u64 = (1 << 41) - 1;

/// The result of opening a source's events.
#[derive(Clone, Copy)]
pub enum Answer {
    Opens,
    /// Rejected with EACCES, also for our own tasks if the second field says so.
    Forbidden {
        own: bool,
    },
    OutOfFiles,
}

pub struct Host {
    _dir: tempfile::TempDir,
    pub roots: Roots,
    capabilities: u64,
    answer: Answer,
    refused: Vec<RefusedFeature>,
    mmap_pages: usize,
    tracefs: Option<i32>,
    limits: (Limit, Limit),
    namespace: PidNamespace,
    own_users: bool,
    hierarchy: bool,
    bpf_trials: Option<i32>,
}

impl Host {
    /// A bare-metal host of 8 CPUs without a memory PMU; the user is root, and everything possible works.
    fn new(model: &str, flags: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (proc, sys) = (dir.path().join("proc"), dir.path().join("sys"));
        let own = std::process::id().to_string();
        let mut roots = Roots::default();
        (roots.proc, roots.sys, roots.files) = (proc.clone(), sys, dir.path().to_owned());
        let host = Self {
            _dir: dir,
            roots,
            capabilities: ALL_CAPABILITIES,
            answer: Answer::Opens,
            refused: Vec::new(),
            mmap_pages: 256,
            tracefs: None,
            limits: (Limit { soft: 1024, hard: 524_288 }, Limit { soft: 8 << 20, hard: 8 << 20 }),
            namespace: PidNamespace::Initial,
            own_users: true,
            hierarchy: true,
            bpf_trials: None,
        };
        host.proc("sys/kernel/osrelease", "6.12.117\n");
        host.proc("sys/kernel/perf_event_paranoid", "2\n");
        host.proc("sys/kernel/perf_event_mlock_kb", "516\n");
        host.proc(&format!("{own}/status"), "Name:\tx\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n");
        symlink(&own, proc.join("self")).unwrap();
        host.proc("cpuinfo", &format!("processor\t: 0\nmodel name\t: {model}\nflags\t\t: fpu {flags}\n"));
        host.proc(
            "kallsyms",
            "ffffffff81000000 T _text\nffffffff81000100 t tick_nohz_handler\n\
             ffffffff81000200 T asm_sysvec_apic_timer_interrupt\nffffffff81000300 T _etext\n",
        );
        host.sys("devices/system/cpu/online", "0-7\n");
        host.sys("kernel/btf/vmlinux", "x");
        host.sys("kernel/security/lockdown", "[none] integrity confidentiality\n");
        host.sys("kernel/sched_ext/state", "disabled\n");
        host.sys("bus/event_source/devices/software/type", "1\n");
        host
    }

    fn put(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn proc(&self, name: &str, text: &str) {
        Self::put(&self.roots.proc, name, text);
    }

    fn sys(&self, name: &str, text: &str) {
        Self::put(&self.roots.sys, name, text);
    }

    fn status(&self, capabilities: u64, seccomp: u8) {
        self.proc("self/status", &format!("Name:\tx\nCapEff:\t{capabilities:016x}\nSeccomp:\t{seccomp}\n"));
    }

    /// The core PMU of an Intel server.
    fn intel(&self, aux: bool) {
        let pmu = |name: &str, text: &str| self.sys(&format!("bus/event_source/devices/cpu/{name}"), text);
        pmu("type", "4\n");
        pmu("caps/max_precise", "3\n");
        for (name, bits) in [("event", "config:0-7"), ("umask", "config:8-15"), ("ldlat", "config1:0-15")] {
            pmu(&format!("format/{name}"), bits);
        }
        pmu("events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n");
        pmu("events/mem-stores", "event=0xcd,umask=0x2\n");
        if aux {
            pmu("events/mem-loads-aux", "event=0x03,umask=0x82\n");
        }
    }

    /// The IBS of Zen 5.
    fn ibs(&self) {
        let pmu = |name: &str, text: &str| self.sys(&format!("bus/event_source/devices/ibs_op/{name}"), text);
        pmu("type", "11\n");
        for (name, text) in [("caps/ldlat", "1"), ("caps/zen4_ibs_extensions", "1")] {
            pmu(name, text);
        }
        for (name, bits) in
            [("cnt_ctl", "config:19"), ("l3missonly", "config:16"), ("ldlat", "config1:0-11"), ("swfilt", "config2:0")]
        {
            pmu(&format!("format/{name}"), bits);
        }
    }
}

/// The hosts of the golden files.
pub fn hosts() -> Vec<(&'static str, Host)> {
    vec![
        ("paranoid-3", paranoid()),
        ("lockdown", lockdown()),
        ("container", container()),
        ("guest", guest()),
        ("old-kernel", old_kernel()),
        ("zen5", zen5()),
    ]
}

/// An ordinary user of a Debian host.
fn paranoid() -> Host {
    let mut host = Host::new("Intel(R) Xeon(R) Gold 6130", "aperfmperf");
    host.intel(false);
    host.proc("sys/kernel/perf_event_paranoid", "3\n");
    host.capabilities = 0;
    host.status(0, 0);
    host.answer = Answer::Forbidden { own: true };
    host.tracefs = Some(libc::EACCES);
    host.bpf_trials = Some(libc::EPERM);
    host.proc("kallsyms", "0000000000000000 T _text\n0000000000000000 t tick_nohz_handler\n");
    host
}

/// Root, on a host that hides its memory.
fn lockdown() -> Host {
    let mut host = Host::new("Intel(R) Xeon(R) Platinum 8480+", "aperfmperf");
    host.intel(true);
    host.sys("kernel/security/lockdown", "none integrity [confidentiality]\n");
    host.tracefs = Some(libc::EPERM);
    host.bpf_trials = Some(libc::EPERM);
    host
}

/// Root of a container.
fn container() -> Host {
    let mut host = Host::new("Intel(R) Xeon(R) Gold 6130", "aperfmperf");
    host.status(0xa804_25fb, 2);
    host.capabilities = 0;
    host.namespace = PidNamespace::Child;
    host.own_users = false;
    host.hierarchy = false;
    host.answer = Answer::Forbidden { own: false };
    host.tracefs = Some(libc::EPERM);
    host.bpf_trials = Some(libc::EPERM);
    host
}

/// A cloud instance without a PMU.
fn guest() -> Host {
    let host = Host::new("Intel Xeon Processor (Icelake)", "hypervisor");
    host.sys("class/dmi/id/sys_vendor", "Amazon EC2\n");
    host.sys("class/dmi/id/product_name", "m6i.large\n");
    fs::remove_file(host.roots.sys.join("kernel/security/lockdown")).unwrap();
    host
}

/// Linux 5.4 with few rights.
fn old_kernel() -> Host {
    let mut host = Host::new("AMD EPYC 7402", "aperfmperf");
    host.proc("sys/kernel/osrelease", "5.4.0\n");
    let features = [Feature::FormatLost, Feature::WeightStruct, Feature::DataPageSize, Feature::Cgroup];
    host.refused = features.into_iter().map(|feature| RefusedFeature { feature, errno: Some(libc::EINVAL) }).collect();
    host.mmap_pages = 16;
    host.limits = (Limit { soft: 64, hard: 64 }, Limit { soft: 64 << 10, hard: 64 << 10 });
    host.answer = Answer::OutOfFiles;
    host.tracefs = Some(libc::ENODEV);
    host.bpf_trials = Some(libc::EINVAL);
    fs::remove_dir_all(host.roots.sys.join("kernel/btf")).unwrap();
    fs::remove_dir_all(host.roots.sys.join("kernel/sched_ext")).unwrap();
    host.namespace = PidNamespace::ProcfsElsewhere { ours: 4711, theirs: None };
    host
}

/// Everything works, and a scheduler is loaded.
fn zen5() -> Host {
    let host = Host::new("AMD EPYC 9755", "aperfmperf");
    host.ibs();
    host.sys("kernel/sched_ext/state", "enabled\n");
    host.sys("kernel/sched_ext/root/ops", "mitosis_1.0.1\n");
    host
}

impl Kernel for Host {
    fn attempt(&self, source: Source, watched: Watched) -> Result<Attempt, SamplerError> {
        let event = match source {
            Source::Pebs => {
                Pmus::read(&self.roots.sys).map_err(NoPebs::from)?.pebs()?;
                "cpu/mem-loads/"
            }
            Source::Ibs => {
                Pmus::read(&self.roots.sys).map_err(NoIbs::from)?.ibs()?;
                "ibs_op/cnt_ctl=1/"
            }
            // The made hosts are x86-64.
            Source::Spe => return Err(SamplerError::Architecture { source_name: "spe" }),
            Source::Timer if self.tracefs.is_some() => "cpu-clock",
            Source::Timer => "timer:hrtimer_expire_entry",
            _ => "minor-faults",
        };
        let error = |errno| EventError {
            call: "perf_event_open",
            event: event.into(),
            cpu: 0,
            source: io::Error::from_raw_os_error(errno),
        };
        match (self.answer, watched) {
            (Answer::Forbidden { .. }, Watched::Host) | (Answer::Forbidden { own: true }, Watched::Own) => {
                let whose = if watched == Watched::Host { Privilege::All } else { Privilege::Own };
                let hint = open::rights(&self.roots.proc, whose);
                return Err(SamplerError::NotPermitted { source: error(libc::EACCES), hint });
            }
            (Answer::OutOfFiles, _) if source == Source::Timer => {
                return Err(SamplerError::TooManyFiles {
                    source: error(libc::EMFILE),
                    cpus: 8,
                    needed: 80,
                    soft: 64,
                    hard: 64,
                })
            }
            _ => {}
        }
        let recovers = source == Source::Timer;
        let carried = |feature: &Feature| {
            !recovers || ![Feature::PhysAddr, Feature::DataPageSize, Feature::WeightStruct].contains(feature)
        };
        let mut refused = self.refused.clone();
        if watched == Watched::Own {
            let errno = Some(libc::EACCES);
            refused.extend([Feature::PhysAddr, Feature::Kernel].map(|feature| RefusedFeature { feature, errno }));
        }
        refused.retain(|refused| carried(&refused.feature));
        let has = |feature: &Feature| carried(feature) && !refused.iter().any(|refused| refused.feature == *feature);
        let features = Feature::ALL.into_iter().filter(|feature| !has(feature)).fold(Features::all(), Features::less);
        let notes = match event {
            "cpu-clock" => vec!["timer samples come from cpu-clock: timer:hrtimer_expire_entry: no tracefs".to_owned()],
            _ => Vec::new(),
        };
        let precise = (source == Source::Pebs).then_some(2);
        Ok(Attempt { event: event.to_owned(), precise, features, refused, notes, mmap_pages: self.mmap_pages })
    }

    fn tracefs(&self) -> Result<Option<PathBuf>, TracefsError> {
        match self.tracefs {
            None => Ok(Some("/sys/kernel/tracing".into())),
            Some(errno) => Err(TracefsError::Mount { call: "fsopen", source: io::Error::from_raw_os_error(errno) }),
        }
    }

    fn frames_visible(&self) -> bool {
        self.capabilities != 0
    }

    fn open_files(&self) -> Limit {
        self.limits.0
    }

    fn locked_memory(&self) -> Limit {
        self.limits.1
    }

    fn pid_namespace(&self) -> PidNamespace {
        self.namespace.clone()
    }

    fn initial_user_namespace(&self) -> Option<bool> {
        Some(self.own_users)
    }

    fn hierarchy(&self) -> Result<Hierarchy, host::Error> {
        if self.hierarchy {
            return Ok(Hierarchy { kind: HierarchyKind::Unified, point: "/sys/fs/cgroup".into(), warning: None });
        }
        Err(host::Error::NoHierarchy { hierarchy: "cgroup2", mountinfo: self.roots.proc.join("self/mountinfo") })
    }

    fn bpf_trials(&self) -> Vec<BpfTrial> {
        let result = match self.bpf_trials {
            None => Ok(()),
            Some(errno) => {
                let why = format!("bpf(BPF_PROG_LOAD): {}", io::Error::from_raw_os_error(errno));
                Err(BpfTrialError { why, errno })
            }
        };
        vec![BpfTrial { name: "bpf-tracing", what: "a tracing program loads and attaches", result }]
    }
}
