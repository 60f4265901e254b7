//! How a layer matches the cgroups of a cell: by the beginning of their paths, or by an expression.

use regex_syntax::hir::{Hir, HirKind, Look};

use super::cell::CellMatch;
use super::cell_specs::CGROUP_ROOT;
use super::layered::{LayerMatch, MAX_PATH};

/// How scx_layered matches a cell's cgroups and those below them; `None` for all cgroups.
///
/// It matches an expression against each cgroup separately, not against those above it: an expression that ends with `$` would
/// miss those below, so `/` is allowed in its place. It fills in `CgroupRegex` only after it has attached, and takes few of them, so the
/// beginning of a path becomes `CgroupPrefix`. A piece of a path does not become `CgroupContains`: see
/// [`Placement::warnings`](super::Placement::warnings).
pub(super) fn condition(matches: &CellMatch) -> Option<LayerMatch> {
    let regex = match matches {
        CellMatch::All => return None,
        CellMatch::CgroupContains(part) => regex::escape(part),
        CellMatch::CgroupRegex(regex) => regex.clone(),
    };
    let Ok(hir) = regex_syntax::parse(&regex) else { return Some(LayerMatch::CgroupRegex(regex)) };
    if let Some(path) = beginning(&hir) {
        return Some(LayerMatch::CgroupPrefix(path));
    }
    let ends = |hir: &Hir| hir.properties().look_set().contains(Look::End);
    Some(LayerMatch::CgroupRegex(if ends(&hir) { open_end(hir).to_string() } else { regex }))
}

/// The text that an expression finds anywhere in a path, if it is only that.
pub(super) fn piece(regex: &str) -> Option<String> {
    let hir = regex_syntax::parse(regex).ok()?;
    let HirKind::Literal(literal) = hir.kind() else { return None };
    let text = std::str::from_utf8(&literal.0).ok()?;
    // scx_mitosis also finds it in the mount point. scx_layered finds it before a slash at the end too, and has none before the path.
    let root = format!("{CGROUP_ROOT}/");
    let in_root = (0..CGROUP_ROOT.len())
        .filter_map(|at| root.get(at..))
        .any(|end| end.starts_with(text) || text.starts_with(end));
    let is_path = !text.starts_with('/') && !text.ends_with('/') && !text.contains([char::REPLACEMENT_CHARACTER, '\0']);
    (!in_root && is_path && text.len() < MAX_PATH - 1).then(|| text.to_owned())
}

/// The beginning of the paths that an expression matches, if that is all that it asks for, and it is text: a whole path, or a part of one.
/// In scx_layered a path has no slash before it, and one after it.
fn beginning(hir: &Hir) -> Option<String> {
    let HirKind::Concat(parts) = hir.kind() else { return None };
    let (first, literal, is_whole) = match parts.as_slice() {
        [first, literal] => (first, literal, false),
        [first, literal, last] if *last.kind() == HirKind::Look(Look::End) => (first, literal, true),
        _ => return None,
    };
    let HirKind::Literal(literal) = literal.kind() else { return None };
    if *first.kind() != HirKind::Look(Look::Start) {
        return None;
    }
    let path = std::str::from_utf8(&literal.0).ok()?.strip_prefix(CGROUP_ROOT)?.strip_prefix('/')?;
    let is_path = !path.is_empty() && !path.ends_with('/') && path.len() < MAX_PATH - 1;
    // Bytes that are not UTF-8 became U+FFFD, which the kernel's own path does not contain.
    let is_text = !path.contains([char::REPLACEMENT_CHARACTER, '\0']);
    (is_path && is_text).then(|| format!("{path}{}", if is_whole { "/" } else { "" }))
}

