//! Cell specs: which cgroups become which cell of the configuration, by the scheduler's own rule.

use regex::{Regex, RegexBuilder};
use thiserror::Error;

use crate::sample::printable;

/// The directory of cgroups for scx_mitosis. It matches the text of this followed by the cgroup's path.
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// The default of `--workload-allotment-cgroup-regex`: the name of an allotment's cgroup.
pub const ALLOTMENT_REGEX: &str = r"workload-tw-[^/]+\.allotment\.slice";
/// The default of `--workload-cgroup-regex`: a part of the path of the workload's cgroup.
pub const WORKLOAD_SLICE: &str = "workload.slice";

/// Bytes of an expression that comes from a file.
const MAX_REGEX: usize = 1 << 20;

const ALLOTMENT: &str = "allotment";
const REST: &str = "rest";
/// How many cell specs follow those of the user.
const BUILT_IN: usize = 3;

/// The index of a cell spec in [`CellSpecs::specs`].
pub type SpecIndex = usize;

/// The user's options for cell specs; the default is none of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CellOptions {
    /// The user's cells, each as `NAME=REGEX`, in order.
    pub cells: Vec<String>,
    /// The cgroups of allotments, instead of [`ALLOTMENT_REGEX`].
    pub allotment: Option<String>,
    /// The cgroup of all workload, instead of the one that contains `workload.slice`.
    pub workload: Option<String>,
}

/// Why the options are invalid.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellSpecError {
    /// A cell without `=`.
    #[error("cell number {position}, \"{given}\", is not NAME=REGEX")]
    NotNameAndRegex {
        /// Which cell, counted from 1.
        position: usize,
        /// The given text.
        given: String,
    },
    /// A cell without a name.
    #[error("cell number {position}, \"{given}\", has no name before the \"=\"")]
    EmptyName {
        /// Which cell, counted from 1.
        position: usize,
        /// The given text.
        given: String,
    },
    /// A cell whose expression is empty, and would match every cgroup.
    #[error("cell number {position}, \"{given}\", has no regular expression after the \"=\"")]
    EmptyRegex {
        /// Which cell, counted from 1.
        position: usize,
        /// What was given.
        given: String,
    },
    /// A name that another cell has.
    #[error("cell number {position} takes the name \"{name}\", which {taken_by} already has")]
    DuplicateName {
        /// Which cell, counted from 1.
        position: usize,
        /// The name.
        name: String,
        /// The cell that has it.
        taken_by: String,
    },
    /// A regular expression that does not compile.
    #[error("{option}: the regular expression \"{regex}\" is wrong{}: {reason}", at(.offset.as_ref()))]
    Regex {
        /// The field of [`CellOptions`] that contains it; for a cell its number.
        option: String,
        /// The expression.
        regex: String,
        /// The position of the mistake, in bytes from its beginning; unknown if it is too large.
        offset: Option<usize>,
        /// What is wrong.
        reason: String,
    },
}

fn at(offset: Option<&usize>) -> String {
    offset.map(|offset| format!(" at byte {offset}")).unwrap_or_default()
}

/// The rule that matches a cell spec's cgroups.
#[derive(Debug, Clone)]
pub enum CgroupMatcher {
    /// The full path contains this.
    Contains(String),
    /// The full path matches this. The scheduler uses the same crate with the same settings.
    Regex(Regex),
    /// Every cgroup that no other cell spec took.
    All,
}

impl CgroupMatcher {
    /// The rule as text.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Contains(part) => format!("contains {part}"),
            Self::Regex(regex) => format!("regex {}", regex.as_str()),
            Self::All => "all".to_owned(),
        }
    }

    /// True if the text, a cgroup's full path under [`CGROUP_ROOT`], matches.
    #[must_use]
    pub(crate) fn is_match(&self, text: &str) -> bool {
        match self {
            Self::Contains(part) => text.contains(part.as_str()),
            Self::Regex(regex) => regex.is_match(text),
            Self::All => true,
        }
    }
}

/// A cell spec: a name and the cgroups that belong to it.
#[derive(Debug, Clone)]
pub struct CellSpec {
    /// The name, also of the cell.
    pub name: String,
    /// The cgroups.
    pub matcher: CgroupMatcher,
}

