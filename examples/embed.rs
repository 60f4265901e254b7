//! Embeds scxprof: watches the host for ten seconds or until Enter is pressed, and uses the result as values.
//!
//! `sudo target/debug/examples/embed [SECONDS]`

use std::time::Duration;

use scxprof::sample::Sample;
use scxprof::session::{AnalysisOptions, Cgroups, Sink};
use scxprof::Session;

/// A sink of one's own: counts the accesses.
struct Count(u64);

impl Sink for Count {
    fn sample(&mut self, _sample: &Sample, _cgroups: &mut Cgroups) {
        self.0 += 1;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(10.0), |text| text.parse())?;
    let mut count = Count(0);
    let options = AnalysisOptions { symbols: true, ..AnalysisOptions::default() };
    let time = Duration::try_from_secs_f64(seconds)?;
    let capture = Session::builder().time(time).analysis(options).sink(&mut count);
    let stop = capture.stop_handle();
    std::thread::spawn(move || {
        if std::io::stdin().read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0) {
            stop.stop();
        }
    });
    let found = capture.run()?;
    let report = found.report()?;
    eprintln!("{} accesses; {}", count.0, report.headline);
    for (cell, group) in report.groups() {
        let names: Vec<&str> = group.threads.iter().filter_map(|thread| thread.comm.as_deref()).collect();
        eprintln!("{}: {} share {}", cell.name, names.join(", "), group.regions.first().map_or("?", |it| &it.memory));
    }
    // Of all groups, the configuration has those that this host has CPUs for; there may be none.
    match found.mitosis() {
        Ok(configuration) => println!("{configuration}"),
        Err(error) => eprintln!("{error}"),
    }
    Ok(())
}
