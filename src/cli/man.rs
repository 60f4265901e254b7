//! `scxprof man`: the manual pages, from the same text as `--help`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::Failure;

/// Write the manual pages into a directory
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  scxprof man /usr/local/share/man/man1     a page for each subcommand")]
pub(super) struct ManArgs {
    /// An existing directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Writes `scxprof.1` and a page for each subcommand that `--help` lists.
pub(super) fn man(args: &ManArgs, command: clap::Command) -> Result<(), Failure> {
    clap_mangen::generate_to(command, &args.dir)
        .with_context(|| format!("cannot write manual pages in {}", args.dir.display()))
        .map_err(Failure::NoResult)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn each_subcommand_has_a_page_with_its_options() {
        let dir = tempfile::tempdir().unwrap();
        let command = super::super::Args::command();
        man(&ManArgs { dir: dir.path().to_owned() }, command.clone()).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(page("scxprof.1").contains("Exit codes:"));
        assert!(page("scxprof-run.1").contains("\\-\\-min\\-share"));
        for subcommand in command.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help") {
            let page = page(&format!("scxprof-{}.1", subcommand.get_name()));
            assert!(page.contains("Examples:"), "{}", subcommand.get_name());
        }
        assert!(!dir.path().join("scxprof-man.1").exists());
        assert!(man(&ManArgs { dir: dir.path().join("none") }, command).is_err());
    }
}