/// The cell that a cgroup belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CellKey {
    /// The cell spec of the configuration.
    pub spec: SpecIndex,
    /// The matched cgroup from which the scheduler makes a cell: this one or the ancestor that covers it, without
    /// [`CGROUP_ROOT`]. Empty for the last cell spec, which is the scheduler's cell 0.
    pub cgroup: Vec<u8>,
}

/// All cell specs, in the order in which the scheduler tries them. The last takes all other cgroups.
#[derive(Debug, Clone)]
pub struct CellSpecs {
    specs: Vec<CellSpec>,
}

impl CellSpecs {
    /// The cell specs: the `--cell`s in their order, then `allotment`, `workload.slice` and `rest`.
    ///
    /// The cells of [`CellOptions`] do not replace the three: they come before them, so they win, and a cell spec without
    /// samples is not written. The names of the three are reserved.
    ///
    /// # Errors
    /// The first invalid option, with its position.
    pub fn new(options: &CellOptions) -> Result<Self, CellSpecError> {
        let mut specs: Vec<CellSpec> = Vec::with_capacity(options.cells.len() + 3);
        for (index, given) in options.cells.iter().enumerate() {
            let position = index + 1;
            let Some((name, regex)) = given.split_once('=') else {
                return Err(CellSpecError::NotNameAndRegex { position, given: given.clone() });
            };
            if name.is_empty() {
                return Err(CellSpecError::EmptyName { position, given: given.clone() });
            }
            if regex.is_empty() {
                return Err(CellSpecError::EmptyRegex { position, given: given.clone() });
            }
            let taken_by = match specs.iter().position(|spec| spec.name == name) {
                Some(other) => Some(format!("cell number {}", other + 1)),
                None => [ALLOTMENT, WORKLOAD_SLICE, REST].contains(&name).then(|| "a built-in cell".to_owned()),
            };
            if let Some(taken_by) = taken_by {
                return Err(CellSpecError::DuplicateName { position, name: name.to_owned(), taken_by });
            }
            let matcher = compile(&format!("cell number {position}"), regex)?;
            specs.push(CellSpec { name: name.to_owned(), matcher });
        }
        let allotment = options.allotment.as_deref().unwrap_or(ALLOTMENT_REGEX);
        let allotment = compile("allotment", allotment)?;
        let workload = match &options.workload {
            Some(regex) => compile("workload", regex)?,
            None => CgroupMatcher::Contains(WORKLOAD_SLICE.to_owned()),
        };
        specs.push(CellSpec { name: ALLOTMENT.to_owned(), matcher: allotment });
        specs.push(CellSpec { name: WORKLOAD_SLICE.to_owned(), matcher: workload });
        specs.push(CellSpec { name: REST.to_owned(), matcher: CgroupMatcher::All });
        Ok(Self { specs })
    }

