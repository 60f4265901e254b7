//! What communities are made of: regions and who shares them, what threads demand, and the rules that join them.

/// What it takes to be a community; see the documentation of [`super`] for what each means.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Standard deviations by which a community must be worth it (one-sided 1 %).
    pub sure: f64,
    /// The part of their possible misses that threads must have in common.
    pub worth: f64,
    /// The same for what all threads of a process use, where nobody is there to compare with.
    pub worth_of_all: f64,
    /// Lines that must make up [`Rules::worth_of_all`]: fewer are counters and locks.
    pub lines_of_all: f64,
    /// The part of their possible misses that must be transfers of few lines that all write.
    pub contention: f64,
    /// Two communities join if they have this part of what each has within in common.
    pub cohesion: f64,
    /// A region is a hub unless this part of the threads that could use it surely do not.
    pub others: f64,
    /// Standard deviations of a count for "surely".
    pub surely: f64,
    /// Standard deviations above zero of what two have in common.
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
            cohesion: 0.5,
            others: 0.25,
            surely: 1.3,
            join: 1.64,
        }
    }
}

/// What a thread does to a region.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sharer {
    /// The thread by its rank in the cell; in [`super::Clusters`] its number.
    pub thread: u32,
    /// Its possible misses there, by their cost.
    pub misses: f64,
    /// How many of them are transfers.
    pub transfers: f64,
    /// What of the misses was counted, where the sketch was thinned.
    pub counted: f64,
}

/// A data structure that several threads use.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Region {
    pub object: u64,
    /// True for private memory, which one process alone can use.
    pub is_private: bool,
    /// Its first line in the object, and its last.
    pub first: u64,
    pub last: u64,
    /// An estimate of the lines in use.
    pub lines: f64,
    /// The part of it that is worth keeping in a last-level cache: what fits, and nothing where each core keeps all of it anyway.
    pub fits: f64,
    /// Nearly all threads that could use it do.
    pub is_hub: bool,
    pub sharers: Vec<Sharer>,
}

/// What threads do in all, by their rank in the cell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    /// Possible misses by their cost.
    pub misses: f64,
    /// How many they are.
    pub count: f64,
    /// How many of them were counted, where the sketch was thinned.
    pub counted: f64,
}

/// A community before it is described.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RawCommunity {
    /// Ranks in ascending order.
    pub members: Vec<u32>,
    /// The part of their possible misses that they have in common.
    pub common: f64,
    /// How many standard deviations that is above what it must be.
    pub deviations: f64,
    /// All of a process or a component use it, and nobody is there to compare with.
    pub is_all: bool,
    /// And what they have in common is that they fight for lines which they write.
    pub is_contended: bool,
    /// See [`super::Community::stability`].
    pub stability: Option<f64>,
}
