//! A profile of call stacks.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

/// A function, or a place in it, as a frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function; `None` if it is not known.
    pub function: Option<Arc<str>>,
    /// The path of the file that contains the code, or `[kernel.kallsyms]`, `[vdso]` and their like; empty if unknown. Any bytes.
    pub module: Arc<[u8]>,
    /// The source file, from the debug information.
    pub file: Option<Arc<str>>,
    /// The line in it, 0 if unknown.
    pub line: u32,
    /// It is code of the kernel.
    pub is_kernel: bool,
    /// The compiler put the function's code into its caller, which is the next frame.
    pub is_inlined: bool,
}

impl Frame {
    /// Its name: the function, else `[FILE]` after the file's name, else `[unknown]`. Bytes that are no text are escaped.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.function {
            Some(function) => function.to_string(),
            None if self.module.is_empty() => "[unknown]".to_owned(),
            None => {
                let name = self.module_name();
                if name.starts_with('[') {
                    name
                } else {
                    format!("[{name}]")
                }
            }
        }
    }

    /// The name of the file that contains the code, without its directory.
    #[must_use]
    pub fn module_name(&self) -> String {
        crate::sample::printable(self.module.rsplit(|&byte| byte == b'/').next().unwrap_or_default())
    }

    /// `FILE:LINE`, if the source is known.
    #[must_use]
    pub fn source(&self) -> Option<String> {
        let file = self.file.as_ref()?;
        Some(if self.line > 0 { format!("{file}:{}", self.line) } else { file.to_string() })
    }
}

/// A thread while it had one name, one cgroup and one hint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Thread {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Its name, with bytes that are no text escaped.
    pub comm: String,
    /// The name of its process, empty if unknown.
    pub process: String,
    /// The path of its cgroup, empty if unknown.
    pub cgroup: String,
    /// Its hint.
    pub hint: Option<u64>,
    /// Its cell and subcell in a configuration, if one was given.
    pub subcell: Option<String>,
}

/// Samples of one thread with one stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The number of the thread in [`StackProfile::threads`].
    pub thread: u32,
    /// The number of the stack in [`StackProfile::stacks`].
    pub stack: u32,
    /// Samples.
    pub samples: u64,
    /// Events that they stand for: of a clock ns.
    pub events: u64,
}

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// CLOCK_MONOTONIC, ns.
    pub time: u64,
    /// The CPU.
    pub cpu: u32,
    /// As in [`Row`].
    pub thread: u32,
    /// As in [`Row`].
    pub stack: u32,
    /// As in [`Row`].
    pub events: u64,
}

/// A profile.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StackProfile {
    /// The event.
    pub event: String,
    /// The event counts ns: it is a clock.
    pub is_clock: bool,
    /// Samples a second and CPU that were asked for, or none with a period.
    pub frequency: Option<u64>,
    /// Events between two samples that were asked for, or none with a frequency.
    pub period: Option<u64>,
    /// Seconds since 1970 when it began, if known.
    pub begin_unix: Option<f64>,
    /// ns from the beginning to the end.
    pub duration_ns: u64,
    /// Frames that stacks refer to.
    pub frames: Vec<Frame>,
    /// Stacks: numbers of frames, the innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// Threads.
    pub threads: Vec<Thread>,
    /// The samples, added up.
    pub rows: Vec<Row>,
    /// The first samples one by one, in order of time; there may be fewer than the rows have.
    pub samples: Vec<At>,
}

impl StackProfile {
    /// All samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.rows.iter().map(|row| row.samples).sum()
    }

    /// Different stacks that samples have.
    #[must_use]
    pub fn stack_count(&self) -> usize {
        let numbers: FxHashSet<u32> = self.rows.iter().filter(|row| row.samples > 0).map(|row| row.stack).collect();
        numbers.len()
    }

    /// The frames of a stack, the innermost first.
    #[must_use]
    pub fn frames_of(&self, stack: u32) -> impl DoubleEndedIterator<Item = &Frame> {
        let frames = self.stacks.get(stack as usize).map_or(&[][..], |frames| frames);
        frames.iter().filter_map(|&frame| self.frames.get(frame as usize))
    }

    /// The thread of a row.
    #[must_use]
    pub fn thread(&self, row: &Row) -> Option<&Thread> {
        self.threads.get(row.thread as usize)
    }
}

/// Gives numbers to frames and stacks.
#[derive(Debug, Default)]
pub struct Builder {
    frames: FxHashMap<Frame, u32>,
    /// The profile so far.
    pub profile: StackProfile,
}

impl Builder {
    /// The number of a frame.
    pub fn frame(&mut self, frame: Frame) -> u32 {
        if let Some(&number) = self.frames.get(&frame) {
            return number;
        }
        let number = self.profile.frames.len() as u32;
        self.profile.frames.push(frame.clone());
        self.frames.insert(frame, number);
        number
    }
}

/// The part of all samples, in percent.
pub(super) fn percent(samples: u64, all: u64) -> f64 {
    if all == 0 {
        return 0.0;
    }
    samples as f64 * 100.0 / all as f64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A profile of these threads and stacks (`outer;inner`), each with a number of samples.
    pub(crate) fn made(rows: &[(&str, &str, u64)]) -> StackProfile {
        let mut builder = Builder::default();
        for &(thread, stack, samples) in rows {
            let frames: Vec<u32> = stack
                .rsplit(';')
                .map(|name| {
                    builder.frame(Frame {
                        function: (!name.is_empty()).then(|| name.into()),
                        module: b"/bin/app"[..].into(),
                        file: None,
                        line: 0,
                        is_kernel: false,
                        is_inlined: false,
                    })
                })
                .collect();
            let profile = &mut builder.profile;
            let known = profile.threads.iter().position(|its| its.comm == thread);
            let number = known.unwrap_or_else(|| {
                let tid = 10 + profile.threads.len() as u32;
                let comm = thread.to_owned();
                profile.threads.push(Thread { pid: 10, tid, comm, process: "app".to_owned(), ..Thread::default() });
                profile.threads.len() - 1
            });
            profile.stacks.push(frames);
            let stack = profile.stacks.len() as u32 - 1;
            profile.rows.push(Row { thread: number as u32, stack, samples, events: samples * 10 });
        }
        builder.profile
    }

    #[test]
    fn a_frame_has_a_name_whatever_is_known() {
        let frame = |function: Option<&str>, module: &[u8]| Frame {
            function: function.map(Arc::from),
            module: module.into(),
            file: Some("a.c".into()),
            line: 0,
            is_kernel: false,
            is_inlined: false,
        };
        let names = [
            frame(Some("main"), b"/bin/app").name(),
            frame(None, b"/lib/libx.so.1").name(),
            frame(None, b"[vdso]").name(),
            frame(None, b"").name(),
            frame(None, b"/tmp/\xff").name(),
        ];
        assert_eq!(names, ["main", "[libx.so.1]", "[vdso]", "[unknown]", "[\\xff]"]);
        assert_eq!(frame(None, b"").source(), Some("a.c".to_owned()));
    }
}
