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
    println!("{}", found.mitosis()?);
    eprintln!("{} accesses; locality {:?}", count.0, found.report()?.locality);
    Ok(())
}
