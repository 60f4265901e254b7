//! From what we want to a `perf_event_attr`, without asking the kernel: pure.

use std::borrow::Cow;

use perf_event_open_sys::bindings as sys;
use rustix::param::page_size;

use super::pmu::Config;
use super::record::{read_format, sample_type, Layout};

/// What newer kernels have and older ones refuse. The order is that of giving up: newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Feature {
    /// `PERF_FORMAT_LOST` in `read_format` (6.0).
    FormatLost,
    /// `PERF_SAMPLE_WEIGHT_STRUCT` (5.12); `PERF_SAMPLE_WEIGHT` without it.
    WeightStruct,
    /// `PERF_SAMPLE_DATA_PAGE_SIZE` (5.11).
    DataPageSize,
    /// `PERF_SAMPLE_CGROUP` and `attr.cgroup` (5.7, with CONFIG_CGROUP_PERF).
    Cgroup,
    /// `PERF_SAMPLE_PHYS_ADDR` (4.14; needs the right to see kernel data).
    PhysAddr,
    /// Accesses that kernel code makes (needs the right to see kernel data).
    Kernel,
}

impl Feature {
    /// All of them, newest first.
    pub const ALL: [Self; 6] =
        [Self::FormatLost, Self::WeightStruct, Self::DataPageSize, Self::Cgroup, Self::PhysAddr, Self::Kernel];

    /// What the run does without, for the report.
    #[must_use]
    pub fn without(self) -> &'static str {
        match self {
            Self::FormatLost => "no lost counts per event, loss is what the rings report",
            Self::WeightStruct => "PERF_SAMPLE_WEIGHT in place of WEIGHT_STRUCT",
            Self::DataPageSize => "no page sizes",
            Self::Cgroup => "no cgroup in the samples, it is read from procfs",
            Self::PhysAddr => "no physical addresses",
            Self::Kernel => "no accesses by kernel code",
        }
    }

    /// The field of `perf_event_attr` that asks for it.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Self::FormatLost => "PERF_FORMAT_LOST",
            Self::WeightStruct => "PERF_SAMPLE_WEIGHT_STRUCT",
            Self::DataPageSize => "PERF_SAMPLE_DATA_PAGE_SIZE",
            Self::Cgroup => "PERF_SAMPLE_CGROUP",
            Self::PhysAddr => "PERF_SAMPLE_PHYS_ADDR",
            Self::Kernel => "attr.exclude_kernel=0",
        }
    }

    /// What it takes.
    #[must_use]
    pub fn needs(self) -> &'static str {
        match self {
            Self::FormatLost => "Linux 6.0",
            Self::WeightStruct => "Linux 5.12",
            Self::DataPageSize => "Linux 5.11",
            Self::Cgroup => "Linux 5.7 with CONFIG_CGROUP_PERF",
            Self::PhysAddr | Self::Kernel => "CAP_PERFMON or kernel.perf_event_paranoid <= 1",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of features.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Features(u8);

impl Features {
    /// Every feature.
    #[must_use]
    pub fn all() -> Self {
        Feature::ALL.into_iter().fold(Self(0), Self::with)
    }

    /// True where `feature` is in the set.
    #[must_use]
    pub fn has(self, feature: Feature) -> bool {
        self.0 & feature.bit() != 0
    }

    /// The set with `feature`.
    #[must_use]
    pub fn with(self, feature: Feature) -> Self {
        Self(self.0 | feature.bit())
    }

    /// What both sets have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The set less `feature`.
    #[must_use]
    pub fn less(self, feature: Feature) -> Self {
        Self(self.0 & !feature.bit())
    }

    /// What is missing, newest first.
    pub fn missing(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |&feature| !self.has(feature))
    }
}

impl std::fmt::Debug for Features {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(Feature::ALL.into_iter().filter(|&feature| self.has(feature))).finish()
    }
}

/// A feature that a run does without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Which.
    pub feature: Feature,
    /// What the kernel said; `None` where it was not asked.
    pub errno: Option<i32>,
}

impl Refused {
    /// What is missing and what the kernel said.
    #[must_use]
    pub fn why(&self) -> String {
        let said = self
            .errno
            .map_or_else(|| "not asked for".to_owned(), |errno| std::io::Error::from_raw_os_error(errno).to_string());
        format!("{} ({}: {said})", self.feature.without(), self.feature.field())
    }

    /// What would help.
    #[must_use]
    pub fn help(&self) -> String {
        format!("it needs {}", self.feature.needs())
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.why(), self.help())
    }
}