    /// Cell specs by their names and what they match, as [`CgroupMatcher::text`] writes it; `None` if they are none.
    pub(crate) fn from_texts<'a>(specs: impl Iterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let spec = |(name, text): (&str, &str)| {
            let matcher = match text.split_once(' ') {
                None if text == "all" => CgroupMatcher::All,
                Some(("contains", part)) => CgroupMatcher::Contains(part.to_owned()),
                Some(("regex", regex)) => {
                    CgroupMatcher::Regex(RegexBuilder::new(regex).size_limit(MAX_REGEX).build().ok()?)
                }
                _ => return None,
            };
            Some(CellSpec { name: name.to_owned(), matcher })
        };
        let specs: Vec<CellSpec> = specs.map(spec).collect::<Option<_>>()?;
        let all = specs.iter().filter(|it| matches!(it.matcher, CgroupMatcher::All)).count();
        let is_whole = all == 1 && specs.last().is_some_and(|last| matches!(last.matcher, CgroupMatcher::All));
        is_whole.then_some(Self { specs })
    }

    /// The same with a `--cell`, `NAME=REGEX`, before all others; `None` if it is none.
    #[must_use]
    pub(crate) fn with_first(&self, given: &str) -> Option<Self> {
        let (name, regex) = given.split_once('=').filter(|(name, regex)| !name.is_empty() && !regex.is_empty())?;
        let matcher = compile("cell", regex).ok()?;
        let first = CellSpec { name: name.to_owned(), matcher };
        Some(Self { specs: std::iter::once(first).chain(self.specs.iter().cloned()).collect() })
    }

    /// The same without those `--cell`s that have one of these names.
    #[must_use]
    pub(crate) fn without_named(&self, names: &[String]) -> Self {
        let given = self.specs.iter().take(self.given()).enumerate();
        let left_out: Vec<SpecIndex> = given.filter(|(_, spec)| names.contains(&spec.name)).map(|it| it.0).collect();
        self.without(&left_out)
    }

    /// The same without all `--cell`s; `None` if there are none.
    #[must_use]
    pub(crate) fn without_given(&self) -> Option<Self> {
        let given: Vec<SpecIndex> = (0..self.given()).collect();
        (!given.is_empty()).then(|| self.without(&given))
    }

    /// The same without some of them. The last one stays.
    #[must_use]
    pub(super) fn without(&self, left_out: &[SpecIndex]) -> Self {
        let last = self.specs.len().saturating_sub(1);
        let kept = self.specs.iter().enumerate().filter(|(at, _)| *at == last || !left_out.contains(at));
        Self { specs: kept.map(|it| it.1.clone()).collect() }
    }

    /// The cell specs in order.
    #[doc(hidden)]
    #[must_use]
    pub fn specs(&self) -> &[CellSpec] {
        &self.specs
    }

    /// What the summary calls a cell: its cell spec, but an allotment as its expression matches it.
    pub(crate) fn group(&self, spec: SpecIndex, cgroup: Option<&[u8]>) -> String {
        let Some(spec) = self.specs.get(spec) else { return String::new() };
        let matched = match (&spec.matcher, cgroup) {
            (CgroupMatcher::Regex(regex), Some(path)) if spec.name == ALLOTMENT => {
                let path = format!("{CGROUP_ROOT}{}", String::from_utf8_lossy(path));
                regex.find(&path).map(|found| printable(found.as_str().as_bytes()))
            }
            _ => None,
        };
        matched.filter(|text| !text.is_empty()).unwrap_or_else(|| spec.name.clone())
    }

    /// How many of them, the first ones, are the user's `--cell`s.
    pub(crate) fn given(&self) -> usize {
        self.specs.len().saturating_sub(BUILT_IN)
    }

    /// The cell of a cgroup, by its path below [`CGROUP_ROOT`] (`/a/b`; `/` or an empty path is the root).
    ///
    /// The scheduler walks from the root down. The first spec that matches a cgroup is that cgroup's, and the cgroup becomes a
    /// cell unless an ancestor became a cell for an equal or earlier spec. So a cell further down always has an earlier spec
    /// than those above it. A cgroup gets the earliest spec that matches it or one of its ancestors, and its cell is the
    /// matching one nearest to the root. The root itself is never matched.
    ///
    /// Bytes that are not UTF-8 are matched as U+FFFD, as `Path::display` gives them to the scheduler.
    #[doc(hidden)]
    #[must_use]
    pub fn assign(&self, path: &[u8]) -> CellKey {
        let ancestry = Ancestry::new(path);
        for (index, spec) in self.specs.iter().enumerate() {
            if matches!(spec.matcher, CgroupMatcher::All) {
                continue;
            }
            if let Some(cgroup) = ancestry.texts().position(|text| spec.matcher.is_match(text)) {
                return CellKey { spec: index, cgroup: ancestry.cgroup(cgroup) };
            }
        }
        CellKey { spec: self.specs.len().saturating_sub(1), cgroup: Vec::new() }
    }
}

/// A cgroup and its ancestors without the root, from the top down, as the texts that a scheduler matches.
pub(super) struct Ancestry<'a> {
    components: Vec<&'a [u8]>,
    text: String,
    ends: Vec<usize>,
}

impl<'a> Ancestry<'a> {
    pub(super) fn new(path: &'a [u8]) -> Self {
        let components: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect();
        let mut text = CGROUP_ROOT.to_owned();
        let mut ends = Vec::with_capacity(components.len());
        for component in &components {
            text.push('/');
            text.push_str(&String::from_utf8_lossy(component));
            ends.push(text.len());
        }
        Self { components, text, ends }
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.ends.iter().filter_map(|&end| self.text.get(..end))
    }

    /// The path of the ancestor at this depth; 0 is a child of the root.
    fn cgroup(&self, depth: usize) -> Vec<u8> {
        self.components.iter().take(depth + 1).flat_map(|part| [b"/", *part].concat()).collect()
    }
}

