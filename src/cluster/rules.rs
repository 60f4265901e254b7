//! The data for communities: regions and their sharers, the demand of threads, the time over which they share, and
//! the rules for joining threads.

/// The conditions for a community; the documentation of [`super`] explains each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Standard deviations by which a community must exceed the minimum (one-sided 1 %).
    pub sure: f64,
    /// The part of their possible misses that threads must have in common.
    pub worth: f64,
    /// The same for what all threads of a process use, if there are no other threads to compare with.
    pub worth_of_all: f64,
    /// The fewest lines that must make up [`Rules::worth_of_all`]: fewer are counters and locks.
    pub lines_of_all: f64,
    /// The part of their possible misses, by number, that must be transfers of lines that all threads write.
    pub contention: f64,
    /// The part of their possible misses, by cost, that must be transfers of so few lines that all threads write: nothing else
    /// explains these.
    pub worth_of_few: f64,
    pub few_lines: f64,
    /// Two communities join if they have in common at least this part of what each has within.
    pub cohesion: f64,
    /// Two communities become one if that avoids in addition this part of what the smaller one avoids.
    pub union: f64,
    /// A region is a hub unless this part of the threads that could use it certainly do not.
    pub others: f64,
    /// Standard deviations of a count for "certainly".
    pub surely: f64,
    /// Standard deviations above zero of what two threads have in common.
    pub join: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            sure: 2.33,
            worth: 0.02,
            worth_of_all: 0.07,
            lines_of_all: 48.0,
            contention: 1.0 / 3.0,
            worth_of_few: 0.035,
            few_lines: 8.0,
            cohesion: 0.5,
            union: 1.0 / 3.0,
            others: 0.25,
            surely: 1.3,
            join: 1.64,
        }
    }
}

impl Rules {
    /// A lower bound of a part of the possible misses, given how many were counted; `None` if it may be by chance, or is not
    /// worth it.
    pub(crate) fn at_least(&self, part: f64, counted: f64) -> Option<f64> {
        let bound = part - (part / counted).sqrt();
        (part * counted >= self.join * self.join && bound >= self.worth).then_some(bound)
    }
}

/// A thread's use of a region.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sharer {
    /// The thread by its rank in the cell; in [`super::Clusters`] its number.
    pub thread: u32,
    /// Its possible misses there, weighted by cost.
    pub misses: f64,
    /// The number of them that are transfers.
    pub transfers: f64,
    /// The part of the misses that these are.
    pub moved: f64,
    /// Its accesses there, and those that write.
    pub accesses: f64,
    pub writes: f64,
    /// The part of the misses that was counted, if the sketch was thinned.
    pub counted: f64,
}

/// A data structure that several threads use.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Region {
    pub object: u64,
    /// True for private memory, which only one process can use.
    pub is_private: bool,
    /// Its first line in the object, and its last.
    pub first: u64,
    pub last: u64,
    /// An estimate of the number of lines in use.
    pub lines: f64,
    /// The part of it that a last-level cache holds; 0 if each core's own cache holds all of it anyway.
    pub fits: f64,
    /// Nearly all threads that could use it do.
    pub is_hub: bool,
    pub sharers: Vec<Sharer>,
}

impl Region {
    /// A number from 0 to 1 that is as good as random: the low bits of the first line are.
    pub(crate) fn coin(&self) -> f64 {
        (self.first.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// All possible misses of a thread, by its rank in the cell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    /// Possible misses weighted by cost.
    pub misses: f64,
    /// The number of them.
    pub count: f64,
    /// The number of them that was counted, if the sketch was thinned.
    pub counted: f64,
}

/// How the sharing of a community is spread over the time of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct OverTime {
    /// How much two moments have in common, relative to two moments that follow each other: 1 if the members always share
    /// with the same threads, about 0.7 if their partners change half way.
    pub constancy: f64,
    /// When partners changed, in ns after the first sample; `None` if they did not, or several times.
    pub change: Option<u64>,
    /// The part of the run in which the partners were those of most of the time; 1 without `change`.
    pub mostly: f64,
    /// The first moment at which the members shared, in ns after the first sample.
    pub from: u64,
    /// The last one, likewise.
    pub to: u64,
    /// The part of the run's time in which they shared.
    pub busy: f64,
}

impl OverTime {
    /// From this part of the run on, the communities of that part outweigh those of the rest.
    pub(crate) const MOSTLY: f64 = 2.0 / 3.0;

    /// The factor of the confidence. After one change near the beginning or the end of a run, the communities found are those of
    /// most of the time; else what was found is a mixture.
    pub(crate) fn reliability(&self) -> f64 {
        if self.change.is_some() && self.mostly >= Self::MOSTLY {
            self.constancy
        } else {
            self.constancy.powi(5)
        }
    }
}

/// A community, before its description is added.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RawCommunity {
    /// Ranks in ascending order.
    pub members: Vec<u32>,
    /// The part of their possible misses that they have in common.
    pub common: f64,
    /// By how many standard deviations that exceeds the minimum.
    pub deviations: f64,
    /// All threads of a process or a component use it, and there are no others to compare with.
    pub is_all: bool,
    /// Its members have in common that they contend for lines that they write.
    pub is_contended: bool,
    /// See [`super::Community::stability`].
    pub stability: Option<f64>,
    /// See [`super::Community::over_time`].
    pub over_time: Option<OverTime>,
}