/// How often an event samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Once every so many events.
    Period(u64),
    /// So many times a second, as well as the kernel can steer it.
    Frequency(u64),
}

/// An event that samples memory accesses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSpec {
    /// As perf would name it.
    pub name: Cow<'static, str>,
    /// `attr.type`.
    pub kind: u32,
    /// `attr.config` to `attr.config4`.
    pub config: Config,
    /// How often it samples.
    pub rate: Rate,
    /// `attr.precise_ip`: 0 for an event whose samples need none, else the most that is asked for.
    pub precise: u8,
    /// The event that leads its group and only counts, without which the kernel refuses it (`mem-loads-aux`).
    pub leader: Option<Config>,
    /// How it can leave out the accesses of the kernel and of guests.
    pub exclude: Exclude,
    /// A filter in the syntax of tracefs, for a tracepoint.
    pub filter: Option<String>,
    /// What the samples carry of the interrupted code; then the address is recovered from it.
    pub context: Option<Context>,
    /// The features that its samples can use.
    pub wants: Features,
}

/// Which of the `attr.exclude_*` bits an event's PMU takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclude {
    /// `exclude_kernel`.
    Kernel,
    /// `exclude_kernel`, and `exclude_guest`: what a guest does is no access of a thread that we can name.
    KernelAndGuest,
    /// None: samples are chosen when they have been read.
    Nothing,
}

/// The registers and the stack in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// `attr.sample_regs_user`.
    pub regs: u64,
    /// `attr.sample_stack_user`, bytes.
    pub stack: u32,
    /// `attr.sample_max_stack` of a kernel callchain, which a tracepoint needs to tell user code from the kernel's; 0 for none.
    pub callchain: u16,
}

impl EventSpec {
    /// Each minor page fault: raised when the fault has been served, so that the page has a frame
    /// (`PERF_COUNT_SW_PAGE_FAULTS` is raised before, and nearly always sees none).
    #[must_use]
    pub fn minor_faults() -> Self {
        Self {
            name: "minor-faults".into(),
            kind: sys::PERF_TYPE_SOFTWARE,
            config: Config([u64::from(sys::PERF_COUNT_SW_PAGE_FAULTS_MIN), 0, 0, 0, 0]),
            rate: Rate::Period(1),
            precise: 0,
            leader: None,
            exclude: Exclude::Kernel,
            filter: None,
            context: None,
            wants: Features::all(),
        }
    }
}

/// What the attrs of one capture have in common: inheriting events follow forks and may begin at exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scope {
    /// Children and new threads are followed (`attr.inherit`).
    pub inherit: bool,
    /// Counting begins when the task calls exec.
    pub enable_on_exec: bool,
    /// Times are the scheduler's clock in place of CLOCK_MONOTONIC: PEBS converts to no other in a batch.
    pub sched_clock: bool,
}

/// The fields that every record is told apart by, in samples and in trailers alike.
const IDENTITY: u64 = sample_type::IDENTIFIER | sample_type::TID | sample_type::TIME | sample_type::CPU;

/// Bytes in a ring of `pages` pages at which its reader is woken: a quarter of it, at most 1 MiB, which is often enough not to
/// overflow, and seldom enough not to disturb.
#[must_use]
pub fn watermark(pages: usize) -> u32 {
    (pages * page_size() / 4).min(1 << 20) as u32
}

/// The attr that samples `event`.
#[must_use]
pub fn sampling(event: &EventSpec, features: Features, scope: Scope, watermark: u32) -> sys::perf_event_attr {
    use sample_type as t;
    let mut attr = common(features, scope);
    set_event(&mut attr, event, &event.config);
    attr.set_precise_ip(event.precise.into());
    if event.leader.is_some() {
        // It starts with its leader.
        attr.set_disabled(0);
        attr.set_enable_on_exec(0);
    }
    match event.rate {
        Rate::Period(period) => attr.__bindgen_anon_1.sample_period = period,
        Rate::Frequency(frequency) => {
            attr.set_freq(1);
            attr.__bindgen_anon_1.sample_freq = frequency;
        }
    }
    attr.sample_type = IDENTITY | t::IP | t::PERIOD;
    if let Some(context) = event.context {
        attr.sample_type |= t::REGS_USER | t::STACK_USER;
        attr.sample_regs_user = context.regs;
        attr.sample_stack_user = context.stack;
        attr.set_exclude_hv(1);
        attr.set_exclude_idle(1);
        if context.callchain > 0 {
            attr.sample_type |= t::CALLCHAIN;
            attr.sample_max_stack = context.callchain;
            attr.set_exclude_callchain_user(1);
        }
        if event.kind == sys::PERF_TYPE_TRACEPOINT {
            // To a tracepoint every hit is the kernel's: it would count nothing.
            attr.set_exclude_kernel(0);
        }
    } else {
        attr.sample_type |= t::ADDR | t::DATA_SRC;
        attr.sample_type |= if features.has(Feature::WeightStruct) { t::WEIGHT_STRUCT } else { t::WEIGHT };
    }
    for (feature, bit) in
        [(Feature::PhysAddr, t::PHYS_ADDR), (Feature::Cgroup, t::CGROUP), (Feature::DataPageSize, t::DATA_PAGE_SIZE)]
    {
        if features.has(feature) {
            attr.sample_type |= bit;
        }
    }
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = watermark;
    attr
}

