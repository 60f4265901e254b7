//! A thread as a scheduler with a configuration sees it.

/// The task hint of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TaskHint {
    /// Hints were not followed.
    #[default]
    Unknown,
    /// It has none.
    None,
    /// It has this one.
    Is(u64),
}

impl From<Option<u64>> for TaskHint {
    /// Where hints were followed.
    fn from(hint: Option<u64>) -> Self {
        hint.map_or(Self::None, Self::Is)
    }
}

/// A thread, and what is known of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Task<'a> {
    /// The path of its cgroup below `/sys/fs/cgroup`.
    pub cgroup: &'a [u8],
    /// Its name.
    pub comm: &'a [u8],
    /// The name of its process, which is that of its main thread.
    pub process: Option<&'a [u8]>,
    /// Its hint.
    pub hint: TaskHint,
    /// Process id.
    pub pid: Option<u32>,
    /// Thread id.
    pub tid: Option<u32>,
}

impl<'a> Task<'a> {
    /// A task of which only the cgroup and the name are known.
    #[must_use]
    pub fn new(cgroup: &'a [u8], comm: &'a [u8]) -> Self {
        Self { cgroup, comm, ..Self::default() }
    }

    /// With a process id and a thread id, each 0 if it is not known.
    #[must_use]
    pub fn ids(self, pid: u32, tid: u32) -> Self {
        Self { pid: (pid > 0).then_some(pid), tid: (tid > 0).then_some(tid), ..self }
    }

    /// With the name of its process, if it is known.
    #[must_use]
    pub fn process(self, name: Option<&'a [u8]>) -> Self {
        Self { process: name, ..self }
    }

    /// With its hint, where hints were followed.
    #[must_use]
    pub fn hinted(self, hint: Option<u64>) -> Self {
        Self { hint: hint.into(), ..self }
    }
}
