//! The note on subcells that fit the caches.

use std::fmt;

/// A cell whose subcells fit the last-level caches of the host. Displayed as a sentence.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AlignedCell {
    /// The cell.
    pub cell: String,
    /// The last-level caches of the host.
    pub caches: u32,
    /// The subcells that are for threads, each with the names of the groups that it has.
    pub groups: Vec<(String, Vec<String>)>,
    /// Groups whose names are in several of them, as more of their threads are awake than a cache has CPUs; `groups` has the parts of these.
    pub parted: Vec<String>,
    /// How many others there are, without threads: they make these smaller.
    pub spare: usize,
    /// How many subcells there would be otherwise.
    pub subcells: usize,
    /// The part of the accesses that the cell's communities share which stays in one cache otherwise, and with these, from 0 to 1.
    pub kept: [f64; 2],
    /// The same without what threads share while one of them is on a lent CPU of another cache.
    pub stays: [f64; 2],
}

impl fmt::Display for AlignedCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cell, caches, groups, parted, spare, subcells, kept: [before, after], stays } = self;
        let of = |(name, groups): &(String, Vec<String>)| {
            let groups: Vec<String> = groups.iter().map(|it| format!("\"{it}\"")).collect();
            let groups = if groups.is_empty() { "no group".to_owned() } else { groups.join(", ") };
            format!("{groups} in \"{name}\"")
        };
        let percent = |part: &f64| part.min(1.0) * 100.0;
        write!(
            f,
            "{cell}: {} subcells fit the host's {caches} last-level caches better than {subcells}: ",
            groups.len() + spare
        )?;
        f.write_str(&groups.iter().map(of).collect::<Vec<_>>().join("; "))?;
        match spare {
            0 => {}
            1 => write!(f, "; one without threads, which lends its CPUs")?,
            more => write!(f, "; {more} without threads, which lend their CPUs")?,
        }
        write!(
            f,
            " (by the order in which scx_mitosis gives out CPUs, {:.0}% of what they share stays in one cache, instead of {:.0}%; ",
            percent(after),
            percent(before)
        )?;
        if !parted.is_empty() {
            let parted: Vec<String> = parted.iter().map(|it| format!("\"{it}\"")).collect();
            let [before, after] = stays.each_ref().map(percent);
            write!(
                f,
                "more threads of {} are awake than a cache has CPUs, so its names are apart: without what threads share on lent CPUs of \
                 other caches, {after:.0}% instead of {before:.0}%; ",
                parted.join(" and of ")
            )?;
        }
        f.write_str("--target-llcs 1 ignores the caches)")
    }
}