/// The attr of the event that leads `event`'s group: it counts, and samples nothing; `None` where it needs no leader.
#[must_use]
pub fn leader(event: &EventSpec, features: Features, scope: Scope) -> Option<sys::perf_event_attr> {
    let config = event.leader.as_ref()?;
    let mut attr = common(features, scope);
    set_event(&mut attr, event, config);
    Some(attr)
}

fn set_event(attr: &mut sys::perf_event_attr, event: &EventSpec, config: &Config) {
    attr.type_ = event.kind;
    let [config, config1, config2, config3, config4] = config.0;
    attr.config = config;
    attr.__bindgen_anon_3.config1 = config1;
    attr.__bindgen_anon_4.config2 = config2;
    attr.config3 = config3;
    attr.config4 = config4;
    match event.exclude {
        Exclude::Kernel => {}
        Exclude::KernelAndGuest => attr.set_exclude_guest(1),
        Exclude::Nothing => attr.set_exclude_kernel(0),
    }
}

/// The attr of the dummy event that carries the side-band: mappings, names, forks, exits, cgroups.
#[must_use]
pub fn side_band(features: Features, scope: Scope, watermark: u32) -> sys::perf_event_attr {
    let mut attr = common(features, scope);
    attr.type_ = sys::PERF_TYPE_SOFTWARE;
    attr.config = u64::from(sys::PERF_COUNT_SW_DUMMY);
    attr.sample_type = IDENTITY;
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_mmap_data(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_cgroup(u64::from(features.has(Feature::Cgroup)));
    // Not build_id: with build ids the mappings would not say which inode is mapped, which tells shared memory apart. And where
    // one profiler asks for them the kernel marks the mappings of the others as if they had one (seen on 6.18), upon which
    // `perf record` aborts.
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = watermark;
    attr
}

fn common(features: Features, scope: Scope) -> sys::perf_event_attr {
    let mut attr = sys::perf_event_attr { size: size_of::<sys::perf_event_attr>() as u32, ..Default::default() };
    attr.read_format = read_format::TOTAL_TIME_ENABLED | read_format::TOTAL_TIME_RUNNING | read_format::ID;
    if features.has(Feature::FormatLost) {
        attr.read_format |= read_format::LOST;
    }
    attr.set_disabled(1);
    attr.set_sample_id_all(1);
    attr.set_inherit(u64::from(scope.inherit));
    attr.set_enable_on_exec(u64::from(scope.enable_on_exec));
    attr.set_exclude_kernel(u64::from(!features.has(Feature::Kernel)));
    if !scope.sched_clock {
        attr.set_use_clockid(1);
        attr.clockid = libc::CLOCK_MONOTONIC;
    }
    attr
}

/// How the records of `attr` are laid out.
#[must_use]
pub fn layout(attr: &sys::perf_event_attr) -> Layout {
    Layout {
        sample_type: attr.sample_type,
        read_format: attr.read_format,
        branch_sample_type: attr.branch_sample_type,
        regs_user: attr.sample_regs_user,
        regs_intr: attr.sample_regs_intr,
        sample_id_all: attr.sample_id_all() != 0,
    }
}

/// Finds what the kernel takes: all features that are wanted, else fewer, newest given up first, then each that was given up alone is
/// asked for again, so that only what is really refused is missing.
///
/// `open` tries one set. The errno EACCES or EPERM takes away what needs rights; EINVAL, E2BIG and EOPNOTSUPP what may be
/// unknown; any other is final.
///
/// What is missing comes with what the kernel said of it alone.
///
/// # Errors
/// What `open` said last.
pub fn negotiate<T, E>(
    wanted: Features,
    mut open: impl FnMut(Features) -> Result<T, E>,
    errno: impl Fn(&E) -> i32,
) -> Result<(T, Features, Vec<Refused>), E> {
    let mut features = wanted;
    let mut given_up = Vec::new();
    let opened = loop {
        let error = match open(features) {
            Ok(opened) => break opened,
            Err(error) => error,
        };
        let next: Vec<Feature> = match errno(&error) {
            libc::EACCES | libc::EPERM => {
                [Feature::PhysAddr, Feature::Kernel].into_iter().filter(|&feature| features.has(feature)).collect()
            }
            libc::EINVAL | libc::E2BIG | libc::EOPNOTSUPP => Feature::ALL
                .into_iter()
                .find(|&feature| feature != Feature::Kernel && features.has(feature))
                .into_iter()
                .collect(),
            _ => return Err(error),
        };
        if next.is_empty() {
            return Err(error);
        }
        for feature in next {
            features = features.less(feature);
            given_up.push(feature);
        }
    };
    let mut best = opened;
    let mut refused = Vec::new();
    for feature in given_up.into_iter().rev() {
        match open(features.with(feature)) {
            Ok(opened) => {
                best = opened;
                features = features.with(feature);
            }
            Err(error) => refused.push(Refused { feature, errno: Some(errno(&error)) }),
        }
    }
    Ok((best, features, refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that knows only `known`, and gives rights to the kernel's data or not.
    fn kernel(known: &[Feature], rights: bool) -> Result<(Features, Vec<Refused>), i32> {
        let open = |features: Features| {
            let needs_rights = features.has(Feature::PhysAddr) || features.has(Feature::Kernel);
            if !rights && needs_rights {
                return Err(libc::EACCES);
            }
            let unknown =
                |feature: &Feature| *feature != Feature::Kernel && features.has(*feature) && !known.contains(feature);
            if Feature::ALL.iter().any(unknown) {
                return Err(libc::EINVAL);
            }
            Ok(())
        };
        negotiate(Features::all(), open, |errno| *errno).map(|((), features, refused)| (features, refused))
    }

    #[test]
    fn only_what_is_refused_is_given_up() {
        for known in 0..64u8 {
            let known: Vec<_> = Feature::ALL.into_iter().filter(|feature| known & feature.bit() != 0).collect();
            for rights in [true, false] {
                let (features, refused) = kernel(&known, rights).unwrap();
                assert_eq!(refused.len(), features.missing().count());
                for Refused { feature, errno } in refused {
                    let right = !rights && matches!(feature, Feature::PhysAddr | Feature::Kernel);
                    assert_eq!(errno, Some(if right { libc::EACCES } else { libc::EINVAL }), "{feature:?}");
                }
                for feature in Feature::ALL {
                    let expected = match feature {
                        Feature::Kernel => rights,
                        Feature::PhysAddr => rights && known.contains(&feature),
                        _ => known.contains(&feature),
                    };
                    assert_eq!(features.has(feature), expected, "{feature:?} with {known:?}, rights {rights}");
                }
            }
        }
    }

    #[test]
    fn a_final_error_is_not_retried() {
        let mut tries = 0;
        let result = negotiate(
            Features::all(),
            |_| {
                tries += 1;
                Err::<(), _>(libc::EMFILE)
            },
            |errno| *errno,
        );
        assert_eq!((result.err(), tries), (Some(libc::EMFILE), 1));
    }

    #[test]
    fn the_recommended_record_is_104_bytes() {
        let attr = sampling(&EventSpec::minor_faults(), Features::all(), Scope::default(), 4096);
        let words = (attr.sample_type & !sample_type::CPU).count_ones() + 1;
        assert_eq!(8 + 8 * words, 104);
        assert_eq!(attr.use_clockid(), 1);
        assert_eq!(attr.clockid, libc::CLOCK_MONOTONIC);
        let side = side_band(Features::all(), Scope::default(), 4096);
        assert_eq!(layout(&side).trailer_size(), 32, "samples and side-band are told apart by the same fields");
        assert_eq!(
            (side.mmap2(), side.mmap_data(), side.comm_exec(), side.task(), side.cgroup(), side.build_id()),
            (1, 1, 1, 1, 1, 0)
        );
    }

    #[test]
    fn a_kernel_without_weight_struct_gets_weight() {
        let attr =
            sampling(&EventSpec::minor_faults(), Features::all().less(Feature::WeightStruct), Scope::default(), 0);
        assert_ne!(attr.sample_type & sample_type::WEIGHT, 0);
        assert_eq!(attr.sample_type & sample_type::WEIGHT_STRUCT, 0);
    }
}