/// The expression with `(?:/|$)` instead of each `$`.
fn open_end(hir: Hir) -> Hir {
    match hir.into_kind() {
        HirKind::Look(Look::End) => Hir::alternation(vec![Hir::literal(*b"/"), Hir::look(Look::End)]),
        HirKind::Concat(parts) => Hir::concat(parts.into_iter().map(open_end).collect()),
        HirKind::Alternation(parts) => Hir::alternation(parts.into_iter().map(open_end).collect()),
        HirKind::Capture(mut capture) => {
            capture.sub = Box::new(open_end(*capture.sub));
            Hir::capture(capture)
        }
        HirKind::Repetition(mut repetition) => {
            repetition.sub = Box::new(open_end(*repetition.sub));
            Hir::repetition(repetition)
        }
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(class) => Hir::class(class),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Empty => Hir::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regex(regex: &str) -> CellMatch {
        CellMatch::CgroupRegex(regex.to_owned())
    }

    #[test]
    fn the_beginning_of_a_path_needs_no_expression() {
        let prefix = |text: &str| Some(LayerMatch::CgroupPrefix(text.to_owned()));
        let path = regex::escape("/sys/fs/cgroup/a b/x.slice");
        assert_eq!(condition(&regex(&format!("^{path}$"))), prefix("a b/x.slice/"));
        assert_eq!(condition(&regex(&format!("^{path}"))), prefix("a b/x.slice"));
        // What is no text or no path, and what is not only a beginning.
        let lossy = format!("^{}$", regex::escape("/sys/fs/cgroup/x\u{fffd}"));
        let long = format!("^/sys/fs/cgroup/{}$", "x".repeat(MAX_PATH));
        let others = [
            "x+",
            "^/sys/fs/cgroup/",
            "^/sys/fs/cgroup/a/",
            "^/sys/fs/cgroup/a/$",
            "/sys/fs/cgroup/a$",
            "^/sys/fs/cgroup/a|b",
        ];
        for expression in others.into_iter().chain([lossy.as_str(), long.as_str()]) {
            assert!(matches!(condition(&regex(expression)), Some(LayerMatch::CgroupRegex(_))), "{expression}");
        }
    }

    #[test]
    fn a_piece_of_a_path_is_an_expression() {
        let expression = |text: &str| Some(LayerMatch::CgroupRegex(text.to_owned()));
        assert_eq!(condition(&CellMatch::CgroupContains("/a.".to_owned())), expression(r"/a\."));
        assert_eq!(condition(&CellMatch::CgroupContains("web".to_owned())), expression("web"));
        assert_eq!(condition(&regex(r"/db\.service$")), expression(r"(?:(?:/db\.service)(?:/|\z))"));
        assert_eq!(condition(&regex("x+")), expression("x+"));
        assert_eq!(condition(&CellMatch::All), None);
    }

    #[test]
    fn an_expression_takes_what_is_below() {
        for (given, yes, no) in [
            (
                r"/d.\.service$",
                vec!["/sys/fs/cgroup/db.service", "/sys/fs/cgroup/db.service/x/y"],
                "/sys/fs/cgroup/db.servicex",
            ),
            (r"^/sys/fs/cgroup(?:/b$)+", vec!["/sys/fs/cgroup/b", "/sys/fs/cgroup/b/c"], "/sys/fs/cgroup/bx"),
            (r"^/sys/fs/cgroup/(a|b$)", vec!["/sys/fs/cgroup/b/c", "/sys/fs/cgroup/ax"], "/sys/fs/cgroup/bx"),
        ] {
            let Some(LayerMatch::CgroupRegex(made)) = &condition(&regex(given)) else { panic!("{given}") };
            let made = regex::Regex::new(made).unwrap();
            assert!(yes.iter().all(|path| made.is_match(path)), "{made}");
            assert!(!made.is_match(no), "{made}");
        }
    }

    #[test]
    fn a_piece_is_all_of_an_expression() {
        assert_eq!(piece(r"a\.b/c"), Some("a.b/c".to_owned()));
        for expression in ["/a", "a/", "c", "/sys", "group/a", "a|b", "a+", "^a"] {
            assert_eq!(piece(expression), None, "{expression}");
        }
    }
}
