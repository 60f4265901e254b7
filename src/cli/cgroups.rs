//! The cgroups that were sampled, and the `--cell` options that would give their services a cell each.

use std::fmt::Write as _;

use crate::resolve::cgroups::display_path;
use crate::sample::printable;
use crate::session::Analysis;

/// Rows of the list.
const ROWS: usize = 10;
/// Cgroups with a smaller share of all samples are not listed.
const LISTED: f64 = 0.01;
/// Services with a smaller share get no suggestion.
const SUGGESTED: f64 = 0.05;

/// A cgroup's path from the hierarchy's root, its samples, and whether no cell but the last takes it.
type SampledCgroup = (Vec<u8>, f64, bool);

/// The cgroups with most samples, and the options that would make cells of them if these were computed to be better; empty without
/// any.
pub(super) fn text(found: &Analysis) -> String {
    let cgroups = found.sampled_cgroups();
    let mut text = list(&cgroups);
    let cells: Vec<String> = services(&cgroups).into_iter().map(cell).collect();
    if found.are_better(&cells) {
        let options: Vec<String> = cells.iter().map(|cell| option(cell)).collect();
        let _ = writeln!(text, "With a cell for each of these services more misses are avoided: {}", options.join(" "));
    }
    text
}

/// The cgroups with most samples.
fn list(cgroups: &[SampledCgroup]) -> String {
    let total: f64 = cgroups.iter().map(|it| it.1).sum();
    let mut text = String::new();
    for (path, samples, _) in cgroups.iter().filter(|it| it.1 >= total * LISTED).take(ROWS) {
        let path = printable(&display_path(path));
        let _ = writeln!(text, "cgroup {path}: {samples:.0} samples ({:.1}%)", samples / total * 100.0);
    }
    text
}

/// The services outside of cells with enough samples.
fn services(cgroups: &[SampledCgroup]) -> Vec<&str> {
    let total: f64 = cgroups.iter().map(|it| it.1).sum();
    let mut services: Vec<(&str, f64)> = Vec::new();
    for (path, samples, _) in cgroups.iter().filter(|it| it.2) {
        let Some(service) = service(path) else { continue };
        match services.iter_mut().find(|it| it.0 == service) {
            Some(known) => known.1 += samples,
            None => services.push((service, *samples)),
        }
    }
    services.into_iter().filter(|it| it.1 >= total * SUGGESTED).map(|it| it.0).collect()
}

/// The component of a path that names a service: the last that systemd calls so, else the last of all. `None` for the root and
/// for names that would not be safe to type.
fn service(path: &[u8]) -> Option<&str> {
    let path = std::str::from_utf8(path).ok()?;
    let is_service = |name: &&str| name.strip_suffix(".service").or_else(|| name.strip_suffix(".scope")).is_some();
    let name = path.rsplit('/').find(is_service).or_else(|| path.rsplit('/').next())?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@:".contains(&byte);
    (!name.is_empty() && name.bytes().all(is_plain)).then_some(name)
}

/// The argument of a `--cell` for a service.
fn cell(service: &str) -> String {
    let name = service.strip_suffix(".service").or_else(|| service.strip_suffix(".scope")).unwrap_or(service);
    format!("{name}=/{}$", regex::escape(service))
}

/// A `--cell` as one types it.
fn option(cell: &str) -> String {
    let (name, regex) = cell.split_once('=').unwrap_or((cell, ""));
    format!("--cell {name}='{regex}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_outside_of_cells_are_found_once_each() {
        let cgroups = [
            (b"/system.slice/redis@a.service".to_vec(), 50.0, true),
            (b"/system.slice/redis@a.service/io".to_vec(), 10.0, true),
            (b"/workload.slice".to_vec(), 30.0, false),
            (b"/batch".to_vec(), 12.0, true),
            (b"/it's".to_vec(), 6.0, true),
            (b"/small.service".to_vec(), 1.0, true),
            (b"/".to_vec(), 20.0, true),
        ];
        let text = list(&cgroups);
        assert!(text.starts_with("cgroup /sys/fs/cgroup/system.slice/redis@a.service: 50 samples (38.8%)\n"), "{text}");
        assert!(!text.contains("small"), "{text}");
        let options: Vec<String> = services(&cgroups).into_iter().map(|service| option(&cell(service))).collect();
        assert_eq!(options, ["--cell redis@a='/redis@a\\.service$'", "--cell batch='/batch$'"]);
        assert_eq!(list(&[]), "");
    }
}
