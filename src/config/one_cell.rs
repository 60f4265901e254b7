//! One cell for two: the cell spec that makes one cell of two cgroups that share memory, by the scheduler's own rule.

use std::fmt::{self, Write as _};

use super::cell_specs::{Ancestry, CellSpecs, CgroupMatcher, SpecIndex, CGROUP_ROOT};
use super::scheduler::Scheduler;
use crate::sample::printable;

/// A cell: its cell spec, and a cgroup that is in it. For a cell that is a cgroup it is this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InCell<'a> {
    /// Its cell spec.
    pub spec: SpecIndex,
    /// The path of the cgroup.
    pub cgroup: &'a [u8],
}

/// How two cells become one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OneCell {
    /// By a `--cell` before all others.
    Option {
        /// Its argument, `NAME=REGEX`.
        given: String,
        /// The cgroup whose descendants are then all in the cell, escaped for a terminal; `None` if it is these two alone.
        below: Option<String>,
    },
    /// Without these `--cell`s, by name, both are in the root's cell. Only the root contains both, and no cell spec matches it.
    LeaveOut(Vec<String>),
    /// scx_layered has both cgroups in the layers of this cell spec.
    OneSpec(String),
    /// Not without moving the cgroups: only the root contains both.
    No,
    /// There is a way, but it was not found to be better for the target host.
    NotBetter,
}

impl OneCell {
    /// The argument of the `--cell`, if that makes one cell of both.
    pub(crate) fn given(&self) -> Option<&str> {
        match self {
            Self::Option { given, .. } => Some(given),
            _ => None,
        }
    }

    /// Finds out how these two cells become one.
    ///
    /// scx_mitosis makes a cell of each cgroup that a spec matches, unless a cgroup above it is a cell by an equal or earlier spec.
    /// So the two are in one cell if the first spec matches one cgroup that contains both, and no others. scx_layered has a
    /// layer for all cgroups that a spec matches.
    pub(crate) fn new(specs: &CellSpecs, [a, b]: [InCell<'_>; 2], scheduler: Scheduler) -> Self {
        let name_of = |spec: SpecIndex| specs.specs().get(spec).map(|spec| spec.name.as_str()).unwrap_or_default();
        let is_layered = scheduler == Scheduler::Layered;
        if is_layered && a.spec == b.spec {
            return Self::OneSpec(name_of(a.spec).to_owned());
        }
        let common = common(a.cgroup, b.cgroup);
        if let Some(last) = common.last() {
            let path = common.iter().flat_map(|part| [b"/", *part].concat()).collect::<Vec<u8>>();
            let given = format!("{}=^{}$", free_name(specs, &printable(last)), expression(&path));
            return Self::Option { given, below: Some(printable(&path)) };
        }
        let is_root = |it: InCell<'_>| it.spec + 1 == specs.specs().len();
        if is_layered && !is_root(a) && !is_root(b) {
            let name = free_name(specs, &format!("{}+{}", name_of(a.spec), name_of(b.spec)));
            let given = format!("{name}=^(?:{}|{})$", expression(a.cgroup), expression(b.cgroup));
            return Self::Option { given, below: None };
        }
        let mut left_out: Vec<SpecIndex> = [a.spec, b.spec].into_iter().filter(|&at| at < specs.given()).collect();
        left_out.sort_unstable();
        left_out.dedup();
        let takes = |(at, spec): (SpecIndex, &super::cell_specs::CellSpec), cgroup: &[u8]| {
            let is_all = matches!(spec.matcher, CgroupMatcher::All);
            !is_all && !left_out.contains(&at) && Ancestry::new(cgroup).texts().any(|text| spec.matcher.is_match(text))
        };
        let is_taken = |cgroup: &[u8]| specs.specs().iter().enumerate().any(|spec| takes(spec, cgroup));
        if left_out.is_empty() || is_taken(a.cgroup) || is_taken(b.cgroup) {
            return Self::No;
        }
        Self::LeaveOut(left_out.into_iter().map(|at| name_of(at).to_owned()).collect())
    }
}

/// The components of the path that two cgroups have in common.
fn common<'a>(a: &'a [u8], b: &[u8]) -> Vec<&'a [u8]> {
    let parts = |path: &'a [u8]| path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    let others = b.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    parts(a).zip(others).take_while(|(a, b)| a == b).map(|it| it.0).collect()
}

