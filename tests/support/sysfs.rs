//! Makes a fake sysfs of the text form that tests/fixtures/sysfs/README.md describes.

use std::path::Path;

use scxprof::testing::sampler::pmu::DEVICES;

/// The tree of `tests/fixtures/sysfs/<machine>.txt`; it lasts as long as what is returned.
pub fn machine(machine: &str) -> tempfile::TempDir {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sysfs").join(machine).with_extension("txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    tree(&text)
}

/// The tree of a text.
pub fn tree(text: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join(DEVICES)).unwrap();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (file, holds) = line.split_once(' ').unwrap_or_else(|| panic!("no file and value: {line}"));
        let file = match file.strip_prefix('/') {
            Some(file) => root.path().join(file),
            None => root.path().join(DEVICES).join(file),
        };
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, format!("{holds}\n")).unwrap();
    }
    root
}
