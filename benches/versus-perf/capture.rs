//! Captures of the whole host by scxprof and by perf, until a command of given length has ended.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::recording::{self, Counts};
use crate::tools::{size, words, Bench, Ended};

/// A capture that ended.
pub struct Captured {
    pub ended: Ended,
    /// Samples, those lost, and MB written.
    pub values: Vec<(&'static str, f64)>,
    /// The perf.data; of `run` the configuration.
    pub file: PathBuf,
}

impl Captured {
    fn new(ended: Ended, counts: Counts, bytes: u64, file: PathBuf) -> Self {
        let values = vec![
            ("samples", counts.samples as f64),
            ("lost", counts.lost as f64),
            ("lost_percent", 100.0 * counts.lost as f64 / ((counts.samples + counts.lost).max(1)) as f64),
            ("mb", bytes as f64 / 1e6),
        ];
        Self { ended, values, file }
    }
}

impl Bench {
    /// The command that both run: it sleeps, then makes the stamp.
    fn sleep(&self) -> Vec<String> {
        let stamp = self.at("stamp").display().to_string();
        let seconds = self.args.seconds.to_string();
        words(&["sh", "-c", "sleep \"$1\"; : >\"$0\"", &stamp, &seconds])
    }

    fn capture(&self, argv: &[String]) -> Result<Ended> {
        self.run(argv, self.args.seconds, |task| task.stamp = Some(self.at("stamp")))
    }

    /// perf with these words, which end where `-o FILE` and the command follow; `dashes` go before the command.
    pub fn perf_record(&self, options: &[&str], dashes: bool) -> Result<Captured> {
        let file = self.clear("perf.data")?;
        let mut argv = vec![self.perf()?];
        argv.extend(words(options));
        argv.extend(words(&["-o", &file.display().to_string()]));
        argv.extend(dashes.then(|| "--".to_owned()));
        argv.extend(self.sleep());
        let ended = self.capture(&argv)?;
        Ok(Captured::new(ended, recording::count(&file)?, size(&file), file))
    }

    /// `scxprof record` with these options, to a directory.
    pub fn scxprof_record(&self, options: &[&str]) -> Result<Captured> {
        let dir = self.clear("profile")?;
        let mut argv = vec![self.scxprof()];
        argv.extend(words(&["record", "-a", "-v", "--disable-archive", "-o", &dir.display().to_string()]));
        argv.extend(words(options));
        argv.push("--".to_owned());
        argv.extend(self.sleep());
        let ended = self.capture(&argv)?;
        let file = dir.join("perf.data");
        Ok(Captured::new(ended, recording::count(&file)?, size(&dir), file))
    }

    /// `scxprof run` with these options.
    pub fn scxprof_run(&self, options: &[&str]) -> Result<Captured> {
        let file = self.clear("cells.json")?;
        let mut argv = vec![self.scxprof()];
        argv.extend(words(&["run", "-a", "-v", "--no-symbols", "-o", &file.display().to_string()]));
        argv.extend(words(options));
        argv.push("--".to_owned());
        argv.extend(self.sleep());
        let ended = self.capture(&argv)?;
        let counts = said(&ended.stderr).with_context(|| format!("{}: no counts in what it said", ended.command))?;
        let bytes = size(&file);
        Ok(Captured::new(ended, counts, bytes, file))
    }
}

/// The counts in what `scxprof run -v` says.
fn said(stderr: &str) -> Option<Counts> {
    let sampled = stderr.lines().find_map(|line| line.strip_prefix("Sampled ")?.split_once(" events, "))?.1;
    let samples = sampled.split_once(" samples")?.0.parse().ok()?;
    let lost = stderr.lines().find_map(|line| line.split_once("% of the samples were lost ("))?.1;
    Some(Counts { samples, lost: lost.split_once(" of ")?.0.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_a_run_has_the_counts() {
        let text = "note: x\nSource: faults (x)\nSampled 1.0 s: 10166 events, 9734 samples, 9734 accesses\n\
                    0.103 % of the samples were lost (10 of 9744)\n";
        assert_eq!(said(text), Some(Counts { samples: 9734, lost: 10 }));
        assert_eq!(said("Sampled nothing"), None);
    }
}