fn compile(option: &str, regex: &str) -> Result<CgroupMatcher, CellSpecError> {
    Regex::new(regex).map(CgroupMatcher::Regex).map_err(|error| {
        let (offset, reason) = mistake(regex, &error);
        CellSpecError::Regex { option: option.to_owned(), regex: regex.to_owned(), offset, reason }
    })
}

/// The byte offset of the mistake in `regex`, and its description in a line.
pub(crate) fn mistake(regex: &str, error: &regex::Error) -> (Option<usize>, String) {
    match regex_syntax::parse(regex) {
        Err(regex_syntax::Error::Parse(error)) => (Some(error.span().start.offset), error.kind().to_string()),
        Err(regex_syntax::Error::Translate(error)) => (Some(error.span().start.offset), error.kind().to_string()),
        // Its syntax is valid but it exceeds the crate's size limit; the scheduler would reject it too.
        _ => (None, error.to_string().replace('\n', " ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn with_cells(cells: &[&str]) -> Result<CellSpecs, CellSpecError> {
        CellSpecs::new(&CellOptions {
            cells: cells.iter().map(|&cell| cell.to_owned()).collect(),
            ..Default::default()
        })
    }

    #[test]
    fn default_groups_are_the_extractors() {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let names: Vec<_> = specs.specs().iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["allotment", "workload.slice", "rest"]);
        let name = |path: &[u8]| names[specs.assign(path).spec];
        assert_eq!(name(b"/workload.slice/workload-tw-a.allotment.slice/task"), "allotment");
        assert_eq!(name(b"/workload.slice/my app.slice"), "workload.slice");
        assert_eq!(name(b"/system.slice"), "rest");
        assert_eq!(name(b"/"), "rest");
        assert_eq!(name(b""), "rest");
        // An allotment is recognized by its name, inside workload.slice or not: as in the scheduler.
        assert_eq!(name(b"/elsewhere/workload-tw-a.allotment.slice"), "allotment");
    }

    #[test]
    fn home_is_the_matched_cgroup() {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let key = specs.assign(b"/workload.slice/workload-tw-a.allotment.slice/task/x");
        assert_eq!(key.cgroup, b"/workload.slice/workload-tw-a.allotment.slice");
        assert_eq!(specs.assign(b"/workload.slice/x/y").cgroup, b"/workload.slice");
        assert_eq!(specs.assign(b"/system.slice/x").cgroup, b"");
        assert_eq!(specs.assign(b"/workload.slice\xff/x").cgroup, b"/workload.slice\xff");
    }

    #[test]
    fn regex_sees_the_full_path_and_is_no_substring() {
        let options =
            CellOptions { workload: Some(r"^/sys/fs/cgroup/workload\.slice$".to_owned()), ..Default::default() };
        let specs = CellSpecs::new(&options).unwrap();
        assert_eq!(specs.assign(b"/workload.slice").spec, 1);
        assert_eq!(specs.assign(b"/workload.slice/below").spec, 1, "an ancestor covers its descendants");
        assert_eq!(specs.assign(b"/a/workload.slice").spec, 2);
    }

    #[test]
    fn a_byte_that_is_no_utf8_is_one_character() {
        let specs = with_cells(&["x=/a.b$"]).unwrap();
        assert_eq!(specs.assign(b"/a\xffb").spec, 0);
        assert_eq!(specs.assign("/aäb".as_bytes()).spec, 0);
        assert_eq!(specs.assign(b"/a\xff\xffb").spec, 3);
    }

    #[test]
    fn cells_come_first_and_in_order() {
        let specs = with_cells(&["db=postgres", "web=nginx=1"]).unwrap();
        assert_eq!(specs.assign(b"/workload.slice/postgres.service").spec, 0);
        assert_eq!(specs.assign(b"/nginx=1").spec, 1, "only the first \"=\" divides");
        assert_eq!(specs.assign(b"/nginx=1/postgres").spec, 0, "an earlier spec takes a descendant");
        assert_eq!(specs.assign(b"/postgres/nginx=1").spec, 0, "a later one does not");
    }

    #[test]
    fn wrong_options_are_refused_in_one_sentence() {
        let said = |cells: &[&str]| with_cells(cells).unwrap_err().to_string();
        assert_eq!(said(&["a"]), "cell number 1, \"a\", is not NAME=REGEX");
        assert_eq!(said(&["a=x", "=x"]), "cell number 2, \"=x\", has no name before the \"=\"");
        assert_eq!(said(&["a=x", "a=y"]), "cell number 2 takes the name \"a\", which cell number 1 already has");
        assert_eq!(said(&["rest=x"]), "cell number 1 takes the name \"rest\", which a built-in cell already has");
        assert_eq!(
            said(&["a=x", "b=x(y"]),
            "cell number 2: the regular expression \"x(y\" is wrong at byte 1: unclosed group"
        );
        let options = CellOptions { allotment: Some("a\\pM\\p{No such}".to_owned()), ..Default::default() };
        let said = CellSpecs::new(&options).unwrap_err().to_string();
        assert!(said.starts_with("allotment: "), "{said}");
        assert!(!said.contains('\n'), "{said}");
        let said = CellSpecs::new(&CellOptions { workload: Some("(x{1000}){1000}".to_owned()), ..Default::default() });
        let said = said.unwrap_err().to_string();
        assert!(said.starts_with("workload: ") && !said.contains('\n'), "{said}");
    }

    /// The scheduler's algorithm, step by step, over a whole tree: match each cgroup, make cells from the top down, then assign
    /// each cgroup to the nearest cell above it.
    fn simulate(specs: &CellSpecs, tree: &BTreeSet<Vec<u8>>) -> BTreeMap<Vec<u8>, CellKey> {
        let text = |path: &[u8]| format!("{CGROUP_ROOT}{}", String::from_utf8_lossy(path));
        let last = specs.specs().len() - 1;
        let mut raw = BTreeMap::new();
        for path in tree {
            if let Some(spec) = specs.specs()[..last].iter().position(|spec| spec.matcher.is_match(&text(path))) {
                raw.insert(path.clone(), spec);
            }
        }
        let ancestors = |path: &[u8]| -> Vec<Vec<u8>> {
            let slashes = path.iter().enumerate().filter(|(at, byte)| *at > 0 && **byte == b'/');
            slashes.map(|(at, _)| path[..at].to_vec()).collect()
        };
        let mut paths: Vec<_> = raw.keys().cloned().collect();
        paths.sort_by_key(|path| ancestors(path).len());
        let mut cells: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for path in paths {
            let covered = ancestors(&path).iter().any(|above| cells.get(above).is_some_and(|spec| *spec <= raw[&path]));
            if !covered {
                cells.insert(path.clone(), raw[&path]);
            }
        }
        let key = |path: &Vec<u8>| {
            let mut line = ancestors(path);
            line.push(path.clone());
            let cell = line.into_iter().rev().find(|above| cells.contains_key(above));
            cell.map_or(CellKey { spec: last, cgroup: vec![] }, |cgroup| CellKey { spec: cells[&cgroup], cgroup })
        };
        tree.iter().map(|path| (path.clone(), key(path))).collect()
    }

    const REGEXES: &[&str] = &[
        "a",
        "b",
        "c",
        "a/b",
        "b/[ac]",
        "/c$",
        "[abc]{2}$",
        "/a+/",
        "[^a]$",
        "^/sys/fs/cgroup/[ab]+/[bc]",
        "sys",
        "/",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(6000))]
        #[test]
        fn homes_are_the_schedulers(
            leaves in prop::collection::vec(prop::collection::vec("[abc]{1,2}", 1..5), 1..12),
            bytes in prop::collection::vec(any::<u8>(), 0..3),
            regexes in prop::collection::vec(prop::sample::select(REGEXES), 0..4),
        ) {
            let cells = regexes.iter().enumerate().map(|(index, regex)| format!("g{index}={regex}")).collect();
            let options = CellOptions { cells, allotment: Some("a[bc]".into()), workload: Some("[ab]".into()) };
            let specs = CellSpecs::new(&options).unwrap();
            let mut tree = BTreeSet::new();
            for leaf in &leaves {
                let mut path = Vec::new();
                for part in leaf {
                    path.push(b'/');
                    path.extend_from_slice(part.as_bytes());
                    path.extend(bytes.iter().filter(|byte| **byte != b'/'));
                    tree.insert(path.clone());
                }
            }
            for (path, home) in simulate(&specs, &tree) {
                prop_assert_eq!(specs.assign(&path), home, "{:?}", String::from_utf8_lossy(&path));
            }
        }
    }
}
