//! Folding: parts of a cgroup's path that differ from host to host become `*`.

use regex::Regex;
use thiserror::Error;

/// The rules without any of the user's: UUIDs (systemd writes them with `_`), ids in hexadecimal, and numbers.
const RULES: [&str; 3] = ["[0-9a-fA-F]{8}[-_](?:[0-9a-fA-F]{4}[-_]){3}[0-9a-fA-F]{12}", r"\b[0-9a-f]{12,}\b", "[0-9]+"];

/// The parts of a path that are replaced.
#[derive(Debug, Clone)]
pub struct Folds(Vec<Regex>);

/// A rule is no regular expression.
#[derive(Debug, Error)]
#[error("the regular expression \"{rule}\" is wrong: {reason}")]
pub struct FoldError {
    rule: String,
    reason: String,
}

impl Folds {
    /// These rules, in order; without any, those for UUIDs, ids in hexadecimal and numbers.
    ///
    /// # Errors
    /// [`FoldError`].
    pub fn new(rules: &[String]) -> Result<Self, FoldError> {
        let compile = |rule: &str| {
            let reason = |error: &regex::Error| crate::config::mistake(rule, error).1;
            Regex::new(rule).map_err(|error| FoldError { rule: rule.to_owned(), reason: reason(&error) })
        };
        if rules.is_empty() {
            return RULES.iter().map(|rule| compile(rule)).collect::<Result<_, _>>().map(Self);
        }
        rules.iter().map(|rule| compile(rule)).collect::<Result<_, _>>().map(Self)
    }

    /// No rules: paths stay as they are.
    #[must_use]
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// The folded path.
    #[must_use]
    pub fn fold(&self, path: &str) -> String {
        // The root's cell has no path, and a rule may match nothing.
        if path.is_empty() {
            return String::new();
        }
        let fold = |path: String, rule: &Regex| rule.replace_all(&path, "*").into_owned();
        let mut folded = self.0.iter().fold(path.to_owned(), fold);
        while folded.contains("**") {
            folded = folded.replace("**", "*");
        }
        folded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_host_to_host_is_folded() {
        let folds = Folds::new(&[]).unwrap();
        for (path, folded) in [
            ("/user.slice/user-1000.slice/session-3.scope", "/user.slice/user-*.slice/session-*.scope"),
            (
                "/kubepods.slice/kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-0123456789abcdef0123.scope",
                "/kubepods.slice/kubepods-pod*.slice/cri-containerd-*.scope",
            ),
            ("/workload.slice/workload-tw-a7.allotment.slice", "/workload.slice/workload-tw-a*.allotment.slice"),
            ("/system.slice/nginx.service", "/system.slice/nginx.service"),
            ("", ""),
        ] {
            assert_eq!(folds.fold(path), folded);
            assert_eq!(folds.fold(folded), folded, "twice is as once");
        }
        let own = Folds::new(&["tw-[^.]+".to_owned()]).unwrap();
        assert_eq!(own.fold("/a7/workload-tw-x.allotment.slice"), "/a7/workload-*.allotment.slice");
        assert_eq!(Folds::none().fold("/a7"), "/a7");
        assert!(Folds::new(&["(".to_owned()])
            .unwrap_err()
            .to_string()
            .starts_with("the regular expression \"(\" is wrong"));
    }
}