/// A regular expression for the text of a path that a scheduler matches. Bytes that are not UTF-8 are U+FFFD there.
fn expression(path: &[u8]) -> String {
    let text = format!("{CGROUP_ROOT}{}", String::from_utf8_lossy(path));
    let mut expression = String::with_capacity(text.len() + 16);
    for character in regex::escape(&text).chars() {
        if scxprof_base::escape::is_hidden(character) {
            // Writing to a String cannot fail.
            let _ = write!(expression, "\\x{{{:x}}}", u32::from(character));
        } else {
            expression.push(character);
        }
    }
    expression
}

/// A name for a new `--cell` that no cell spec has.
fn free_name(specs: &CellSpecs, wanted: &str) -> String {
    let wanted = wanted.replace('=', "-");
    let numbered = (2_usize..).map(|number| format!("{wanted}-{number}"));
    let is_free = |name: &String| !specs.specs().iter().any(|spec| spec.name == *name);
    std::iter::once(wanted.clone()).chain(numbered).find(is_free).unwrap_or_default()
}

/// A word of a command line for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl fmt::Display for OneCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option { given, below } => {
                write!(f, "--cell {} before all other --cell makes one cell of both", quoted(given))?;
                below.as_ref().map_or(Ok(()), |below| write!(f, " and of all other cgroups in {below}"))
            }
            Self::LeaveOut(names) => {
                let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
                write!(f, "no cell spec matches both, as only the root contains both cgroups; ")?;
                write!(f, "without the --cell {} both are in the root's cell", names.join(" and "))
            }
            Self::OneSpec(name) => write!(f, "scx_layered has both in the layers of \"{name}\""),
            Self::No => f.write_str(
                "no cell spec matches both, as only the root contains both cgroups; move them into one cgroup",
            ),
            Self::NotBetter => f.write_str("no other cells are known to be better for the target host"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::cell_specs::CellOptions;

    fn specs(cells: &[String]) -> CellSpecs {
        CellSpecs::new(&CellOptions { cells: cells.to_vec(), ..CellOptions::default() }).unwrap()
    }

    /// How the cells of two cgroups become one, with these `--cell`s.
    fn found(cells: &[&str], paths: [&str; 2], scheduler: Scheduler) -> OneCell {
        let specs = specs(&cells.iter().map(|&it| it.to_owned()).collect::<Vec<_>>());
        let cell = |path: &'static [u8]| InCell { spec: specs.assign(path).spec, cgroup: path };
        OneCell::new(&specs, paths.map(|path| cell(path.to_owned().leak().as_bytes())), scheduler)
    }

    #[test]
    fn a_cell_of_both_is_a_cgroup_that_contains_both() {
        let cells = ["a=/a$", "b=/b$"];
        let one = found(&cells, ["/shop.slice/a", "/shop.slice/b"], Scheduler::Mitosis);
        let given = r"shop.slice=^/sys/fs/cgroup/shop\.slice$".to_owned();
        assert_eq!(one, OneCell::Option { given, below: Some("/shop.slice".to_owned()) });
        let text = concat!(
            r"--cell 'shop.slice=^/sys/fs/cgroup/shop\.slice$' before all other --cell makes one cell of both ",
            "and of all other cgroups in /shop.slice"
        );
        assert_eq!(one.to_string(), text);
        // One contains the other.
        let one = found(&["a=/a$", "b=^/sys/fs/cgroup/x$"], ["/x/a", "/x"], Scheduler::Mitosis);
        assert_eq!(one.given(), Some("x=^/sys/fs/cgroup/x$"));
        // A name that is taken, and one that would end too early.
        let one = found(&["x=/a$", "b=/b$"], ["/x/a", "/x/b"], Scheduler::Mitosis);
        assert_eq!(one.given(), Some("x-2=^/sys/fs/cgroup/x$"));
        let one = found(&cells, ["/k=v/a", "/k=v/b"], Scheduler::Mitosis);
        assert_eq!(one.given(), Some("k-v=^/sys/fs/cgroup/k=v$"));
    }

    #[test]
    fn where_only_the_root_contains_both_it_is_said() {
        let cells = ["a=/a$", "b=/b$"];
        let one = found(&cells, ["/a", "/b"], Scheduler::Mitosis);
        assert_eq!(one, OneCell::LeaveOut(vec!["a".to_owned(), "b".to_owned()]));
        assert!(one.to_string().ends_with("without the --cell \"a\" and \"b\" both are in the root's cell"), "{one}");
        assert_eq!(found(&cells, ["/a", "/"], Scheduler::Mitosis), OneCell::LeaveOut(vec!["a".to_owned()]));
        // A cell spec of ours would take one of them.
        assert_eq!(found(&["a=/a$"], ["/a", "/workload.slice"], Scheduler::Mitosis), OneCell::No);
        assert_eq!(found(&[], ["/workload.slice", "/"], Scheduler::Mitosis), OneCell::No);
        // A layer takes any cgroups.
        let one = found(&cells, ["/a", "/b"], Scheduler::Layered);
        assert_eq!(one.given(), Some("a+b=^(?:/sys/fs/cgroup/a|/sys/fs/cgroup/b)$"));
        assert_eq!(found(&["ab=/[ab]$"], ["/a", "/b"], Scheduler::Layered), OneCell::OneSpec("ab".to_owned()));
        assert_eq!(found(&cells, ["/a", "/"], Scheduler::Layered), OneCell::LeaveOut(vec!["a".to_owned()]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// The note says what the scheduler does with the changed options.
        #[test]
        fn the_option_makes_one_cell(
            parts in prop::collection::vec("[ab.'=]{1,2}|x\u{7}|\u{fffd}", 0..4),
            ends in ["[ab]{1,2}", "[cd]{1,2}"],
            cells in prop::collection::vec(prop::sample::select(vec!["a", "b$", "/[cd]+$", "x", "/a/", "^/sys/fs/cgroup/[abcd]+$"]), 0..4),
        ) {
            let cells: Vec<String> = cells.iter().enumerate().map(|(at, regex)| format!("g{at}={regex}")).collect();
            let before = specs(&cells);
            let paths = ends.map(|end| parts.iter().map(String::as_str).chain([end.as_str()]).map(|part| format!("/{part}")).collect::<String>());
            let paths = paths.each_ref().map(String::as_bytes);
            let cell = |path| InCell { spec: before.assign(path).spec, cgroup: path };
            match OneCell::new(&before, paths.map(cell), Scheduler::Mitosis) {
                OneCell::Option { given, .. } => {
                    prop_assert!(!given.contains(scxprof_base::escape::is_hidden), "{:?}", given);
                    let after = specs(&[&[given][..], &cells].concat());
                    let keys = paths.map(|path| after.assign(path));
                    prop_assert_eq!(&keys[0], &keys[1]);
                    prop_assert_eq!(keys[0].spec, 0);
                }
                OneCell::NotBetter => prop_assert!(false, "nothing was compared"),
                OneCell::LeaveOut(names) => {
                    let is_kept = |cell: &&String| !names.iter().any(|name| cell.starts_with(&format!("{name}=")));
                    let kept: Vec<String> = cells.iter().filter(is_kept).cloned().collect();
                    let after = specs(&kept);
                    for path in paths {
                        prop_assert_eq!(after.assign(path).spec + 1, after.specs().len());
                    }
                }
                OneCell::OneSpec(_) => prop_assert!(false, "scx_mitosis has a cell for each cgroup"),
                OneCell::No => prop_assert!(parts.is_empty()),
            }
        }
    }
}
